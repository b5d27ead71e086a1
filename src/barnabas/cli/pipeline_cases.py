"""`barnabas pipeline test`: runs the tests beside a pipeline, tells each as it ends, and what differs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from barnabas.cli.connection import CommandError
from barnabas.cli.output import counted, print_json, printable, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.pipelines.case_verdicts import Verdict
    from barnabas.pipelines.cases import Case
    from barnabas.pipelines.definition import Pipeline


def run_tests(path: Path, tests: Path | None, only: str | None, junit: Path | None, as_json: bool) -> bool:
    """Runs them, all in one Spark; whether all have passed. Raises PipelineError, CommandError."""
    from barnabas.pipelines.case_verdicts import judge
    from barnabas.pipelines.cases import path_of_tests
    from barnabas.pipelines.jvm import LOG_NAME
    from barnabas.pipelines.session import SparkOptions, spark_session

    where = tests if tests is not None else path_of_tests(path)
    pipeline, cases = _read(path, where, only)

    def told(verdict: Verdict) -> None:
        if as_json:
            print_json(verdict.to_json())
            return
        outcome = "passed" if verdict.has_passed else "FAILED"
        line = f":{verdict.case.line}" if verdict.case.line and not verdict.has_passed else ""
        at = f" ({where}{line})" if line else ""
        click.echo(f"{outcome}  {printable(verdict.case.name)}{at}, {verdict.seconds:.1f} s")
        for each in verdict.lines():
            click.echo(f"    {printable(each)}")

    from barnabas.pipelines.class_archive import CLASSES_NAME, archive_of, make_archive
    from barnabas.pipelines.connector import jars_without_brokers
    from barnabas.pipelines.file_secrets import spark_settings_of_file
    from barnabas.pipelines.java import find_java

    # The connector is not needed, but with it the classes of Spark are those of a run, which are stored once.
    java = find_java()
    jars = jars_without_brokers([pipeline], java, say)
    with tempfile.TemporaryDirectory(prefix="barnabas-test-", ignore_cleanup_errors=True) as logs:
        options = SparkOptions(
            java,
            jars,
            Path(logs),
            pipeline.name,
            is_short=True,
            notes_classes=bool(jars),
            settings=spark_settings_of_file(pipeline),
        )
        say("starting Spark ...")
        with spark_session(options) as session:
            verdicts = judge(session, pipeline, cases, Path(logs) / LOG_NAME, told)
        _tell_sum(pipeline, verdicts, junit, as_json)
        if jars:
            make_archive(archive_of(java, jars), Path(logs) / CLASSES_NAME, say)
    return all(verdict.has_passed for verdict in verdicts)


def _tell_sum(pipeline: Pipeline, verdicts: Sequence[Verdict], junit: Path | None, as_json: bool) -> None:
    """Writes the file for CI systems, and says how many have passed. Raises CommandError."""
    from barnabas.pipelines.case_verdicts import write_junit

    failed = sum(not verdict.has_passed for verdict in verdicts)
    if junit is not None:
        try:
            write_junit(junit, pipeline.name, verdicts)
        except OSError as error:
            raise CommandError(f"{junit} cannot be written: {error.strerror or error}") from error
    seconds = sum(verdict.seconds for verdict in verdicts)
    if as_json:
        summary = {"event": "summary", "passed": len(verdicts) - failed, "failed": failed, "seconds": round(seconds, 3)}
        print_json(summary)
    else:
        said = f"{counted(len(verdicts), 'test')} in {seconds:.1f} s: "
        click.echo(said + (f"{failed} failed" if failed else "all passed"))


def _read(path: Path, tests: Path, only: str | None) -> tuple[Pipeline, tuple[Case, ...]]:
    from barnabas.pipelines.cases import read_cases
    from barnabas.pipelines.python_functions import load_functions
    from barnabas.pipelines.reading import read_pipeline
    from barnabas.pipelines.spark_extra import require_spark_extra

    require_spark_extra()
    pipeline = read_pipeline(path)
    cases = read_cases(pipeline, tests)
    load_functions(pipeline)
    if only is not None:
        chosen = tuple(case for case in cases if only.lower() in case.name.lower())
        if not chosen:
            names = ", ".join(case.name for case in cases)
            raise CommandError(f'no test in {tests} has "{only}" in its name; there are: {names}')
        return pipeline, chosen
    return pipeline, cases
