"""Batches checked by columns, held against `validate_records` and `assign_offsets` for each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_batch import BATCH_HEADER_BYTES, set_checksum
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import AppendOrigin, AppendRules, assign_offsets, validate_records
from barnabas.wire.records import Header, TimestampType
from barnabas.wire.uniform_batches import join_uniform, number_uniform

NOW_MS = 1_700_000_000_000
RULES = AppendRules(timestamp_before_max_ms=100_000, timestamp_after_max_ms=100_000)
GZIP = Compression(CompressionType.GZIP)
ALL_RULES = {
    "usual": RULES,
    "compacted": AppendRules(is_compacted=True),
    "small": AppendRules(batch_bytes_max=90),
    "compressed": AppendRules(compression=GZIP),
    "uncompressed": AppendRules(compression=Compression(CompressionType.NONE)),
    "append time": AppendRules(timestamp_type=TimestampType.LOG_APPEND_TIME),
}


def batch(
    value: bytes | None = b"value",
    key: bytes | None = None,
    *,
    timestamps_ms: tuple[int, ...] = (NOW_MS,),
    headers: tuple[Header, ...] = (),
    **fields: Any,
) -> bytearray:
    """A batch with a record for each timestamp."""
    builder = RecordBatchBuilder(**fields)
    for timestamp_ms in timestamps_ms:
        builder.append(timestamp_ms, key, value, headers)
    return bytearray(builder.build())


def changed(position: int, byte: int, *, is_checked: bool = True) -> bytearray:
    """A batch with another byte at `position`, and the checksum that belongs to it."""
    data = batch()
    data[position] ^= byte
    if is_checked:
        set_checksum(data)
    return data


def one_by_one(batches: list[bytearray], rules: AppendRules, base_offset: int, epoch: int) -> bytes | None:
    """What is stored of all of them; None where not all are good and stay as they are."""
    stored = bytearray()
    for offset, data in enumerate(batches, base_offset):
        copy = bytearray(data)
        try:
            validated = validate_records(copy, rules, NOW_MS, AppendOrigin.CLIENT, 9)
        except RecordsError:
            return None
        assert assign_offsets(validated, offset, epoch, NOW_MS) == offset
        stored += validated.records
    return bytes(stored)


def joined(batches: list[bytearray], rules: AppendRules, base_offset: int, epoch: int) -> bytes | None:
    before = [bytes(data) for data in batches]
    uniform = join_uniform(batches, rules, NOW_MS, 9)
    if uniform is not None:
        number_uniform(uniform, base_offset, epoch)
    assert [bytes(data) for data in batches] == before
    return None if uniform is None else bytes(uniform.records)


times = st.integers(NOW_MS - 100_000, NOW_MS + 100_000)
offsets = st.one_of(st.integers(0, 70_000), st.integers(0, (1 << 63) - 100))
epochs = st.integers(0, (1 << 31) - 1)


@given(
    st.lists(st.tuples(times, st.binary(min_size=200, max_size=200)), min_size=1, max_size=20),
    st.integers(0, 200),
    st.sampled_from([None, 0, 1, 50]),
    offsets,
    epochs,
)
def test_what_is_uniform_is_stored_as_one_by_one(
    sent: list[tuple[int, bytes]], value_bytes: int, key_bytes: int | None, base_offset: int, epoch: int
) -> None:
    batches = [
        batch(
            content[:value_bytes],
            None if key_bytes is None else content[-key_bytes:] if key_bytes else b"",
            timestamps_ms=(timestamp_ms,),
            partition_leader_epoch=number - 1,
        )
        for number, (timestamp_ms, content) in enumerate(sent)
    ]
    expected = one_by_one(batches, RULES, base_offset, epoch)
    assert expected is not None
    assert joined(batches, RULES, base_offset, epoch) == expected
    uniform = join_uniform(batches, RULES, NOW_MS)
    assert uniform is not None
    assert uniform.timestamps_ms == tuple(timestamp_ms for timestamp_ms, _ in sent)


@pytest.mark.parametrize("name", ALL_RULES)
@pytest.mark.parametrize("key", [None, b"key"])
def test_every_rule_of_a_topic_holds(name: str, key: bytes | None) -> None:
    rules = ALL_RULES[name]
    batches = [batch(b"v" * 20, key) for _ in range(10)]
    try:
        validated = validate_records(batches[0], rules, NOW_MS)
    except RecordsError:
        is_kept = False
    else:
        is_kept = not validated.converted_count and validated.timestamp_type is TimestampType.CREATE_TIME
    found = joined(batches, rules, 7, 3)
    assert (found is not None) == is_kept
    if found is not None:
        assert found == one_by_one(batches, rules, 7, 3)


# Good or bad, but not to be stored as the others are, or nothing that a column tells.
STRANGERS: dict[str, bytearray] = {
    "another size": batch(b"valu"),
    "no value": batch(None),
    "a key": batch(b"valu", b""),
    "an empty key for a null": changed(BATCH_HEADER_BYTES + 4, 1),
    "two records": batch(timestamps_ms=(NOW_MS, NOW_MS)),
    "a header": batch(b"v", headers=((b"a", b"b"),)),
    "no timestamp": batch(timestamps_ms=(-1,)),
    "too old": batch(timestamps_ms=(NOW_MS - 100_001,)),
    "too young": batch(timestamps_ms=(NOW_MS + 100_001,)),
    "a producer": batch(producer_id=4, producer_epoch=0, base_sequence=0),
    "transactional": batch(producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True),
    "compressed": batch(compression=GZIP),
    "a base offset": changed(7, 1),
    "a control batch": changed(22, 0x20),
    "append time": changed(22, 0x08),
    "a delete horizon": changed(22, 0x40),
    "an unknown codec": changed(22, 0x07),
    "more offsets than records": changed(26, 1),
    "more records than offsets": changed(60, 2),
    "a sequence without producer": changed(56, 1),
    "an epoch without producer": changed(52, 1),
    "a larger maximum of timestamps": changed(42, 1),
    "another size of the batch": changed(11, 4),
    "another magic": changed(16, 1),
    "another size of the record": changed(BATCH_HEADER_BYTES, 2),
    "a timestamp delta": changed(BATCH_HEADER_BYTES + 2, 2),
    "an offset delta": changed(BATCH_HEADER_BYTES + 3, 2),
    "another size of the value": changed(BATCH_HEADER_BYTES + 5, 2),
    "a count of headers": changed(len(batch()) - 1, 2),
    "a wrong checksum": changed(19, 1, is_checked=False),
    "a wrong byte": changed(len(batch()) - 3, 1, is_checked=False),
    "half a batch": batch()[:30],
    "nothing": bytearray(),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("place", [0, 5, 9])
def test_one_that_is_not_uniform_leaves_all_to_the_other_way(name: str, place: int) -> None:
    batches = [batch() for _ in range(9)]
    batches.insert(place, STRANGERS[name])
    assert joined(batches, RULES, 7, 3) is None


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(0, len(batch()) - 1),
    st.integers(1, 255),
    st.booleans(),
    epochs,
)
def test_a_byte_that_differs_changes_no_outcome(
    places: list[int], position: int, byte: int, is_checked: bool, epoch: int
) -> None:
    batches = [batch() for _ in range(10)]
    for place in places:
        batches[place] = changed(position, byte, is_checked=is_checked)
    found = joined(batches, AppendRules(), 7, epoch)
    if found is not None:
        assert found == one_by_one(batches, AppendRules(), 7, epoch)


def test_others_that_are_all_of_one_kind_go_the_other_way_too() -> None:
    """But for the sizes, nothing is compared with anything but the first: that has to be good and plain itself."""
    for name, stranger in STRANGERS.items():
        data = bytes(stranger)
        found = joined([bytearray(data) for _ in range(10)], RULES, 7, 3)
        assert found is None or found == one_by_one([bytearray(data) for _ in range(10)], RULES, 7, 3), name
