"""Offsets on their way into the log: appended in one batch, so that all or none are committed, and then seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effect_runner import GroupHandle
from barnabas.coordinators.group.metrics import GroupMetrics
from barnabas.coordinators.group.records import CommittedOffset
from barnabas.coordinators.shard import APPEND_ERRORS
from barnabas.kernel.steps import Steps
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


class PreparedCommit(NamedTuple):
    """Offsets that are to be committed: all, those of which the metadata is not too long, and the batch of these."""

    offsets: Mapping[TopicPartition, CommittedOffset]
    accepted: Mapping[TopicPartition, CommittedOffset]
    batch: bytearray


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
