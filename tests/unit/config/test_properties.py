"""Java's properties format, by the rules its documentation gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.config.properties import PROPERTIES_BYTES_MAX, PropertiesError, Property, parse


def pairs(text: str | bytes) -> dict[str, str]:
    return {entry.key: entry.value for entry in parse(text, "test.properties")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("broker.id=1", {"broker.id": "1"}),
        ("  broker.id = 1 ", {"broker.id": "1 "}),
        ("broker.id:1", {"broker.id": "1"}),
        ("broker.id 1", {"broker.id": "1"}),
        ("broker.id\t=\t1", {"broker.id": "1"}),
        ("broker.id", {"broker.id": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c", {"a": "b=c"}),
        ("# a=1\n! b=2\n\n   # c=3", {}),
        ("a=1,\\\n  2,\\\n  3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=\\\n\nb=2", {"a": "", "b": "2"}),
        ("a=x\\\n# not a comment", {"a": "x# not a comment"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=\\t\\n\\u00e9\\q", {"a": "\t\n\u00e9q"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\\", {"a": "x"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert pairs(text) == expected


def test_says_on_which_line_a_property_began() -> None:
    assert parse("# head\n\na=1,\\\n2\nb=3", "x") == [Property("a", "1,2", 3), Property("b", "3", 5)]


def test_reads_utf8_and_falls_back_to_latin1() -> None:
    assert pairs("rack=Zürich".encode()) == {"rack": "Zürich"}
    assert pairs("rack=Zürich".encode("iso-8859-1")) == {"rack": "Zürich"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a=1\nb=\\u12", 2),
        ("a=\\uzzzz", 1),
        ("=x", 1),
        ("a=1\n\n: y", 3),
        ("a=1\nb=\0", 2),
        ("x" * (PROPERTIES_BYTES_MAX + 1), 1),
    ],
)
def test_refuses_what_is_no_property_and_says_where(text: str, line: int) -> None:
    with pytest.raises(PropertiesError, match=rf"^test\.properties:{line}: ") as caught:
        pairs(text)
    assert caught.value.line == line


def test_a_refusal_shows_nothing_of_a_value() -> None:
    """It may be a password."""
    with pytest.raises(PropertiesError, match="four hexadecimal digits") as refusal:
        parse('sasl.jaas.config=Module required password="\\u12hush";', "test")
    assert "hu" not in str(refusal.value)


def escape(text: str, key: bool) -> str:
    special = "=: #!" if key else ""
    table = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    out = "".join(table.get(character, "\\" + character if character in special else character) for character in text)
    return "\\" + out if out.startswith(" ") else out


words = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)


@given(st.dictionaries(words.filter(bool), words, max_size=5))
def test_what_is_escaped_comes_back(expected: dict[str, str]) -> None:
    assert (
        pairs("\n".join(f"{escape(key, True)}={escape(value, False)}" for key, value in expected.items())) == expected
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse(data, "x")
    except PropertiesError:
        return
