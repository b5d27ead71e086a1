"""Files of properties that `barnabas up` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEAD: Final = "# Written by barnabas up at every start; give it --override KEY=VALUE for other values."


def properties_text(properties: Mapping[str, str], head: str = HEAD) -> str:
    """A file of properties, such as `server.properties`."""
    lines = [head]
    lines += [f"{name}={_escaped(value)}" for name, value in properties.items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """As Java's Properties reads it back: a backslash escapes, white space in front would be skipped, and bytes are ISO
    8859-1.
    """
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    text = "".join(f"\\u{ord(each):04x}" if "\x7f" <= each <= "\uffff" else each for each in text)
    return f"\\{text}" if text.startswith((" ", "\f")) else text
