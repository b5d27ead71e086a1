"""What Spark's reader of remote storage refuses, and how much it holds; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.tiered.segment_metadata import TopicIdPartition
from barnabas.tiered.storage import open_store
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.support.stored_segments import FIRST_MS, partition, put_copy, records

OTHER_ID = Uuid(bytes(range(1, 17)))


def rows_of(directory: Path, **options: str) -> list[Any]:
    """What the reader gives to Spark, piece by piece."""
    from barnabas.tiered.spark_source import SegmentsReader

    reader = SegmentsReader({"path": str(directory), **options})
    return [rows for each in reader.partitions() for rows in reader.read(each)]


def test_of_two_topics_of_one_name_one_is_to_be_named(tmp_path: Path) -> None:
    """A topic that was deleted while its leader was gone leaves its objects, which have the offsets of the new one."""
    store = open_store(RealFiles(), f"file://{tmp_path}")
    former = TopicIdPartition(OTHER_ID, TopicPartition("flights", 0))
    put_copy(store, partition(), 1, 0, [records(0, 5)])
    put_copy(store, former, 2, 0, [records(0, 3, text="former")])
    put_copy(store, partition("other"), 3, 0, [records(0, 1)])
    with pytest.raises(ValueError, match="has 2 topics named flights, one of which was deleted") as error:
        rows_of(tmp_path)
    assert str(OTHER_ID) in str(error.value)
    (rows,) = rows_of(tmp_path, **{"topic.id": str(OTHER_ID)})
    assert rows.column("value").to_pylist() == [b"former-0", b"former-1", b"former-2"]
    (rows,) = rows_of(tmp_path, topic="other")
    assert rows.num_rows == 1


def test_headers_count_for_what_is_held_at_a_time(tmp_path: Path) -> None:
    store = open_store(RealFiles(), f"file://{tmp_path}")
    builder = RecordBatchBuilder(base_offset=0, partition_leader_epoch=0)
    for _ in range(20):
        builder.append(FIRST_MS, None, None, [(b"large", bytes(1024 * 1024)), (b"none", None)])
    put_copy(store, partition(), 1, 0, [bytes(builder.build())])
    pieces = rows_of(tmp_path)
    assert [rows.num_rows for rows in pieces] == [8, 8, 4]
    assert pieces[0].column("headers").to_pylist()[0][1] == {"key": "none", "value": None}


@pytest.mark.parametrize("codec", list(CompressionType))
def test_batches_of_every_codec_are_read(tmp_path: Path, codec: CompressionType) -> None:
    from barnabas.tiered.spark_source import SegmentPartition, SegmentsReader

    store = open_store(RealFiles(), f"file://{tmp_path}")
    builder = RecordBatchBuilder(base_offset=0, partition_leader_epoch=0, compression=Compression(codec))
    for number in range(100):
        builder.append(FIRST_MS, b"key", b"value-%d" % number)
    put_copy(store, partition(), 1, 0, [bytes(builder.build())])
    (rows,) = rows_of(tmp_path)
    assert rows.column("value").to_pylist() == [b"value-%d" % number for number in range(100)]
    assert isinstance(SegmentsReader({"path": str(tmp_path)}).partitions()[0], SegmentPartition)
