"""Messages of magic 0 and 1 are compacted as batches are; only their tombstones stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.kernel.paced_work import finish
from barnabas.kernel.real_files import RealFiles
from barnabas.log.cleaner.compaction import Compaction, compact, read_result
from barnabas.log.cleaner.plan import SegmentFacts
from barnabas.log.segments.segment import Segment, SegmentConfig
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record

FILES = RealFiles()


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("first_dirty", [0, 20])
def test_equals_a_dictionary(tmp_path: Path, magic: int, codec: CompressionType, first_dirty: int) -> None:
    directory, config = str(tmp_path), SegmentConfig()
    segment = Segment(FILES, directory, 0, config, created_ms=0)
    segment.create()
    records = []
    for number in range(40):
        key = None if number % 11 == 10 else b"key-%d" % ((number if number < 20 else number * 3) % 20)
        value = None if number % 7 == 6 else b"%d" % number
        records.append(Record(number, 1000 + number if magic else -1, key, value))
    for first in range(0, 40, 5):
        data = write_messages(magic, records[first : first + 5], Compression(codec))
        segment.append(data, first + 4, 1000 + first + 4 if magic else -1)
    # And a batch of magic 2 behind them: both are in a log whose topic was converted.
    builder = RecordBatchBuilder(base_offset=40)
    builder.append(2000, b"key-3", b"new")
    segment.append(builder.build(), 40, 2000)
    records.append(Record(40, 2000, b"key-3", b"new"))
    segment.close()
    facts = SegmentFacts(0, segment.size_bytes, 0, 41, 0)
    work = Compaction(directory, (facts,), first_dirty, 41, (), {}, config, 5000, 0, 1000, 1000)
    assert finish(compact(FILES, b"".join(work.encode())), float, lambda _: None) == 0
    assert read_result(FILES, directory).groups == [[0]]
    for path in tmp_path.glob("*.cleaned"):
        path.rename(path.with_suffix(""))
    cleaned = Segment(FILES, directory, 0, config, created_ms=0)
    cleaned.load()
    left = [record for batch in cleaned.batches() for record in batch.records()]
    cleaned.close()
    last = {record.key: record.offset for record in records if record.key is not None and record.offset >= first_dirty}
    wanted = [
        record
        for record in records
        if record.key is not None
        and (record.key not in last if record.offset < first_dirty else last[record.key] == record.offset)
    ]
    assert left == wanted
