"""The reference page is what the table of keys says."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.config.key_table import broker_keys, dynamic_keys, plugin_keys, topic_keys
from barnabas.config.reference import page

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert COMMITTED.read_text(encoding="utf-8").splitlines() == list(page()), (
        "run `python -m barnabas.config.reference > docs/configuration.md`"
    )


def test_every_key_has_a_row_of_all_columns() -> None:
    rows = [line for line in page() if line.startswith("| `")]
    assert len(rows) == sum(map(len, (broker_keys(), plugin_keys(), dynamic_keys(), topic_keys())))
    assert {row.count("|") for row in rows} == {8}


@pytest.mark.parametrize(
    "row",
    [
        "| `log.segment.bytes` | int | `1073741824` | at least 14 | cluster-wide |",
        "| `broker.rack` | string | none |  | read-only |",
        "| `super.users` | string | empty |  | read-only |",
        "| `delete.topic.enable` | boolean | `true` | true or false | read-only |",
        "| `ssl.enabled.protocols` | list | `TLSv1.2, TLSv1.3` |  | per-broker |",
    ],
)
def test_a_row_tells_the_facts(row: str) -> None:
    assert sum(line.startswith(row) for line in page()) == 1


def test_a_topic_falls_back_to_the_broker() -> None:
    (row,) = [line for line in page() if line.startswith("| `segment.jitter.ms`")]
    assert row.endswith("Falls back to the broker's `log.roll.jitter.ms`, `log.roll.jitter.hours`. |")
