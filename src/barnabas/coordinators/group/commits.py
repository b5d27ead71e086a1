"""Offsets on their way into the log: appended in one batch, so that all or none are committed, and then seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effect_runner import GroupHandle
from barnabas.coordinators.group.metrics import GroupMetrics
from barnabas.coordinators.group.records import CommittedOffset, offset_key, offset_value, utf16_length
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.shard import APPEND_ERRORS, batch_in_steps
from barnabas.kernel.steps import Steps
from barnabas.wire.compression_types import Compression
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

_APPLIED_PER_STEP: Final = 1024
"""An offset costs about 1 us."""
_PASSED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""Outcomes after which the high watermark has passed the batch."""
_COMMIT_ERRORS: Final = {
    **APPEND_ERRORS,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""What a client is told when its offsets could not be appended; other errors as they are."""

Codes = dict[TopicPartition, ErrorCode]


def commit_code(error: ErrorCode) -> ErrorCode:
    """What a client is told of offsets that could not be appended for this reason."""
    return _COMMIT_ERRORS.get(error, error)


class PreparedCommit(NamedTuple):
    """Offsets that are to be committed: all, those of which the metadata is not too long, and the batch of these."""

    offsets: Mapping[TopicPartition, CommittedOffset]
    accepted: Mapping[TopicPartition, CommittedOffset]
    batch: bytearray


def prepared_commit(
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    time_ms: int,
    version: int,
    settings: GroupSettings,
    transaction: tuple[int, int] | None,
) -> Steps[PreparedCommit]:
    """Offsets as records of the value's `version`, in a batch that is part of a producer's `transaction` if one is
    named.
    """
    accepted: dict[TopicPartition, CommittedOffset] = {}

    def records() -> Iterator[tuple[bytes, bytes]]:
        for partition, committed in offsets.items():
            if utf16_length(committed.metadata) <= settings.offset_metadata_max:
                accepted[partition] = committed
                yield offset_key(group_id, partition), offset_value(committed, version)

    first = records()
    any_record = next(first, None)
    if any_record is None:
        return PreparedCommit(offsets, accepted, bytearray())
    batch = yield from batch_in_steps(
        chain((any_record,), first), time_ms, Compression(settings.compression), transaction
    )
    return PreparedCommit(offsets, accepted, batch)


def append_commit(
    handle: GroupHandle,
    prepared: PreparedCommit,
    background: BackgroundSteps,
    metrics: GroupMetrics,
    on_done: Callable[[Codes], None],
) -> None:
    """Appends the batch. `on_done` takes the outcome for each partition when it is known, and all can be seen.

    An offset is pending from the turn in which it comes into the log to the one in which it is seen, which come a piece
    at a time. Whatever is written about its partition meanwhile is behind it in the log: a deletion takes the pending
    offset away, and a later commit is not replaced by it. What is refused is never pending. What is in the log and was
    not committed in time is in doubt: the client is told to commit it again, and it is seen when the high watermark has
    passed it, or by whoever loads a log that has it. Where the write failed the log is offline, the shard resigns in
    the next turn, and nobody sees what may not be there.

    Invariant: nothing is seen here that the high watermark has not passed.
    """
    offsets, accepted, batch = prepared
    group_offsets = handle.group.offsets
    replayed_at: int | None = None

    def replay(base_offset: int) -> None:
        nonlocal replayed_at
        replayed_at = base_offset
        for partition, committed in accepted.items():
            group_offsets.replay_pending(partition, base_offset, committed)

    def end(error: ErrorCode) -> Steps[None]:
        is_committed = error is ErrorCode.NONE
        code = _COMMIT_ERRORS.get(error, error)
        codes: Codes = {}
        left = _APPLIED_PER_STEP
        for partition in offsets:
            if partition not in accepted:
                codes[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                codes[partition] = code
                if replayed_at is None:
                    pass
                elif error in _PASSED:
                    group_offsets.settle(partition, replayed_at)
                else:
                    group_offsets.doubt(partition, replayed_at)
            left -= 1
            if not left:
                yield
                left = _APPLIED_PER_STEP
        if is_committed:
            metrics.offset_commits.count += len(accepted)
        elif error is ErrorCode.REQUEST_TIMED_OUT and replayed_at is not None:
            handle.shard.await_commit(group_offsets, replayed_at, committed_late)
        on_done(codes)

    def done(error: ErrorCode) -> None:
        background.run(end(error), "commit-offsets")

    def committed_late(offset: int) -> None:
        background.run(group_offsets.settle_doubts(offset), "commit-offsets-late")

    try:
        handle.shard.append_batch(batch, replay, done)
    except KafkaError as error:
        done(error.code)


def append_transactional_commit(
    handle: GroupHandle,
    prepared: PreparedCommit,
    producer_id: int,
    background: BackgroundSteps,
    on_done: Callable[[Codes], None],
) -> None:
    """Appends the batch as part of the producer's transaction. `on_done` takes the outcome for each partition.

    From the turn in which an offset comes into the log it belongs to the transaction, and is seen, or forgotten, with
    the marker that comes behind it in the same log. So nothing is to be done where it is not committed in time: the
    client is told to commit it again, and the later one counts.

    Invariant: the offsets of an open transaction here are those that a load of the log would find.
    """
    offsets, accepted, batch = prepared
    group_offsets = handle.group.offsets

    def replay(base_offset: int) -> None:
        for partition, committed in accepted.items():
            group_offsets.replay_transactional(producer_id, partition, base_offset, committed)

    def end(error: ErrorCode) -> Steps[None]:
        code = _COMMIT_ERRORS.get(error, error)
        codes: Codes = {}
        left = _APPLIED_PER_STEP
        for partition in offsets:
            codes[partition] = code if partition in accepted else ErrorCode.OFFSET_METADATA_TOO_LARGE
            left -= 1
            if not left:
                yield
                left = _APPLIED_PER_STEP
        on_done(codes)

    def done(error: ErrorCode) -> None:
        background.run(end(error), "commit-offsets-in-transaction")

    try:
        handle.shard.append_batch(batch, replay, done)
    except KafkaError as error:
        done(error.code)
