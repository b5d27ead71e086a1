"""What is known of a partition's log, in memory; the parts of a `PartitionLog` share it.

Everything happens on the loop, one thing after another, but for syncs, cold reads and deletions. Offsets are ordered so
at all times:

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, and recovery_point <= log_end_offset
    log_start_offset <= local_start_offset <= log_end_offset; they differ in a tiered log only

*Committed* is what lies below the high watermark. It is moved by the replica's owner only (`leader` or `follower`), and
never by an append. A record counts as *written*, and may be acknowledged, when the write queue says so; it is *synced*
below the recovery point.
"""

from __future__ import annotations

import asyncio
from typing import Final

from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.partition.appending import AppendError, storage_error
from barnabas.log.partition.loaded_log import LoadedLog
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import INTERNAL_TOPICS, REMOTE_LOG_METADATA_TOPIC, TopicPartition

NO_TRUNCATION: Final = (1 << 63) - 1
_NEVER_TIERED: Final = INTERNAL_TOPICS | {REMOTE_LOG_METADATA_TOPIC}


def is_tiered(topic: str, config: LogConfig) -> bool:
    """Whether a topic's logs are tiered on a broker that has remote storage; internal and compacted topics never are,
    as in Apache Kafka."""
    return config.remote_storage_enable and not config.is_compacted and topic not in _NEVER_TIERED


class LogState:
    """Offsets, epochs, producers and configs of one log, and whether it takes appends.

    The appenders move the log's end, the flusher the recovery point, a truncation all of them.
    """

    __slots__ = (
        "coming_truncations",
        "config",
        "directory",
        "epochs_changed",
        "first_dirty_offset",
        "has_remote_storage",
        "high_watermark",
        "is_closed",
        "is_offline",
        "is_tiered",
        "is_truncating",
        "last_stable_offset",
        "leader_epochs",
        "least_end_offset",
        "local_start_offset",
        "log_directory",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "recovery_point",
        "refusal",
        "remote_end_offset",
        "replacement_ended",
        "rules",
        "segment_config",
        "segments",
        "topic_id",
        "truncations",
    )

    def __init__(
        self,
        log_directory: LogDirectory,
        partition: TopicPartition,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        has_remote_storage: bool = False,
    ) -> None:
        """`has_remote_storage`: the broker has remote storage, and a topic may use it."""
        self.partition = partition
        self.log_directory = log_directory
        self.directory = loaded.directory
        self.topic_id = loaded.topic_id
        self.segments = loaded.segments
        self.leader_epochs = loaded.leader_epochs
        self.epochs_changed = loaded.epochs_changed
        """Whether the checkpoint of the epochs says something else."""
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.log_start_offset
        self.last_stable_offset = loaded.log_start_offset
        self.recovery_point = loaded.recovery_point
        self.first_dirty_offset = 0
        """Up to where the log is compacted. Invariant: never above the recovery point, nor is its checkpoint when
        something below it is cut off: a tombstone that counts as compacted must have outlived what it deletes."""
        self.is_offline = False
        """The log directory has failed."""
        self.is_closed = False
        """The log is deleted, its directory has failed, or the broker stops."""
        self.is_truncating = False
        """The producers' state is being rebuilt; nothing can be appended."""
        self.truncations = 0
        """Those begun so far."""
        self.least_end_offset = NO_TRUNCATION
        """The least end since whoever copies the log has asked."""
        self.coming_truncations = 0
        """Those that wait for the recovery point to go back."""
        self.replacement_ended: asyncio.Future[None] | None = None
        """Done when the cleaned segments that are being put in place are, or are not to be; None where none are."""
        self.has_remote_storage = has_remote_storage
        self.is_tiered = False
        """Segments are copied to remote storage, and are deleted here before they are deleted there (KIP-405)."""
        self.remote_end_offset = 0
        """Up to where the log is known to be in remote storage."""
        self.local_start_offset = 0
        """Where what can be read here starts: not before the log start offset, which may be in remote storage."""
        self.refusal: ErrorCode | None = None
        """Why nothing can be appended."""
        self.settle_refusal()
        self.reconfigure(config)
        self.settle_local_start()

    def __repr__(self) -> str:
        return f"Log(dir={self.directory}, topic={self.partition.topic}, partition={self.partition.partition})"

    def reconfigure(self, config: LogConfig) -> None:
        """Takes over a topic's new configs, at once."""
        self.config = config
        self.rules = config.append_rules
        self.segment_config = config.segment_config
        self.segments.active.config = self.segment_config
        self.is_tiered = self.has_remote_storage and is_tiered(self.partition.topic, config)

    def settle_local_start(self) -> None:
        """Brings `local_start_offset` up to date, after the log's start or its first segment."""
        self.local_start_offset = max(self.log_start_offset, self.segments.first.base_offset)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Takes over a leader epoch that begins at an offset; whoever calls has seen that it is later than the last."""
        self.epochs_changed |= self.leader_epochs.assign(leader_epoch, start_offset)

    # What is committed.

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, also to an earlier offset; within the log. Returns it.

        For a replica that begins anew, as follower or after a truncation; a leader uses `increase_high_watermark`.
        """
        self.high_watermark = max(min(offset, self.log_end_offset), self.log_start_offset)
        self.committed_more()
        return self.high_watermark

    def increase_high_watermark(self, offset: int) -> bool:
        """Moves the high watermark forward, at most to the log's end; False where it is there already.

        Invariant: it never goes back here, whatever the caller has computed.
        """
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self.producers.is_stable:
            self.last_stable_offset = offset
        else:
            self.committed_more()
        return True

    def committed_more(self) -> None:
        """Brings the last stable offset up to date, after the high watermark, the log's start or the producers."""
        self.producers.high_watermark_moved(self.high_watermark)
        unstable = self.producers.first_unstable_offset
        stable = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
        self.last_stable_offset = max(stable, self.log_start_offset)

    def end_went_back(self, end_offset: int) -> None:
        """The log was cut off there, or begun anew. For those who know of an end that is not written."""

    def all_written(self) -> None:
        """Nothing waits to be written, after a truncation. As above."""

    # What is refused.

    def settle_refusal(self) -> None:
        """Brings `refusal` up to date; that of a log that has ended stays.

        Invariant: a log whose directory is held takes nothing, so that no turn of the loop waits for its disk. Nothing
        has come into it when an append is refused: a client may send it again, as to a partition without its min.insync
        replicas.
        """
        if self.is_closed:
            return
        if self.is_truncating:
            self.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif self.log_directory.is_held or self.log_directory.is_full:
            self.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            self.refusal = None

    def refused(self) -> AppendError:
        """The error for an append that `refusal` forbids."""
        code = self.refusal or ErrorCode.UNKNOWN_SERVER_ERROR
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            return AppendError(code, f"log directory {self.log_directory.path} is offline")
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            return AppendError(code, f"log directory {self.log_directory.path} does not answer")
        return AppendError(code, f"{self!r} is {'closed' if self.is_closed else 'being truncated'}")

    def check_online(self) -> None:
        """Raises KafkaError where the log has ended."""
        if self.is_offline:
            raise storage_error(self.log_directory.path, self.log_directory.error)
        if self.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self!r} is closed")

    def storage_failed(self, error: OSError) -> KafkaError:
        """Takes the log directory offline; returns what everybody is told."""
        if not self.is_closed:
            self.log_directory.fail(error)
        return storage_error(self.log_directory.path, error)

    def append_failed(self, error: OSError) -> AppendError:
        """`storage_failed` for who wanted to append."""
        self.log_directory.fail(error)
        return AppendError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.directory} cannot be written: {error}",
            log_start_offset=self.log_start_offset,
        )
