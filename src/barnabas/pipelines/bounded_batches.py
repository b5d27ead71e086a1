"""Batches that end where a range ends. Spark's Kafka source has no end for streams; so the batch that would pass it is
stopped before anything of it is computed, its offsets are cut in Spark's own note of it, and it is run alone.

What is relied upon (Spark 4.0, held by tests/spark/test_pipeline_backfill.py): `offsets/N` of a checkpoint has a line
for the version, one for settings and watermark, and one for each source, topic to partition to offset; a batch that is
noted there and not in `commits` is done again with these offsets; and a query with the trigger `once` does that alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from barnabas.pipelines.durable_files import sync_directory

Offsets = Mapping[str, Mapping[int, int]]
_LINES_BEFORE_SOURCES: Final = 2
_NOTHING: Final = "-"


class RangePassed(Exception):  # noqa: N818  # no error: where the range ends
    """A batch goes beyond the range; nothing of it was computed."""


def cut(starts: Offsets, ends: Offsets, bounds: Offsets) -> dict[str, dict[int, int]]:
    """The end of a batch within the bounds. Of a partition that has none, as one that is newer, nothing is read. What
    is cut off of some partitions is added to others, as far as there is something: a batch is as large as it was.
    """
    found = {
        topic: {
            number: max(starts[topic][number], min(end, bounds.get(topic, {}).get(number, starts[topic][number])))
            for number, end in partitions.items()
            if number in starts.get(topic, {})
        }
        for topic, partitions in ends.items()
    }
    spare = sum(end - found[topic].get(number, end) for topic, each in ends.items() for number, end in each.items())
    for topic, partitions in found.items() if spare else ():
        for number, end in partitions.items():
            more = min(spare, max(0, bounds.get(topic, {}).get(number, end) - end))
            partitions[number] += more
            spare -= more
    return found


class BoundedBatches:
    """The batches of one query, by its checkpoint."""

    def __init__(self, checkpoint: Path, bounds: Offsets) -> None:
        self._checkpoint, self._bounds = checkpoint, bounds

    def passes(self, batch_id: int) -> bool:
        """Whether the batch has offsets beyond the range."""
        return any(each != then for each, then in self._cut(batch_id))

    def is_last(self, batch_id: int) -> bool:
        """Whether nothing of the range is left behind the batch, which lies within it."""
        for ends, _ in self._cut(batch_id):
            for topic, partitions in ends.items():
                if any(self._bounds.get(topic, {}).get(number, end) > end for number, end in partitions.items()):
                    return False
        return True

    def cut(self, batch_id: int) -> bool:
        """Has the batch, which has not begun, end within the range. Whether anything is left of it; else it is none."""
        lines = self._lines(batch_id)
        pairs = self._cut(batch_id)
        path = self._path(batch_id)
        with contextlib.suppress(FileNotFoundError):  # Hadoop's checksum of the file, which is to be another
            (path.parent / f".{path.name}.crc").unlink()
        if all(self._starts(batch_id, number) == then for number, (_, then) in enumerate(pairs)):
            path.unlink()
            sync_directory(path.parent)
            return False
        for number, (ends, then) in enumerate(pairs):
            if ends:
                lines[_LINES_BEFORE_SOURCES + number] = json.dumps(then, separators=(",", ":"))
        new = path.with_name(f".{path.name}.cut")
        with new.open("w", encoding="utf-8") as output:
            output.write("\n".join(lines))
            output.flush()
            os.fsync(output.fileno())
        new.replace(path)
        sync_directory(path.parent)
        return True

    def _cut(self, batch_id: int) -> list[tuple[Offsets, Offsets]]:
        """Of each source the end of the batch, and the end within the range."""
        found: list[tuple[Offsets, Offsets]] = []
        for number, line in enumerate(self._lines(batch_id)[_LINES_BEFORE_SOURCES:]):
            ends = _offsets(line)
            found.append((ends, cut(self._starts(batch_id, number), ends, self._bounds)))
        return found

    def _starts(self, batch_id: int, source: int) -> Offsets:
        if batch_id > 0:
            return _offsets(self._lines(batch_id - 1)[_LINES_BEFORE_SOURCES + source])
        # Spark writes a zero byte before the version.
        text = (self._checkpoint / "sources" / str(source) / "0").read_text(encoding="utf-8")
        return _offsets(text.split("\n", 1)[1])

    def _lines(self, batch_id: int) -> list[str]:
        return self._path(batch_id).read_text(encoding="utf-8").split("\n")

    def _path(self, batch_id: int) -> Path:
        return self._checkpoint / "offsets" / str(batch_id)


def _offsets(line: str) -> Offsets:
    if line.strip() == _NOTHING:
        return {}
    return {
        topic: {int(number): int(offset) for number, offset in partitions.items()}
        for topic, partitions in json.loads(line).items()
    }
