"""The replicas that this broker had and deleted, so that what was said of them before does not bring them back.

A LeaderAndIsr request may come twice: the connection breaks, the controller asks again, is answered, and goes on to
delete the replica; then the first request arrives. Its partition is known no more, so nothing here says that it is old;
a replica made of it would stay for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.sentinels import EPOCH_DURING_DELETE

if TYPE_CHECKING:
    from barnabas.wire.topics import TopicPartition

REMEMBERED_MAX: Final = 10_000
"""Those that were deleted first are forgotten first."""
_FOR_GOOD: Final = 2**31 - 1


class DeletionFence:
    """Up to which leader epoch each deleted replica is gone. Topics without id are not remembered: a topic of the same
    name begins again with epoch 0."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[TopicPartition, Uuid], int] = {}

    def add(self, topic_partition: TopicPartition, topic_id: Uuid, known_epoch: int, told_epoch: int) -> None:
        """A replica is deleted which was at `known_epoch` here, by a request that says `told_epoch`.

        A topic that is being deleted never comes back with its id; a replica that was moved away may, in a later epoch.
        """
        if topic_id == ZERO_UUID:
            return
        epoch = _FOR_GOOD if told_epoch == EPOCH_DURING_DELETE else max(known_epoch, told_epoch)
        self._epochs.pop((topic_partition, topic_id), None)
        self._epochs[topic_partition, topic_id] = epoch
        if len(self._epochs) > REMEMBERED_MAX:
            del self._epochs[next(iter(self._epochs))]

    def is_gone(self, topic_partition: TopicPartition, topic_id: Uuid, leader_epoch: int) -> bool:
        """Whether the replica was deleted in this leader epoch or a later one."""
        epoch = self._epochs.get((topic_partition, topic_id))
        return epoch is not None and leader_epoch <= epoch
