"""`barnabas.kernel.ids`."""

from __future__ import annotations

import base64
import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.ids import METADATA_TOPIC_ID, RESERVED_UUIDS, ZERO_UUID, Uuid


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_text_and_bytes_are_the_same_id(value: bytes) -> None:
    made = Uuid(value)
    assert str(made) == base64.urlsafe_b64encode(value).decode().rstrip("=")
    assert len(str(made)) == 22
    assert Uuid.from_text(str(made)) == made == value
    assert Uuid.from_text(f"{made}==") == made
    assert isinstance(Uuid.from_text(str(made)), Uuid)
    assert made.dashed == str(uuid.UUID(bytes=value))


def test_the_ids_that_kafka_reserves_read_as_kafka_writes_them() -> None:
    assert str(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert str(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert {ZERO_UUID, METADATA_TOPIC_ID} == RESERVED_UUIDS
    assert repr(METADATA_TOPIC_ID) == "Uuid('AAAAAAAAAAAAAAAAAAAAAQ')"


def test_generated_ids_are_random_ones_of_version_4() -> None:
    made = [Uuid.generate(random.Random(seed).randbytes) for seed in range(2000)]
    assert len(set(made)) == len(made)
    assert all(uuid.UUID(bytes=bytes(each)).version == 4 for each in made)
    assert not any(str(each).startswith("-") for each in made)
    assert {str(each)[0] for each in made} >= set("09AZaz_")


def test_an_id_that_reads_as_an_option_is_thrown_away() -> None:
    offered = [b"\xf8" + bytes(15), b"\xfb" + bytes(15), b"\x11" * 16]

    def entropy(count: int) -> bytes:
        assert count == 16
        return offered.pop(0)

    assert str(Uuid.generate(entropy)).startswith("ERERERER")
    assert not offered


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "decodes to 0 bytes"),
        ("AAAA", "decodes to 3 bytes"),
        ("A" * 25, "too long"),
        ("A" * 21 + "+", "is not base64url"),
        ("+/" + "A" * 20, "is not base64url"),
        ("A" * 18 + "+/AA", "is not base64url"),
        ("A" * 21 + "é", "is not base64url"),
        ("A" * 21 + "\n", "is not base64url"),
        ("A" * 24, "decodes to 18 bytes"),
        ("A" * 21, "is not base64url"),
    ],
)
def test_refuses_text_that_is_no_id(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Uuid.from_text(text)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_refuses_any_other_number_of_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"16 bytes, not {size}"):
        Uuid(bytes(size))
