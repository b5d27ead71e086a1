"""The map of keys is a dictionary within given bounds."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.log.cleaner.compaction import key_table
from barnabas.log.cleaner.key_tables import KeyTable, PlainKeyTable
from barnabas.log.cleaner.offset_map import RECORDS_PER_SLOT, OffsetMap
from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE, scan_keys
from barnabas.log.cleaner.scanned_keys import KeyColumn, ScannedKeys
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder


def vector_table(slots: int) -> KeyTable:
    from barnabas.log.cleaner.vector_key_table import VectorKeyTable

    return VectorKeyTable(slots)


def vector_table_of_alike(slots: int) -> KeyTable:
    """Its digests differ in few bits of one half or the other."""
    import numpy as np

    from barnabas.log.cleaner.vector_key_table import Column, Pieces, VectorKeyTable

    def alike(pieces: Pieces) -> tuple[Column, Column]:
        numbers = np.array([int(key) for piece in pieces for key in piece], np.uint64)
        return (numbers % np.uint64(3)) << np.uint64(62), numbers // np.uint64(3)

    return VectorKeyTable(slots, alike)


def key_digests(pieces: Any) -> Any:
    """With numpy, of which only the tests that ask know."""
    from barnabas.log.cleaner import vector_key_table

    return vector_key_table.key_digests(pieces)


TABLES: dict[str, Callable[[int], KeyTable]] = {
    "plain": PlainKeyTable,
    "vector": vector_table,
    "vector, digests alike": vector_table_of_alike,
}
KEYS = [b"%d" % number for number in range(40)]
Batch = list[tuple[bytes, int]]
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from((DROPPED, VALUE, TOMBSTONE))), max_size=6), max_size=30
)


def put(offsets: OffsetMap, batch: Batch, last_offset: int) -> bool:
    return offsets.put(
        ScannedKeys(key for key, state in batch if state), bytes(state for _, state in batch), last_offset
    )


@pytest.mark.parametrize("kind", TABLES)
@settings(deadline=None)
@given(BATCHES, st.integers(1, 60), st.integers(0, 60))
@example([[(b"0", VALUE), (b"1", VALUE)]], 1, 0)
def test_equals_a_dictionary_as_far_as_it_reaches(
    kind: str, batches: list[Batch], entries_max: int, slots: int
) -> None:
    offsets = OffsetMap(entries_max, slots, TABLES[kind](slots))
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
    assert list(offsets.states_without(ScannedKeys(KEYS), states)) == [*wanted, DROPPED]


@pytest.mark.parametrize("kind", ["plain", "vector"])
def test_many_keys_in_many_buckets_stay_within_the_slots(kind: str) -> None:
    slots = 300_000
    offsets = OffsetMap(slots * 9 // 10, slots, TABLES[kind](slots))
    count = 0
    while offsets.put(
        ScannedKeys(b"key-%d" % ((count + each) * 7919 % 200_000) for each in range(1000)), b"\1" * 1000, count
    ):
        count += 1000
        if count == 600_000:
            break
    assert offsets.finish()
    assert len(offsets) == 200_000
    states = b"".join(offsets.last_states(number, 1000) for number in range(0, count, 1000))
    assert states == bytes(count - 200_000) + b"\1" * 200_000
    assert offsets.states_without(
        ScannedKeys(b"key-%d" % number for number in range(0, 400_000, 1000)), b"\1" * 400
    ) == (bytes(200) + b"\1" * 200)


@pytest.mark.parametrize("kind", TABLES)
def test_it_is_full_where_keys_or_records_are_too_many(kind: str) -> None:
    offsets = OffsetMap(1000, 1100, TABLES[kind](1100))
    taken = 0
    while offsets.put(ScannedKeys(b"%d" % number for number in range(taken, taken + 100)), b"\1" * 100, taken + 99):
        taken += 100
    offsets.finish()
    assert offsets.latest_offset + 1 == len(offsets)
    assert 700 < len(offsets) <= 1100
    few = OffsetMap(100, 100, TABLES[kind](100))
    records = 0
    while few.put(ScannedKeys((b"1", b"2")), b"\1\1", records + 1):
        records += 2
        assert records <= RECORDS_PER_SLOT * 100 + 2
    assert few.latest_offset + 1 == records


@pytest.mark.parametrize("kind", TABLES)
def test_few_keys_that_repeat_do_not_fill_it(kind: str) -> None:
    offsets = OffsetMap(100, 110, TABLES[kind](110))
    for number in range(20):
        assert offsets.put(ScannedKeys(b"%d" % (each % 50) for each in range(30)), b"\1" * 30, number * 30 + 29)
    assert offsets.finish()
    assert len(offsets) == 30


@pytest.mark.parametrize("kind", ["plain", "vector"])
def test_records_that_were_small_on_disk_are_not_held(kind: str) -> None:
    """A megabyte of zeros is a kilobyte on disk; columns of keys hold the records that they are of."""
    builder = RecordBatchBuilder()
    for number in range(10):
        builder.append(0, b"batch-key-%d" % number, bytes(100_000), (), number)
    payload = bytes(RecordBatch(bytes(builder.build())).payload())
    offsets = OffsetMap(270_000, 300_000, TABLES[kind](300_000))
    tracemalloc.start()
    try:
        for number in range(60):
            keys, states = scan_keys(payload.replace(b"batch", b"%05d" % number), 10)
            assert offsets.put(keys, states, number * 10 + 9)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert offsets.finish()
    assert len(offsets) == 600


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=30), st.lists(st.binary(max_size=80), max_size=5))
@example([b"", b"\0", b"\0\0", b"a", b"a\0", b"\0a", b"k" * 64, b"k" * 65, b"k" * 64 + b"\0"], [b"longer" * 20])
@example([b"abcd", b"abcdefgh"], [b"k" * 63])
def test_a_key_has_one_digest_whatever_it_comes_with_and_others_have_another(
    keys: list[bytes], others: list[bytes]
) -> None:
    first, second = key_digests([keys + others])
    found = dict(zip(keys + others, zip(first.tolist(), second.tolist(), strict=True), strict=True))
    assert len(set(found.values())) == len(set(keys + others))
    alone_first, alone_second = key_digests([keys])
    assert [found[key] for key in keys] == list(zip(alone_first.tolist(), alone_second.tolist(), strict=True))
    columns = [KeyColumn(b"?" + b"<" + key + b">", 1, len(key) + 2, 1, len(key), 1) for key in keys]
    of_columns = key_digests([*columns, others, *columns])
    for half, expected in zip(of_columns, (alone_first, alone_second), strict=True):
        assert half[: len(keys)].tolist() == half[-len(keys) :].tolist() == expected.tolist()


def test_columns_are_cut_out_of_their_records() -> None:
    data = b"..." + b"".join(b"(%05d)" % number for number in range(100))
    column = KeyColumn(data, 3, 7, 1, 5, 100)
    assert list(column) == [b"%05d" % number for number in range(100)]
    for half, expected in zip(key_digests([column]), key_digests([list(column)]), strict=True):
        assert half.tolist() == expected.tolist()


def test_every_bit_of_a_digest_depends_on_the_key() -> None:
    import numpy as np

    # Factors are others in each process, and keys that are alike fall together under some: these are as bytes fall.
    drawn = random.Random(1)
    first, second = key_digests([[drawn.randbytes(13) for _ in range(4_000)]])
    for half in (first, second):
        bits = np.unpackbits(half.view(np.uint8).reshape(len(half), 8), axis=1).mean(axis=0)
        assert bits.min() > 0.4
        assert bits.max() < 0.6


def test_numpy_is_used_for_long_stretches_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from barnabas.log.cleaner.vector_key_table import VectorKeyTable

    assert isinstance(key_table(1_000_000), VectorKeyTable)
    assert isinstance(key_table(1_000), PlainKeyTable)
    monkeypatch.setitem(sys.modules, "barnabas.log.cleaner.vector_key_table", None)
    assert isinstance(key_table(1_000_000), PlainKeyTable)
