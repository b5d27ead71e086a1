"""The code of docs/how-it-works.md, which asserts what the page says, and its pictures, which show what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import chapter_pictures

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-it-works.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_every_chapter_has_a_block() -> None:
    chapters = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(chapters) == 11
    assert all("```python\n" in chapter and "assert " in chapter for chapter in chapters)


CHAPTERS = chapter_pictures.chapters(PAGE.read_text("utf-8"))
DRAWN = {CHAPTERS[number][1][place]: number for number, place in chapter_pictures.BLOCKS.items()}
"""Blocks with a picture, and their chapters."""


def read(chapter: int) -> chapter_pictures.Story:
    return chapter_pictures.read(chapter_pictures.picture(chapter).read_text("utf-8"))


def test_every_chapter_has_a_picture_below_its_block() -> None:
    text = PAGE.read_text("utf-8")
    assert sorted(DRAWN.values()) == sorted(CHAPTERS)
    for block, chapter in DRAWN.items():
        below = text.partition(block)[2].partition("```\n\n")[2]
        assert re.match(rf"!\[[^]]+\]\(images/chapter-{chapter}\.svg\)", below), chapter


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_what_the_page_says_is_so_and_what_it_shows(block: str) -> None:
    if block not in DRAWN:
        exec(compile(block, str(PAGE), "exec"), {"__name__": "how_it_works"})
        return
    shown = read(DRAWN[block])
    seen = chapter_pictures.watched(block, shown.chapter, shown.title)
    again = "run `PYTHONHASHSEED=0 python -m tools.chapter_pictures` and look at what has changed"
    assert chapter_pictures.differences(shown, seen) == [], again


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_picture_is_drawn_of_the_trace_that_it_has_in_it(chapter: int) -> None:
    shown = read(chapter)
    assert chapter_pictures.svg(shown) == chapter_pictures.picture(chapter).read_text("utf-8")
    assert shown.title == CHAPTERS[chapter][0]
    assert shown.lanes


def test_another_story_is_told_from_the_same_one_of_other_brokers_a_second_later() -> None:
    shown, other = read(4), read(4)
    for lane in other.lanes:
        lane.name = lane.name.translate(str.maketrans("123", "312"))
    other.calls = [(seconds + 1, re.sub(r"(?<=broker )\d", "3", text)) for seconds, text in other.calls]
    assert chapter_pictures.differences(shown, other) == []
    elected = next(lane for lane in other.lanes if any("leader" in said for _, _, said in lane.spans))
    elected.spans.pop()
    assert chapter_pictures.differences(shown, other)
    other = read(4)
    other.calls = [(seconds + 5, text) for seconds, text in other.calls]
    assert len(chapter_pictures.differences(shown, other)) == len(shown.calls)
