"""Tables, fields and JSON: aligned and whole in a pipe, within the width on a terminal, harmless everywhere."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from barnabas.cli import output
from barnabas.cli.output import (
    Column,
    Mark,
    Marked,
    counted,
    print_fields,
    print_json,
    print_table,
    printable,
    shown,
    size,
)

COLUMNS = (
    Column("Topic", "topic"),
    Column("Lag", "lag", is_number=True),
    Column("In sync", "isr"),
    Column("State", "state"),
)
ROWS: list[list[object]] = [
    ["flights", 1_234_567, (1, 2, 3), Marked("behind", Mark.BAD)],
    ["a", None, (), True],
]
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output is a terminal of 40 columns from now on."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_a_table_in_a_pipe_is_aligned_text_without_styles(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "Topic        Lag  In sync  State",
        "flights  1234567  1,2,3    behind",
        "a              -  -        yes",
    ]


def test_nothing_is_cut_in_a_pipe_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Column("Member", "member", is_cut=True), Column("Topic", "topic")], [["m" * 300, "t" * 300]])
    assert capsys.readouterr().out.splitlines()[1] == "m" * 300 + "  " + "t" * 300


def test_rows_for_programs_are_objects_by_the_columns_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"topic": "flights", "lag": 1_234_567, "isr": [1, 2, 3], "state": "behind"},
        {"topic": "a", "lag": None, "isr": [], "state": True},
    ]


def test_a_table_fits_the_terminal_and_goes_on_in_further_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    name = "a-topic-with-a-name-that-is-longer-than-the-terminal-is-wide"
    print_table(COLUMNS, [[name, 1, (1, 2, 3), "ok"]])
    lines = _STYLES.sub("", terminal.getvalue()).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert [line.split()[0] for line in lines if line[0] != " "] == ["Topic", "Lag", "In", "State"]
    pieces = [line.split()[-1] for line in lines]
    assert "".join(pieces[: pieces.index("1")]) == name
    assert "\x1b[" in terminal.getvalue()


WIDE = (
    Column("Partition", "partition", is_number=True),
    Column("Leader", "leader", is_number=True),
    Column("Replicas", "replicas"),
    Column("In sync", "isr"),
    Column("Member", "member", is_cut=True),
    Column("State", "state"),
)


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 80, 120])
def test_no_word_is_broken_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(WIDE, [[0, 1, (1, 3, 2), (1, 3), "m", "under-replicated"], [11, 3, (3, 1, 2), (3,), "n", "too few"]])
    shown_text = _STYLES.sub("", terminal.getvalue())
    assert all(len(line.rstrip()) <= width for line in shown_text.splitlines())
    words = set(shown_text.split())
    assert words >= {"Partition", "Leader", "Replicas", "Member", "State", "1,3,2", "3,1,2", "11", "m", "n", "few"}
    assert "under-replicated" in words or width < len("Partition") + len("under-replicated") + 2


def test_a_column_that_may_be_cut_takes_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    print_table([Column("Topic", "topic"), Column("Member", "member", is_cut=True)], [["flights", "m" * 60]])
    lines = _STYLES.sub("", terminal.getvalue()).splitlines()
    assert len(lines) == 3
    assert lines[2].split() == ["flights", "m" * 30 + "…"]


def test_what_looks_like_markup_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    print_table([Column("Group", "group")], [["[red]group[/red]"]])
    assert "[red]group[/red]" in _STYLES.sub("", terminal.getvalue())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain \N{GRINNING FACE} ü", "plain \N{GRINNING FACE} ü"),
        ("\x1b[2J\r\n\t", "\\x1b[2J\\r\\n\\t"),
        ("a\u202eb\u2028c\x9b", "a\\u202eb\\u2028c\\x9b"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text: str, expected: str) -> None:
    assert printable(text) == shown(text) == expected


def test_fields_are_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("Id", "x"), ("Controller", None), ("Racks", ["a", "b"]), ("Bad", Marked(2, Mark.BAD))])
    assert capsys.readouterr().out.splitlines() == [
        "Id          x",
        "Controller  -",
        "Racks       a,b",
        "Bad         2",
    ]


def test_fields_stand_out_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    print_fields([("Bad", Marked(2, Mark.BAD))])
    assert terminal.getvalue() == "Bad  \x1b[31m\x1b[1m2\x1b[0m\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_nothing_stands_out_where_nobody_wants_it(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv(variable, value)
    print_fields([("Bad", Marked(2, Mark.BAD))])
    print_table([Column("Bad", "bad")], [[Marked(2, Mark.BAD)]])
    assert "\x1b[3" not in terminal.getvalue()


def test_a_document_is_one_line_of_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "ü\n", "isr": [1, 2]})
    assert capsys.readouterr().out == '{"name":"\\u00fc\\n","isr":[1,2]}\n'


@pytest.mark.parametrize(
    ("number_bytes", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_600_000, "1.5 MiB"), (5 * 1024**4, "5.0 TiB")],
)
def test_sizes_have_the_unit_that_fits(number_bytes: int, expected: str) -> None:
    assert size(number_bytes) == expected


def test_one_is_no_plural() -> None:
    assert counted(1, "partition") == "1 partition"
    assert counted(1_500, "record") == "1,500 records"
    assert counted(2, "entry", "entries") == "2 entries"


def test_the_headings_of_all_commands_are_written_alike() -> None:
    modules = Path(output.__file__).parent.glob("*.py")
    headings = [
        heading for module in modules for heading in re.findall(r'\bColumn\(\s*"([^"]+)"', module.read_text("utf-8"))
    ]
    assert "Partition" in headings
    words = [heading.removesuffix(" (UTC)") for heading in headings]
    assert [heading for heading in words if heading != heading.capitalize()] == []
