"""Nothing becomes markup by chance; charts say what they show without colours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.console.charts import GAP_MS, Line, lanes, line_chart
from barnabas.console.history import PartitionState
from barnabas.console.html import Html, href, link, markup, table, tag
from barnabas.console.words import date_and_clock, moment, rate, size, span


@given(st.text())
def test_text_never_becomes_markup(text: str) -> None:
    found = tag("p", text, title=text)
    inside = found.removeprefix('<p title="').removesuffix("</p>")
    title, _, body = inside.partition('">')
    for part in (title, body):
        assert "<" not in part
        assert ">" not in part
        assert '"' not in part
    found.encode()


def test_markup_stays_and_text_is_escaped() -> None:
    assert tag("p", Html("<b>x</b>"), " & ", None, [1, "<"]) == "<p><b>x</b> &amp; 1&lt;</p>"
    assert isinstance(markup("x"), Html)


def test_attributes() -> None:
    assert tag("input", class_="a", aria_label="b", hidden=True, value=None, disabled=False, max=0) == (
        '<input class="a" aria-label="b" hidden max="0">'
    )


def test_what_plays_with_the_reader_is_shown_as_an_escape() -> None:
    assert tag("p", "a\u202eb\x00\x1b") == "<p>a\\u202eb\\x00\\x1b</p>"


def test_links_quote_whatever_a_group_is_called() -> None:
    assert href("groups", "a/b?c#d e") == "/groups/a%2Fb%3Fc%23d%20e"
    assert href("messages", query={"topic": "a&b", "at": 5}) == "/messages?topic=a%26b&at=5"
    assert link("<", "topics", "..") == '<a href="/topics/..">&lt;</a>'


def test_a_table_names_each_cell_for_phones() -> None:
    found = table("Things", ["Name", "#Count"], [["a", 0], [None, 2]])
    assert '<td data-label="Name">a</td><td data-label="Count" class="number">0</td>' in found
    assert '<td data-label="Name">-</td>' in found
    assert "None." in table("Things", ["Name"], [])
    with pytest.raises(ValueError, match="zip"):
        table("Things", ["Name"], [["a", "b"]])


def test_a_chart_has_its_unit_its_figures_and_no_line_over_a_gap() -> None:
    points = [(0, 0.0), (5_000, 900.0), (5_000 + GAP_MS + 1, 300.0), (70_000, 100.0)]
    found = line_chart("Lag", "records", [Line("a<b", points), Line("other", points)])
    assert ">records</text>" in found
    assert ">1,000</text>" in found
    assert "Lag: a&lt;b 100, other 100 records" in found
    path = found.partition('<path d="')[2].partition('"')[0]
    assert path.count("M") == 2
    assert path.count("L") == 2
    assert "series-0" in found
    assert "series-1" in found


def test_a_chart_without_samples_says_so() -> None:
    assert "No samples yet" in line_chart("Lag", "records", [Line("a", [(0, 1.0)])])
    assert "No samples yet" in line_chart("Lag", "records", [])


def test_lanes_show_leader_in_sync_and_behind_by_height() -> None:
    states = [
        PartitionState(0, 1, 0, (1, 2), (1, 2)),
        PartitionState(1_000, 2, 1, (2,), (1, 2)),
    ]
    found = lanes(states, 2_000)
    drawing = found.partition("</svg>")[0]
    assert drawing.count('height="16" class="leader"') == 2
    assert drawing.count('height="9" class="in-sync"') == 1
    assert drawing.count('height="2" class="behind"') == 1
    assert "now led by 2, in sync: 2" in found


def test_words() -> None:
    assert [size(each) for each in (0, 1_023, 1_536, 1 << 40, 1 << 55)] == [
        "0 B", "1023 B", "1.5 KiB", "1.0 TiB", "32768.0 TiB",
    ]  # fmt: skip
    assert [rate(each) for each in (0, 0.44, 9.94, 1_234.5)] == ["0", "0.4", "9.9", "1,234"]
    assert [span(each) for each in (-5, 999, 61_000, 90_061_000)] == ["0 s", "0 s", "1 min 1 s", "1 d 1 h"]
    assert date_and_clock(0) == "1970-01-01 00:00:00.000"
    assert date_and_clock(1 << 62) == str(1 << 62)


def test_a_time_of_another_day_has_its_date() -> None:
    day_ms = 86_400_000
    assert moment(5_250, day_ms - 1) == "00:00:05"
    assert moment(5_250, day_ms) == "1970-01-01 00:00:05"
    assert moment(5_250, day_ms - 1, to_the_ms=True) == "00:00:05.250"
    assert moment(5_250, day_ms, to_the_ms=True) == "1970-01-01 00:00:05.250"
    assert moment(1 << 62, 0, to_the_ms=True) == str(1 << 62)
