"""Reads and writes the same batches with Barnabas, kafka-python and aiokafka: `python -m benchmarks.records`.

All take turns in one process, so that a busy machine slows all of them; the figure is the median of the rounds.
kafka-python is pure Python as ours is; aiokafka's reader and writer are compiled C, and are shown for orientation.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_validation import AppendRules, assign_offsets, validate_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its resources in an old way
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

ROUNDS = 11
NOW_MS = 1_700_000_000_000
RULES = AppendRules(batch_bytes_max=1 << 30)


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch: how many records of which size, in which codec."""

    record_count: int
    value_bytes: int
    codec: CompressionType

    @property
    def name(self) -> str:
        return f"{self.record_count:>6} x {self.value_bytes:>4} B, {self.codec.name.lower()}"

    def values(self) -> list[bytes]:
        return [(b"value-%d " % index * self.value_bytes)[: self.value_bytes] for index in range(self.record_count)]


SHAPES = [
    Shape(1, 100, CompressionType.NONE),
    Shape(1_000, 100, CompressionType.NONE),
    Shape(10_000, 100, CompressionType.NONE),
    Shape(1_000, 1_000, CompressionType.NONE),
    Shape(10_000, 100, CompressionType.LZ4),
    Shape(10_000, 100, CompressionType.ZSTD),
]


def build_ours(values: Iterable[bytes], codec: CompressionType) -> bytearray:
    builder = RecordBatchBuilder(compression=Compression(codec))
    append = builder.append
    for value in values:
        append(NOW_MS, b"key", value)
    return builder.build()


def build_theirs(builder_class: type, values: Iterable[bytes], codec: CompressionType) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    append = builder.append
    for offset, value in enumerate(values):
        append(offset, NOW_MS, b"key", value, [])
    return bytes(builder.build())


def read_ours(data: bytes) -> int:
    batch = RecordBatch(data)
    batch.verify()
    total_bytes = 0
    for record in batch.records():
        total_bytes += len(record.value or b"")
    return total_bytes


def read_theirs(records_class: type, data: bytes) -> int:
    batch = records_class(data).next_batch()
    if not batch.validate_crc():
        raise ValueError("the checksum does not fit")
    total_bytes = 0
    for record in batch:
        total_bytes += len(record.value)
    return total_bytes


def verify_ours(data: bytes) -> None:
    RecordBatch(data).verify()


def keys_of(data: bytes) -> int:
    return sum(len(entry.key or b"") for entry in RecordBatch(data).entries())


def append_path(data: bytearray) -> None:
    """What a leader does with a batch before it is written."""
    assign_offsets(validate_records(memoryview(data), RULES, NOW_MS), 0, 3, NOW_MS)


def medians(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds for one call of each, all taking turns."""
    calls = {name: calls_for(work) for name, work in contenders.items()}
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, work in contenders.items():
            started = time.perf_counter()
            for _ in range(calls[name]):
                work()
            rounds[name].append((time.perf_counter() - started) / calls[name])
    return {name: statistics.median(times) for name, times in rounds.items()}


def calls_for(work: Callable[[], object], target_seconds: float = 0.01) -> int:
    """So many calls that a round takes about `target_seconds`; also warms up."""
    work()
    started = time.perf_counter()
    work()
    return max(1, int(target_seconds / max(time.perf_counter() - started, 1e-7)))


def compare(title: str, contenders: dict[str, Callable[[], object]], record_count: int) -> None:
    seconds = medians(contenders)
    ours = seconds["barnabas"]
    shown = [f"{name} {record_count / taken / 1e3:>7,.0f} k/s" for name, taken in seconds.items()]
    ratios = [f"{taken / ours:.2f}x {name}" for name, taken in seconds.items() if name != "barnabas"]
    print(f"  {title:<6} {'   '.join(shown)}   -> {', '.join(ratios)}", flush=True)


def main() -> None:
    for shape in SHAPES:
        values = shape.values()
        batch = build_ours(values, shape.codec)
        data = bytes(batch)
        print(f"{shape.name} ({len(data):,} bytes)")
        build: dict[str, Callable[[], object]] = {
            "barnabas": lambda values=values, shape=shape: build_ours(values, shape.codec)  # type: ignore[misc]
        }
        read: dict[str, Callable[[], object]] = {"barnabas": lambda data=data: read_ours(data)}  # type: ignore[misc]
        for name, builder, reader in (
            ("kafka-python", KafkaPythonBuilder, KafkaPythonRecords),
            ("aiokafka (C)", AiokafkaBuilder, AiokafkaRecords),
        ):
            if read_theirs(reader, data) != read_ours(build_theirs(builder, values, shape.codec)):
                raise ValueError(f"{name} disagrees on what is in the batch")
            build[name] = lambda builder=builder, values=values, shape=shape: build_theirs(builder, values, shape.codec)  # type: ignore[misc]
            read[name] = lambda reader=reader, data=data: read_theirs(reader, data)  # type: ignore[misc]
        compare("read", read, shape.record_count)
        compare("build", build, shape.record_count)
        own = medians(
            {
                "header and checksum": lambda data=data: verify_ours(data),  # type: ignore[misc]
                "keys only": lambda data=data: keys_of(data),  # type: ignore[misc]
                "leader's checks and offsets": lambda batch=batch: append_path(batch),  # type: ignore[misc]
            }
        )
        print("  " + "   ".join(f"{name} {taken * 1e6:,.1f} us" for name, taken in own.items()), flush=True)


if __name__ == "__main__":
    main()
