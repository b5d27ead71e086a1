"""What is found in a partition directory, or begins with a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.kernel.host import Files
from barnabas.kernel.ids import Uuid
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.producers.producer_state import ProducerState
from barnabas.log.segments.log_segments import LogSegments
from barnabas.log.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """The parts of a `PartitionLog`, which becomes their owner."""

    directory: str
    topic_id: Uuid | None
    has_metadata_file: bool
    """Whether `partition.metadata` need not be written any more."""
    segments: LogSegments
    leader_epochs: LeaderEpochCache
    epochs_changed: bool
    """Whether the checkpoint of the epochs says something else."""
    producers: ProducerState
    snapshot_offsets: Sequence[int]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    unsynced_segments: Sequence[Segment] = ()
    """Segments before the active one that may not be durable, with their indexes."""
    complete_end_offset: int = -1
    """Where the log ends, if all of it, the indexes too, is durable; otherwise -1."""
    is_new: bool = False


def create_log(
    files: Files, directory: str, topic_id: Uuid | None, config: LogConfig, settings: LogSettings, now_ms: int
) -> LoadedLog:
    """Makes the directory of a new log and its first segment. Raises OSError."""
    files.make_directories(directory)
    segment = Segment(files, directory, 0, config.segment_config, created_ms=now_ms)
    segment.create()
    return LoadedLog(
        directory=directory,
        topic_id=topic_id,
        has_metadata_file=topic_id is None,
        segments=LogSegments([segment]),
        leader_epochs=LeaderEpochCache(),
        epochs_changed=False,
        producers=ProducerState(settings.producer_id_expiration_ms, settings.transaction_timeout_max_ms),
        snapshot_offsets=(),
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        is_new=True,
    )
