"""The format of producer snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.producers.producer_snapshot import (
    CorruptSnapshotError,
    ProducerSnapshotEntry,
    format_snapshot,
    parse_snapshot,
)

int16, int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
entries_of_producers = st.lists(
    st.builds(ProducerSnapshotEntry, int64, int16, int32, int64, int32, int64, int32, int64), max_size=5
)


@given(entries_of_producers)
def test_entries_are_read_back(entries: list[ProducerSnapshotEntry]) -> None:
    assert parse_snapshot(format_snapshot(entries)) == entries


@given(entries_of_producers, st.data())
def test_any_changed_bit_is_noticed(entries: list[ProducerSnapshotEntry], data: st.DataObject) -> None:
    changed = bytearray(format_snapshot(entries))
    bit = data.draw(st.integers(0, len(changed) * 8 - 1))
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptSnapshotError):
        parse_snapshot(bytes(changed))


@given(entries_of_producers, st.data())
def test_any_missing_end_is_noticed(entries: list[ProducerSnapshotEntry], data: st.DataObject) -> None:
    whole = format_snapshot(entries)
    with pytest.raises(CorruptSnapshotError):
        parse_snapshot(whole[: data.draw(st.integers(0, len(whole) - 1))])
