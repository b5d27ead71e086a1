"""The reports of test runners, read: JUnit's XML, `go test -json`, and the JSON of librdkafka's runner."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from tests.suites.model import Outcome, Result

DETAIL_CHARACTERS_MAX = 3_000


def name_of_node(node_id: str) -> str:
    """`file::test`, or `Class::test`, of pytest's id of a test: what its report of JUnit's kind can tell too."""
    holder, _, test = node_id.rpartition("::")
    return f"{Path(holder.rpartition('::')[2]).stem}::{test}"


def junit(report: str, *, is_whole: bool = False) -> dict[str, Result]:
    """The results in a JUnit report of pytest's, by `name_of_node`, parameters included; with `is_whole` the name has
    the module in full, where several have classes of the same name.
    """
    results: dict[str, Result] = {}
    for case in ET.fromstring(report).iter("testcase"):
        holder = case.get("classname", "")
        name = f"{holder if is_whole else holder.rpartition('.')[2]}::{case.get('name')}"
        outcome, detail = Outcome.PASSED, ""
        for child in case:
            if child.tag in {"failure", "error"}:
                outcome, detail = Outcome.FAILED, (child.text or "")[-DETAIL_CHARACTERS_MAX:]
            elif child.tag == "skipped" and outcome is Outcome.PASSED:
                outcome, detail = Outcome.SKIPPED, child.get("message", "")
        earlier = results.get(name)
        # A test whose tear-down fails has a second entry; the worse one counts.
        if earlier is None or earlier.outcome is not Outcome.FAILED:
            results[name] = Result(outcome, detail, float(case.get("time", "0")))
    return results


_GO = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}


def go_json(lines: Iterable[str]) -> dict[str, Result]:
    """The results in the output of `go tool test2json`, subtests by `Test/subtest`.

    A test that had begun and did not end, since the process died, has failed.
    """
    results: dict[str, Result] = {}
    output: dict[str, str] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            output[name] = (output.get(name, "") + event["Output"])[-DETAIL_CHARACTERS_MAX:]
        elif event["Action"] in {"run", "cont", "pause"}:
            results.setdefault(name, Result(Outcome.FAILED, "did not end"))
        elif event["Action"] in _GO:
            results[name] = Result(_GO[event["Action"]], "", float(event.get("Elapsed", 0)))
    return {
        name: result
        if result.outcome is Outcome.PASSED
        else Result(result.outcome, output.get(name, result.detail), result.seconds)
        for name, result in results.items()
    }


_LIBRDKAFKA = {
    "PASSED": Outcome.PASSED,
    "FAILED": Outcome.FAILED,
    "RUNNING": Outcome.FAILED,
    "SKIPPED": Outcome.SKIPPED,
}


def librdkafka_state(report: str, name: str) -> Outcome | None:
    """What the report of librdkafka's `test-runner` says of one test; None where it was not started."""
    try:
        tests = json.loads(report)["tests"]
    except ValueError:
        return None
    return _LIBRDKAFKA.get(tests[name]["state"]) if name in tests else None
