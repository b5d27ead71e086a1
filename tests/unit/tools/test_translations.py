"""Pages in other languages: the same steps as in English, in the same order, and as new.

Whether a sentence says the same no test can see. So a translation names, in its last line, the English sections that it
was made from: who changes one of those has to look at the translation too.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
TRANSLATIONS = sorted(DOCS.glob("zh/*.md"))
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def english(page: Path) -> str:
    return (DOCS / page.name).read_text("utf-8")


def parts(text: str) -> list[str]:
    """What stands below each heading, with it."""
    blank = _FENCED.sub(lambda match: match[0].replace("\n#", "\n "), text)
    marks = [match.start() for match in re.finditer(r"^#+ ", blank, re.MULTILINE)]
    return [text[start:end] for start, end in zip(marks, [*marks[1:], len(text)], strict=True)]


def sections(text: str) -> list[tuple[str, list[str]]]:
    """The depth of each heading, and the blocks of code below it."""
    return [(part.partition(" ")[0], _FENCED.findall(part)) for part in parts(text)]


def marks(text: str) -> list[str]:
    """One for each section, which is another one when a word of it is."""
    return [hashlib.sha256(" ".join(part.split()).encode()).hexdigest()[:8] for part in parts(text)]


def links(page: Path) -> set[str]:
    """The files of the docs, and their parts, that a page leads to, but for its translations."""
    found = re.findall(r"\]\(([^)]+)\)", _FENCED.sub("", page.read_text("utf-8")))
    targets = {str((page.parent / link).resolve().relative_to(DOCS.parent)) for link in found}
    return {target for target in targets if Path(target).name.partition("#")[0] != page.name}


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
def test_a_translation_leads_to_what_the_english_page_leads_to(page: Path) -> None:
    assert links(page) == links(DOCS / page.name)


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_translation_was_made_from_the_english_page_as_it_is(page: Path) -> None:
    last = page.read_text("utf-8").rstrip().rpartition("\n")[2]
    now = marks(english(page))
    made_from = last.removeprefix("<!-- English sections: ").removesuffix(" -->").split()
    changed = [
        part.partition("\n")[0] for part, mark in zip(parts(english(page)), now, strict=True) if mark not in made_from
    ]
    assert made_from == now, (
        f"the English sections {changed} have changed: say the same in {page.parent.name}/{page.name}, and end it with "
        f"<!-- English sections: {' '.join(now)} -->"
    )


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_both_lead_to_each_other(page: Path) -> None:
    assert f"](../{page.name})" in page.read_text("utf-8")
    assert f"]({page.parent.name}/{page.name})" in english(page)
