"""The page of state machines shows the tables that the code runs on."""

from __future__ import annotations

from tools import state_diagrams


def test_the_page_is_up_to_date() -> None:
    assert state_diagrams.PAGE.read_text(encoding="utf-8") == state_diagrams.page(), (
        "run `python -m tools.state_diagrams` and commit docs/state-machines.md"
    )
