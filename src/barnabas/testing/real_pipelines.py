"""Pipelines in tests of Python: rows in, rows out, on Spark and without a cluster, in one session for all tests.

with PipelineTester() as tester:
    ran = tester.run("delays.yaml", {"flights": [{"carrier": "UA", "delay": 5}]})
    ran.assert_rows("by_day", [{"carrier": "UA", "flights": 1}])
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from barnabas.pipelines.case_comparison import typed
from barnabas.pipelines.case_run import CaseOutput, SinkOutput, run_case
from barnabas.pipelines.case_verdicts import faults_of, judge, new_directory
from barnabas.pipelines.cases import (
    Case,
    Expectation,
    ExpectedRow,
    GivenRecord,
    RecordMaker,
    expectation_of,
    path_of_tests,
    read_cases,
)
from barnabas.pipelines.connector import jars_without_brokers
from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.file_secrets import spark_settings_of_file
from barnabas.pipelines.java import find_java
from barnabas.pipelines.jvm import LOG_NAME
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.session import SparkOptions, spark_session
from barnabas.pipelines.spark_extra import require_spark_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Sequence[Mapping[str, object]]
Batch = Mapping[str, Rows]


class PipelineTester:
    """Runs pipelines over rows; Spark is started by the first that is run, and ends with the block or `close()`.

    A process has one Spark at a time: do not make two, nor one beside a session of your own.
    """

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._session: SparkSession | None = None
        self._jars: tuple[Path, ...] = ()
        self._log_path = Path()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends Spark."""
        self._session = None
        self._open.close()

    def run(
        self,
        pipeline: str | os.PathLike[str],
        given: Batch,
        then: Iterable[Batch] = (),
        *,
        views: Sequence[str] = (),
    ) -> PipelineOutput:
        """Runs the pipeline of a file over `given`, by source the rows of the first batch, and each batch of `then`.

        A row has columns of the schema, or `_value` (text or bytes) in their place; and may have `_key`, `_partition`,
        `_offset` and `_timestamp`. `views` are steps that no sink writes, whose rows are wanted. Raises PipelineError
        for a pipeline or rows that are refused, and when the run ends by an error.
        """
        path = Path(pipeline)
        require_spark_extra()
        made = read_pipeline(path)
        wanted = tuple(expectation_of(made, name, made.error).view for name in views)
        case = Case("run", _batches(made, (given, *then)))
        session = self._started(made)
        with new_directory() as directory:
            output = run_case(session, made, case, Path(directory), self._log_path, wanted)
        if output.error is not None:
            raise PipelineError(output.error, path=path)
        return PipelineOutput(made, case, output)

    def check(
        self,
        pipeline: str | os.PathLike[str],
        tests: str | os.PathLike[str] | None = None,
        *,
        only: str | None = None,
    ) -> None:
        """Runs the tests beside a pipeline's file, as `barnabas pipeline test` does; `only` those with that in their
        name. Raises AssertionError with all that differs.
        """
        path = Path(pipeline)
        require_spark_extra()
        made = read_pipeline(path)
        where = path_of_tests(path) if tests is None else Path(tests)
        cases = [case for case in read_cases(made, where) if only is None or only.lower() in case.name.lower()]
        if not cases:
            raise PipelineError(f'no test has "{only}" in its name', path=where)
        verdicts = judge(self._started(made), made, cases, self._log_path, lambda _: None)
        failed = [verdict for verdict in verdicts if not verdict.has_passed]
        lines = [
            line
            for verdict in failed
            for line in (
                f"{where}:{verdict.case.line}: {verdict.case.name}",
                *(f"  {each}" for each in verdict.lines()),
            )
        ]
        if lines:
            raise AssertionError("\n".join([f"{len(failed)} of {len(verdicts)} tests failed", *lines]))

    def _started(self, pipeline: Pipeline) -> SparkSession:
        if self._session is None:
            logs = tempfile.TemporaryDirectory(prefix="barnabas-test-", ignore_cleanup_errors=True)
            directory = Path(self._open.enter_context(logs))
            java = find_java()
            self._jars = jars_without_brokers([pipeline], java, lambda _: None)
            options = SparkOptions(
                java, self._jars, directory, "tests", is_short=True, settings=spark_settings_of_file(pipeline)
            )
            self._session = self._open.enter_context(spark_session(options))
            self._log_path = directory / LOG_NAME
        elif not set(jars_without_brokers([pipeline], find_java(), lambda _: None)) <= set(self._jars):
            raise PipelineError(f"{pipeline.path} needs jars that this Spark was started without: a tester of its own")
        return self._session


class PipelineOutput:
    """What a run has written. A name is a step, a source, or one sink: `topic NAME`, `parquet DIRECTORY`."""

    def __init__(self, pipeline: Pipeline, case: Case, output: CaseOutput) -> None:
        self._pipeline = pipeline
        self._case = case
        self._output = output

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The result: of a sink with a key the newest row of each, in Python's types, times in UTC."""
        output = self._sink(name)
        return [_typed(row.columns, output) for row in output.result]

    def batches(self, name: str) -> list[list[dict[str, Any]]]:
        """All that was written, batch by batch, also rows that a later batch has written anew."""
        output = self._sink(name)
        count = max((row.batch for row in output.rows), default=-1) + 1
        return [[_typed(row.columns, output) for row in output.rows if row.batch == n] for n in range(count)]

    def records(self, name: str) -> list[tuple[str | None, str]]:
        """Key and value of each record of a topic, as they are written."""
        return [(row.key, row.value) for row in self._sink(name).rows if row.value is not None]

    @property
    def dead_letters(self) -> list[dict[str, Any]]:
        """Letters: source, reason, key and value as text, topic, partition and offset of the record."""
        return [dict(letter) for letter in self._output.letters]

    @property
    def counts(self) -> dict[str, int]:
        """`records_refused` and the others of `barnabas pipeline status --json` for rows that are in no result."""
        return dict(self._output.counts)

    def assert_rows(self, name: str, expected: Rows, *, dead_letters: Rows | None = None) -> None:
        """Sees that the result has these rows, in any order, as the tests in YAML do: columns that a row does not name
        are not looked at. Of `dead_letters` too, if given. Raises AssertionError with each row that differs.
        """
        about = expectation_of(self._pipeline, name, self._pipeline.error)
        rows = tuple(ExpectedRow(row) for row in expected)
        letters = self._output.letters if dead_letters is None else dead_letters
        case = Case(
            "run",
            self._case.batches,
            expected=(Expectation(about.label, about.view, about.sinks, rows),),
            letters=tuple(ExpectedRow(letter) for letter in letters),
            counts={"records_refused": self._output.counts["records_refused"]},
        )
        self._known(about)
        lines = [line for fault in faults_of(self._pipeline, case, self._output) for line in fault.lines()]
        if lines:
            raise AssertionError("\n".join(lines))

    def _known(self, about: Expectation) -> tuple[SinkOutput, ...]:
        found = self._output.sinks.get(about.view)
        if found is None:
            raise self._pipeline.error(f'no sink writes "{about.view}": ask for it by run(..., views=["{about.view}"])')
        return found

    def _sink(self, name: str) -> SinkOutput:
        about = expectation_of(self._pipeline, name, self._pipeline.error)
        found = self._known(about)
        if not about.sinks:
            return found[0]
        written = [sink for sink in self._pipeline.sinks if sink.from_view == about.view]
        return found[written.index(about.sinks[0])]


def _typed(columns: Mapping[str, object], output: SinkOutput) -> dict[str, Any]:
    return {name: typed(columns.get(name), kind) for name, kind in output.types.items()}


def _batches(pipeline: Pipeline, batches: Iterable[Batch]) -> tuple[tuple[GivenRecord, ...], ...]:
    maker = RecordMaker(pipeline)
    made: list[tuple[GivenRecord, ...]] = []
    for number, batch in enumerate(batches):
        records: list[GivenRecord] = []
        for name, rows in batch.items():
            source = maker.source(name, number == 0, pipeline.error)
            records += [maker.record(source, row, pipeline.error) for row in rows]
        made.append(tuple(records))
    return tuple(made)
