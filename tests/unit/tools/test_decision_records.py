"""Decision records: each has its number, date and status, and is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RECORDS = sorted((Path(__file__).parents[3] / "docs" / "decisions").glob("*.md"))
LINES_MAX = 70
_STATUS = re.compile(r"\*(In force|Superseded by \d{4}) since \d{4}-\d\d-\d\d(, last changed \d{4}-\d\d-\d\d)?\.\*")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_has_number_date_and_status_and_is_short(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith(f"# {path.name[:4]}: ")
    assert _STATUS.fullmatch(lines[2]), "the third line tells status and date: *In force since 2026-11-23.*"
    assert len(lines) <= LINES_MAX, "what is reference belongs to a page of docs/"


def test_numbers_follow_one_another() -> None:
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))
