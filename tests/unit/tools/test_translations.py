"""Pages in other languages: the same steps as in English, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
TRANSLATIONS = sorted(DOCS.glob("zh/*.md"))
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def english(page: Path) -> str:
    return (DOCS / page.name).read_text("utf-8")


def sections(text: str) -> list[tuple[str, list[str]]]:
    """The depth of each heading, and the blocks of code below it."""
    blank = _FENCED.sub(lambda match: match[0].replace("\n#", "\n "), text)
    marks = [match.start() for match in re.finditer(r"^#+ ", blank, re.MULTILINE)]
    parts = [text[start:end] for start, end in zip(marks, [*marks[1:], len(text)], strict=True)]
    return [(part.partition(" ")[0], _FENCED.findall(part)) for part in parts]


def test_there_is_a_first_page_in_chinese() -> None:
    assert [page.name for page in TRANSLATIONS] == ["getting-started.md"]


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_translation_has_the_blocks_of_the_english_page_under_the_same_headings(page: Path) -> None:
    assert sections(page.read_text("utf-8")) == sections(english(page))
    assert sum(len(blocks) for _, blocks in sections(english(page))) > 3


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_translation_names_what_the_english_page_names(page: Path) -> None:
    """Commands, options and files within sentences."""
    names = [
        set(re.findall(r"`([^`\n]+)`", _FENCED.sub("", text))) for text in (english(page), page.read_text("utf-8"))
    ]
    assert names[0] - names[1] == set()


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_both_lead_to_each_other(page: Path) -> None:
    assert f"](../{page.name})" in page.read_text("utf-8")
    assert f"]({page.parent.name}/{page.name})" in english(page)
