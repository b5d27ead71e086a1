"""`barnabas pipeline test`: what it says, as text and JSON, and its exit statuses. Spark is played by the test."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli.connection import ExitStatus
from barnabas.cli.pipeline import command
from barnabas.pipelines import case_verdicts, class_archive, connector, java, session
from barnabas.pipelines.case_comparison import Difference
from barnabas.pipelines.case_verdicts import Fault, Verdict
from barnabas.pipelines.cases import Case
from tests.unit.pipelines.pipeline_files import flights

TESTS = """\
tests:
  - {name: good, given: {}, expect: {by_hour: []}}
  - {name: bad, given: {}, expect: {by_hour: []}}
"""


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the cases that were run; those named bad fail."""
    names: list[str] = []

    def judge(_session: Any, _pipeline: Any, cases: Sequence[Case], _log: Path, told: Callable[[Verdict], None]) -> Any:
        verdicts = []
        for case in cases:
            names.append(case.name)
            faults = (
                (Fault("by_hour", "", (Difference("missing", 3, {"a": "\x1b[2J"}),)),) if case.name == "bad" else ()
            )
            verdicts.append(Verdict(case, faults, 0.25))
            told(verdicts[-1])
        return tuple(verdicts)

    @contextlib.contextmanager
    def no_session(options: session.SparkOptions) -> Iterator[None]:
        assert (options.is_short, options.notes_classes) == (True, bool(options.jars))
        yield None

    monkeypatch.setattr(case_verdicts, "judge", judge)
    monkeypatch.setattr(session, "spark_session", no_session)
    monkeypatch.setattr(java, "find_java", lambda: None)
    monkeypatch.setattr(connector, "jars_without_brokers", lambda *_: ())
    return names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "delays.test.yaml").write_text(TESTS)
    return flights(tmp_path)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["test", *map(str, arguments)])


def test_a_line_for_each_test_and_its_faults_below(path: Path, judged: list[str]) -> None:
    result = invoke(path)
    assert result.exit_code == ExitStatus.FAILED
    assert result.stdout.splitlines() == [
        "passed  good, 0.2 s",
        f"FAILED  bad ({path.with_name('delays.test.yaml')}:3), 0.2 s",
        "    by_hour:",
        '      missing (line 3): {"a": "\\u001b[2J"}',
        "2 tests in 0.5 s: 1 failed",
    ]


def test_when_all_pass_the_status_says_so(path: Path, judged: list[str]) -> None:
    result = invoke(path, "--only", "GOOD")
    assert (result.exit_code, judged) == (0, ["good"])
    assert result.stdout.endswith("1 test in 0.2 s: all passed\n")


def test_a_document_for_each_line_and_junit_beside_it(path: Path, tmp_path: Path, judged: list[str]) -> None:
    result = invoke(path, "--json", "--junit", tmp_path / "out.xml")
    good, bad, summary = map(json.loads, result.stdout.splitlines())
    assert (good["name"], good["passed"], good["faults"]) == ("good", True, [])
    assert bad["faults"][0]["differences"][0] == {"kind": "missing", "line": 3, "row": {"a": "\x1b[2J"}, "columns": {}}
    assert summary == {"event": "summary", "passed": 1, "failed": 1, "seconds": 0.5}
    assert (tmp_path / "out.xml").exists()
    assert invoke(path, "--junit", tmp_path / "none" / "out.xml").exit_code == ExitStatus.FAILED


def test_classes_are_stored_last_where_the_connector_is_there(
    path: Path, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "jars_without_brokers", lambda *_: (Path("x.jar"),))
    monkeypatch.setattr(class_archive, "archive_of", lambda _java, jars: jars)
    monkeypatch.setattr(
        class_archive, "make_archive", lambda archive, classes, _say: print("stored", *archive, classes.name)
    )
    assert invoke(path).stdout.splitlines()[-2:] == ["2 tests in 0.5 s: 1 failed", "stored x.jar classes"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--only", "nothing"), ExitStatus.FAILED, "there are: good, bad"),
        (("--tests", "none.yaml"), ExitStatus.MISSING, "none.yaml does not exist"),
    ],
)
def test_what_cannot_be_run_is_said_before_spark_starts(
    path: Path, judged: list[str], arguments: tuple[str, ...], status: ExitStatus, message: str
) -> None:
    result = invoke(path, *arguments)
    assert result.exit_code == status
    assert message in result.stderr
    assert judged == []
