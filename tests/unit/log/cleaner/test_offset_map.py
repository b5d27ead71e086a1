"""The map of keys is a dictionary in a table of a given size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.cleaner.offset_map import SLOT_BYTES, OffsetMap
from barnabas.wire.sentinels import NO_OFFSET

KEYS = [b"%d" % number for number in range(40)]


@given(st.lists(st.sampled_from(KEYS), max_size=120), st.integers(1, 30), st.integers(0, 40))
def test_equals_a_dictionary_until_it_is_full(writes: list[bytes], entries_max: int, slots: int) -> None:
    offsets = OffsetMap(entries_max, slots)
    expected: dict[bytes, int] = {}
    for offset, key in enumerate(writes):
        fits = key in expected or len(expected) < entries_max
        assert offsets.put(key, offset) is fits
        if fits:
            expected[key] = offset
            assert offsets.latest_offset == offset
        assert len(offsets) == len(expected)
        assert {each: offsets.get(each) for each in KEYS} == {each: expected.get(each, NO_OFFSET) for each in KEYS}


def test_takes_24_bytes_a_slot_and_fills_up_to_the_last_but_one() -> None:
    offsets = OffsetMap(entries_max=1008, slots=1000)
    assert offsets.size_bytes == 1009 * SLOT_BYTES == 1009 * 24
    keys = [b"key-%d" % number for number in range(1009)]
    assert [offsets.put(key, number) for number, key in enumerate(keys)] == [True] * 1008 + [False]
    assert [offsets.get(key) for key in keys] == [*range(1008), NO_OFFSET]


def test_the_greatest_offset_fits() -> None:
    offsets = OffsetMap(entries_max=1, slots=1)
    assert offsets.put(b"key", 2**63 - 1)
    assert offsets.get(b"key") == 2**63 - 1
