"""What lies in remote storage, read without brokers: which copies of segments make a partition, and their records.

Which copies count is in `__remote_log_metadata`, which nobody asks here. A copy counts that has all of its objects and
whose beginning is of the newest history that any copy has, by the leader epochs that lie beside it; of two copies that
begin alike the larger one is read, and each up to where the next begins. So every offset is there once, whoever has
copied how often. Everything here blocks.

A transaction whose marker lies behind the last copy has ended, and how is in the brokers' logs only. So committed
records end where the first such transaction begins, as they do at a consumer's last stable offset.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from barnabas.log.directories.checkpoints import EpochEntry, parse_epochs
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.log.producers.producer_snapshot import CorruptSnapshotError, parse_snapshot
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.tiered.object_names import ObjectKind, parse_object_name, parse_prefix
from barnabas.tiered.remote_segment import parse_aborted
from barnabas.tiered.segment_metadata import TopicIdPartition
from barnabas.tiered.storage import RemoteStore
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.records import Batch, walk_batches

_READ_BYTES: Final = 4 * 1024 * 1024


class MissingRecordsError(Exception):
    """Records that were there, to go by the segments around them, are not."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One copy of a segment, and what of it is read."""

    partition: TopicIdPartition
    log_name: str
    """Of the object."""
    start_offset: int
    end_offset: int | None
    """Where the next begins; None for the last."""
    epochs: tuple[EpochEntry, ...]
    """The history of the partition."""
    aborted: tuple[AbortedTransaction, ...]
    """Transactions with records here that were aborted."""
    undecided_offset: int | None = None
    """Where the first transaction begins whose end is in no copy; None where there is none such."""


@dataclass(frozen=True, slots=True)
class _Copy:
    log_name: str
    snapshot_name: str
    start_offset: int
    epochs: tuple[EpochEntry, ...]
    aborted: tuple[AbortedTransaction, ...]
    size_bytes: int


LoadAll = Callable[[Callable[[str], _Copy | None], Iterable[str]], Iterable[_Copy | None]]


def stored_partitions(store: RemoteStore) -> dict[str, TopicIdPartition]:
    """The partitions of which there is something, by the prefix of their objects. Raises OSError."""
    found = ((name, parse_prefix(posixpath.basename(name))) for name in store.names(""))
    return {name: partition for name, partition in found if partition is not None}


def stretches(store: RemoteStore, prefix: str, partition: TopicIdPartition, load_all: LoadAll = map) -> list[Stretch]:
    """What makes the partition, in order. `load_all` is `map`, or one that has many reads under way.

    A copy that is deleted meanwhile was none. Raises OSError, and CorruptCheckpointError and CorruptRecordError for
    copies that say what no copy says.
    """
    copies = _complete_copies(store, prefix, load_all)
    if not copies:
        return []
    history = max(copies, key=lambda copy: (copy.epochs[-1].epoch, copy.start_offset)).epochs
    epochs = LeaderEpochCache(history)
    chosen: dict[int, _Copy] = {}
    for copy in sorted(copies, key=lambda copy: (copy.start_offset, copy.log_name)):
        own = LeaderEpochCache(copy.epochs)
        if own.epoch_for_offset(copy.start_offset) != epochs.epoch_for_offset(copy.start_offset):
            continue
        former = chosen.get(copy.start_offset)
        if former is None or copy.size_bytes > former.size_bytes:
            chosen[copy.start_offset] = copy
    aborted = sorted({entry for copy in chosen.values() for entry in copy.aborted}, key=lambda entry: entry.last_offset)
    starts = list(chosen)
    undecided_offset = _undecided_offset(store, chosen[starts[-1]]) if starts else None
    return [
        Stretch(
            partition,
            chosen[start].log_name,
            start,
            end,
            history,
            tuple(
                entry for entry in aborted if entry.last_offset >= start and (end is None or entry.first_offset < end)
            ),
            undecided_offset,
        )
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def _complete_copies(store: RemoteStore, prefix: str, load_all: LoadAll) -> list[_Copy]:
    kinds: defaultdict[str, dict[ObjectKind, str]] = defaultdict(dict)
    starts: dict[str, int] = {}
    for name in store.names(prefix):
        parsed = parse_object_name(posixpath.basename(name))
        if parsed is not None:
            stem = name.removesuffix(parsed[1])
            starts[stem] = parsed[0]
            kinds[stem][parsed[1]] = name
    stems = [stem for stem, objects in kinds.items() if len(objects) == len(ObjectKind)]

    def load(stem: str) -> _Copy | None:
        with suppress(FileNotFoundError):
            return read(stem)
        return None

    def read(stem: str) -> _Copy:
        objects = kinds[stem]
        epochs_name, aborted_name = objects[ObjectKind.LEADER_EPOCHS], objects[ObjectKind.TRANSACTION_INDEX]
        epochs = parse_epochs(store.read_all(epochs_name), epochs_name)
        aborted = parse_aborted(store.read_all(aborted_name))
        if not epochs or aborted is None:
            raise CorruptRecordError(f"{epochs_name if aborted is not None else aborted_name} is not what it should be")
        log_name = objects[ObjectKind.LOG]
        size_bytes = store.size(log_name)
        snapshot_name = objects[ObjectKind.PRODUCER_SNAPSHOT]
        return _Copy(log_name, snapshot_name, starts[stem], tuple(epochs), aborted, size_bytes)

    return [copy for copy in load_all(load, stems) if copy is not None]


def _undecided_offset(store: RemoteStore, copy: _Copy) -> int | None:
    try:
        producers = parse_snapshot(store.read_all(copy.snapshot_name))
    except CorruptSnapshotError as error:
        raise CorruptRecordError(f"{copy.snapshot_name} is not what it should be: {error}") from None
    except FileNotFoundError:
        return copy.start_offset  # it was deleted a moment ago, and so is its log: the next reading finds it gone
    begun = [entry.transaction_first_offset for entry in producers if entry.transaction_first_offset >= 0]
    return min(begun, default=None)


def read_stretch(
    store: RemoteStore, stretch: Stretch, *, is_committed: bool, fails_on_missing: bool = True
) -> Iterator[tuple[Batch, int, int | None]]:
    """The batches with records, and from which offset on and before which one they count; with `is_committed` without
    those of transactions that were aborted, and up to the first one of which that is not known.

    Raises OSError, RecordsError, and MissingRecordsError where they do not reach the next segment, or have a gap.
    Without `fails_on_missing` a log that was deleted has no records.
    """
    undecided_offset = stretch.undecided_offset if is_committed else None
    if undecided_offset is not None and undecided_offset <= stretch.start_offset:
        return
    epochs = LeaderEpochCache(stretch.epochs)
    aborted = _AbortedRanges(stretch.aborted)
    expected = stretch.start_offset
    for batch in _batches(store, stretch.log_name, fails_on_missing=fails_on_missing):
        if undecided_offset is not None and batch.base_offset >= undecided_offset:
            return
        if stretch.end_offset is not None and batch.base_offset >= stretch.end_offset:
            break
        if isinstance(batch, RecordBatch):
            if epochs.epoch_for_offset(batch.base_offset) != batch.header.partition_leader_epoch:
                break  # the log has lost this, and what follows it here
            if batch.base_offset > expected and fails_on_missing:
                raise MissingRecordsError(f"{stretch.log_name} has no records from {expected} to {batch.base_offset}")
        expected = batch.last_offset + 1
        if not batch.is_control and not (is_committed and aborted.has(batch)):
            yield batch, stretch.start_offset, stretch.end_offset
    if stretch.end_offset is not None and expected < stretch.end_offset and fails_on_missing:
        raise MissingRecordsError(
            f"{stretch.log_name} ends at {expected}, and the next segment in remote storage begins at"
            f" {stretch.end_offset}"
        )


class _AbortedRanges:
    """Which batches are of a transaction that was aborted."""

    def __init__(self, entries: Iterable[AbortedTransaction]) -> None:
        self._by_producer: defaultdict[int, list[AbortedTransaction]] = defaultdict(list)
        for entry in entries:
            self._by_producer[entry.producer_id].append(entry)

    def has(self, batch: Batch) -> bool:
        return (
            isinstance(batch, RecordBatch)
            and batch.is_transactional
            and any(
                entry.first_offset <= batch.base_offset <= entry.last_offset
                for entry in self._by_producer.get(batch.producer_id, ())
            )
        )


def _batches(store: RemoteStore, name: str, *, fails_on_missing: bool) -> Iterator[Batch]:
    """The batches of a log, verified, one piece of it in memory at a time."""
    try:
        yield from _batches_of(store, name)
    except FileNotFoundError:
        if fails_on_missing:
            raise MissingRecordsError(f"{name} was deleted before it was read") from None


def _batches_of(store: RemoteStore, name: str) -> Iterator[Batch]:
    size_bytes = store.size(name)
    position, wanted_bytes = 0, _READ_BYTES
    while position < size_bytes:
        chunk = store.read(name, position, min(wanted_bytes, size_bytes - position))
        walk = walk_batches(chunk)
        if not walk.spans:
            if walk.next_size_bytes is None or walk.next_size_bytes > size_bytes - position or not chunk:
                raise CorruptRecordError(f"{name} ends within a batch, at byte {position} of {size_bytes}")
            wanted_bytes = walk.next_size_bytes
            continue
        for span in walk.spans:
            batch = batch_at(chunk, span)
            batch.verify()
            yield batch
        position += walk.end_position
        wanted_bytes = _READ_BYTES
