"""Where a follower cuts its log off, so that it agrees with its leader's (KIP-101, KIP-279)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable


class Truncation(NamedTuple):
    """What to cut off."""

    offset: int
    """The new end of the log, unless that is before it already."""
    is_complete: bool
    """False: the leader is to be asked about the epoch that the log ends with then."""


def truncation(
    leader_end: EpochEnd, *, log_end_offset: int, fallback_offset: int, local_end: Callable[[int], EpochEnd]
) -> Truncation:
    """What follows from `leader_end`: the largest epoch that the leader knows up to the one that our log ends with, and
    where that ends in the leader's log.

    `local_end` says the same of our log (`EpochEnd` of an epoch, or of the largest one below that we have), and
    `fallback_offset`, the high watermark at the start, is taken where the leader cannot tell.

    Invariant: below the offset, when the truncation is complete, our log and the leader's are the same; nothing that
    the leader has is cut off but what is behind the first difference, or behind a gap in our epochs.
    """
    if leader_end.end_offset == NO_OFFSET:
        return Truncation(fallback_offset, is_complete=True)
    if leader_end.epoch == NO_EPOCH:  # a leader that answers version 0 knows no epochs
        return Truncation(min(leader_end.end_offset, log_end_offset), is_complete=True)
    ours = local_end(leader_end.epoch)
    if ours.end_offset == NO_OFFSET:
        # All that we have is of later epochs than that.
        return Truncation(min(leader_end.end_offset, log_end_offset), is_complete=True)
    if ours.epoch != leader_end.epoch:
        return Truncation(min(ours.end_offset, log_end_offset), is_complete=False)
    return Truncation(min(ours.end_offset, leader_end.end_offset, log_end_offset), is_complete=True)
