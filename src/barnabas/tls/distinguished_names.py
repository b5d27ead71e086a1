"""Whom a certificate is of: its subject, written as Java's `X500Principal.getName` does (RFC 2253).

ACLs and `ssl.principal.mapping.rules` that were written for Apache Kafka name clients by that text, so it must be the
same to the letter: the last part first, keywords for nine kinds of attributes, numbers and hexadecimal for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from barnabas.tls.errors import NoPrincipalError

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_ALTERNATIVE_NAMES: Final = bytes.fromhex("551d11")
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString. Java reads all as UTF-8.
_STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANK: Final = " \r"
_FIELDS_BEFORE_SUBJECT: Final = 4  # serial number, signature, issuer, validity


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate (DER). Raises NoPrincipalError for what is no certificate."""
    try:
        return _name(_subject(certificate))
    except (IndexError, StopIteration, ValueError):
        raise NoPrincipalError("its certificate cannot be read") from None


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """The subject's alternative names, each as it is encoded. Raises NoPrincipalError for what is no certificate."""
    try:
        to_be_signed = next(_elements(_content(certificate, _SEQUENCE)))[1]
        for tag, value, _ in _elements(to_be_signed):
            if tag == _EXTENSIONS:
                for _, extension, _ in _elements(_content(value, _SEQUENCE)):
                    parts = list(_elements(extension))
                    if parts[0][1] == _ALTERNATIVE_NAMES:
                        names = _content(parts[-1][1], _SEQUENCE)
                        return frozenset(encoded for _, _, encoded in _elements(names))
    except (IndexError, StopIteration, ValueError):
        raise NoPrincipalError("its certificate cannot be read") from None
    return frozenset()


def _subject(certificate: bytes) -> bytes:
    to_be_signed = next(_elements(_content(certificate, _SEQUENCE)))[1]
    fields = [(tag, value) for tag, value, _ in _elements(to_be_signed)]
    position = _FIELDS_BEFORE_SUBJECT + (fields[0][0] == _VERSION)
    tag, value = fields[position]
    if tag != _SEQUENCE:
        raise ValueError("no name")
    return value


def _name(subject: bytes) -> str:
    """`subject` is a sequence of sets of attributes."""
    parts = []
    for tag, value, _ in _elements(subject):
        if tag != _SET:
            raise ValueError("no set")
        parts.append("+".join(_attribute(pair) for _, pair, _ in _elements(value)))
    return ",".join(reversed(parts))


def _attribute(pair: bytes) -> str:
    (kind, identifier, _), (tag, value, encoded) = _elements(pair)
    if kind != _OBJECT_IDENTIFIER:
        raise ValueError("no object identifier")
    number = _dotted(identifier)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _STRINGS:
        return f"{keyword or number}=#{encoded.hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    start, end = len(text) - len(text.lstrip(_BLANK)), len(text.rstrip(_BLANK))
    found = []
    for position, character in enumerate(text):
        if character == "\0":
            found.append("\\00")
        elif character in _ESCAPED or not start <= position < end:
            found.append(f"\\{character}")
        else:
            found.append(character)
    return "".join(found)


def _dotted(identifier: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in identifier:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _content(data: bytes, expected: int) -> bytes:
    tag, value, _ = next(_elements(data))
    if tag != expected:
        raise ValueError("another element")
    return value


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Tag, content and whole encoding of each element of DER. Raises IndexError or ValueError."""
    position = 0
    while position < len(data):
        start = position
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        end = position + length
        if end > len(data):
            raise ValueError("cut off")
        yield tag, data[position:end], data[start:end]
        position = end
