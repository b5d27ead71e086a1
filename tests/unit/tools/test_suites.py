"""What the runner of other people's suites (`tests/suites`) makes of their reports, and what fails it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suites import projects
from tests.suites.catalogue import SUITES, UNOBTAINABLE
from tests.suites.clusters import _of_broker
from tests.suites.librdkafka import broker_tests
from tests.suites.model import (
    Outcome,
    Result,
    SuiteOutcome,
    SuiteUnusable,
    complete,
    reason_to_exclude,
    stale_exclusions,
    wrong_with,
)
from tests.suites.page import PAGE, page, stored, with_outcomes
from tests.suites.processes import run_bounded
from tests.suites.reports import go_json, junit, librdkafka_state, name_of_node
from tests.support.waiting import wait_until

_PASSED, _FAILED, _SKIPPED = Result(Outcome.PASSED), Result(Outcome.FAILED, "boom"), Result(Outcome.SKIPPED)


def _outcome(ours: dict[str, Result], kafkas: dict[str, Result]) -> SuiteOutcome:
    return SuiteOutcome("a-suite", "1.0", "somewhere", ours, kafkas, {"odd*": "it is odd"}, 1)


def test_a_test_that_apache_kafka_passes_and_we_do_not_fails_the_run_whatever_became_of_it() -> None:
    kafkas = dict.fromkeys(["a", "b", "c", "d"], _PASSED)
    ours = complete(list(kafkas), {"a": _PASSED, "b": _FAILED, "c": _SKIPPED})
    wrong = wrong_with(_outcome(ours, kafkas))
    assert [line.partition("\n")[0] for line in wrong] == [
        "a-suite: b: failed here, passed on Apache Kafka",
        "a-suite: c: skipped here, passed on Apache Kafka",
        "a-suite: d: not run here, passed on Apache Kafka",
    ]
    assert wrong[0].endswith("boom")


def test_what_apache_kafka_fails_too_fails_no_run_unless_it_passes_nothing() -> None:
    assert wrong_with(_outcome({"a": _FAILED, "b": _PASSED}, {"a": _FAILED, "b": _PASSED})) == []
    assert wrong_with(_outcome({"a": _FAILED}, {"a": _FAILED})) == [
        "a-suite: no test passed on Apache Kafka: nothing was compared"
    ]


def test_what_apache_kafka_skips_or_was_not_asked_for_hides_no_failure_of_ours() -> None:
    kafkas = complete(list("abcdefg"), {"a": _PASSED, "b": _SKIPPED, "c": _SKIPPED, "d": _SKIPPED})
    ours = complete(list("abcdefg"), {"a": _PASSED, "b": _FAILED, "d": _SKIPPED, "e": _FAILED, "f": _PASSED})
    assert [line.partition("\n")[0] for line in wrong_with(_outcome(ours, kafkas))] == [
        "a-suite: b: failed here, skipped on Apache Kafka",
        "a-suite: c: not run here, skipped on Apache Kafka",
        "a-suite: e: failed here, and not run on Apache Kafka",
        "a-suite: g: not run here, and not run on Apache Kafka",
    ]
    ours["e"] = _SKIPPED
    assert len(wrong_with(_outcome(ours, kafkas))) == 3, "a subtest that skips itself is none of another cluster"


def test_where_apache_kafka_cannot_be_beside_us_what_we_fail_fails_the_run() -> None:
    def alone(ours: dict[str, Result]) -> SuiteOutcome:
        return dataclasses.replace(_outcome(complete(["a", "b", "c"], ours), {}), ours_alone="it lacks them")

    assert wrong_with(alone({"a": _PASSED, "b": _SKIPPED, "c": _PASSED})) == []
    assert [line.partition("\n")[0] for line in wrong_with(alone({"a": _PASSED, "b": _FAILED}))] == [
        "a-suite: b: failed here",
        "a-suite: c: not run here",
    ]
    assert wrong_with(alone(dict.fromkeys("abc", _SKIPPED))) == ["a-suite: no test passed"]
    suite = next(each for each in SUITES.values() if each.ours_alone)
    stored_one = with_outcomes({}, [dataclasses.replace(alone({"a": _PASSED, "b": _FAILED}), name=suite.name)])
    assert stored_one[suite.name]["not passed"] == {"b": ["failed"], "c": ["not run"]}
    shown = page(stored_one)
    assert f"| {suite.name} 1.0 | 3 | 1 | not run | 1 |" in shown
    assert f"On ours alone: {suite.ours_alone}.\n\n| not passed | here |\n|---|---|\n| `b` | failed |\n" in shown


def test_what_differs_between_brokers_is_given_by_their_ids() -> None:
    overrides = {"listeners": {1: "PLAINTEXT://a:{port},SSL://a:1", 2: "PLAINTEXT://a:{port},SSL://a:2"}, "x": 3}
    assert _of_broker(overrides, 2, 9) == {"listeners": "PLAINTEXT://a:9,SSL://a:2", "x": 3, "broker.rack": "RACK2"}


def test_exclusions_are_found_by_pattern_and_those_of_no_test_are_told() -> None:
    excluded = {"sasl::*": "no users", "gone": "was here"}
    assert reason_to_exclude("sasl::test[PLAIN]", excluded) == "no users"
    assert reason_to_exclude("ssl::test", excluded) is None
    assert stale_exclusions(["sasl::test[PLAIN]", "ssl::test"], excluded) == ["gone"]


def test_report_of_pytest_keeps_the_worse_of_a_test_and_its_tear_down() -> None:
    report = """<testsuites><testsuite>
      <testcase classname="test.integration.test_a" name="test_one[x]" time="1.5"/>
      <testcase classname="test.integration.test_a" name="test_one[x]"><error>trace</error></testcase>
      <testcase classname="test.integration.test_a.TestB" name="test_two"><skipped message="no SASL"/></testcase>
    </testsuite></testsuites>"""
    assert junit(report) == {
        "test_a::test_one[x]": Result(Outcome.FAILED, "trace", 0.0),
        "TestB::test_two": Result(Outcome.SKIPPED, "no SASL", 0.0),
    }
    assert list(junit(report, is_whole=True)) == [
        "test.integration.test_a::test_one[x]",
        "test.integration.test_a.TestB::test_two",
    ]
    assert name_of_node("test/integration/test_a.py::test_one[x]") == "test_a::test_one[x]"
    assert name_of_node("test/integration/test_a.py::TestB::test_two") == "TestB::test_two"


def test_a_go_test_that_has_begun_and_does_not_end_has_failed() -> None:
    events = [
        {"Action": "run", "Test": "TestA"},
        {"Action": "output", "Test": "TestA", "Output": "fine\n"},
        {"Action": "pass", "Test": "TestA", "Elapsed": 0.5},
        {"Action": "run", "Test": "TestB"},
        {"Action": "output", "Test": "TestB", "Output": "panic\n"},
        {"Action": "run", "Test": "TestC/sub"},
        {"Action": "fail", "Test": "TestC/sub"},
        {"Action": "fail"},
    ]
    results = go_json([*map(json.dumps, events), "not JSON"])
    assert results == {
        "TestA": Result(Outcome.PASSED, "", 0.5),
        "TestB": Result(Outcome.FAILED, "panic\n"),
        "TestC/sub": Result(Outcome.FAILED, ""),
    }


def test_report_of_librdkafka_tells_what_was_not_started_apart() -> None:
    states = {"0001_a": "PASSED", "0002_b": "RUNNING", "0003_c": "SKIPPED", "0004_d": "not started"}
    report = json.dumps({"tests": {name: {"state": state} for name, state in states.items()}})
    assert [librdkafka_state(report, name) for name in [*states, "0005_e"]] == [
        Outcome.PASSED,
        Outcome.FAILED,
        Outcome.SKIPPED,
        None,
        None,
    ]
    assert librdkafka_state('{ "tests": {', "0001_a") is None


def test_tests_of_librdkafka_are_those_of_the_scenario_that_want_a_broker() -> None:
    source = """
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          /* heavy */
          _THRES(.ucpu = 100.0, .rss = 900.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0011_produce_batch,
          0,
          _THRES(.ucpu = 40.0)),
    _TEST(0045_topic_remove,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
#if WITH_SOCKEM
    _TEST(0049_consume_conn_close, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
#endif
    _TEST(0103_transactions,
          0,
          TEST_BRKVER(0, 11, 0, 0),
          .scenario = "default,ak23"),

    /* Manual tests */
    _TEST(8000_idle, TEST_F_MANUAL),

    {NULL}};
"""
    assert broker_tests(source, "default") == [
        "0001_multiobj",
        "0011_produce_batch",
        "0049_consume_conn_close",
        "0103_transactions",
    ]
    assert broker_tests(source, "noautocreate") == ["0045_topic_remove"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to see its child in")
def test_a_suite_is_ended_when_its_time_is_up_with_what_it_had_started(tmp_path: Path) -> None:
    program = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    log = tmp_path / "log"
    command = [sys.executable, "-S", "-c", program]
    for seconds_max in (1.5, 6.0, 24.0, 96.0):  # a busy machine may take longer to start it
        ended = run_bounded(command, tmp_path, log, seconds_max=seconds_max, environment={"PATH": "/usr/bin:/bin"})
        assert ended is None
        if log.read_text():
            break
    stat = Path(f"/proc/{int(log.read_text())}/stat")
    # Nobody may have waited for it yet; of itself it would be there for longer.
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z", "it is gone", 50.0)


def test_the_page_is_that_of_the_stored_results() -> None:
    assert PAGE.read_text("utf-8") == page(stored())


def test_results_that_are_not_of_this_run_stay() -> None:
    first = next(iter(SUITES.values())).name
    kept = {first: {"version": "0", "tests": 1}}
    results = with_outcomes(kept, [_outcome({"a": _PASSED}, {"a": _PASSED})])
    assert results == kept
    new = SuiteOutcome(first, "2", "there", {"a": _SKIPPED, "b": _PASSED}, {"a": _SKIPPED, "b": _PASSED}, {}, 3)
    assert with_outcomes(kept, [new])[first] == {
        "version": "2",
        "source": "there",
        "tests": 2,
        "ours": 1,
        "kafkas": 1,
        "excluded": 3,
        "passed at last": {"ours": [], "kafkas": []},
        "not passed": {"a": ["skipped", "skipped"]},
    }


def test_every_suite_and_every_reason_is_on_the_page() -> None:
    text = page({})
    for suite in SUITES.values():
        assert f"## {suite.name}" in text
        assert all(f"`{pattern}`: {reason}." in text for pattern, reason in suite.excluded.items())
    assert all(f"**{name}**" in text for name in UNOBTAINABLE)


def test_what_passed_only_when_it_was_run_once_more_is_named() -> None:
    second = Result(Outcome.PASSED, is_second=True)
    outcome = _outcome({"a": second, "b": _PASSED}, {"a": _PASSED, "b": second})
    assert (outcome.passed_second(outcome.ours), outcome.passed_second(outcome.kafkas)) == (["a"], ["b"])
    assert wrong_with(outcome) == []
    name, suite = next(iter(SUITES.items()))
    results = {suite.name: with_outcomes({}, [dataclasses.replace(outcome, name=suite.name)])[suite.name]}
    shown = page(results)
    assert "Passed here when run once more: `a`." in shown, name
    assert "Passed on Apache Kafka when run once more: `b`." in shown


def test_what_fails_a_run_of_a_projects_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    project = dataclasses.replace(projects.PROJECTS["faststream"], fails={"tests.a::slow": "a second is not enough"})
    monkeypatch.setattr(projects, "PROJECTS", {"faststream": project})
    slow = {"tests.a::slow": _FAILED}
    assert projects.wrong_with("faststream", {"tests.a::one": _PASSED, **slow}) == []
    assert projects.wrong_with("faststream", {"tests.a::one": _PASSED, "tests.a::slow": _PASSED}) == [
        "tests.a::slow is said to fail, and does not"
    ]
    assert projects.wrong_with("faststream", {"tests.a::one": _FAILED, **slow}) == [
        "tests.a::one failed: boom",
        "no test passed",
    ]
    assert projects.counted({"a": _PASSED, "b": _PASSED, "c": _SKIPPED}) == {"passed": 2, "skipped": 1}


def test_a_checkout_at_another_commit_is_not_run(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    with pytest.raises(SuiteUnusable, match="have it at f5713c5b2 of https"):
        projects.run_project("faststream", tmp_path)


@pytest.fixture
def run_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Result]]:
    """Runs the tests of a project whose runs of pytest have these results, one after the other; what came of it."""
    project = projects.PROJECTS["faststream"]
    monkeypatch.setattr(projects, "called", lambda *_: project.commit)
    monkeypatch.setattr(projects, "_environment", lambda *_: Path("python"))
    cluster = contextlib.nullcontext(SimpleNamespace(bootstrap_servers="a:1"))
    monkeypatch.setattr(projects, "KafkaCluster", lambda **_: cluster)

    def run(*results: dict[str, Result]) -> dict[str, Result]:
        left = list(results)
        monkeypatch.setattr(projects, "_run", lambda *_: dict(left.pop(0)))
        found = projects.run_project("faststream", tmp_path)
        assert not left
        return found

    return run


def test_each_test_of_a_project_that_fails_is_tried_once_more_and_no_other_counts(
    run_by: Callable[..., dict[str, Result]],
) -> None:
    first = {"m.A::one[x::y]": _FAILED, "m.A::one_more": _FAILED, "m.B::skips": _FAILED, "m.B::two": _PASSED}
    # `-k one` runs one_more too.
    again_one = {"m.A::one[x::y]": _PASSED, "m.A::one_more": _PASSED}
    found = run_by(first, again_one, {"m.A::one_more": _FAILED}, {"m.B::skips": _SKIPPED})
    assert found == {**first, "m.A::one[x::y]": _PASSED}
    found = run_by(first, again_one, {"m.A::one_more": _PASSED}, {})
    assert found == {**first, "m.A::one[x::y]": _PASSED, "m.A::one_more": _PASSED}


def test_many_failures_of_a_project_are_not_tried_again(run_by: Callable[..., dict[str, Result]]) -> None:
    many = {f"m::test_{number}": _FAILED for number in range(21)}
    assert run_by(many) == many


def test_a_run_of_a_projects_tests_that_came_to_no_end_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> int:
        (tmp_path / "report.xml").write_text("<testsuites/>")
        (tmp_path / "pytest.log").write_text("it was told to stop")
        return 2

    monkeypatch.setattr(projects, "run_bounded", interrupted)
    with pytest.raises(SuiteUnusable, match=r"(?s)not come to its end \(2\).*told to stop"):
        projects._run(Path("python"), "plugin", tmp_path, tmp_path, "a:1", ["tests"], 1.0)


def test_each_project_has_a_plugin_of_its_own_and_as_many_clusters_as_it_wants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = dataclasses.replace(projects.PROJECTS["quixstreams"], clusters=2)
    left, given = ["a:1", "b:2"], []
    monkeypatch.setattr(projects, "called", lambda *_: project.commit)
    monkeypatch.setattr(projects, "_environment", lambda *_: Path("python"))

    def cluster(**_: object) -> contextlib.AbstractContextManager[SimpleNamespace]:
        return contextlib.nullcontext(SimpleNamespace(bootstrap_servers=left.pop(0)))

    def run(_python: Path, plugin: str, _checkout: Path, _work: Path, servers: str, *_: object) -> dict[str, Result]:
        given.append((plugin, servers))
        return {"m::one": _PASSED}

    monkeypatch.setattr(projects, "KafkaCluster", cluster)
    monkeypatch.setattr(projects, "_run", run)
    projects.run_project("quixstreams", tmp_path)
    assert given == [("barnabas_quixstreams", "a:1;b:2")]
    plugins = Path(projects.__file__).parent / "plugins"
    assert {path.stem for path in plugins.glob("*.py")} == {f"barnabas_{name}" for name in projects.PROJECTS}


def test_the_first_container_of_quix_streams_is_one_cluster_and_all_others_are_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BARNABAS_SUITE_BOOTSTRAP", "a:1;b:2")
    plugin = Path(projects.__file__).parent / "plugins" / "barnabas_quixstreams.py"
    names = runpy.run_path(str(plugin))
    conftest, helper = SimpleNamespace(), SimpleNamespace(ContainerHelper=type("ContainerHelper", (), {}))
    names["replace"](conftest, helper)
    with conftest.Network() as network:
        made = [helper.ContainerHelper.create_kafka_container(network) for _ in range(3)]
    assert [outside for _, _, outside in made] == ["a:1", "b:2", "b:2"]
    assert made[0][0].get_logs() == [b"Kafka Server started"]
