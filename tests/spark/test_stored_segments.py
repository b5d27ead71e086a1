"""Spark reads what brokers have copied to remote storage, without brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.tiered.spark_source import SegmentsDataSource
from barnabas.tiered.storage import RemoteStore, open_store
from tests.support.documented import blocks_of, placed
from tests.support.stored_segments import FIRST_MS, abort_marker, partition, put_copy, records

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture(scope="module")
def spark(spark: Any) -> Any:
    spark.dataSource.register(SegmentsDataSource)
    return spark


@pytest.fixture
def store(tmp_path: Path) -> RemoteStore:
    return open_store(RealFiles(), f"file://{tmp_path}")


def test_every_record_comes_once_in_the_columns_of_the_kafka_source(
    spark: Any, store: RemoteStore, tmp_path: Path
) -> None:
    put_copy(store, partition(), 1, 0, [records(0, 5_000), records(5_000, 9_000)])
    put_copy(store, partition(), 2, 9_000, [records(9_000, 9_100)])
    put_copy(store, partition(), 3, 9_000, [records(9_000, 9_100)])
    put_copy(store, partition(number=1), 4, 100, [records(100, 103, producer_id=7), abort_marker(103, 7)])
    put_copy(store, partition(number=1), 5, 104, [records(104, 106)], aborted=[(7, 100, 103)])
    put_copy(store, partition("other"), 6, 0, [records(0, 3)])
    found = spark.read.format("barnabas_segments").option("topic", "flights").load(f"file://{tmp_path}")
    assert [f"{field.name} {field.dataType.simpleString()}" for field in found.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    rows = found.selectExpr(
        "partition", "offset", "string(key)", "string(value)", "unix_millis(timestamp)", "headers[0].key", "topic"
    ).collect()
    expected = [(0, offset) for offset in range(9_100)] + [(1, offset) for offset in (104, 105)]
    assert sorted((row[0], row[1]) for row in rows) == expected
    for _, offset, *others in map(tuple, rows):
        assert others == [f"key-{offset}", f"value-{offset}", FIRST_MS + offset, "trace", "flights"]
    uncommitted = spark.read.format("barnabas_segments").option("isolation.level", "read_uncommitted")
    assert uncommitted.load(str(tmp_path)).count() == 9_100 + 5 + 3


def test_the_block_of_the_docs_reads_a_topic(spark: Any, store: RemoteStore, tmp_path: Path) -> None:
    put_copy(store, partition(), 1, 0, [records(0, 10)])
    put_copy(store, partition("other"), 2, 0, [records(0, 3)])
    (block,) = (each for each in blocks_of("operating.md") if "SegmentsDataSource" in each)
    names: dict[str, Any] = {"spark": spark}
    exec(placed(block, {"s3://bucket/prefix": f"file://{tmp_path}"}), names)
    assert names["flights"].count() == 10


def test_what_is_wrong_is_said(spark: Any, store: RemoteStore, tmp_path: Path) -> None:
    put_copy(store, partition(), 1, 0, [records(0, 10)])
    put_copy(store, partition(), 2, 12, [records(12, 20)])
    with pytest.raises(Exception, match="next segment in remote storage begins at 12"):
        spark.read.format("barnabas_segments").load(str(tmp_path)).count()
    assert spark.read.format("barnabas_segments").option("failOnDataLoss", "false").load(str(tmp_path)).count() == 18
    for option, value, says in (
        ("topic", "flights, absent", "has nothing of the topics absent"),
        ("startingOffsets", "earliest", "has no option startingoffsets"),
        ("isolation.level", "serializable", "isolation.level is read_committed or read_uncommitted"),
    ):
        with pytest.raises(Exception, match=says):
            spark.read.format("barnabas_segments").option(option, value).load(str(tmp_path)).count()
