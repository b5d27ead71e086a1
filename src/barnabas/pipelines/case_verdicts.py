"""Whether a test of a pipeline passes: its run, and each thing that is not as it was expected, in lines for people."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from barnabas.pipelines.case_comparison import (
    DIFFERENCES_MAX,
    Difference,
    differences,
    jsonable,
    letter_differences,
)
from barnabas.pipelines.case_run import CaseOutput, SinkOutput, WrittenRow, run_case
from barnabas.pipelines.cases import VALUE_COLUMN, Case, Expectation
from barnabas.pipelines.definition import KEY_COLUMN, Pipeline, TopicSink
from barnabas.pipelines.yaml_positions import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEXT: Any = "string"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one part of the output (`place`), and the rows that differ."""

    place: str
    message: str
    differences: tuple[Difference, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people, the first of each fault without indentation."""
        yield f"{self.place}: {self.message}" if self.message else f"{self.place}:"
        for difference in self.differences[:DIFFERENCES_MAX]:
            yield f"  {difference}"
        if len(self.differences) > DIFFERENCES_MAX:
            yield f"  and {len(self.differences) - DIFFERENCES_MAX} more"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        each = [
            {
                "kind": difference.kind,
                "line": difference.line or None,
                "row": jsonable(difference.row),
                "columns": {
                    name: {"expected": jsonable(wanted), "found": jsonable(found)}
                    for name, wanted, found in difference.columns
                },
            }
            for difference in self.differences
        ]
        return {"place": self.place, "message": self.message, "differences": each}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a test ended; without faults it has passed."""

    case: Case
    faults: tuple[Fault, ...]
    seconds: float

    @property
    def has_passed(self) -> bool:
        """Whether all is as expected."""
        return not self.faults

    def lines(self) -> Iterator[str]:
        """What is wrong, for people."""
        for fault in self.faults:
            yield from fault.lines()

    def to_json(self) -> dict[str, Any]:
        """The line for programs, with `"event": "test"`."""
        return {
            "event": "test",
            "name": self.case.name,
            "line": self.case.line or None,
            "passed": self.has_passed,
            "seconds": round(self.seconds, 3),
            "faults": [fault.to_json() for fault in self.faults],
        }


def judge(
    session: SparkSession, pipeline: Pipeline, cases: Sequence[Case], log_path: Path, told: Callable[[Verdict], None]
) -> tuple[Verdict, ...]:
    """Runs tests one after the other in the same Spark, and tells of each when it has ended.

    Raises PipelineError for a pipeline that Spark refuses whatever the records.
    """
    verdicts = []
    for case in cases:
        began = time.monotonic()
        with new_directory() as directory:
            views = [each.view for each in case.expected]
            output = run_case(session, pipeline, case, Path(directory), log_path, views)
        verdict = Verdict(case, tuple(faults_of(pipeline, case, output)), time.monotonic() - began)
        told(verdict)
        verdicts.append(verdict)
    return tuple(verdicts)


def new_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory for the files of one run, which is removed with all that Spark may still be writing there."""
    return tempfile.TemporaryDirectory(prefix="barnabas-test-", ignore_cleanup_errors=True)


def faults_of(pipeline: Pipeline, case: Case, output: CaseOutput) -> Iterator[Fault]:
    """Everything that is not as the test expects. What it does not speak of is not looked at, but for records that do
    not fit their schema: these must be expected.
    """
    if case.error is not None:
        if output.error is None:
            yield Fault("error", f'the run ended well, and not with "{case.error}"')
        elif case.error not in output.error:
            yield Fault("error", f'the run ended with "{output.error}", and not with "{case.error}"')
        return
    if output.error is not None:
        yield Fault("error", output.error)
        return
    for expectation in case.expected:
        for sink_output in _outputs(pipeline, expectation, output):
            yield from _faults_of_rows(expectation, sink_output)
    told = letter_differences(case.letters, output.letters)
    if told:
        yield Fault("dead letters", "", tuple(told))
    for name, count in case.counts.items():
        if output.counts[name] != count:
            yield Fault("counts", f"{name} is {output.counts[name]}, not {count}")
    if output.skipped and "records_refused" not in case.counts:
        message = f"{output.skipped} do not fit their schema, and are left out (`on_error: skip`)"
        yield Fault("records", f"{message}: if that is meant, expect it by counts: {{records_refused: ...}}")


def _outputs(pipeline: Pipeline, expectation: Expectation, output: CaseOutput) -> Sequence[SinkOutput]:
    """Of all sinks of the view those that the expectation is about, by their place in the pipeline."""
    of_view = output.sinks[expectation.view]
    if not expectation.sinks:
        return of_view
    written = [sink for sink in pipeline.sinks if sink.from_view == expectation.view]
    return [found for sink, found in zip(written, of_view, strict=False) if sink in expectation.sinks]


def _faults_of_rows(expectation: Expectation, output: SinkOutput) -> Iterator[Fault]:
    is_alone = len(expectation.sinks) < 2 or " " in expectation.label
    kind = output.sink.target.partition(" ")[0]
    place = expectation.label if is_alone else f"{expectation.label}, {kind}"
    types = dict(output.types)
    if isinstance(output.sink, TopicSink):
        types |= {KEY_COLUMN: _TEXT, VALUE_COLUMN: _TEXT}
    for row in expectation.rows:
        for name in row.columns:
            if name not in types:
                hint = nearest(name, types) or f"; it has: {', '.join(output.types)}"
                at = f"line {row.line}: " if row.line else ""
                yield Fault(place, f'{at}there is no column "{name}"{hint}')
                return
    asked = {name for row in expectation.rows for name in row.columns}
    is_of_record = isinstance(output.sink, TopicSink) and bool(asked & {KEY_COLUMN, VALUE_COLUMN})
    found = [{**row.columns, **(_record(row) if is_of_record else {})} for row in output.result]
    names = {name.lower(): name for name in output.types}
    key = [names[column.lower()] for column in output.sink.key]
    told = differences(expectation.rows, found, types, key)
    if told:
        count = f"{len(expectation.rows)} expected, {len(found)} found"
        yield Fault(place, count, tuple(told))


def _record(row: WrittenRow) -> dict[str, object]:
    return {KEY_COLUMN: row.key, VALUE_COLUMN: row.value}


def write_junit(path: Path, name: str, verdicts: Sequence[Verdict]) -> None:
    """Writes the verdicts as JUnit's XML, which CI systems show. Raises OSError."""
    failed = [verdict for verdict in verdicts if not verdict.has_passed]
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(verdicts)),
        failures=str(len(failed)),
        errors="0",
        time=f"{sum(verdict.seconds for verdict in verdicts):.3f}",
    )
    for verdict in verdicts:
        case = ET.SubElement(
            suite, "testcase", classname=name, name=_xml_text(verdict.case.name), time=f"{verdict.seconds:.3f}"
        )
        if not verdict.has_passed:
            lines = [_xml_text(line) for line in verdict.lines()]
            ET.SubElement(case, "failure", message=lines[0]).text = "\n".join(lines)
    suites = ET.Element("testsuites")
    suites.append(suite)
    written = path.with_name(f".{path.name}.being-written")
    ET.ElementTree(suites).write(written, encoding="utf-8", xml_declaration=True)
    shutil.move(written, path)


def _xml_text(text: str) -> str:
    """Without the characters that XML cannot have in any way."""
    return "".join(each if each in "\t\n" or each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
