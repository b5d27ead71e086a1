from __future__ import annotations

from pathlib import Path

from tests.clients.table import page


def test_the_committed_table_is_that_of_the_drivers() -> None:
    committed = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
    assert committed.read_text() == page(), "run: python -m tests.clients.table > docs/clients.md"
