"""The JSON that docs/commands.md describes: its shapes, and in what a document differs from one."""

from __future__ import annotations

import re
from typing import Any, Final

from tests.support.documented import ROOT

_ANY: Final = None
"""The shape of what is told no more of: no object, and no list of objects."""
_TOKEN: Final = re.compile(r"[{}\[\],:]|[\w.]+\??")
_TOLD: Final = re.compile(
    r"((?:`[a-z -]*--json`(?:, )?)+)(?:\s+of\s+each)?:(?:\s+a document per line:)?\s+`(\{[^`]*\})`"
    r"(?:, and of ours\s+`(\{[^`]*\})`)?"
)
_DEFINED: Final = re.compile(r"where\s+([A-Z]+)\s+is\s+`(\{[^`]*\})`")


def read_shape(text: str) -> Any:
    """A shape as docs/commands.md writes it, `{topics: [{name, configs: {KEY: VALUE}}]}`: an object is a dict of the
    shapes of its names, a list is a list of the shape of its items, and an object with any names is `...`. What may be
    left out has a question mark behind its name: `{user?, ip?}`.
    """
    tokens = _TOKEN.findall(text)

    def value() -> Any:
        token = tokens.pop(0)
        if token == "{":
            shape: Any = {}
            while tokens[0] != "}":
                name = tokens.pop(0)
                shape[name] = value() if tokens[0] == ":" and tokens.pop(0) else _ANY
                if tokens[0] == ",":
                    tokens.pop(0)
            tokens.pop(0)
            return ... if any(name.isupper() for name in shape) else shape
        if token == "[":
            items = value()
            assert tokens.pop(0) == "]", text
            return [items]
        return ... if token == "..." else _ANY

    return value()


def differences(shape: Any, found: Any, where: str) -> list[str]:
    """In what a document differs from its shape; null may stand for anything."""
    if shape is ... or found is None:
        return []
    if isinstance(shape, dict):
        known = {name.removesuffix("?"): inner for name, inner in shape.items()}
        needed = {name for name in shape if not name.endswith("?")}
        if not isinstance(found, dict) or not needed <= found.keys() <= known.keys():
            return [f"{where}: the page has {list(shape)}, and it is {found}"]
        return [each for name in found for each in differences(known[name], found[name], f"{where}.{name}")]
    if isinstance(shape, list):
        if not isinstance(found, list):
            return [f"{where}: the page has a list, and it is {found}"]
        return [each for item in found for each in differences(shape[0], item, f"{where}[]")]
    items = found if isinstance(found, list) else [found]
    return (
        [f"{where}: the page does not tell what is in {found}"] if any(isinstance(each, dict) for each in items) else []
    )


def sections() -> dict[str, str]:
    """What docs/commands.md has under each of its titles, and under "" ahead of them."""
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    return {title: text for title, _, text in (part.partition("\n") for part in f"\n{page}".split("\n## "))}


def shapes(title: str) -> dict[str, Any]:
    """The shapes in a section of docs/commands.md, by command; "" where the section names none."""
    text = sections()[title]
    defined = dict(_DEFINED.findall(text))
    found: dict[str, Any] = {}
    for names, told, more in _TOLD.findall(text):
        shape = read_shape(re.sub(r"\b[A-Z]+\b", lambda word: defined.get(word[0], word[0]), told))
        if more:
            shape |= read_shape(more)
        found |= {name.removesuffix("--json").strip(): shape for name in re.findall("`([^`]*)`", names)}
    return found
