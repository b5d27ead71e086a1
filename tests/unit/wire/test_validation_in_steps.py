"""The validation of produced batches in steps: what it gives, and that no step is large."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.wire import byte_work, compression, legacy_records, record_conversion, record_scan, record_validation
from barnabas.wire.byte_work import TakesLongError, run_at_once
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import HEADER, read_batch_header, set_checksum
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import DecompressedTooLargeError, InvalidRecordError, RecordsError
from barnabas.wire.record_validation import (
    AppendOrigin,
    AppendRules,
    ValidatedBatch,
    validate_in_steps,
    validate_records,
)
from barnabas.wire.records import Record, TimestampType

NOW_MS = 1_700_000_000_000
CODECS = list(CompressionType)
STEP_SIZES = (
    (record_scan, "SCANNED_PER_STEP"),
    (record_scan, "_LOOKED_AT_PER_STEP"),
    (record_scan, "_HEADERS_AT_ONCE_MAX"),
    (record_conversion, "RECORDS_PER_STEP"),
    (record_validation, "RECORDS_PER_STEP"),
    (record_validation, "MESSAGES_PER_STEP"),
    (legacy_records, "MESSAGES_PER_STEP"),
    (record_validation, "_WALKED_PER_STEP"),
    (byte_work, "AT_ONCE_BYTES_MAX"),
    (byte_work, "INFLATED_AT_ONCE_BYTES_MAX"),
    (byte_work, "DECOMPRESSED_AT_ONCE_MAX"),
)


def some_records(chance: random.Random) -> Iterator[Record]:
    count = chance.choice((1, 2, 5, 17, 40, 90))
    is_alike = chance.random() < 0.4
    keys = chance.choice(((b"k",), (b"k", None), (None,)))
    for number in range(count):
        headers = tuple((b"h", chance.choice((b"v", None))) for _ in range(chance.choice((0, 0, 0, 1, 3, 70))))
        yield Record(
            number,
            NOW_MS + (0 if is_alike else chance.choice((0, 1, -7, 200, 10_000_000_000))),
            keys[0] if is_alike else chance.choice(keys),
            b"value" if is_alike else bytes(chance.choice((0, 1, 63, 64, 300))),
            () if is_alike else headers,
        )


def some_buffer(chance: random.Random) -> bytearray:
    """What a producer of any age may send, now and then damaged."""
    records = list(some_records(chance))
    kind = chance.choice(("batch", "batch", "batch", "messages", "batches", "cut"))
    if kind == "messages":
        codec = chance.choice([codec for codec in CODECS if codec is not CompressionType.ZSTD])
        buffer = bytearray(write_messages(chance.choice((0, 1)), records, Compression(codec)))
    else:
        builder = RecordBatchBuilder(compression=Compression(chance.choice(CODECS)))
        gap = 0
        for record in records:
            gap += chance.random() < 0.01
            builder.append(record.timestamp_ms, record.key, record.value, record.headers, record.offset + gap)
        buffer = builder.build()
        if kind == "batches":
            buffer *= chance.choice((2, 9))
    if kind == "cut":
        del buffer[-chance.randrange(1, len(buffer)) :]
    if chance.random() < 0.2:
        buffer[chance.randrange(len(buffer))] ^= 1 << chance.randrange(8)
        if kind == "batch" and chance.random() < 0.8:
            try:
                header = read_batch_header(buffer)
            except RecordsError:
                return buffer
            buffer[: HEADER.size] = HEADER.pack(*header)
            set_checksum(buffer)
    return buffer


def some_rules(chance: random.Random) -> AppendRules:
    return AppendRules(
        batch_bytes_max=chance.choice((500, 5_000, 1 << 20, 1 << 20, 1 << 20)),
        timestamp_type=chance.choice((TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)),
        timestamp_after_max_ms=chance.choice((100, 1 << 62, 1 << 62)),
        is_compacted=chance.random() < 0.3,
        compression=chance.choice((None, None, *(Compression(codec) for codec in CODECS))),
        decompressed_bytes_max=chance.choice((1_000, 1 << 20, 1 << 20)),
    )


def outcome(validate: Callable[..., ValidatedBatch], *arguments: Any) -> Any:
    try:
        validated = validate(*arguments)
    except RecordsError as error:
        return type(error), getattr(error, "record_errors", ()), error.is_of_request
    return bytes(validated.records), *validated[1:]


class Stepped:
    """Runs a validation to its end, and counts its steps."""

    def __init__(self) -> None:
        self.count = 0

    def validate(
        self, buffer: bytearray, rules: AppendRules, now_ms: int, origin: AppendOrigin, version: int | None
    ) -> ValidatedBatch:
        steps = validate_in_steps(buffer, rules, now_ms, origin, version)
        result: Any = None
        error: RecordsError | None = None
        while True:
            try:
                work = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as stop:
                validated: ValidatedBatch = stop.value
                return validated
            self.count += 1
            result = error = None
            try:
                result = None if work is None else work()
            except RecordsError as problem:
                error = problem


def test_steps_give_what_one_step_does_wherever_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(11)
    accepted = refused = in_steps = 0
    for _ in range(1_500):
        buffer = some_buffer(chance)
        before = bytes(buffer)
        arguments = buffer, some_rules(chance), NOW_MS, AppendOrigin.CLIENT, chance.choice((None, None, 2, 5, 9))
        expected = outcome(validate_records, *arguments)
        stepped = Stepped()
        with monkeypatch.context() as patch:
            for module, name in STEP_SIZES:
                patch.setattr(module, name, chance.choice((1, 2, 3, 10, 50, 1_000)))
            assert outcome(stepped.validate, *arguments) == expected
        assert buffer == before
        in_steps += stepped.count > 0
        if isinstance(expected[0], bytes):
            accepted += 1
        else:
            refused += 1
    assert min(accepted, refused) > 300
    assert in_steps > 500


MANY = 60_000
ROOM = AppendRules(batch_bytes_max=50 << 20)


def built(records: int, *headers: tuple[bytes, bytes | None]) -> bytearray:
    builder = RecordBatchBuilder()
    for _ in range(records):
        builder.append(NOW_MS, None, None, headers)
    return builder.build()


def messages(codec: CompressionType) -> bytearray:
    return bytearray(write_messages(1, [Record(0, NOW_MS, None, None)] * 8_000, Compression(codec)))


empty_records = functools.cache(functools.partial(built, MANY))
# Name, what makes the batch, rules, and in how many steps it is to be done at least. Made by the tests that need them:
# processes that only collect these have no use for them.
LARGE: dict[str, tuple[Callable[[], bytearray], AppendRules, int]] = {
    "empty records": (empty_records, ROOM, MANY // 4096),
    "append time": (
        empty_records,
        dataclasses.replace(ROOM, timestamp_type=TimestampType.LOG_APPEND_TIME),
        MANY // 4096,
    ),
    "recompressed": (
        empty_records,
        dataclasses.replace(ROOM, compression=Compression(CompressionType.GZIP)),
        MANY // 4096 + MANY // 1024,
    ),
    "too old": (empty_records, dataclasses.replace(ROOM, timestamp_before_max_ms=-1), MANY // 1024),
    "headers of one record": (lambda: built(1, *((b"", None),) * MANY), ROOM, MANY // 4096),
    "headers of many records": (lambda: built(MANY // 10, *((b"", None),) * 10), ROOM, MANY // 8192),
    "many batches": (lambda: built(1) * 20_000, ROOM, 2),
    "messages, NONE": (lambda: messages(CompressionType.NONE), ROOM, 8_000 // 1024),
    "messages, GZIP": (lambda: messages(CompressionType.GZIP), ROOM, 8_000 // 1024),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_takes_many_steps_and_is_not_begun_where_one_is_allowed(name: str) -> None:
    make, rules, steps_min = LARGE[name]
    buffer = make()
    steps = validate_in_steps(buffer, rules, NOW_MS)
    count = 0
    with pytest.raises((StopIteration, RecordsError)):  # the end, or what is wrong with it
        result = None
        while True:
            work = steps.send(result)
            result = None if work is None else work()
            count += 1
    assert count >= steps_min
    with pytest.raises(TakesLongError):
        validate_records(buffer, rules, NOW_MS, only_at_once=True)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec])
def test_much_that_was_compressed_is_decompressed_by_others(
    codec: CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = RecordBatchBuilder(compression=Compression(codec))
    builder.append(NOW_MS, None, bytes(5_000_000))
    batch = builder.build()
    bounds: list[int] = []
    decompress = compression.decompress

    def watched(data: Any, kind: CompressionType, bytes_max: int, **rest: Any) -> Any:
        bounds.append(bytes_max)
        return decompress(data, kind, bytes_max, **rest)

    monkeypatch.setattr(byte_work, "decompress", watched)
    with pytest.raises(TakesLongError):
        validate_records(batch, AppendRules(), NOW_MS, only_at_once=True)
    assert all(bytes_max <= max(256 * 1024, 16 * len(batch)) for bytes_max in bounds)
    steps = validate_in_steps(batch, AppendRules(), NOW_MS)
    work = next(steps)
    assert work is not None
    with pytest.raises(StopIteration) as stop:
        steps.send(work())
    assert stop.value.value == validate_records(batch, AppendRules(), NOW_MS)


def test_a_bomb_is_told_to_whoever_waits_for_the_work() -> None:
    builder = RecordBatchBuilder(compression=Compression(CompressionType.ZSTD))
    builder.append(NOW_MS, None, bytes(3_000_000))
    rules = AppendRules(decompressed_bytes_max=1_000_000)
    with pytest.raises(DecompressedTooLargeError):
        run_at_once(validate_in_steps(builder.build(), rules, NOW_MS))
    steps = validate_in_steps(builder.build(), rules, NOW_MS)
    work = next(steps)
    assert work is not None
    with pytest.raises(DecompressedTooLargeError) as problem:
        work()
    with pytest.raises(DecompressedTooLargeError):
        steps.throw(problem.value)


def test_a_record_of_very_many_headers_that_is_written_anew_is_work_for_others() -> None:
    builder = RecordBatchBuilder()
    builder.append(NOW_MS, None, None, ((b"", None),) * 10_000)
    rules = AppendRules(compression=Compression(CompressionType.LZ4))
    steps = validate_in_steps(builder.build(), rules, NOW_MS)
    work = next(steps)
    while work is None:
        work = next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(work())
    assert stop.value.value.header.record_count == 1


def test_refuses_what_no_batch_is() -> None:
    with pytest.raises(InvalidRecordError, match="there is no batch"):
        run_at_once(validate_in_steps(b"", AppendRules(), NOW_MS))
