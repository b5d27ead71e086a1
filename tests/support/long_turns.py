"""Long turns of the loops of servers under test: read from their logs after each test, and shown after the last.

Servers count what holds their loop for more than 50 ms (`kernel.long_turns`). On machines that others use, such turns
are no failure by themselves; but a test fails in which one had more than 250 ms of the processor's time, which does not
depend on what others do. On a virtual machine it may, since what its host takes away counts as used: as much as was
taken from its processors during the test, as the system says, is no fault of a turn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

PROPERTY = "long turn"
PROCESSOR_MS_MAX = 250
_LINE = re.compile(
    r"One turn of the loop took (?P<duration>\d+) ms \((?P<processor>\d+) ms of processor time[^)]*\): (?P<rest>.*)"
)
_followed: dict[Path, tuple[str, int]] = {}
_STATISTICS = Path("/proc/stat")
_STOLEN_FIELD = 8


def follow(name: str, path: Path) -> None:
    """Looks into the log of the server from here on; nothing happens when that is so already."""
    global _stolen_ms_before
    if not _followed:
        _stolen_ms_before = stolen_ms()
    if path not in _followed:
        _followed[path] = (name, path.stat().st_size if path.exists() else 0)


@dataclass(frozen=True)
class Turn:
    """What the log of a server says of one turn."""

    shown: str
    """The server first."""
    processor_ms: int
    """Within the turn."""


def turns_in(text: str, name: str) -> list[Turn]:
    """What the text, of the log of the server with this name, says of long turns."""
    return [
        Turn(
            f"{name}: {match['duration']} ms ({match['processor']} ms of processor time): {match['rest']}",
            min(int(match["duration"]), int(match["processor"])),
        )
        for line in text.splitlines()
        if (match := _LINE.search(line)) is not None
    ]


def new_turns() -> list[Turn]:
    """What the servers have said since the last call."""
    found: list[Turn] = []
    for path, (name, read) in list(_followed.items()):
        try:
            with path.open("rb") as file:
                file.seek(read)
                text = file.read()
        except FileNotFoundError:
            continue
        whole = text[: text.rfind(b"\n") + 1]
        _followed[path] = (name, read + len(whole))
        found += turns_in(whole.decode("utf-8", "replace"), name)
    return found


def stolen_ms() -> int:
    """What the host of this virtual machine has taken from its processors since it started; 0 where nobody tells."""
    try:
        fields = _STATISTICS.read_text().split(maxsplit=_STOLEN_FIELD + 1)
        return int(fields[_STOLEN_FIELD]) * 1000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0


_stolen_ms_before = 0
"""At the end of the last test, or when the first server was followed: nobody asks before."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> object:
    """Goes with the report, so that it reaches the process that shows it; and the verdict."""
    global _stolen_ms_before
    turns: list[Turn] = []
    try:
        result = yield
    finally:
        if _followed:
            turns = new_turns()
            item.user_properties.extend((PROPERTY, turn.shown) for turn in turns)
    if not _followed:
        return result
    before, _stolen_ms_before = _stolen_ms_before, stolen_ms()
    judge(turns, _stolen_ms_before - before)
    return result


def judge(turns: Iterable[Turn], taken_ms: int = 0) -> None:
    """Fails the test for turns that were too long, whatever it is about, also without what the host has taken."""
    too_long = [turn.shown for turn in turns if turn.processor_ms - taken_ms > PROCESSOR_MS_MAX]
    if too_long:
        pytest.fail(f"turns with more than {PROCESSOR_MS_MAX} ms of processor time:\n" + "\n".join(too_long), False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    said = [
        (report.nodeid, line)
        for report in reports
        if getattr(report, "when", "") == "teardown"
        for name, line in report.user_properties
        if name == PROPERTY
    ]
    if said:
        terminalreporter.section("turns of servers' loops over 50 ms")
        for test, line in said:
            terminalreporter.line(f"{test}: {line}")
