"""Long turns of the loops of servers under test: read from their logs after each test, and shown after the last.

Servers count what holds their loop for more than 50 ms (`kernel.long_turns`). On machines that others use, such turns
are no failure by themselves; a test that is about them looks at `Broker`'s metrics.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROPERTY = "long turn"
_LINE = re.compile(
    r"One turn of the loop took (?P<duration>\d+) ms \((?P<processor>\d+) ms of processor time[^)]*\): (?P<rest>.*)"
)
_followed: dict[Path, tuple[str, int]] = {}


def follow(name: str, path: Path) -> None:
    """Looks into the log of the server from here on; nothing happens when that is so already."""
    if path not in _followed:
        _followed[path] = (name, path.stat().st_size if path.exists() else 0)


def new_lines() -> list[str]:
    """What the servers have said since the last call, the server first."""
    found: list[str] = []
    for path, (name, read) in list(_followed.items()):
        try:
            with path.open("rb") as file:
                file.seek(read)
                text = file.read()
        except FileNotFoundError:
            continue
        whole = text[: text.rfind(b"\n") + 1]
        _followed[path] = (name, read + len(whole))
        found += [
            f"{name}: {match['duration']} ms ({match['processor']} ms of processor time): {match['rest']}"
            for line in whole.decode("utf-8", "replace").splitlines()
            if (match := _LINE.search(line)) is not None
        ]
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> object:
    """Goes with the report, so that it reaches the process that shows it."""
    try:
        return (yield)
    finally:
        if _followed:
            item.user_properties.extend((PROPERTY, line) for line in new_lines())


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
