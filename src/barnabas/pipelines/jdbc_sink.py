"""Tables of databases as sinks. Spark's tasks write a batch into a table of its own, side by side, over connections of
their own; then one transaction moves its rows to where they belong, together with the number of the batch.

So a batch is in the table once, and whole, whatever ends a run. The number is a row of `barnabas_batches`, beside the
table: who writes a batch changes that row from the number before, first of all; of two runs the second finds it
changed, and ends. The statements are those that every database with SQL has.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.definition import Delivery, JdbcSink, Pipeline, PipelineError
from barnabas.pipelines.file_secrets import resolved, without_login
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
            if types[name].startswith(("array", "map", "struct", "variant")):
                message = f"a table of a database cannot hold {name} ({types[name]}) of {self._sink.from_view}"
                raise self._pipeline.error(
                    f"{message}: take it apart, or make it text by to_json", self._sink.from_line
                )

    def recover(self, frame: DataFrame, state: StateDirectory, state_id: str) -> None:
        """Makes the table where it is missing, and finds out which batches it has."""
        session, view = frame.sparkSession, self._sink.from_view
        self._state, self._writer = state, writer_name(self._pipeline.name, state_id, view)
        mark = hashlib.sha256(f"{self._sink.target} {self._writer}".encode()).hexdigest()[:12]
        self._stage = f"{STAGE}{mark}_{secrets.token_hex(4)}"
        with self._told("used"), self._connected(session) as connection:
            if self._sink.delivery is Delivery.EXACTLY_ONCE and not connection.getMetaData().supportsTransactions():
                raise self._pipeline.error(
                    f"{self._place} has no transactions, so a batch that is cut short may be in the table in part, or "
                    "twice: say `delivery: at_least_once` if that will do",
                    self._sink.line,
                )
            for left in _tables(connection, f"{STAGE}{mark}_"):
                _execute(connection, f"DROP TABLE {left}")
            self._make_tables(session, connection, frame, state)
            marks = self._marks(connection)
            self._settle(marks, state)
            if self._writer not in marks:
                _execute(connection, f"INSERT INTO {MARKS} VALUES (?, ?, -1, '')", self._sink.table, self._writer)  # noqa: S608
            self._columns = self._fitting(session, table_columns(frame, self._sink))

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
        with self._told("written"):
            self._write(kept, self._stage, "overwrite")
        self._fingerprint = "" if self._state is None else self._state.fingerprint(sink.from_view, batch_id)
        self._held = frame.sparkSession, batch_id
        return Written(is_computed=True, is_held=True)

    def commit(self, batch_id: int, offsets: Offsets) -> None:  # noqa: ARG002
        """Moves the rows to the table, and the number of the batch on, in one transaction."""
        if self._held is None or self._held[1] != batch_id:
            return
        session = self._held[0]
        with self._told("written"), self._connected(session) as connection:
            is_exact = self._sink.delivery is Delivery.EXACTLY_ONCE
            connection.setAutoCommit(not is_exact)
            self._attempted = batch_id
            try:
                if is_exact:
                    self._move_on(connection, batch_id)
                self._refuse_doubled(connection)
                for statement in self._statements(_quote_of(connection)):
                    _execute(connection, statement)
                if not is_exact:
                    self._move_on(connection, batch_id)
                else:
                    connection.commit()
            except Exception:
                if is_exact:
                    with contextlib.suppress(Exception):
                        connection.rollback()
                raise
            self._next, self._held = batch_id + 1, None
            connection.setAutoCommit(True)
            _execute(connection, f"DROP TABLE {self._stage}")

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

    def _statements(self, quote: str) -> list[str]:
        """What moves the rows of the stage, of which each key has one, to the table."""

        def quoted(name: str) -> str:
            return f"{quote}{name.replace(quote, quote * 2) if quote else name}{quote}"

        stage_names = ", ".join(map(quoted, self._columns))
        table_names = ", ".join(map(quoted, self._columns.values()))
        table, stage = self._sink.table, self._stage
        unless = f" WHERE {quoted(_GOES)} = 0" if self._sink.rows.delete is not None else ""
        adding = f"INSERT INTO {table} ({table_names}) SELECT {stage_names} FROM {stage}{unless}"  # noqa: S608
        if not self._sink.key:
            return [adding]
        wanted = {name.lower() for name in self._sink.key}
        keys = [(quoted(name), quoted(there)) for name, there in self._columns.items() if name.lower() in wanted]
        same = " AND ".join(
            f"({stage}.{name} = {table}.{there} OR ({stage}.{name} IS NULL AND {table}.{there} IS NULL))"
            for name, there in keys
        )
        return [f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {stage} WHERE {same})", adding]  # noqa: S608

    def _make_tables(self, session: SparkSession, connection: Any, frame: DataFrame, state: StateDirectory) -> None:
        """Makes the table of the numbers, and the target, where they are missing."""
        if not _tables(connection, MARKS):
            columns = "target VARCHAR(200) NOT NULL, writer VARCHAR(300) NOT NULL, batch BIGINT, records VARCHAR(64)"
            _execute(connection, f"CREATE TABLE {MARKS} ({columns}, PRIMARY KEY (target, writer))")
        if self._is_there(session):
            return
        if state.batches_done(self._sink.from_view).finished >= 0:
            raise self._pipeline.error(
                f"{self._place} is gone, and the state says that batches were written: restore it, or remove "
                f"{self._pipeline.state_directory} too to compute everything again",
                self._sink.line,
            )
        _execute(connection, f"DELETE FROM {MARKS} WHERE target = ?", self._sink.table)  # noqa: S608
        names = [quoted_name(name) for name in table_columns(frame, self._sink)]
        # Of a stream Spark makes no empty table.
        empty = session.createDataFrame([], frame.select(*names).schema)
        self._write(empty, self._sink.table, "append")

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
        where = "WHERE target = ? AND writer = ? AND batch = ?"
        changed = _execute(
            connection,
            f"UPDATE {MARKS} SET batch = ?, records = ? {where}",  # noqa: S608
            batch_id,
            self._fingerprint,
            self._sink.table,
            self._writer,
            self._next - 1,
        )
        if changed != 1:
            raise self._pipeline.error(
                f"{self._place} is written by another run too: stop that one; a state, or a copy of it, has one run",
                self._sink.line,
            )

    def _refuse_doubled(self, connection: Any) -> None:
        """Raises PipelineError where a task was done twice, since nobody heard of its end: the batch is done again."""
        quote = _quote_of(connection)
        number = f"{quote}{_NUMBER}{quote}"
        (row,) = _rows(connection, f"SELECT COUNT(*), COUNT(DISTINCT {number}) FROM {self._stage}", 2)  # noqa: S608
        if row[0] != row[1]:
            raise PipelineError(f"a task has written its rows of {self._place} twice; the batch is done again")

    def _marks(self, connection: Any) -> dict[str, tuple[int, str]]:
        found = _rows(connection, f"SELECT writer, batch, records FROM {MARKS} WHERE target = ?", 3, self._sink.table)  # noqa: S608
        return {str(writer): (-1 if batch is None else int(batch), records or "") for writer, batch, records in found}

    def _fitting(self, session: SparkSession, columns: Sequence[str]) -> dict[str, str]:
        """The table's columns by ours: it may have them in another case. Raises PipelineError where one is missing."""
        there = {name.lower(): name for name in self._read(session).columns}
        missing = [name for name in columns if name.lower() not in there]
        if missing:
            message = f"{self._place} has no column {missing[0]}, which {self._sink.from_view} has"
            raise self._pipeline.error(
                f"{message}: add it there by ALTER TABLE, or name another table", self._sink.line
            )
        return {name: there[name.lower()] for name in columns}

    def _is_there(self, session: SparkSession) -> bool:
        from pyspark.errors import PySparkException

        try:
            self._read(session)
        except PySparkException:
            raise
        except Exception:  # noqa: BLE001  # Java's SQLException: each database has words of its own
            return False
        return True

    def _read(self, session: SparkSession) -> DataFrame:
        return session.read.format("jdbc").options(**self._options(), dbtable=self._sink.table).load()

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
        """What a driver says, which may have the whole address in it, without secrets."""
        options = self._options()
        shown = text.replace(options["url"], without_login(self._sink.url))
        return shown.replace(options["password"], "***") if options.get("password") else shown


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


def _tables(connection: Any, prefix: str) -> list[str]:
    """The tables whose names begin so, in whatever case the database has them."""
    found: dict[str, None] = {}
    for pattern in (f"{prefix}%", f"{prefix.upper()}%"):
        tables = connection.getMetaData().getTables(connection.getCatalog(), None, pattern, None)
        try:
            while tables.next():
                name = str(tables.getString("TABLE_NAME"))
                if name.lower().startswith(prefix.lower()):
                    found[name] = None
        finally:
            tables.close()
    return list(found)


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
