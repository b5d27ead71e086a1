"""The pages of `docs/runbooks`, as HTML: what to look at, and what to do, when an alert comes.

They are in the package where it was installed, else in the checkout. Of Markdown they have headings, paragraphs, lists,
code and links; what else there may be is shown as it stands.
"""

from __future__ import annotations

import importlib.resources
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from barnabas.console.html import Content, Html, link, tag

_NAME: Final = re.compile(r"[a-z][a-z-]{0,60}")
_INLINE: Final = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([^)]+)\)")


def runbook(name: str) -> tuple[str, list[Html]] | None:
    """The title and the page; None where there is none of that name."""
    if _NAME.fullmatch(name) is None:
        return None
    for folder in _folders():
        file = folder / f"{name}.md"
        if file.is_file():
            return as_html(file.read_text(encoding="utf-8"))
    return None


def as_html(text: str) -> tuple[str, list[Html]]:
    """The first heading, and what is below it."""
    title = ""
    blocks: list[Html] = []
    items: list[Html] = []
    for block in re.split(r"\n{2,}|\n(?=- )", text.strip()):
        if block.startswith("- "):
            items.append(tag("li", _inline(" ".join(block[2:].split()))))
            continue
        if items:
            blocks.append(tag("ul", items))
            items = []
        if block.startswith("# "):
            title = block[2:].strip()
        elif block.startswith("## "):
            blocks.append(tag("h2", block[3:].strip()))
        elif block:
            blocks.append(tag("p", _inline(" ".join(block.split()))))
    if items:
        blocks.append(tag("ul", items))
    return title, blocks


# Inside.


def _folders() -> list[Traversable]:
    checkout: Traversable = Path(__file__).resolve().parents[3] / "docs" / "runbooks"
    return [importlib.resources.files("barnabas.console") / "runbooks", checkout]


def _inline(text: str) -> list[Content]:
    parts: list[Content] = []
    at = 0
    for found in _INLINE.finditer(text):
        parts.append(text[at : found.start()])
        code, label, to = found.groups()
        if code is not None:
            parts.append(tag("code", code))
        elif to.endswith(".md") and _NAME.fullmatch(to[:-3]):
            parts.append(link(label.removesuffix(".md"), "alerts", to[:-3]))
        else:
            parts.append(f"{label} (docs/{to.removeprefix('../')})")
        at = found.end()
    parts.append(text[at:])
    return parts
