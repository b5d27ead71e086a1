"""A table that is read from a topic, as Spark has it: its records in files that never change, and its rows in memory.

What is new is read, written and decoded by itself; it stands before the rows of the base by the keys that it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import Source
from barnabas.pipelines.sources import RECORD_TYPES, KafkaOptions, decoded, newest_records, range_frame
from barnabas.pipelines.state_directory import spark_path
from barnabas.pipelines.table_versions import DELTAS_MAX, Part, TableVersion, TopicLook, VersionFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORDS: Final = ", ".join(f"{name} {kind}" for name, kind in RECORD_TYPES.items())
_KEY: Final = "_barnabas_key"


class TableParts:
    """Makes versions, and frames of them. Errors of Spark are raised as they are."""

    def __init__(self, session: SparkSession, kafka: KafkaOptions, files: VersionFiles) -> None:
        self._session = session
        self._kafka = kafka
        self._files = files
        self._kept: dict[tuple[str, ...], tuple[DataFrame, ...]] = {}

    def whole(self, source: Source, look: TopicLook) -> TableVersion:
        """Of all records that the topic has now."""
        records = range_frame(self._session, source, self._kafka, look.beginnings, look.ends)
        base = self._written(newest_records(records).where("value IS NOT NULL"))
        return TableVersion(source.topic, look.topic_id, look.ends, base)

    def newer(self, source: Source, version: TableVersion, look: TopicLook) -> TableVersion:
        """Of a version and the records behind it. What it costs is what has changed, and now and then the changes since
        the base, or the base: when they have become a part of it.
        """
        starts = {number: version.offsets.get(number, look.beginnings[number]) for number in look.ends}
        if starts == look.ends:
            return TableVersion(source.topic, look.topic_id, look.ends, version.base, version.deltas)
        records = newest_records(range_frame(self._session, source, self._kafka, starts, look.ends))
        deltas = (*version.deltas, self._written(records))
        found = TableVersion(source.topic, look.topic_id, look.ends, version.base, deltas)
        if deltas[-1].rows == 0:
            return TableVersion(source.topic, look.topic_id, look.ends, version.base, version.deltas)
        if found.is_to_be_folded():
            changes = self._changes(found)
            former = self._records(found.base).join(changes.select("key"), "key", "left_anti").select(*RECORD_TYPES)
            base = self._written(former.unionByName(changes.where("value IS NOT NULL")))
            return TableVersion(source.topic, look.topic_id, look.ends, base)
        if len(deltas) > DELTAS_MAX:
            merged = self._written(self._changes(found))
            return TableVersion(source.topic, look.topic_id, look.ends, version.base, (merged,))
        return found

    def read(self, source: Source, version: TableVersion) -> int:
        """Has Spark decode the rows of a version, and keep them; how many it was given. A record that does not fit is
        an error.
        """
        kept = set(self._kept)
        self._frames(source, version)
        return sum(self._kept[name][-1].count() for name in self._kept if name not in kept)

    def frame(self, source: Source, version: TableVersion) -> DataFrame:
        """The rows of a version."""
        from pyspark.sql import functions as F  # noqa: N812

        keys, rows, *changed = self._frames(source, version)
        if not changed:
            return rows.drop(_KEY)
        unchanged = rows.join(F.broadcast(keys), rows[_KEY] == keys["key"], "left_anti")
        return unchanged.unionByName(changed[0]).drop(_KEY)

    def forget(self, source: Source, version: TableVersion) -> None:
        """Has the rows of a version decoded anew, as by a schema that was not known."""
        for name in (_base_of(source, version), _deltas_of(source, version)):
            for frame in self._kept.pop(name, ()):
                frame.unpersist()

    def keep_only(self, versions: Mapping[str, list[TableVersion]]) -> None:
        """Has Spark keep the rows of these versions alone, by the names of sources; and their files, and noted ones."""
        wanted = {
            ((name, version.base.name) if is_base else (name, *(part.name for part in version.deltas)))
            for name, of_source in versions.items()
            for version in of_source
            for is_base in (True, False)
        }
        for name in [name for name in self._kept if name not in wanted]:
            for frame in self._kept.pop(name):
                frame.unpersist()
        self._files.keep_only(version for of_source in versions.values() for version in of_source)

    def close(self) -> None:
        """Has Spark keep nothing any more, if it is still there. Files of no note go too."""
        for frames in self._kept.values():
            for frame in frames:
                with contextlib.suppress(Exception):  # Spark's process may have ended
                    frame.unpersist()
        self._kept.clear()
        self._files.keep_only(())

    # Inside.

    def _frames(self, source: Source, version: TableVersion) -> tuple[DataFrame, ...]:
        """The keys that were changed, the rows of the base, and those that are in their place, if there are any."""
        base = _base_of(source, version)
        if base not in self._kept:
            rows = decoded(self._records(version.base), source, _KEY)
            self._kept[base] = (rows.persist(),)
        if not version.deltas:
            return (self._kept[base][0], self._kept[base][0])
        deltas = _deltas_of(source, version)
        if deltas not in self._kept:
            changes = self._changes(version)
            rows = decoded(changes.where("value IS NOT NULL"), source, _KEY)
            self._kept[deltas] = (changes.select("key").persist(), rows.persist())
        keys, changed = self._kept[deltas]
        return (keys, self._kept[base][0], changed)

    def _changes(self, version: TableVersion) -> DataFrame:
        """The newest record of each key that changed behind the base, tombstones among them."""
        first, *others = (self._records(part) for part in version.deltas)
        if not others:
            return first
        for other in others:
            first = first.unionByName(other)
        return newest_records(first)

    def _records(self, part: Part) -> DataFrame:
        return self._session.read.schema(_RECORDS).parquet(spark_path(self._files.part(part.name)))

    def _written(self, records: DataFrame) -> Part:
        path = self._files.new_part()
        records.write.parquet(spark_path(path))
        return self._files.publish(path, *rows_and_key_bytes(path))


def _base_of(source: Source, version: TableVersion) -> tuple[str, ...]:
    return (source.name, version.base.name)


def _deltas_of(source: Source, version: TableVersion) -> tuple[str, ...]:
    return (source.name, *(part.name for part in version.deltas))


def rows_and_key_bytes(path: Path) -> tuple[int, int]:
    """How many records the files of a directory have, and how many bytes their keys, before they were compressed."""
    from pyarrow import parquet

    rows = key_bytes = 0
    for file in path.glob("*.parquet"):
        found = parquet.read_metadata(file)
        rows += found.num_rows
        number = found.schema.names.index("key")
        key_bytes += sum(
            found.row_group(group).column(number).total_uncompressed_size for group in range(found.num_row_groups)
        )
    return rows, key_bytes
