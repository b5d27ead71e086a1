"""Branch coverage by room: `python -m tools.coverage_rooms REPORT`, of the JSON that coverage.py writes.

One line for each room of the package: how many of its lines and branches the tests have run, and the three files with
the most branches that none has.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

PACKAGE: Final = ("src", "barnabas")
FILES_SHOWN: Final = 3


@dataclass(slots=True)
class Room:
    """What was counted in one room."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    """Branches that were not run, by file."""


def rooms_of(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Room]:
    """The rooms by name, of the `files` of coverage's JSON report. Files of the package itself are no room's."""
    rooms: dict[str, Room] = defaultdict(Room)
    for name, counted in files.items():
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if parts[:2] != PACKAGE or len(parts) < 4:
            continue
        summary = counted["summary"]
        room = rooms[parts[2]]
        room.lines += summary["num_statements"]
        room.lines_run += summary["covered_lines"]
        room.branches += summary["num_branches"]
        room.branches_run += summary["covered_branches"]
        if summary["missing_branches"]:
            room.missing["/".join(parts[3:])] = summary["missing_branches"]
    return dict(sorted(rooms.items()))


def table(rooms: Mapping[str, Room]) -> str:
    """The report, for people."""
    rows = [f"{'room':14} {'lines':>13} {'branches':>13}  most branches not run"]
    for name, room in rooms.items():
        worst = sorted(room.missing.items(), key=lambda item: (-item[1], item[0]))[:FILES_SHOWN]
        shown = ", ".join(f"{file} {count}" for file, count in worst)
        lines = f"{_percent(room.lines_run, room.lines)} of {room.lines}"
        branches = f"{_percent(room.branches_run, room.branches)} of {room.branches}"
        rows.append(f"{name:14} {lines:>13} {branches:>13}  {shown}".rstrip())
    return "\n".join(rows)


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100% says all."""
    return f"{part * 100 // whole if whole else 100}%"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("give the path of coverage's JSON report; `make coverage` makes it", file=sys.stderr)
        return 2
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if not report["meta"]["branch_coverage"]:
        print(f"{arguments[0]} has lines only: run the tests with --cov-branch", file=sys.stderr)
        return 2
    rooms = rooms_of(report["files"])
    if not rooms:
        print(f"{arguments[0]} has no files below {'/'.join(PACKAGE)}", file=sys.stderr)
        return 2
    print(table(rooms))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
