"""`barnabas.coordinators.placement`."""

from __future__ import annotations

import pytest

from barnabas.coordinators.placement import partition_for, string_hash

NEGATIVE = "The quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("hello world", 1794106052),
        (NEGATIVE, -609428141),
        ("polygenelubricants", -2147483648),
        ("é", 233),
        ("😀", 1772899),
        ("\ud83d", 55357),
    ],
)
def test_hashes_as_java_does(text: str, expected: int) -> None:
    assert string_hash(text) == expected


@pytest.mark.parametrize(("key", "expected"), [("hello", 22), ("polygenelubricants", 0), ("", 0), ("a", 47)])
def test_places_keys_as_kafka_does(key: str, expected: int) -> None:
    assert partition_for(key, 50) == expected


def test_negative_hashes_count_by_their_distance_from_zero() -> None:
    assert partition_for(NEGATIVE, 50) == 41
    assert partition_for(NEGATIVE, 609428141) == 0
