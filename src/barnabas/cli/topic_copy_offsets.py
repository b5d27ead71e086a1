"""How far a transactional copy of a topic is: in a group beside the target, in the transactions that copy.

What is committed for a partition of the target is the next offset of the source's partition with that number; its
metadata say of which source, so that no other one is taken for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.output import printable
from barnabas.client.admin import Admin
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.cli.topic_copy_state import CopyState
    from barnabas.client.client import Client

_OFFSETS_AT_ONCE: Final = 1_000
"""A coordinator writes those of one request as one batch, which is bounded."""


class KeptOffsets:
    """Those of one copy."""

    def __init__(self, target: Client, name: str, state: CopyState) -> None:
        """`name` is that of the group and of the transactional id; `state` says what is copied."""
        self._target = target
        self._name = name
        self._topic = state.target
        self._metadata = f"{state.source_cluster} {state.source} {state.source_id}"

    async def read(self) -> dict[int, int]:
        """The next offsets, by partition of the source, once no other copy of this name can commit any more.

        Raises CommandError where the group has others.
        """
        async with TransactionalProducer(self._target, self._name) as producer:
            await producer.begin()  # ends what a copy that was killed has begun
        async with Admin(self._target) as admin:
            # A commit that has ended may be seen a moment later: the coordinator of the group hears of it by a marker.
            found = await admin.list_group_offsets(self._name, require_stable=True)
        for partition, offset in found.items():
            if partition.topic == self._topic and offset.metadata != self._metadata:
                raise CommandError(
                    f"group {printable(self._name)} keeps the offsets of something else for {printable(self._topic)}; "
                    "name another by --transactional, or delete it (`barnabas group delete`) to begin anew"
                )
        return {
            partition.partition: offset.offset for partition, offset in found.items() if partition.topic == self._topic
        }

    async def write(self, producer: TransactionalProducer, positions: Mapping[TopicPartition, int]) -> None:
        """Makes positions of the source part of the present transaction."""
        numbers = [(partition.partition, offset) for partition, offset in positions.items()]
        for start in range(0, len(numbers), _OFFSETS_AT_ONCE):
            offsets = {
                TopicPartition(self._topic, number): OffsetAndMetadata(offset, metadata=self._metadata)
                for number, offset in numbers[start : start + _OFFSETS_AT_ONCE]
            }
            await producer.send_offsets(self._name, offsets)
