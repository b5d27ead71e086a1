"""The map of keys is a dictionary within given bounds."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.log.cleaner.offset_map import RECORDS_PER_SLOT, OffsetMap
from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE

KEYS = [b"%d" % number for number in range(40)]
Batch = list[tuple[bytes, int]]
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from((DROPPED, VALUE, TOMBSTONE))), max_size=6), max_size=30
)


def put(offsets: OffsetMap, batch: Batch, last_offset: int) -> bool:
    return offsets.put([key for key, state in batch if state], bytes(state for _, state in batch), last_offset)


@settings(deadline=None)
@given(BATCHES, st.integers(1, 60), st.integers(0, 60))
@example([[(b"0", VALUE), (b"1", VALUE)]], 1, 0)
def test_equals_a_dictionary_as_far_as_it_reaches(batches: list[Batch], entries_max: int, slots: int) -> None:
    offsets = OffsetMap(entries_max, slots)
    is_complete = all(put(offsets, batch, number) for number, batch in enumerate(batches))
    is_complete = offsets.finish() and is_complete
    reached = offsets.latest_offset + 1
    assert is_complete == (reached == len(batches))
    assert reached or not batches, "it does not get on"
    records = [record for batch in batches[:reached] for record in batch]
    last = {key: number for number, (key, state) in enumerate(records) if state}
    assert len(offsets) == len(last)
    expected = [state if last.get(key) == number else DROPPED for number, (key, state) in enumerate(records)]
    number = 0
    for batch in batches[:reached]:
        assert list(offsets.last_states(number, len(batch))) == expected[number : number + len(batch)]
        number += len(batch)
    states = bytes((VALUE, TOMBSTONE)) * 20 + bytes((DROPPED,))
    wanted = [DROPPED if key in last else state for key, state in zip(KEYS, states, strict=False)]
    assert list(offsets.states_without(KEYS, states)) == [*wanted, DROPPED]


def test_many_keys_in_many_buckets_stay_within_the_slots() -> None:
    slots = 300_000
    offsets = OffsetMap(slots * 9 // 10, slots)
    count = 0
    while offsets.put([b"key-%d" % ((count + each) * 7919 % 200_000) for each in range(1000)], b"\1" * 1000, count):
        count += 1000
        if count == 600_000:
            break
    assert offsets.finish()
    assert len(offsets) == 200_000
    states = b"".join(offsets.last_states(number, 1000) for number in range(0, count, 1000))
    assert states == bytes(count - 200_000) + b"\1" * 200_000
    assert offsets.states_without([b"key-%d" % number for number in range(0, 400_000, 1000)], b"\1" * 400) == (
        bytes(200) + b"\1" * 200
    )


def test_it_is_full_where_keys_or_records_are_too_many() -> None:
    offsets = OffsetMap(1000, 1100)
    taken = 0
    while offsets.put([b"%d" % number for number in range(taken, taken + 100)], b"\1" * 100, taken + 99):
        taken += 100
    offsets.finish()
    assert offsets.latest_offset + 1 == len(offsets)
    assert 700 < len(offsets) <= 1100
    few = OffsetMap(100, 100)
    records = 0
    while few.put([b"a", b"b"], b"\1\1", records + 1):
        records += 2
        assert records <= RECORDS_PER_SLOT * 100 + 2
    assert few.latest_offset + 1 == records
