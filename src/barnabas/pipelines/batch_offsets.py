"""Which records a batch has, by Spark's own notes in the checkpoint, so that they can be read once more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.pipelines.definition import PipelineError


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Of each partition of a topic the first offset of a batch, and the one behind its last.

    A partition that is new with the batch is without a first offset. `is_read_twice`: the query has several readers of
    the topic, which may be apart, and the range is that of the one that is behind.
    """

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    is_read_twice: bool = False


def batch_range(checkpoint: Path, batch_id: int, topic: str, *, is_widest: bool = False) -> BatchRange:
    """The records of the topic in a batch that has begun. The ranges of batches that follow each other have no gap and
    do not overlap, also where the topic is read twice; or, as the widest, they have all that any reader has in the
    batch, and may overlap. Raises PipelineError when the checkpoint does not tell.
    """
    try:
        ends = _readers(_lines(checkpoint / "offsets" / str(batch_id))[2:], topic)
        if batch_id > 0:
            starts = _readers(_lines(checkpoint / "offsets" / str(batch_id - 1))[2:], topic)
        else:
            # A reader notes where it begins in a file of its own, before the first batch.
            firsts = sorted((checkpoint / "sources").glob("*/0"))
            starts = _readers((_lines(path)[-1] for path in firsts), topic)
    except (OSError, ValueError, AttributeError, IndexError) as error:
        message = f"the checkpoint {checkpoint} does not tell which records of {topic} are in batch {batch_id}: {error}"
        raise PipelineError(message) from error
    return BatchRange(_merged(starts, min), _merged(ends, max if is_widest else min), len(ends) > 1)


def _lines(path: Path) -> list[str]:
    # Spark begins the file of a first offset with a zero byte.
    return path.read_bytes().lstrip(b"\0").decode("utf-8").splitlines()


def _readers(lines: Iterable[str], topic: str) -> list[dict[int, int]]:
    """The offsets of each reader of the topic; a reader that has none yet has a line `-`."""
    contents: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    found = (content[topic] for content in contents if topic in content)
    return [{int(partition): int(offset) for partition, offset in partitions.items()} for partitions in found]


def _merged(readers: list[dict[int, int]], chosen: Callable[[int, int], int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for reader in readers:
        for partition, offset in reader.items():
            found[partition] = chosen(offset, found.get(partition, offset))
    return found
