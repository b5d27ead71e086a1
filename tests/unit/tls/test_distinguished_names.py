"""`barnabas.tls.distinguished_names`; what is expected was written by Java 17's X500Principal for the same names."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from barnabas.tls import pem
from barnabas.tls.distinguished_names import subject_name
from barnabas.tls.errors import NoPrincipalError
from tests.support.certificates import client_certificate

UTF8, PRINTABLE, T61, IA5, BMP, VISIBLE, UNIVERSAL = 0x0C, 0x13, 0x14, 0x16, 0x1E, 0x1A, 0x1C
CN, C, L, ST, STREET, ORG, OU = (f"5504{number:02x}" for number in (3, 6, 7, 8, 9, 10, 11))
UID, DC, EMAIL, TITLE = "0992268993f22c640101", "0992268993f22c640119", "2a864886f70d010901", "55040c"
TWO_999 = "883701"
"""2.999.1, whose first number does not fit one byte."""
Attribute = tuple[str, int, bytes]


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    count = (size.bit_length() + 7) // 8
    return bytes((tag, 0x80 | count)) + size.to_bytes(count, "big") + content


def certificate(*parts: list[Attribute], has_version: bool = True) -> bytes:
    """Of a certificate what is read of it."""
    name = b"".join(
        element(
            0x31,
            b"".join(element(0x30, element(6, bytes.fromhex(kind)) + element(tag, value)) for kind, tag, value in part),
        )
        for part in parts
    )
    fields = [element(2, b"\5"), element(0x30, b""), element(0x30, b""), element(0x30, b""), element(0x30, name)]
    version = [element(0xA0, element(2, b"\2"))] if has_version else []
    return element(0x30, element(0x30, b"".join([*version, *fields, element(0x30, bytes(300))])))


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ([[(C, PRINTABLE, b"DE")], [(ORG, UTF8, b"Castle")], [(CN, UTF8, b"alice")]], "CN=alice,O=Castle,C=DE"),
        ([[(ORG, UTF8, b"A, Inc.")]], "O=A\\, Inc."),
        ([[(OU, PRINTABLE, b"x+y")], [(L, IA5, b"e=q")], [(ST, T61, b"<g>")]], "ST=\\<g\\>,L=e\\=q,OU=x\\+y"),
        ([[(STREET, UTF8, b"#hash")], [(UID, UTF8, b's;c"b\\')]], 'UID=s\\;c\\"b\\\\,STREET=\\#hash'),
        ([[(DC, IA5, b"  both  ")]], "DC=\\ \\ both\\ \\ "),
        ([[(CN, UTF8, b"new\r")], [(CN, UTF8, b"nl\n")]], "CN=nl\n,CN=new\\\r"),
        ([[(CN, UTF8, "日本".encode())], [(ORG, UTF8, "ümläut".encode())]], "O=ümläut,CN=日本"),
        ([[(C, PRINTABLE, b"DE"), (OU, UTF8, b"of two")]], "C=DE+OU=of two"),
        # What RFC 2253 has no keyword for, whatever it is called elsewhere.
        ([[(EMAIL, IA5, b"q")], [(TITLE, UTF8, b"Dr")]], "2.5.4.12=#0c024472,1.2.840.113549.1.9.1=#160171"),
        ([[(TWO_999, UTF8, b"a")]], "2.999.1=#0c0161"),
        # Java takes these bytes for UTF-8 too, and those of other types for no text.
        ([[(CN, BMP, b"\0e\0=")]], "CN=\\00e\\00\\="),
        ([[(CN, VISIBLE, b"a")], [(CN, UNIVERSAL, b"\0\0\0a")]], "CN=#1c0400000061,CN=#1a0161"),
        ([], ""),
    ],
)
def test_writes_a_subject_as_java_does(parts: list[list[Attribute]], written: str) -> None:
    assert subject_name(certificate(*parts)) == written
    assert subject_name(certificate(*parts, has_version=False)) == written


def test_reads_a_certificate_that_openssl_made() -> None:
    text = Path(client_certificate().certificate).read_text()
    assert subject_name(pem.blocks(text)[0].der()) == "CN=alice,OU=Service,O=Castle\\, Inc.,C=DE"


def test_a_certificate_that_is_cut_off_or_damaged_names_nobody_or_somebody_and_raises_nothing_else() -> None:
    whole = certificate([(CN, UTF8, b"alice")], [(ORG, UTF8, b"Castle")])
    refused = 0
    for position in range(len(whole)):
        for damaged in (whole[:position], whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]):
            try:
                assert isinstance(subject_name(damaged), str)
            except NoPrincipalError:
                refused += 1
    assert refused > len(whole)


def test_pem_and_der_are_the_same() -> None:
    block = pem.certificate(b"\x30\x03abc")
    assert block.der() == b"\x30\x03abc"
    assert base64.b64encode(b"\x30\x03abc").decode() in block.text()
