"""How Spark writes a batch that several senders are to send: a key's records are one sender's, in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.pipelines import staged_batches
from barnabas.pipelines.definition import TopicSink
from barnabas.pipelines.staged_batches import StagedBatch, StagedBatches
from barnabas.pipelines.topic_sink import stage_records

pytestmark = pytest.mark.timeout(600)

ROWS: Final = 20_000
KEYS: Final = 40
WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"


def staged(spark: Any, directory: Path, key: tuple[str, ...], senders: int) -> StagedBatch:
    """Rows of four tasks, whose keys take turns."""
    rows = spark.range(0, ROWS, numPartitions=4).selectExpr(f"id % {KEYS} AS key", "id AS number")
    sink = TopicSink("topic", "rows", 1, 1, key, senders=senders)
    batches = StagedBatches(directory, "one")
    batches.tidy(0)
    stage_records(rows, sink, batches.being_written(0, 0))
    return batches.publish(0, [("topic", bool(key))])


@pytest.mark.parametrize("senders", [1, 3, 8])
def test_records_of_a_key_are_one_senders_and_in_their_order(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, senders: int
) -> None:
    monkeypatch.setattr(staged_batches, "BYTES_PER_SENDER", 1)
    before = spark.conf.get(WRITERS)
    batch = staged(spark, tmp_path, ("key",), senders)
    assert batch.senders == tuple(range(1, senders + 1))
    found: dict[bytes, list[bytes | None]] = {}
    for sender in batch.senders:
        share: dict[bytes, list[bytes | None]] = {}
        for keys, values in batch.share(sender).parts[0].columns():
            assert keys is not None
            for key, value in zip(keys, values, strict=True):
                share.setdefault(key, []).append(value)
        assert not found.keys() & share.keys()
        assert len(share) >= KEYS / senders / 3
        found |= share
    assert found == {
        b'{"key":%d}' % key: [b'{"key":%d,"number":%d}' % (key, number) for number in range(key, ROWS, KEYS)]
        for key in range(KEYS)
    }
    assert spark.conf.get(WRITERS) == before


def test_records_without_keys_go_round(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "BYTES_PER_SENDER", 1)
    batch = staged(spark, tmp_path, (), 4)
    counts = [batch.share(sender).record_count for sender in batch.senders]
    assert sum(counts) == ROWS
    assert len(counts) == 4
    assert min(counts) > ROWS / 5
    numbers = [value for _, values in batch.parts[0].columns() for value in values]
    assert len(set(numbers)) == ROWS
