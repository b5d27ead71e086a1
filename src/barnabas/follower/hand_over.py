"""Which partitions one of a leader's two kinds of fetchers hands over to the other.

A fetcher has one request in flight: what is written to a partition that a follower is in sync with waits, with
acks=all, for whatever else is on its way. So what the follower is behind with has a fetcher of its own, with a
connection and a session at the leader, for as long as it is behind. Apache Kafka has `num.replica.fetchers`, which
spreads partitions by their names.

A partition is behind if the leader's high watermark is beyond the end of our log: no member of the ISR ever is, since
the high watermark waits for all of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.follower.fetcher_partitions import FetchedPartition, FetcherPartitions
    from barnabas.wire.topics import TopicPartition


def is_behind(lag: int) -> bool:
    """Whether a partition is behind that lacks so many records of its leader's high watermark."""
    return lag > 0


class HandOver:
    """What one fetcher hands over to the other.

    A partition that is behind goes at once. One that has caught up goes with the second answer: the request before that
    has told the leader what we have, so it is in the ISR, or about to be, and brings no more than what is written now.
    Invariants: nothing is handed over while a request that names it is on its way, or waits for anything but an answer;
    the next request of the fetcher that had it says that it does not fetch it any more.
    """

    __slots__ = ("_found", "_is_for_behind", "_tell", "_told")

    def __init__(self, tell: Callable[[list[FetchedPartition]], object], *, is_for_behind: bool) -> None:
        """`tell` is told what is to be fetched by the other one from now on."""
        self._tell = tell
        self._is_for_behind = is_for_behind
        self._found: dict[TopicPartition, FetchedPartition] = {}
        """Those that the last answer has found to be with the wrong fetcher."""
        self._told: dict[TopicPartition, FetchedPartition] = {}
        """Those that had caught up before the last request."""

    def answered(self, fetched: FetchedPartition) -> None:
        """An answer has said how far the leader is."""
        topic_partition = fetched.topic_partition
        if is_behind(fetched.lag or 0) is not self._is_for_behind:
            self._found[topic_partition] = fetched
        elif self._found or self._told:
            self._found.pop(topic_partition, None)
            self._told.pop(topic_partition, None)

    def take_out(self, partitions: FetcherPartitions) -> None:
        """An answer was taken over, and the next request is about to be sent: those that go now are not among the
        partitions of this fetcher any more."""
        if not (self._found or self._told):
            return
        due, self._found = self._found, {}
        if self._is_for_behind:
            due, self._told = self._told, due
        leaving = [fetched for fetched in due.values() if partitions.holds(fetched) and fetched.position() is not None]
        for fetched in leaving:
            partitions.hand_over(fetched.topic_partition)
        if leaving:
            self._tell([fetched.taken_over() for fetched in leaving])
