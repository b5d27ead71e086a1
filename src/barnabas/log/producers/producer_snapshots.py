"""The producer snapshots in a partition directory, and the state of producers that comes of them and of the log.

Everything here that touches files belongs off the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_file, write_new
from barnabas.log.directories.names import (
    LEADER_EPOCH_CHECKPOINT,
    PRODUCER_SNAPSHOT_SUFFIX,
    parse_segment_file,
    segment_file_name,
)
from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.producers.producer_snapshot import (
    CorruptSnapshotError,
    ProducerSnapshotEntry,
    format_snapshot,
    parse_snapshot,
)
from barnabas.log.producers.producer_state import ProducerState
from barnabas.log.segments.batch_scan import scan_batches
from barnabas.log.segments.segment import Segment
from barnabas.wire.record_batch import RecordBatch

_SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024


def snapshot_path(directory: str, offset: int) -> str:
    """Where the snapshot up to an offset lies."""
    return f"{directory}/{segment_file_name(offset, PRODUCER_SNAPSHOT_SUFFIX)}"


def write_snapshot(files: Files, directory: str, offset: int, entries: Sequence[ProducerSnapshotEntry]) -> None:
    """Writes a snapshot. A crash may leave it torn: its checksum says so, and an older one is used."""
    write_new(files, snapshot_path(directory, offset), format_snapshot(entries))


def remove_snapshots(files: Files, directory: str, offsets: Iterable[int]) -> None:
    """Removes snapshots; those that are not there are no error."""
    for offset in offsets:
        try:
            files.unlink(snapshot_path(directory, offset))
        except FileNotFoundError:
            continue


def remove_foreign(files: Files, directory: str, own_offsets: frozenset[int]) -> None:
    """Removes the snapshots that are not the log's own, and the checkpoint of its leader epochs."""
    for name in files.list_directory(directory):
        parsed = parse_segment_file(name)
        is_foreign = (
            parsed is not None and parsed.suffix == PRODUCER_SNAPSHOT_SUFFIX and parsed.offset not in own_offsets
        )
        if is_foreign or name == LEADER_EPOCH_CHECKPOINT:
            files.unlink(f"{directory}/{name}")


@dataclass(frozen=True, slots=True)
class LogRange:
    """One segment's part of a replay. Batches that end before `known_offset` lie before `known_position`."""

    descriptor: int
    base_offset: int
    size_bytes: int
    known_offset: int
    known_position: int


@dataclass(frozen=True, slots=True)
class ProducerReplay:
    """From what the producers' state at `end_offset` is built."""

    directory: str
    snapshot_offsets: tuple[int, ...]
    """The snapshots that may be used, all of them within the log."""
    ranges: tuple[LogRange, ...]
    """All segments of the log, in order."""
    log_start_offset: int
    end_offset: int
    now_ms: int
    expiration_ms: int
    transaction_timeout_max_ms: int


def log_ranges(segments: Iterable[Segment], snapshot_offsets: Iterable[int], end_offset: int) -> tuple[LogRange, ...]:
    """The segments, and where in them the log goes on behind the newest snapshot that can serve at `end_offset`.

    Found by the index: a segment that was written in small batches has millions of them.
    """
    newest = max((offset for offset in snapshot_offsets if offset <= end_offset), default=0)
    return tuple(
        LogRange(
            segment.data_descriptor(), segment.base_offset, segment.size_bytes, newest, segment.position_of(newest)
        )
        for segment in segments
    )


def replay_producers(files: Files, replay: ProducerReplay, logger: logging.Logger) -> ProducerState:
    """The state of the producers: from the newest snapshot that can be read, and from the log behind it.

    A snapshot that cannot be read is removed. Raises OSError and RecordsError.
    """
    state = new_state(replay)
    load_newest(files, state, replay, logger)
    for batch in _batches_behind(files, replay, state.end_offset):
        state.replay(batch.header, marker_in(batch))
    state.end_offset = replay.end_offset
    return state


def new_state(replay: ProducerReplay) -> ProducerState:
    """A state without producers, at the start of the log."""
    state = ProducerState(replay.expiration_ms, replay.transaction_timeout_max_ms)
    state.clear(replay.log_start_offset)
    return state


def load_newest(files: Files, state: ProducerState, replay: ProducerReplay, logger: logging.Logger) -> None:
    """Takes over the newest snapshot that can be read and lies between the log's start and the replay's end."""
    for offset in sorted(replay.snapshot_offsets, reverse=True):
        if not replay.log_start_offset < offset <= replay.end_offset:
            continue
        path = snapshot_path(replay.directory, offset)
        try:
            entries = parse_snapshot(read_file(files, path, _SNAPSHOT_BYTES_MAX))
        except FileNotFoundError:
            continue
        except (CorruptSnapshotError, ValueError) as error:
            logger.warning("Removing producer snapshot %s, which cannot be read: %s", path, error)
            files.unlink(path)
            continue
        state.load(entries, offset, replay.now_ms)
        return


def _batches_behind(files: Files, replay: ProducerReplay, from_offset: int) -> Iterator[RecordBatch]:
    ranges = replay.ranges
    for number, part in enumerate(ranges):
        if number + 1 < len(ranges) and ranges[number + 1].base_offset <= from_offset:
            continue
        begin = part.known_position if from_offset >= part.known_offset else 0
        for _, batch in scan_batches(files, part.descriptor, begin, part.size_bytes):
            if batch.last_offset < from_offset:
                continue
            if batch.base_offset >= replay.end_offset:
                return
            if isinstance(batch, RecordBatch):
                yield batch
