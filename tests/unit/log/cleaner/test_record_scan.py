"""What the cleaner reads of a batch by columns of bytes is what the reader of records reads one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.log.cleaner.record_scan import DROPPED, TOMBSTONE, VALUE, kept_records, largest_timestamp_delta, scan_keys
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.records import Record

SIZES = st.sampled_from((0, 1, 63, 64, 100, 9000))
RUNS = st.lists(
    st.tuples(
        st.sampled_from((1, 3, 9, 70)),
        st.one_of(st.none(), SIZES),
        st.one_of(st.none(), SIZES),
        st.sampled_from((0, 1, 40, 100, 9000, -1, -70)),
        st.sampled_from(((), ((b"header", b"x" * 90),), ((b"h", None),))),
        st.sampled_from((1, 2, 5)),
    ),
    min_size=1,
    max_size=6,
)
Run = tuple[int, int | None, int | None, int, tuple[tuple[bytes, bytes | None], ...], int]


def batch_of(runs: list[Run]) -> RecordBatch:
    builder = RecordBatchBuilder(base_offset=1000)
    number, offset, timestamp_ms = 0, 1000, 1_700_000_000_000
    for count, key_bytes, value_bytes, step_ms, headers, gap in runs:
        for _ in range(count):
            key = None if key_bytes is None else (b"%d" % number * 9000)[:key_bytes]
            builder.append(timestamp_ms, key, None if value_bytes is None else bytes(value_bytes), headers, offset)
            number, offset, timestamp_ms = number + 1, offset + gap, timestamp_ms + step_ms
    return RecordBatch(bytes(builder.build()))


def state_of(record: Record) -> int:
    return DROPPED if record.key is None else TOMBSTONE if record.value is None else VALUE


@settings(deadline=None)
@given(RUNS, st.randoms(use_true_random=False))
def test_equals_the_reader(runs: list[Run], random: object) -> None:
    batch = batch_of(runs)
    records = list(batch.records())
    payload = bytes(batch.payload())
    scanned, states = scan_keys(payload, len(records))
    keys = list(scanned)
    assert len(scanned) == len(keys)
    assert keys == [record.key for record in records if record.key is not None]
    assert list(states) == [state_of(record) for record in records]
    chosen = bytes(random.choice((DROPPED, VALUE)) for _ in records)  # type: ignore[attr-defined]
    kept = kept_records(payload, chosen)
    wanted = [record for record, state in zip(records, chosen, strict=True) if state]
    again = list(
        RecordBatch(_with(batch, kept)).records(),
    )
    assert again == wanted
    largest = largest_timestamp_delta(kept, batch.max_timestamp_ms - batch.header.base_timestamp_ms)
    assert not wanted or batch.header.base_timestamp_ms + largest == max(record.timestamp_ms for record in wanted)


def _with(batch: RecordBatch, records: list[bytes]) -> bytes:
    data = bytearray(batch.view[:61]) + b"".join(records)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[57:61] = len(records).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("count", [3, 30])
def test_refuses_what_does_not_end_where_its_batch_does(count: int) -> None:
    payload = bytes(batch_of([(count, 5, 20, 1, (), 1)]).payload())
    for data, records in ((payload[:-1], count), (payload + b"\0", count), (payload, count + 1), (payload, count - 1)):
        with pytest.raises(InvalidRecordError):
            scan_keys(data, records)
        with pytest.raises(InvalidRecordError):
            kept_records(data, bytes(records))
    # A key that is longer than its record.
    longer = bytearray(payload)
    longer[4] = 126
    with pytest.raises(InvalidRecordError):
        scan_keys(bytes(longer), count)
