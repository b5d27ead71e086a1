"""The tables of plans and of differences from Kafka in docs/simulation.md: complete, and naming what there is."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest

from barnabas.testing.cluster_plans import PLANS

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "docs" / "decisions"
_DIFFERS = re.compile(r"differs? from (Apache )?Kafka|Unlike (Kafka|ZooKeeper)|Otherwise than Kafka", re.IGNORECASE)
_OF_NO_CLUSTER = {
    "0005": "records and compression: held to property tests and Kafka's own tools",
}


def _rows() -> list[list[str]]:
    text = (ROOT / "docs" / "simulation.md").read_text("utf-8")
    lines = text[text.index("| record | difference |") :].splitlines()[2:]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in takewhile(lambda line: line.startswith("|"), lines)
    ]


ROWS = _rows()


@pytest.mark.parametrize("row", ROWS, ids=[row[1][:40] for row in ROWS])
def test_names_plans_and_tests_that_there_are(row: list[str]) -> None:
    _, _, plans, tests = row
    assert set(re.findall("`([^`]+)`", plans)) <= set(PLANS)
    named = re.findall("`([^`]+)`", tests)
    assert named
    for name in named:
        path, _, function = name.partition("::")
        source = (ROOT / path).read_text("utf-8")
        assert re.search(rf"def {function or 'test_'}", source), name


def test_every_plan_is_described() -> None:
    text = (ROOT / "docs" / "simulation.md").read_text("utf-8")
    table = text[text.index("| plan | what strikes |") : text.index("## What is excused")]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == list(PLANS)


def test_has_every_record_that_differs_from_kafka() -> None:
    differing = {
        path.name[:4]
        for path in RECORDS.glob("*.md")
        if _DIFFERS.search(path.read_text("utf-8")) and path.name[:4] != "0017"
    }
    assert differing - set(_OF_NO_CLUSTER) <= {row[0] for row in ROWS}
