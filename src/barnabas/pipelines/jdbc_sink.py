"""Tables of databases as sinks. Spark's tasks write a batch into a table of its own, side by side, over connections of
their own; then one transaction moves its rows to where they belong, together with the number of the batch.

So a batch is in the table once, and whole, whatever ends a run. The number is a row of `barnabas_batches`, beside the
table: who writes a batch changes that row from the number before, first of all; of two runs the second finds it
changed, and ends. The statements are those that every database with SQL has (`jdbc_statements`).
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.definition import Delivery, JdbcSink, Pipeline, PipelineError
from barnabas.pipelines.file_secrets import hidden, resolved, without_login
from barnabas.pipelines.jdbc_statements import delete_statements, is_unfit, patterns_query, quoted_by
from barnabas.pipelines.jdbc_types import create_statement, has_types_of_its_own, whole_number_type
from barnabas.pipelines.lake_marks import TableMarks, refuse_other_records, settle, writer_name
from barnabas.pipelines.lake_rows import newest_of_keys, refuse_missing_columns, table_columns, without_order
from barnabas.pipelines.parquet_table import TableError
from barnabas.pipelines.sink import Offsets, SinkWriter, Written
from barnabas.pipelines.spark_schema import quoted_name
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARKS: Final = "barnabas_batches"
STAGE: Final = "barnabas_stage_"
_NUMBER: Final = "barnabas_row"
_GOES: Final = "barnabas_goes"
_REASON_CHARACTERS_MAX: Final = 300
_OF_TABLE: Final = "(target = ? OR LOWER(target) IN (?, ?))"
_WRITTEN_BY: Final = "holds rows that another state has written"


class JdbcWriter(SinkWriter):
    """Writes batches into one table of a database."""

    def __init__(self, pipeline: Pipeline, sink: JdbcSink) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self._stage = ""
        self._writer = ""
        self._next = 0
        self._fingerprint = ""
        self._state: StateDirectory | None = None
        self._columns: dict[str, str] = {}
        self._targets: tuple[str, ...] = ()
        self._has_row_values = False
        self._attempted = -1
        self._held: tuple[SparkSession, int] | None = None

    @property
    def knows_order(self) -> bool:
        """Of several rows of a key the newest counts."""
        return True

    def check_rows(self, session: SparkSession, frame: DataFrame) -> None:  # noqa: ARG002
        """Sees that a database can have the columns, and that those that the sink names are there."""
        refuse_missing_columns(self._pipeline, self._sink, frame)
        types = dict(frame.dtypes)
        for name in table_columns(frame, self._sink):
            if is_unfit(name) or name.lower() in {_NUMBER, _GOES}:
                message = f"a table of a database cannot have a column {name!r}, as {self._sink.from_view} has"
                raise self._pipeline.error(f"{message}: give it another name in a step", self._sink.from_line)
            if types[name].startswith(("array", "map", "struct", "variant")):
                message = f"a table of a database cannot hold {name} ({types[name]}) of {self._sink.from_view}"
                raise self._pipeline.error(
                    f"{message}: take it apart, or make it text by to_json", self._sink.from_line
                )

    def recover(self, frame: DataFrame, state: StateDirectory, state_id: str) -> None:
        """Makes the table where it is missing, and finds out which batches it has."""
        session, view = frame.sparkSession, self._sink.from_view
        self._state, self._writer = state, writer_name(self._pipeline.name, state_id, state.name_of(view))
        mark = hashlib.sha256(f"{self._sink.target} {self._writer}".encode()).hexdigest()[:12]
        self._stage = f"{STAGE}{mark}_"
        with self._told("used"), self._connected(session) as connection:
            if self._sink.delivery is Delivery.EXACTLY_ONCE and not connection.getMetaData().supportsTransactions():
                raise self._pipeline.error(
                    f"{self._place} has no transactions, so a batch that is cut short may be in the table in part, or "
                    "twice: say `delivery: at_least_once` if that will do",
                    self._sink.line,
                )
            for left in _tables(connection, self._stage):
                _execute(connection, f"DROP TABLE {left}")
            self._targets = _names_of(connection, self._sink.table)
            there = self._make_tables(session, connection, frame, state)
            marks = self._marks(connection)
            self._settle(marks, state)
            if self._writer not in marks:
                _execute(connection, f"INSERT INTO {MARKS} VALUES (?, ?, -1, '')", self._sink.table, self._writer)  # noqa: S608
            self._columns = self._fitting(there, table_columns(frame, self._sink))
            self._has_row_values = _has_row_values(connection)

    def write(self, frame: DataFrame, batch_id: int) -> Written:
        """Writes the rows of the batch into a table of their own, unless the target has them."""
        if batch_id < self._next or self._is_done(frame.sparkSession, batch_id):
            return Written(is_computed=False, is_held=False)
        from pyspark.sql import functions as F  # noqa: N812

        sink = self._sink
        rows = newest_of_keys(frame, sink) if sink.key else without_order(frame)
        names = {name.lower(): name for name in rows.columns}
        delete = names.get((sink.rows.delete or "").lower())
        more = [] if delete is None else [F.coalesce(F.col(quoted_name(delete)).cast("int"), F.lit(0)).alias(_GOES)]
        kept = rows.select(*(quoted_name(names[name.lower()]) for name in self._columns), *more)
        kept = kept.withColumn(_NUMBER, F.monotonically_increasing_id())
        # One of its own for each attempt: a task of a former one that goes on, unheard, has nowhere to write.
        self._stage = f"{self._stage.rpartition('_')[0]}_{secrets.token_hex(4)}"
        with self._told("written"):
            if has_types_of_its_own(sink.url):
                with self._connected(frame.sparkSession) as connection:
                    self._create(connection, self._stage, kept)
                self._write(kept, self._stage, "append")
            else:
                self._write(kept, self._stage, "error")
        self._fingerprint = "" if self._state is None else self._state.fingerprint(sink.from_view, batch_id)
        self._held = frame.sparkSession, batch_id
        return Written(is_computed=True, is_held=True)

    def commit(self, batch_id: int, offsets: Offsets) -> None:  # noqa: ARG002
        """Moves the rows to the table, and the number of the batch on, in one transaction."""
        if self._held is None or self._held[1] != batch_id:
            return
        session = self._held[0]
        with self._told("written"), self._connected(session) as connection:
            self._attempted = batch_id
            if self._sink.delivery is Delivery.EXACTLY_ONCE:
                self._commit_at_once(connection, batch_id)
            else:
                self._refuse_other_writers(connection)
                self._refuse_doubled(connection)
                self._move_rows(connection)
                self._move_on(connection, batch_id)
            self._next, self._held = batch_id + 1, None
            # What cannot be removed now is removed by the next run; the batch is there.
            with contextlib.suppress(Exception):
                _execute(connection, f"DROP TABLE {self._stage}")

    def _commit_at_once(self, connection: Any, batch_id: int) -> None:
        connection.setAutoCommit(False)
        try:
            # All rows of the table's numbers are locked, so that of two states that begin together one sees the other.
            self._of_table(connection, f"UPDATE {MARKS} SET batch = batch")  # noqa: S608
            self._move_on(connection, batch_id)
            self._refuse_other_writers(connection)
            self._move_rows(connection)
            # Behind the rows: what a task that goes on has added since would be counted too.
            self._refuse_doubled(connection)
            connection.commit()
        except Exception:
            with contextlib.suppress(Exception):
                connection.rollback()
            raise
        connection.setAutoCommit(True)

    # Inside.

    def _is_done(self, session: SparkSession, batch_id: int) -> bool:
        """Whether a former attempt of this run has committed the batch, and did not hear of it."""
        if self._attempted != batch_id:
            return False
        with self._told("read"), self._connected(session) as connection:
            found = self._marks(connection).get(self._writer)
        if found != (batch_id, self._fingerprint):
            return False
        self._next = batch_id + 1
        return True

    def _move_rows(self, connection: Any) -> None:
        """Moves the rows of the stage, of which each key has one, to the table."""
        quote, table, stage = _quote_of(connection), self._sink.table, self._stage
        statements = []
        if self._sink.key:
            wanted = {name.lower() for name in self._sink.key}
            keys = [
                (quoted_by(name, quote), quoted_by(there, quote))
                for name, there in self._columns.items()
                if name.lower() in wanted
            ]
            found = _rows(connection, patterns_query(stage, [name for name, _ in keys]), len(keys))
            patterns = [tuple(bool(int(each or 0)) for each in row) for row in found]
            statements = delete_statements(table, stage, keys, patterns, has_row_values=self._has_row_values)
        stage_names = ", ".join(quoted_by(name, quote) for name in self._columns)
        table_names = ", ".join(quoted_by(name, quote) for name in self._columns.values())
        unless = f" WHERE {quoted_by(_GOES, quote)} = 0" if self._sink.rows.delete is not None else ""
        adding = f"INSERT INTO {table} ({table_names}) SELECT {stage_names} FROM {stage}{unless}"  # noqa: S608
        for statement in (*statements, adding):
            _execute(connection, statement)

    def _make_tables(
        self, session: SparkSession, connection: Any, frame: DataFrame, state: StateDirectory
    ) -> list[str]:
        """Makes the table of the numbers, and the target, where they are missing. Returns the target's columns."""
        if _columns_of(connection, MARKS) is None:
            number = whole_number_type(self._sink.url)
            columns = f"target VARCHAR(200) NOT NULL, writer VARCHAR(300) NOT NULL, batch {number}, records VARCHAR(64)"
            _execute(connection, f"CREATE TABLE {MARKS} ({columns}, PRIMARY KEY (target, writer))")
        found = _columns_of(connection, self._sink.table)
        if found is not None:
            return found
        if state.batches_done(self._sink.from_view).finished >= 0:
            raise self._pipeline.error(
                f"{self._place} is gone, and the state says that batches were written: restore it, or remove "
                f"{self._pipeline.state_directory} too to compute everything again",
                self._sink.line,
            )
        self._of_table(connection, f"DELETE FROM {MARKS}")  # noqa: S608
        names = [quoted_name(name) for name in table_columns(frame, self._sink)]
        # Of a stream Spark makes no empty table. Columns may be null, whatever the query says of them today.
        schema = frame.select(*names).schema
        for field in schema.fields:
            field.nullable = True
        if has_types_of_its_own(self._sink.url):
            self._create(connection, self._sink.table, session.createDataFrame([], schema))
        else:
            self._write(session.createDataFrame([], schema), self._sink.table, "error")
        return _columns_of(connection, self._sink.table) or []

    def _settle(self, marks: dict[str, tuple[int, str]], state: StateDirectory) -> None:
        done = state.batches_done(self._sink.from_view)
        told = TableMarks(self._sink.table, {writer: batch for writer, (batch, _) in marks.items() if batch >= 0})
        try:
            self._next = settle(None, told, self._writer, done)
            batch, records = marks.get(self._writer, (-1, ""))
            if batch >= 0:
                refuse_other_records(records, state.fingerprint(self._sink.from_view, batch), batch)
        except TableError as error:
            raise self._pipeline.error(f"{self._place} {error}", self._sink.line) from error

    def _move_on(self, connection: Any, batch_id: int) -> None:
        """Has the row of the numbers go from the batch before to this one. Raises PipelineError where it is not there,
        since another run has changed it.
        """
        changed = self._of_table(
            connection,
            f"UPDATE {MARKS} SET batch = ?, records = ?",  # noqa: S608
            batch_id,
            self._fingerprint,
            and_so=(("writer = ?", self._writer), ("batch = ?", self._next - 1)),
        )
        if changed != 1:
            raise self._pipeline.error(
                f"{self._place} is written by another run too: stop that one; a state, or a copy of it, has one run",
                self._sink.line,
            )

    def _refuse_other_writers(self, connection: Any) -> None:
        """Raises PipelineError where another state has a batch in the table: one that began when this one did."""
        strangers = sorted(
            each for each, (batch, _) in self._marks(connection).items() if each != self._writer and batch >= 0
        )
        if strangers:
            raise self._pipeline.error(
                f"{self._place} {_WRITTEN_BY} ({strangers[0]}): give one of them another table", self._sink.line
            )

    def _of_table(self, connection: Any, sql: str, *values: object, and_so: Sequence[tuple[str, object]] = ()) -> int:
        """Runs a statement on the rows of the numbers that are the table's; how many it has changed."""
        where = " AND ".join([_OF_TABLE, *(condition for condition, _ in and_so)])
        given = (*values, *self._targets, *(value for _, value in and_so))
        return _execute(connection, f"{sql} WHERE {where}", *given)

    def _refuse_doubled(self, connection: Any) -> None:
        """Raises PipelineError where a task was done twice, since nobody heard of its end: the batch is done again."""
        quote = _quote_of(connection)
        number = f"{quote}{_NUMBER}{quote}"
        (row,) = _rows(connection, f"SELECT COUNT(*), COUNT(DISTINCT {number}) FROM {self._stage}", 2)  # noqa: S608
        if row[0] != row[1]:
            raise PipelineError(f"a task has written its rows of {self._place} twice; the batch is done again")

    def _marks(self, connection: Any) -> dict[str, tuple[int, str]]:
        asked = f"SELECT writer, batch, records FROM {MARKS} WHERE {_OF_TABLE}"  # noqa: S608
        found = _rows(connection, asked, 3, *self._targets)
        return {str(writer): (-1 if batch is None else int(batch), records or "") for writer, batch, records in found}

    def _fitting(self, found: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
        """The table's columns by ours: it may have them in another case. Raises PipelineError where one is missing."""
        there = {**{name.lower(): name for name in found}, **{name: name for name in found}}
        fitting = {name: there.get(name, there.get(name.lower(), "")) for name in columns}
        missing = [name for name, of_table in fitting.items() if not of_table]
        if missing:
            message = f"{self._place} has no column {missing[0]}, which {self._sink.from_view} has"
            raise self._pipeline.error(
                f"{message}: add it there by ALTER TABLE, or name another table", self._sink.line
            )
        return fitting

    def _create(self, connection: Any, table: str, frame: DataFrame) -> None:
        """Makes a table for rows like those of the frame, where Spark's types lose something."""
        try:
            statement = create_statement(table, frame.dtypes, _quote_of(connection), self._sink.key)
        except ValueError as error:
            raise self._pipeline.error(f"{self._place} cannot be made: {error}", self._sink.line) from None
        _execute(connection, statement)

    def _write(self, frame: DataFrame, table: str, mode: str) -> None:
        options = {**self._options(), "dbtable": table, "numPartitions": str(self._sink.connections)}
        frame.write.format("jdbc").options(**options).mode(mode).save()

    def _options(self) -> dict[str, str]:
        given = {"url": self._sink.url, "user": self._sink.user, "password": self._sink.password}
        given["driver"] = self._sink.driver
        return {name: resolved(value, self._pipeline.path, self._sink.line) for name, value in given.items() if value}

    @contextlib.contextmanager
    def _connected(self, session: SparkSession) -> Iterator[Any]:
        """A connection from Spark's driver, which has the jar."""
        jvm = session._jvm  # noqa: SLF001
        options = self._options()
        properties = jvm.java.util.Properties()
        for name in ("user", "password"):
            if name in options:
                properties.setProperty(name, options[name])
        if "driver" in options:
            jvm.java.lang.Class.forName(options["driver"])
        connection = jvm.java.sql.DriverManager.getConnection(options["url"], properties)
        try:
            yield connection
        finally:
            with contextlib.suppress(Exception):
                connection.close()

    @property
    def _place(self) -> str:
        return f"the table {self._sink.table} of {without_login(self._sink.url)}"

    @contextlib.contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """Has Java's errors told in one line."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JJavaError, PySparkException) as error:
            reason = self._hidden(_reason(error))
            message = f"{self._place} cannot be {done}: {reason[:_REASON_CHARACTERS_MAX]}"
            if "No suitable driver" in reason or "ClassNotFoundException" in reason:
                message += "; name the driver's jar under `jars`, group:artifact:version"
            raise self._pipeline.error(message, self._sink.line) from error

    def _hidden(self, text: str) -> str:
        """What a driver says, which may have the address in it, or parts of it, without secrets."""
        shown = text.replace(self._options()["url"], without_login(self._sink.url))
        return hidden(shown, f"{self._sink.url} {self._sink.password}", self._pipeline.path, self._sink.line)


def _reason(error: Any) -> str:
    """What the database says, which is the innermost cause."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return str(error)
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())


def _quote_of(connection: Any) -> str:
    return str(connection.getMetaData().getIdentifierQuoteString()).strip()


def _names_of(connection: Any, table: str) -> tuple[str, str, str]:
    """How MARKS may call the table: as the file does, and in small letters, with the connection's schema or without."""
    schema, folded = _schema_of(connection), table.lower()
    other = folded.removeprefix(f"{schema}.") if "." in folded else f"{schema}.{folded}"
    return table, folded, other if schema else folded


def _schema_of(connection: Any) -> str:
    """The schema in which names without one are looked for, in small letters; empty where there are none."""
    try:
        return str(connection.getSchema() or "").lower()
    except Exception:  # noqa: BLE001  # old drivers do not have it
        return ""


def _tables(connection: Any, prefix: str) -> list[str]:
    """The tables whose names begin so, in whatever case the database has them, where the connection finds them."""
    schema, _, stem = prefix.lower().rpartition(".")
    schema = schema or _schema_of(connection)
    found: dict[str, None] = {}
    for pattern in (f"{stem}%", f"{stem.upper()}%", f"{prefix.rpartition('.')[2]}%"):
        tables = connection.getMetaData().getTables(connection.getCatalog(), None, pattern, None)
        try:
            while tables.next():
                name, of = (str(tables.getString(each) or "") for each in ("TABLE_NAME", "TABLE_SCHEM"))
                if name.lower().startswith(stem) and (not of or not schema or of.lower() == schema.rpartition(".")[2]):
                    found[name] = None
        finally:
            tables.close()
    return list(found)


def _columns_of(connection: Any, table: str) -> list[str] | None:
    """The names of the table's columns; None where there is no such table. Raises what hinders to read one that is."""
    from py4j.protocol import Py4JJavaError

    statement = connection.createStatement()
    try:
        result = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0")  # noqa: S608
        told = result.getMetaData()
        return [str(told.getColumnLabel(number + 1)) for number in range(told.getColumnCount())]
    except Py4JJavaError:
        # Each database has words of its own for a table that is missing.
        name = table.rpartition(".")[2].lower()
        if any(found.lower() == name for found in _tables(connection, table)):
            raise
        return None
    finally:
        statement.close()


def _has_row_values(connection: Any) -> bool:
    """Whether the database knows `(a, b) IN (SELECT ...)`."""
    from py4j.protocol import Py4JJavaError

    within = f"SELECT target, writer FROM {MARKS} WHERE 1 = 0"  # noqa: S608
    try:
        _rows(connection, f"SELECT target FROM {MARKS} WHERE (target, writer) IN ({within})", 1)  # noqa: S608
    except Py4JJavaError:
        return False
    return True


def _execute(connection: Any, sql: str, *values: object) -> int:
    """Runs a statement; the rows that it has changed."""
    statement = connection.prepareStatement(sql)
    try:
        _bind(statement, values)
        statement.execute()
        return int(statement.getUpdateCount())
    finally:
        statement.close()


def _rows(connection: Any, sql: str, columns: int, *values: object) -> list[list[str | None]]:
    statement = connection.prepareStatement(sql)
    try:
        _bind(statement, values)
        result = statement.executeQuery()
        found: list[list[str | None]] = []
        while result.next():
            found.append([result.getString(number + 1) for number in range(columns)])
        return found
    finally:
        statement.close()


def _bind(statement: Any, values: Sequence[object]) -> None:
    for number, value in enumerate(values, 1):
        if isinstance(value, int):
            statement.setLong(number, value)
        else:
            statement.setString(number, str(value))
