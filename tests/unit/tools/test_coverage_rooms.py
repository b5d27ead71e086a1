"""Branch coverage by room."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.coverage_rooms import main, rooms_of, table


def counted(lines: int, lines_run: int, branches: int, branches_run: int) -> dict[str, Any]:
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": lines_run,
            "num_branches": branches,
            "covered_branches": branches_run,
            "missing_branches": branches - branches_run,
        }
    }


FILES = {
    "src/barnabas/__init__.py": counted(1, 1, 0, 0),
    "src/barnabas/wire/crc.py": counted(10, 10, 4, 4),
    "src/barnabas/wire/codec.py": counted(90, 89, 6, 5),
    "src/barnabas/log/segments/segment.py": counted(50, 25, 10, 0),
    "tests/unit/test_nothing.py": counted(5, 5, 5, 5),
}


def test_files_are_added_up_by_room() -> None:
    rooms = rooms_of(FILES)
    assert list(rooms) == ["log", "wire"]
    assert (rooms["wire"].lines, rooms["wire"].lines_run) == (100, 99)
    assert (rooms["wire"].branches, rooms["wire"].branches_run) == (10, 9)
    assert rooms["wire"].missing == {"codec.py": 1}


def test_the_table_names_the_files_with_most_branches_that_were_not_run() -> None:
    assert table(rooms_of(FILES)).splitlines()[1:] == [
        "log                50% of 50      0% of 10  segments/segment.py 10",
        "wire              99% of 100     90% of 10  codec.py 1",
    ]


def test_a_report_without_the_package_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"meta": {"branch_coverage": True}, "files": {"x.py": counted(1, 1, 0, 0)}}))
    assert main([str(report)]) == 2
    assert "has no files below src/barnabas" in capsys.readouterr().err
    report.write_text(json.dumps({"meta": {"branch_coverage": False}, "files": {}}))
    assert main([str(report)]) == 2
    assert "has lines only" in capsys.readouterr().err
    assert main([]) == 2
