"""The page of the docs with the results of the last run that was written: `python -m tests.suites.page`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.suites.catalogue import SUITES, UNOBTAINABLE
from tests.suites.model import Suite, SuiteOutcome, reason_to_exclude

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE / "results.json"
PAGE = _HERE.parents[1] / "docs" / "test-suites.md"

_HEAD = """# What others wrote to test brokers

Suites of clients' authors, unchanged, each on fresh broker processes of ours and, in the same run and configured
alike, on as many of Apache Kafka 3.9.1: `make test-suites`, every night. A test that passes on Apache Kafka and not
here fails the run, as does one that fails here and is skipped there, or was not run. What fails is run once more,
alone, on the same cluster, and is named where it passes then; what a suite skips by itself does not count as passed.
Tests that want no broker are left out where the suite tells them apart. Where Apache Kafka 3.9.1 with ZooKeeper lacks
what a suite is about, it is run on ours alone, and what fails fails the run.

The sources come from the registries at fixed versions, by their ordinary clients, and are unpacked below `.cache`;
nothing of them is in this repository. `python -m tests.suites.run --write` writes this page and
`tests/suites/results.json`, which has the results of the last run that was kept.
"""


def stored() -> dict[str, Any]:
    """What the last written run gave, by suite."""
    return dict(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.exists() else {}


def with_outcomes(results: Mapping[str, Any], outcomes: Iterable[SuiteOutcome]) -> dict[str, Any]:
    """`results` with those of suites that were run now, in the order of the catalogue."""
    new = dict(results)
    for outcome in outcomes:
        new[outcome.name] = {
            "version": outcome.version,
            "source": outcome.source,
            "tests": len(outcome.ours),
            "ours": outcome.passed(outcome.ours),
            "kafkas": None if outcome.ours_alone else outcome.passed(outcome.kafkas),
            "excluded": outcome.excluded_tests,
            "passed at last": {
                "ours": outcome.passed_second(outcome.ours),
                "kafkas": outcome.passed_second(outcome.kafkas),
            },
            "not passed": {
                name: values
                for name in sorted(outcome.ours)
                if set(values := [each[name].outcome.value for each in (outcome.ours, outcome.kafkas) if each])
                != {"passed"}
            },
        }
    order = [suite.name for suite in SUITES.values()]
    return {name: new[name] for name in order if name in new}


def page(results: Mapping[str, Any]) -> str:
    """The page, in Markdown."""
    lines = [_HEAD, "| suite | tests run | passed here | passed on Apache Kafka | excluded |", "|---|---|---|---|---|"]
    for name, suite in results.items():
        kafkas = "not run" if suite["kafkas"] is None else suite["kafkas"]
        counts = [suite["tests"], suite["ours"], kafkas, suite["excluded"]]
        lines.append(f"| {name} {suite['version']} | {' | '.join(str(count) for count in counts)} |")
    for suite in SUITES.values():
        lines += _section(suite, results.get(suite.name))
    lines += ["", "## Suites that are not here", ""]
    lines += [f"- **{name}**: {reason}." for name, reason in UNOBTAINABLE.items()]
    return "\n".join(lines) + "\n"


def _section(suite: Suite, result: Mapping[str, Any] | None) -> list[str]:
    lines = ["", f"## {suite.name}", "", f"From {suite.source}."]
    if suite.ours_alone:
        lines += ["", f"On ours alone: {suite.ours_alone}."]
    if result is None:
        lines += ["", "No results are kept of it yet."]
    if result is not None and result["not passed"]:
        heads = ["not passed", "here"] if suite.ours_alone else ["not passed by both", "here", "on Apache Kafka"]
        lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [f"| `{test}` | {' | '.join(values)} |" for test, values in result["not passed"].items()]
    second = {} if result is None else result.get("passed at last", {})
    for where, key in (("here", "ours"), ("on Apache Kafka", "kafkas")):
        if names := second.get(key):
            lines += ["", f"Passed {where} when run once more: {', '.join(f'`{name}`' for name in names)}."]
    if result is not None and any(reason_to_exclude(test, suite.excluded) for test in result["not passed"]):
        lines += ["", "The results that are kept are of a run before all of those below were excluded."]
    if suite.excluded:
        lines += ["", "Excluded:", ""]
        lines += [f"- `{pattern}`: {reason}." for pattern, reason in suite.excluded.items()]
    return lines


if __name__ == "__main__":
    sys.stdout.write(page(stored()))
