"""What a broker is missing whose log directories are all empty: the replicas that the cluster has assigned to it.

Apache Kafka says nothing of it: a broker that was started from another folder, or before its disks were mounted, copies
everything again, and a replica that was alone in its ISR comes back without a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import TOPICS_PATH, TopicAssignment, topic_path
from barnabas.coordination.operations import GetChildrenNames
from barnabas.kernel.turns import in_turns, yield_to_loop
from barnabas.server.coordination_session import CoordinationSession
from barnabas.wire.topics import TopicPartition

_NAMED_MAX: Final = 3
_TOPICS_AT_ONCE: Final = 200
"""Between two reads of so many the loop does everything else."""


async def replicas_of(session: CoordinationSession, broker_id: int) -> list[TopicPartition]:
    """The partitions of which a broker is to have a replica, as the cluster has it; empty for one that is new to it.

    Topics whose znodes cannot be read are left out. Raises CoordinationError.
    """
    topics = await session.perform(GetChildrenNames(TOPICS_PATH))
    topics.sort()
    found: list[TopicPartition] = []
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        some = topics[start : start + _TOPICS_AT_ONCE]
        paths = [topic_path(topic) for topic in some]
        for topic, path, znode in zip(some, paths, await session.get_many(paths), strict=True):
            if isinstance(znode, NoNodeError):
                continue
            if isinstance(znode, CoordinationError):
                raise znode
            await yield_to_loop()
            try:
                assigned = (await in_turns(TopicAssignment.decode_in_steps(znode.data, path))).partitions
            except LayoutError:
                continue
            found += [
                TopicPartition(topic, number)
                for number, replicas in sorted(assigned.items())
                if broker_id in replicas.replicas
            ]
    return found


def what_is_missing(paths: Sequence[str], broker_id: int, replicas: Sequence[TopicPartition]) -> str:
    """The message to the user: what is wrong, and what to do."""
    named = ", ".join(map(str, replicas[:_NAMED_MAX]))
    if len(replicas) > _NAMED_MAX:
        named += f" and {len(replicas) - _NAMED_MAX} more"
    are = "y is" if len(paths) == 1 else "ies are all"
    count = "one replica" if len(replicas) == 1 else f"{len(replicas)} replicas"
    return (
        f"The log director{are} empty ({', '.join(paths)}), but the cluster has {count} on broker {broker_id}: {named}."
        " They are copied from their leaders now, and what no other broker has is gone. If the data lie elsewhere, stop"
        " this broker at once, correct log.dirs (a relative path counts from the folder that the broker is started in)"
        " or mount the disk, and start it again; if the disk is a new one, there is nothing to do"
    )
