"""A follower's end of its fetch session with a leader: what it says of each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from barnabas.kernel.ids import Uuid
from barnabas.wire.fetch_session import FetchSessionHandler

if TYPE_CHECKING:
    from barnabas.wire.topics import TopicPartition


class Position(NamedTuple):
    """Where a partition is fetched from."""

    topic_id: Uuid
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """-1 where the log is empty or knows no epochs."""
    log_start_offset: int


Wanted = tuple["TopicPartition", Position | None]


class FollowerSession(FetchSessionHandler[Position]):
    """The session with one leader."""

    def name_again(self, partition: TopicPartition, position: Position) -> bool:
        """As `compose` where this is the only partition that has changed, and only in how far its log goes. False, and
        nothing has changed, where there is more to say or less: `compose` tells.
        """
        known = self.positions.get(partition)
        if (
            self.is_full
            or known is None
            or position == known
            or position.leader_epoch != known.leader_epoch
            or position.topic_id != known.topic_id
            or not self.has_topic_ids
        ):
            return False
        self.positions[partition] = position
        return True
