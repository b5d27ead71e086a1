"""`--from-stats`: sizes and loads as `barnabas topic stats --json` has measured them, in place of a moment's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import counted, printable, say
from barnabas.cli.reassignment_view import View
from barnabas.cli.topic_ids import topic_id
from barnabas.cli.topic_statistics import STATISTICS_VERSION
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.cli.reassignment_planner import Placed

_FILE_BYTES_MAX: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Told:
    """What the file says of a partition."""

    topic_id: str | None
    size_bytes: int
    load: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class KeptStatistics:
    """A file of statistics."""

    cluster_id: str | None
    partitions: Mapping[TopicPartition, Told]


def read_statistics(path: str) -> KeptStatistics:
    """Raises CommandError for a file that is none of `topic stats --json`, or has no rates."""
    try:
        with Path(path).open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        status = ExitStatus.MISSING if isinstance(error, FileNotFoundError) else ExitStatus.FAILED
        raise CommandError(f"{path} cannot be read: {error.strerror or error}", status) from error
    try:
        found = json.loads(data) if len(data) <= _FILE_BYTES_MAX else None
        if not isinstance(found, dict) or found.get("version") != STATISTICS_VERSION:
            raise ValueError("no such document")
        partitions = dict(map(_told, found["partitions"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise CommandError(f"{path} is not what `barnabas topic stats --json` prints") from None
    if not found.get("measured_ms"):
        raise CommandError(f"{path} has no rates: it was made with --measure 0s")
    cluster_id = found.get("cluster_id")
    return KeptStatistics(None if cluster_id is None else str(cluster_id), partitions)


def _told(document: dict[str, Any]) -> tuple[TopicPartition, Told]:
    """Raises KeyError, TypeError and ValueError."""
    topic_id = document["topic_id"]
    size_bytes, load = int(document["size_bytes"]), float(document["bytes_per_second"])
    if size_bytes < 0 or not 0 <= load < math.inf or not isinstance(document["topic"], str):
        raise ValueError("out of range")
    told = Told(None if topic_id is None else str(topic_id), size_bytes, load)
    return TopicPartition(document["topic"], int(document["partition"])), told


def with_statistics(view: View, kept: KeptStatistics, cluster_id: str | None) -> View:
    """The view with the sizes and loads of the file; says of how many partitions it knows nothing.

    Raises CommandError where it is of another cluster, or of no partition that is here.
    """
    if None not in (kept.cluster_id, cluster_id) and kept.cluster_id != cluster_id:
        raise CommandError(f"the statistics are of cluster {printable(str(kept.cluster_id))}, and this is {cluster_id}")
    placed: dict[TopicPartition, Placed] = {}
    unknown = 0
    for partition, each in view.placed.items():
        told = kept.partitions.get(partition)
        if told is None or told.topic_id not in (None, topic_id(view.topics[partition.topic])):
            unknown += 1
            placed[partition] = replace(each, load=0.0)
        else:
            placed[partition] = replace(each, size_bytes=told.size_bytes, load=told.load)
    if unknown == len(placed):
        raise CommandError("the statistics are of no partition that is here")
    if unknown:
        say(f"Not in the statistics, and so with their present size and no load: {counted(unknown, 'partition')}.")
    return replace(view, placed=placed)
