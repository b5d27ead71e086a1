"""What a follower must know of the records before its log: the history of leader epochs, and the producers. Everything
that reads belongs off the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.log.directories.checkpoints import EpochEntry, parse_epochs
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry, parse_snapshot
from barnabas.log.producers.producer_state import ProducerState
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.remote_segment import scan_segment
from barnabas.tiered.segment_metadata import RemoteLogSegmentMetadata
from barnabas.tiered.storage import RemoteStore
from barnabas.wire.record_batch import RecordBatch


class ReplayedPart(NamedTuple):
    """The beginning of a segment."""

    segment: RemoteLogSegmentMetadata
    end_offset: int


@dataclass(frozen=True, slots=True)
class ProducersPlan:
    """How to find out who the producers were at an offset: from a segment's snapshot, which is at its end, and by
    reading what follows up to the offset."""

    snapshot: RemoteLogSegmentMetadata | None
    """None where nothing is left of what was before."""
    parts: Sequence[ReplayedPart]
    """In order."""


def read_history(
    store: RemoteStore, segment: RemoteLogSegmentMetadata, leader_epoch: int, last_offset: int
) -> list[EpochEntry]:
    """The leader epochs of the records up to `last_offset`, which is in the segment and of `leader_epoch`.

    Invariant: of a segment that goes on nothing is told behind that: the leader may have lost that part, and have other
    epochs in its place. Raises OSError, and ValueError where the checkpoint is none.
    """
    name = object_name(segment, ObjectKind.LEADER_EPOCHS)
    return [
        entry
        for entry in parse_epochs(store.read_all(name), name)
        if entry.start_offset <= last_offset and entry.epoch <= leader_epoch
    ]


def plan_producers(
    cache: RemoteLogMetadataCache,
    history: Sequence[EpochEntry],
    segment: RemoteLogSegmentMetadata,
    end_offset: int,
) -> ProducersPlan:
    """For the producers at `end_offset`, which is in the segment or just behind it."""
    epochs = LeaderEpochCache(history)
    parts: list[ReplayedPart] = []
    found: RemoteLogSegmentMetadata | None = segment
    while found is not None and found.end_offset >= end_offset:
        parts.append(ReplayedPart(found, end_offset))
        end_offset = found.start_offset
        found = cache.find(epochs.epoch_for_offset(end_offset - 1), end_offset - 1)
    return ProducersPlan(found, parts[::-1])


def read_producers(
    store: RemoteStore, plan: ProducersPlan, expiration_ms: int, transaction_timeout_max_ms: int, now_ms: int
) -> list[ProducerSnapshotEntry]:
    """Raises OSError, CorruptSnapshotError and RecordsError."""
    entries: list[ProducerSnapshotEntry] = []
    if plan.snapshot is not None:
        entries = parse_snapshot(store.read_all(object_name(plan.snapshot, ObjectKind.PRODUCER_SNAPSHOT)))
    if not plan.parts:
        return entries
    state = ProducerState(expiration_ms, transaction_timeout_max_ms)
    state.load(entries, plan.parts[0].segment.start_offset, now_ms)
    for segment, end_offset in plan.parts:
        for batch in scan_segment(store, segment, 0):
            if batch.last_offset >= end_offset:
                break
            if isinstance(batch, RecordBatch):
                state.replay(batch.header, marker_in(batch))
    return state.snapshot()
