"""Records that are checked by columns, held against the scan that reads them one by one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.kernel.steps import at_once
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.record_runs import RUN_MIN, run_like
from barnabas.wire.record_scan import RecordScan, _scan_any, scan_records
from barnabas.wire.sentinels import NO_TIMESTAMP

BASE_MS = 1_700_000_000_000

# Records of one kind: how many, the sizes of key and value, and how far their timestamps may lie from the first.
KIND = st.tuples(
    st.integers(1, 150),
    st.sampled_from([None, 0, 3, 70, 200]),
    st.sampled_from([None, 0, 1, 50, 63, 64, 130, 9000]),
    st.sampled_from([0, 1, 63, 64, 100, 10_000, 5_000_000]),
    st.booleans(),
)


def payload(kinds: list[tuple[int, int | None, int | None, int, bool]], steps: list[int]) -> tuple[bytes, int]:
    builder = RecordBatchBuilder()
    count = 0
    for records, key_bytes, value_bytes, spread, has_headers in kinds:
        for number in range(records):
            timestamp_ms = BASE_MS + steps[count % len(steps)] % (spread + 1)
            key = None if key_bytes is None else b"k" * key_bytes
            value = None if value_bytes is None else b"v" * value_bytes
            headers = [(b"h", b"x")] if has_headers and number % 2 else []
            builder.append(timestamp_ms if count else BASE_MS, key, value, headers)
            count += 1
    return bytes(RecordBatch(builder.build()).payload()), count


def outcome(data: bytes, count: int, *, by_columns: bool) -> RecordScan | None:
    """None where the records are refused."""
    try:
        return scan_records(data, count, BASE_MS) if by_columns else at_once(_scan_any(data, count, BASE_MS))
    except InvalidRecordError:
        return None


@given(
    st.lists(KIND, min_size=1, max_size=4),
    st.lists(st.integers(0, 5_000_000), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=3),
)
def test_columns_say_what_single_records_say(
    kinds: list[tuple[int, int | None, int | None, int, bool]], steps: list[int], changes: list[tuple[int, int]]
) -> None:
    whole, count = payload(kinds, steps)
    data = bytearray(whole)
    for place, value in changes:
        data[place % len(data)] = value
    assert outcome(bytes(data), count, by_columns=True) == outcome(bytes(data), count, by_columns=False)


@pytest.mark.parametrize("value", [0, 1, 2, 0x3F, 0x7F, 0x80, 0xFF])
def test_a_change_of_any_byte_is_noticed_as_one_by_one(value: int) -> None:
    whole, count = payload([(40, 3, 20, 90, False)], [5, 70, 3])
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] = value
        assert outcome(bytes(data), count, by_columns=True) == outcome(bytes(data), count, by_columns=False)


@pytest.mark.parametrize("count", [9_000, 8_192, 64, 65, RUN_MIN, RUN_MIN + 1, RUN_MIN + 2])
def test_every_number_of_like_records(count: int) -> None:
    data, found = payload([(count, None, 10, 0, False)], [0])
    scan = scan_records(data, found, BASE_MS)
    assert scan == at_once(_scan_any(data, count, BASE_MS))
    assert (scan.has_sequential_offsets, scan.has_all_keys) == (True, False)


def test_records_without_timestamps_have_none() -> None:
    data, count = payload([(100, None, 10, 0, False)], [0])
    scan = scan_records(data, count, NO_TIMESTAMP)
    assert scan.max_timestamp_ms == NO_TIMESTAMP
    assert scan == at_once(_scan_any(data, count, NO_TIMESTAMP))


def test_like_records_are_found_in_one_go() -> None:
    data, count = payload([(64, 5, 100, 50, False)], [1, 9, 4])
    step = len(data) // count
    run = run_like(data, 0, step, 1, count - 1, NO_TIMESTAMP - BASE_MS)
    assert run == (63, 9, 1, 1)
    assert run_like(data, 0, step, 1, RUN_MIN - 1, NO_TIMESTAMP - BASE_MS).records == 0


def test_like_records_cost_a_fraction() -> None:
    data, count = payload([(1000, None, 1000, 0, False)], [0])

    def seconds(*, by_columns: bool) -> float:
        found = []
        for _ in range(5):
            began = time.thread_time()
            outcome(data, count, by_columns=by_columns)
            found.append(time.thread_time() - began)
        return min(found)

    assert seconds(by_columns=True) < seconds(by_columns=False) / 2
