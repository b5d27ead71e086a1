"""Java's `.properties` format, in which `server.properties` is written.

Source: the documentation of `java.util.Properties.load`. `#` and `!` start a comment; `=`, `:` or white space ends the
key; a backslash continues a line and escapes `t n r f`, `uXXXX` and any other character as itself. Text is UTF-8, and
ISO-8859-1 where it cannot be that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_WHITE_SPACE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
PROPERTIES_BYTES_MAX = 4 * 1024 * 1024
"""More than any real configuration; a larger file is a mistake."""


class PropertiesError(ValueError):
    """A properties text that cannot be read; says where."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(f"{source}:{line}: {reason}")
        self.source = source
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Property:
    """One key and its value, with the number (from 1) of the line it began on."""

    key: str
    value: str
    line: int


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined, comments and blank lines left out."""
    pending = ""
    began = 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw.lstrip(_WHITE_SPACE)
        if not pending:
            if not line or line[0] in "#!":
                continue
            began = number
        trailing_backslashes = len(line) - len(line.rstrip("\\"))
        if trailing_backslashes % 2:
            # The mark keeps `pending` true while a continued line is still empty.
            pending = (pending or "") + line[:-1] + "\0"
            continue
        yield began, (pending + line).replace("\0", "")
        pending = ""
    if pending:
        yield began, pending.replace("\0", "")


def _unescape(text: str, source: str, line: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            out.append(character)
            continue
        if position >= len(text):
            break
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            try:
                out.append(chr(int(digits, 16) if len(digits) == 4 else int("", 16)))
            except ValueError:
                raise PropertiesError(source, line, "\\u needs four hexadecimal digits behind it") from None
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)


def _split(line: str) -> tuple[str, str]:
    """The raw key and raw value of one logical line."""
    end = 0
    while end < len(line) and line[end] not in _WHITE_SPACE + "=:":
        end += 2 if line[end] == "\\" else 1
    key = line[:end]
    rest = line[end:].lstrip(_WHITE_SPACE)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(_WHITE_SPACE)
    return key, rest


def parse(data: bytes | str, source: str) -> list[Property]:
    """Every property in the order of the text; where a key comes twice, Java's rule is that the later one wins.

    `source` names the text in errors. Raises PropertiesError, also for a value without key and for bytes that are no
    text.
    """
    if len(data) > PROPERTIES_BYTES_MAX:
        raise PropertiesError(
            source, 1, f"{len(data)} bytes are more than {PROPERTIES_BYTES_MAX}: this is not a configuration file"
        )
    if isinstance(data, bytes):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("iso-8859-1")
    else:
        text = data
    if "\0" in text:
        raise PropertiesError(source, text[: text.index("\0")].count("\n") + 1, "a NUL byte: this is not a text file")
    found: list[Property] = []
    for number, line in _logical_lines(text):
        raw_key, raw_value = _split(line)
        key = _unescape(raw_key, source, number)
        if not key:
            raise PropertiesError(source, number, "a value without a key: write key=value")
        found.append(Property(key, _unescape(raw_value, source, number), number))
    return found
