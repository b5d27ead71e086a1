"""Lines of `consume --format '%t %p %o %k %s'`, as kcat and rpk write such templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.cli.output import printable
from barnabas.cli.record_formats import NULL

if TYPE_CHECKING:
    from barnabas.client.records import ConsumerRecord

TEMPLATE_HELP: Final = (
    "%t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s or %v value, %K and %S the length of key and "
    "value in bytes (-1: none), %h headers, %% a percent sign; \\n, \\t, \\r, \\0, \\xNN and \\\\ as in C"
)
_NULL: Final = NULL.encode()
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX_DIGITS: Final = "0123456789abcdefABCDEF"
_HEX_DIGITS_PER_BYTE: Final = 2

Part = Callable[["ConsumerRecord"], bytes]


def parse_template(text: str) -> tuple[bytes | Part, ...]:
    """What a line consists of; it ends with a line feed, whether the template says so or not.

    Raises ValueError for what means nothing, and for text that has nothing of a record.
    """
    if "%" not in text:
        raise ValueError(f"{text!r} is not value, line, raw, hex or json, nor a template such as '%t %p %o %k %s'")
    parts: list[bytes | Part] = []
    at = 0
    while at < len(text):
        character = text[at]
        following = text[at + 1 : at + 2]
        at += 2
        if character == "%":
            if following == "%":
                parts.append(b"%")
            elif following in _FIELDS:
                parts.append(_FIELDS[following])
            else:
                what = f"%{following} means nothing" if following else "a single % is at the end; %% is a percent sign"
                raise ValueError(f"{what}: write {TEMPLATE_HELP}")
        elif character == "\\":
            if following == "x":
                digits = text[at : at + _HEX_DIGITS_PER_BYTE]
                parts.append(_hex_byte(digits))
                at += _HEX_DIGITS_PER_BYTE
            elif following in _ESCAPES:
                parts.append(_ESCAPES[following])
            else:
                what = f"\\{following} means nothing" if following else "a single \\ is at the end; \\\\ is a backslash"
                raise ValueError(f"{what}: write {TEMPLATE_HELP}")
        else:
            parts.append(character.encode("utf-8", "surrogateescape"))
            at -= 1
    if not parts or parts[-1] != b"\n":
        parts.append(b"\n")
    return tuple(parts)


def template_format(text: str, *, is_terminal: bool) -> Callable[[list[ConsumerRecord]], bytes]:
    """The lines of records; on a terminal the control characters of what comes from records are escaped."""
    parts = parse_template(text)

    def lines(records: list[ConsumerRecord]) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else _shown(part(record), is_terminal=is_terminal)
            for record in records
            for part in parts
        )

    return lines


# Inside.


def _shown(data: bytes, *, is_terminal: bool) -> bytes:
    """What is not UTF-8 as `\\xff`, as in the other formats."""
    text = data.decode("utf-8", "backslashreplace")
    return (printable(text) if is_terminal else text).encode()


def _hex_byte(digits: str) -> bytes:
    if len(digits) != _HEX_DIGITS_PER_BYTE or not set(digits) <= set(_HEX_DIGITS):
        raise ValueError(f"\\x{digits} means nothing: write two hexadecimal digits, such as \\x1f")
    return bytes.fromhex(digits)


def _bytes_or_null(data: bytes | None) -> bytes:
    return _NULL if data is None else data


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(b"%b=%b" % (key, _bytes_or_null(value)) for key, value in record.headers)


_FIELDS: Final[dict[str, Part]] = {
    "t": lambda record: record.partition.topic.encode(),
    "p": lambda record: b"%d" % record.partition.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: _bytes_or_null(record.key),
    "s": lambda record: _bytes_or_null(record.value),
    "v": lambda record: _bytes_or_null(record.value),
    "K": lambda record: _length(record.key),
    "S": lambda record: _length(record.value),
    "h": _headers,
}
