"""The page of state machines shows the tables that the code runs on, all of them."""

from __future__ import annotations

import ast
from pathlib import Path

from tools import state_diagrams

SOURCE = Path(state_diagrams.__file__).resolve().parent.parent / "src" / "barnabas"


def test_the_page_is_up_to_date() -> None:
    assert state_diagrams.PAGE.read_text(encoding="utf-8") == state_diagrams.page(), (
        "run `python -m tools.state_diagrams` and commit docs/state-machines.md"
    )


def test_no_table_of_the_code_is_missing() -> None:
    found = {
        f"`{path.relative_to(SOURCE)}`"
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and "TransitionTable" in ast.unparse(node.value.func)
    }
    assert found == {place for _, place, _ in state_diagrams.TABLES}
