"""Compaction equals a dictionary: whatever the history and the settings, the last value of each key is what remains."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.paced_work import finish
from barnabas.kernel.real_files import RealFiles
from barnabas.log.cleaner.batch_filter import LastBatch
from barnabas.log.cleaner.compaction import Compaction, compact, read_result
from barnabas.log.cleaner.plan import SegmentFacts
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.log.segments.segment import Segment, SegmentConfig
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record
from tests.support.examples import examples

CONFIG = SegmentConfig(segment_bytes=600, index_interval_bytes=100)
RETENTION_MS = 1000
FILES = RealFiles()


@dataclass
class History:
    """What was written, and the log's files."""

    directory: str
    segments: list[list[RecordBatch]] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    """Offsets of aborted records and of markers."""
    aborted: list[AbortedTransaction] = field(default_factory=list)
    producers: dict[int, LastBatch] = field(default_factory=dict)
    end: int = 0

    def add(self, data: bytearray) -> None:
        batch = RecordBatch(bytes(data))
        if not self.segments or sum(each.size_bytes for each in self.segments[-1]) > CONFIG.segment_bytes // 2:
            self.segments.append([])
        self.segments[-1].append(batch)
        for record in batch.records():
            self.records[record.offset] = record
            if batch.is_control:
                self.hidden.add(record.offset)
        if batch.header.has_producer_id and not batch.is_control:
            self.producers[batch.producer_id] = LastBatch(batch.last_offset, 0)
        self.end = batch.last_offset + 1

    def values(self, records: list[Record]) -> dict[bytes, bytes]:
        """What a reader of committed data ends up with."""
        found: dict[bytes, bytes] = {}
        for record in records:
            if record.offset in self.hidden or record.key is None:
                continue
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
        return found


Write = tuple[str, list[tuple[int, bool]]]
KINDS = ("plain", "idempotent", "commit", "abort")
CODECS = (CompressionType.NONE, CompressionType.GZIP, CompressionType.NONE, CompressionType.ZSTD)
WRITES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4)),
    min_size=2,
    max_size=25,
)


def write(history: History, number: int, kind: str, records: list[tuple[int, bool]]) -> None:
    producer = KINDS.index(kind)
    builder = RecordBatchBuilder(
        base_offset=history.end,
        partition_leader_epoch=0,
        **({"producer_id": producer, "producer_epoch": 0, "base_sequence": number} if producer else {}),  # type: ignore[arg-type]
        is_transactional=producer > 1,
        compression=Compression(CODECS[number % len(CODECS)]),
    )
    for place, (key, has_value) in enumerate(records):
        # Younger and older than those before them, with headers and without, also where there is no value.
        timestamp_ms = 1000 + number * (1, -7, 900)[place % 3]
        headers = ((b"header", b"%d" % number), (b"none", None)) if (number + place) % 2 else ()
        builder.append(timestamp_ms, b"key-%d" % key, b"%d" % number * 9 if has_value else None, headers)
    first = history.end
    history.add(builder.build())
    if producer > 1:
        is_abort = kind == "abort"
        if is_abort:
            history.hidden.update(range(first, history.end))
            history.aborted.append(AbortedTransaction(producer, first, history.end, history.end))
        marker = EndTransactionMarker(ControlRecordType.ABORT if is_abort else ControlRecordType.COMMIT, 0)
        history.add(
            end_transaction_batch(
                marker,
                timestamp_ms=1000 + number,
                producer_id=producer,
                producer_epoch=0,
                base_offset=history.end,
                partition_leader_epoch=0,
            )
        )


def store(history: History) -> dict[int, SegmentFacts]:
    facts: dict[int, SegmentFacts] = {}
    bases = [batches[0].base_offset for batches in history.segments]
    for batches, end in zip(history.segments, [*bases[1:], history.end], strict=True):
        segment = Segment(FILES, history.directory, batches[0].base_offset, CONFIG, created_ms=0)
        segment.create()
        for batch in batches:
            segment.append(bytes(batch.view), batch.last_offset, batch.max_timestamp_ms)
        facts[segment.base_offset] = SegmentFacts(segment.base_offset, segment.size_bytes, 0, end, 0)
        segment.close()
    return facts


def take_over(directory: str, facts: dict[int, SegmentFacts], groups: list[list[int]]) -> None:
    """What the broker does with the result, without its care."""
    for group in groups:
        end = facts[group[-1]].end_offset
        for base in group:
            del facts[base]
            for path in Path(directory).glob(f"{base:020d}*[!d]"):
                if not path.name.endswith(".cleaned"):
                    path.unlink()
        for path in Path(directory).glob(f"{group[0]:020d}*.cleaned"):
            path.rename(path.with_suffix(""))
        segment = Segment(FILES, directory, group[0], CONFIG, created_ms=0)
        segment.load()
        facts[group[0]] = SegmentFacts(group[0], segment.size_bytes, 0, end, 0)
        segment.close()


def batches_of(directory: str, facts: dict[int, SegmentFacts]) -> list[RecordBatch]:
    found = []
    for base in sorted(facts):
        segment = Segment(FILES, directory, base, CONFIG, created_ms=0)
        segment.load()
        found += [batch for batch in segment.batches() if isinstance(batch, RecordBatch)]
        segment.close()
    return found


@settings(max_examples=examples(60), deadline=None)
@given(WRITES, st.integers(1, 6), st.lists(st.sampled_from((1, 500, 1500)), min_size=1, max_size=5), st.booleans())
def test_equals_a_dictionary(writes: list[Write], entries_max: int, pauses: list[int], starts_anew: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = History(directory)
        for number, (kind, records) in enumerate(writes):
            write(history, number, kind, records)
        facts = store(history)
        wanted = history.values(list(history.records.values()))
        work = Compaction(
            directory,
            (),
            0,
            history.end,
            tuple(history.aborted),
            history.producers,
            CONFIG,
            0,
            RETENTION_MS,
            entries_max,
            entries_max,
        )
        visible = history.records.keys() - history.hidden
        last_of_keys = set({history.records[offset].key: offset for offset in sorted(visible)}.values())
        aborted = {offset for each in history.aborted for offset in range(each.first_offset, each.last_offset)}
        first_dirty, now_ms = 0, 10_000
        tombstones_since: dict[int, int] = {}
        for pause in pauses:
            now_ms += pause
            if starts_anew or first_dirty >= history.end:
                first_dirty = 0
            ordered = tuple(facts[base] for base in sorted(facts))
            work = replace(work, segments=ordered, first_dirty_offset=first_dirty, now_ms=now_ms)
            before = {record.offset for batch in batches_of(directory, facts) for record in batch.records()}
            assert finish(compact(FILES, b"".join(work.encode())), float, lambda _: None) == 0
            result = read_result(FILES, directory)
            assert result.end_offset > first_dirty
            take_over(directory, facts, result.groups)
            batches = batches_of(directory, facts)
            left = [record for batch in batches for record in batch.records()]
            offsets = [record.offset for record in left]
            assert offsets == sorted(set(offsets))
            assert all(history.records[record.offset] == record for record in left), "a record has changed"
            assert history.values(left) == wanted
            below = [offset for offset in offsets if first_dirty <= offset < result.end_offset]
            assert not aborted.intersection(below), "aborted data is left"
            keys = [history.records[each].key for each in offsets if each < result.end_offset and each in visible]
            if first_dirty == 0:
                assert len(keys) == len(set(keys)), "a value that is not the last one is left"
            for offset in before - set(offsets):
                if offset in last_of_keys and history.records[offset].value is None:
                    assert now_ms - tombstones_since[offset] >= RETENTION_MS, "a tombstone went before its time"
            for offset in offsets:
                if history.records[offset].value is None:
                    tombstones_since.setdefault(offset, now_ms)
            kept_last = {batch.last_offset for batch in batches}
            assert {last.last_offset for last in history.producers.values()} <= kept_last
            first_dirty = result.end_offset
