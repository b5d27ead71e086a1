"""The code of docs/how-it-works.md, which asserts what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-it-works.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_every_chapter_has_a_block() -> None:
    chapters = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(chapters) == 9
    assert all("```python\n" in chapter and "assert " in chapter for chapter in chapters)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_what_the_page_says_is_so(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {"__name__": "how_it_works"})
