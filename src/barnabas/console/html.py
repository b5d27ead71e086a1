"""HTML that cannot be written unescaped: text is escaped where it goes in, and markup is a type of its own."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

_VOID: Final = frozenset({"br", "input", "link", "meta", "rect", "line", "path"})
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x200E, 0x200F)
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES: Final = {
    number: chr(number).encode("unicode_escape").decode("ascii")
    for number in (*_CONTROLS, *_DIRECTIONS, *range(0xD800, 0xE000))
    if number not in (0x09, 0x0A)
}


class Html(str):
    """Markup; any other string is text."""

    __slots__ = ()


Content: TypeAlias = "str | int | Iterable[Content] | None"
"""Text, markup, a number, nothing, or several of them."""


def text(value: str) -> Html:
    """Text as markup, with what a page cannot show, or what turns the direction of writing, as escapes."""
    # A function for each of them would take seconds for a page that has nothing else.
    shown = value.translate(_ESCAPES) if _CONTROL.search(value) else value
    return Html(html.escape(shown, quote=True))


def markup(content: Content) -> Html:
    """Anything as markup."""
    if content is None:
        return Html()
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return text(content)
    if isinstance(content, int):
        return Html(content)
    return Html("".join(map(markup, content)))


def tag(name: str, /, *contents: Content, **attributes: str | float | bool | None) -> Html:
    """An element. Of attributes, `_` becomes `-`, one at the end goes (`class_`), None and False are left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}>" if name in {"br", "input", "link", "meta"} else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{markup(contents)}</{name}>")


def href(*segments: str | int, query: Mapping[str, str | int] | None = None) -> str:
    """The address of a page: `href("topics", "flights", 0)` is `/topics/flights/0`."""
    path = "/" + "/".join(quote(str(segment), safe="") for segment in segments)
    return f"{path}?{urlencode(query)}" if query else path


def link(label: Content, *segments: str | int, query: Mapping[str, str | int] | None = None) -> Html:
    """A link to a page."""
    return tag("a", label, href=href(*segments, query=query))


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Content]], empty: str = "None.") -> Html:
    """A table, on a phone a block for each row. A heading that begins with `#` is one of numbers."""
    names = [column.removeprefix("#") for column in columns]
    numeric = ["number" if column.startswith("#") else None for column in columns]
    lines = [
        tag(
            "tr",
            [
                tag("td", "-" if cell is None or cell == "" else cell, data_label=name, class_=kind)
                for name, kind, cell in zip(names, numeric, row, strict=True)
            ],
        )
        for row in rows
    ]
    if not lines:
        return tag("section", tag("h2", caption), tag("p", empty, class_="faint"))
    heads = [tag("th", name, scope="col", class_=kind) for name, kind in zip(names, numeric, strict=True)]
    body = tag("table", tag("thead", tag("tr", heads)), tag("tbody", lines))
    return tag(
        "section", tag("h2", caption), tag("div", body, class_="scroll", tabindex=0, role="group", aria_label=caption)
    )


def fields(pairs: Iterable[tuple[str, Content]]) -> Html:
    """Names and values."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", "-" if value is None else value)) for name, value in pairs])
