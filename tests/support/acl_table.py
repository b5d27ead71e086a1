"""Writes the table of who needs which ACL into `docs/acls.md`: `python -m tests.support.acl_table`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from barnabas.security.acls import ResourceType
from tests.support.acl_rows import OPEN, ROWS, Row

PAGE: Final = Path(__file__).parents[2] / "docs" / "acls.md"
_BEGIN: Final = "<!-- table: written by `python -m tests.support.acl_table` -->"
_END: Final = "<!-- end of table -->"


def page(text: str) -> str:
    """The page with the table as it should be; all else stays."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} must hold the lines {_BEGIN} and {_END}")
    return f"{before}{_BEGIN}\n\n{_table()}\n\n{_END}{after}"


def _table() -> str:
    lines = ["| API | version | of | operation | resource | without it |", "|---|---:|---|---|---|---|"]
    lines += dict.fromkeys(line for row in ROWS for line in _lines(row))
    lines += (f"| {key.api_name} | | | | | {why} |" for key, why in OPEN.items())
    return "\n".join(lines)


def _lines(row: Row) -> list[str]:
    return [
        f"| {row.api_key.api_name} | {row.version} | {row.what} | {operation.spelling} | {_resource(kind, row)} "
        f"| {'left out' if row.shows is not None and position == len(row.needs) - 1 else code.name} |"
        for position, (operation, kind, _, code) in enumerate(row.needs)
    ]


def _resource(kind: ResourceType, row: Row) -> str:
    some = any(name == "any" for _, _, name, _ in row.needs)
    return f"any {kind.spelling}" if some else kind.spelling


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
