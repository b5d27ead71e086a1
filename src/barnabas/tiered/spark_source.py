"""Remote storage as a table of Spark's, without brokers: a batch data source in Python (Spark 4).

    from barnabas.tiered.spark_source import SegmentsDataSource

    spark.dataSource.register(SegmentsDataSource)
    spark.read.format("barnabas_segments").option("topic", "flights").load("s3://bucket/prefix")

The columns are those of Spark's Kafka source with headers. Each segment is a task, which reads it a few MiB at a time.
Options: `topic` (one, or several with commas; all where it is not given), `topic.id` (the same, for what is left of a
topic that was deleted and made again), `storage.options` (as `barnabas.remote.storage.options`), `isolation.level`
(read_committed, or read_uncommitted), `failOnDataLoss` (true).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from barnabas.kernel.real_files import RealFiles
from barnabas.tiered.segment_metadata import TopicIdPartition
from barnabas.tiered.storage import RemoteStore, open_store
from barnabas.tiered.stored_partitions import Stretch, read_stretch, stored_partitions, stretches
from barnabas.wire.records import Record

SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_READS_AT_ONCE: Final = 16
_ROWS_MAX: Final = 4096
_ROWS_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(slots=True)
class SegmentPartition(InputPartition):  # type: ignore[misc]
    """One task's work."""

    stretch: Stretch


class SegmentsDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("barnabas_segments")`."""

    @classmethod
    def name(cls) -> str:
        return "barnabas_segments"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's interface
        return SegmentsReader(dict(self.options))


class SegmentsReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, and reads in tasks. Raises ValueError for options that mean nothing."""

    def __init__(self, options: dict[str, str]) -> None:
        # Spark's options have names of any case.
        given = {name.lower(): value for name, value in options.items()}
        url = given.pop("path", "")
        if not url:
            raise ValueError("barnabas_segments needs the URL of the storage: load(URL)")
        self._url = url if "://" in url else f"file://{url}"
        self._storage_options = given.pop("storage.options", "{}")
        self._topics = _listed(given.pop("topic", ""))
        self._topic_ids = _listed(given.pop("topic.id", ""))
        self._is_committed = _choice(
            "isolation.level", given.pop("isolation.level", "read_committed"), "read_committed", "read_uncommitted"
        )
        self._fails_on_missing = _choice("failOnDataLoss", given.pop("failondataloss", "true").lower(), "true", "false")
        if given:
            raise ValueError(
                f"barnabas_segments has no option {', '.join(sorted(given))}; it has topic, topic.id,"
                " storage.options, isolation.level, failOnDataLoss"
            )

    def partitions(self) -> Sequence[InputPartition]:
        store = self._store()
        found = {
            prefix: partition
            for prefix, partition in stored_partitions(store).items()
            if (self._topics is None or partition.topic_partition.topic in self._topics)
            and (self._topic_ids is None or str(partition.topic_id) in self._topic_ids)
        }
        missing = (self._topics or set()) - {partition.topic_partition.topic for partition in found.values()}
        if missing:
            raise ValueError(f"{self._url} has nothing of the topics {', '.join(sorted(missing))}")
        self._refuse_former_topics(found.values())
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            return [
                SegmentPartition(stretch)
                for prefix, partition in found.items()
                for stretch in stretches(store, prefix, partition, pool.map)
            ]

    def _refuse_former_topics(self, found: Iterable[TopicIdPartition]) -> None:
        """What is left of a topic that was deleted has the offsets of the one that was made again."""
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for each in found:
            ids[each.topic_partition.topic].add(str(each.topic_id))
        for topic, of_topic in ids.items():
            if len(of_topic) > 1:
                raise ValueError(
                    f"{self._url} has {len(of_topic)} topics named {topic}, one of which was deleted: say which by the "
                    f"option topic.id, of {', '.join(sorted(of_topic))} (`barnabas topic describe` shows ids)"
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, SegmentPartition):
            return  # Spark asks for a partition of none where there is nothing
        stretch = partition.stretch
        rows = _Rows(stretch)
        for batch, start_offset, end_offset in read_stretch(
            self._store(), stretch, is_committed=self._is_committed, fails_on_missing=self._fails_on_missing
        ):
            timestamp_type = int(batch.timestamp_type)
            for record in batch.records():
                if record.offset < start_offset or (end_offset is not None and record.offset >= end_offset):
                    continue
                rows.add(record, timestamp_type)
                if rows.is_full:
                    yield rows.take()
        if rows.count:
            yield rows.take()

    def _store(self) -> RemoteStore:
        return open_store(RealFiles(), self._url, self._storage_options)


def _listed(names: str) -> set[str] | None:
    return {name.strip() for name in names.split(",")} if names else None


def _choice(name: str, value: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise ValueError(f"{name} is {yes} or {no}, not {value}")
    return value == yes


class _Rows:
    """Rows that go to Spark together, as columns."""

    def __init__(self, stretch: Stretch) -> None:
        self._topic = stretch.partition.topic_partition.topic
        self._partition = stretch.partition.topic_partition.partition
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._timestamp_types: list[int] = []
        self._headers: list[list[dict[str, Any]] | None] = []
        self._size_bytes = 0

    @property
    def count(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return self.count >= _ROWS_MAX or self._size_bytes >= _ROWS_BYTES_MAX

    def add(self, record: Record, timestamp_type: int) -> None:
        key, value = record.key, record.value
        self._keys.append(None if key is None else bytes(key))
        self._values.append(None if value is None else bytes(value))
        self._offsets.append(record.offset)
        self._timestamps.append(record.timestamp_ms * 1000)
        self._timestamp_types.append(timestamp_type)
        headers = [{"key": name.decode("utf-8", "replace"), "value": data} for name, data in record.headers]
        self._headers.append(headers or None)
        in_headers = sum(len(name) + len(data or b"") + 100 for name, data in record.headers)
        self._size_bytes += len(key or b"") + len(value or b"") + in_headers + 100

    def take(self) -> Any:
        import pyarrow as pa

        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns = {
            "key": pa.array(self._keys, pa.binary()),
            "value": pa.array(self._values, pa.binary()),
            "topic": pa.array([self._topic] * self.count, pa.string()),
            "partition": pa.array([self._partition] * self.count, pa.int32()),
            "offset": pa.array(self._offsets, pa.int64()),
            "timestamp": pa.array(self._timestamps, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array(self._timestamp_types, pa.int32()),
            "headers": pa.array(self._headers, pa.list_(header)),
        }
        self._clear()
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
