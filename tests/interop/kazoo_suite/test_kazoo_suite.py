"""kazoo's own test suite passes against the embedded coordinator, except what exceptions.txt lists."""

from __future__ import annotations

import pytest

from tests.interop.kazoo_suite.runner import (
    Outcome,
    TestResult,
    disagreements,
    parse_report,
    read_exceptions,
    run_suite,
)

LEAST_TESTS = 480


@pytest.mark.night(
    "two minutes with three processes, and no commit says that it has found anything since it was written"
)
@pytest.mark.timeout(900)
def test_kazoo_suite_passes_except_what_is_listed() -> None:
    results = run_suite("embedded")
    wrong = disagreements(results, read_exceptions())
    assert not wrong, "\n".join(wrong)
    assert sum(result.outcome is Outcome.PASSED for result in results.values()) >= LEAST_TESTS - len(read_exceptions())


def test_a_run_is_refused_when_it_differs_from_the_list_either_way() -> None:
    passed, failed = TestResult(Outcome.PASSED, ""), TestResult(Outcome.FAILED, "boom")
    results = {"m.C.passes": passed, "m.C.fails": failed, "m.C.skips": TestResult(Outcome.SKIPPED, "")}
    assert disagreements(results, ["m.C.fails", "m.C.skips"]) == []
    assert [line.partition(":")[0] for line in disagreements(results, [])] == ["m.C.fails", "m.C.skips"]
    assert disagreements(results, ["m.C.passes", "m.C.fails", "m.C.skips", "m.C.gone"]) == [
        "m.C.passes: listed as an exception, and passes",
        "m.C.gone: listed as an exception, and does not exist",
    ]


def test_report_keeps_the_worse_of_a_test_and_its_tear_down() -> None:
    report = """<testsuites><testsuite>
      <testcase classname="kazoo.tests.test_a.TestA" name="test_one"/>
      <testcase classname="kazoo.tests.test_a.TestA" name="test_one"><error message="tear-down">trace</error></testcase>
      <testcase classname="test_a.TestA" name="test_two"><skipped message="no SASL"/></testcase>
    </testsuite></testsuites>"""
    assert parse_report(report) == {
        "test_a.TestA.test_one": TestResult(Outcome.FAILED, "trace"),
        "test_a.TestA.test_two": TestResult(Outcome.SKIPPED, "no SASL"),
    }
