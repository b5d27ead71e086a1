from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from demo import screen as module
from demo.screen import Screen


def test_a_step_is_one_numbered_line_whatever_is_in_it() -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output, soft_wrap=True, width=40))
    screen.step("Read [bold] brackets, and a line that is longer than the terminal is wide")
    screen.step("Second")
    lines = output.getvalue().splitlines()
    assert [re.sub(r"^ *\d+\.\d s", "", line) for line in lines] == [
        "  1. Read [bold] brackets, and a line that is longer than the terminal is wide",
        "  2. Second",
    ]


def test_progress_is_seen_also_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output))
    with screen.meter("producing", 1_000) as meter:
        meter(10)
        monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
        meter(500, "[not markup]")
    assert output.getvalue().strip() == "producing: 500 of 1,000  [not markup]"


def test_a_bar_is_gone_when_its_step_is_done() -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output, force_terminal=True, width=100))
    with screen.meter("producing", 1_000) as meter:
        meter(500, "[not markup]")
    screen.step("Produced")
    assert "[not markup]" in output.getvalue()
    assert output.getvalue().rstrip().endswith("Produced")


def test_the_picture_has_what_was_printed_and_names_no_host(tmp_path: Path) -> None:
    screen = Screen(Console(file=io.StringIO()))
    screen.step("Read everything")
    screen.save_picture(tmp_path / "run.svg", "make run")
    content = (tmp_path / "run.svg").read_text()
    assert "everything" in content
    assert set(re.findall(r"https?://[^\"' ]*", content)) == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in content
