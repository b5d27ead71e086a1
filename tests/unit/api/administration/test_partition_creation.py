"""More partitions for topics, beside a real coordinator in virtual time."""

from __future__ import annotations

import json
from typing import Any

from barnabas.api.administration.partition_creation import MorePartitions
from barnabas.api.administration.topic_creation import PARTITIONS_PER_REQUEST_MAX, NewTopic
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, topic_path
from barnabas.coordination.operations import Multi
from barnabas.wire.errors import KafkaError
from tests.unit.api.administration.admin_world import AdminWorld, in_world


async def grow(world: AdminWorld, *wanted: MorePartitions, validate_only: bool = False) -> dict[str, Any]:
    outcomes = await world.partitions.create(wanted, validate_only=validate_only)
    return {
        topic: outcome.code.name if isinstance(outcome, KafkaError) else outcome for topic, outcome in outcomes.items()
    }


def test_new_partitions_join_the_old_ones_and_all_else_stays() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", assignment=[(0, (2, 3)), (1, (3, 1))])])
        path = topic_path("t")
        before = await world.assignment("t")
        # A field that nobody knows survives.
        await world.client.set_data(path, TopicAssignment(before.partitions, before.topic_id, extra={"x": 1}).encode())
        assert await grow(world, MorePartitions("t", 5)) == {"t": 5}
        after = await world.assignment("t")
        assert after.topic_id == before.topic_id
        assert after.extra == {"x": 1}
        assert sorted(after.partitions) == [0, 1, 2, 3, 4]
        assert {number: after.partitions[number] for number in (0, 1)} == before.partitions
        # As Kafka: the spread goes on from where the first replica of partition 0 is.
        assert [after.partitions[number].replicas[0] for number in (2, 3, 4)] == [1, 2, 3]
        assert all(len(set(each.replicas)) == 2 for each in after.partitions.values())

    in_world(main)


def test_replicas_can_be_given() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", assignment=[(0, (2, 3))])])
        assert await grow(world, MorePartitions("t", 3, [(1, 2), (3, 1)])) == {"t": 3}
        partitions = (await world.assignment("t")).partitions
        assert partitions[1] == ReplicaAssignment((1, 2))
        assert partitions[2] == ReplicaAssignment((3, 1))

    in_world(main)


REFUSALS = [
    (MorePartitions("nobody", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
    # What no znode, or another one than a topic's, can have as its path.
    (MorePartitions("\x7f", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
    (MorePartitions("", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
    (MorePartitions("../ids", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
    (MorePartitions("t/partitions", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
    (MorePartitions("t", 1), "INVALID_PARTITIONS"),
    (MorePartitions("t", 2), "INVALID_PARTITIONS"),
    (MorePartitions("t", -1), "INVALID_PARTITIONS"),
    (MorePartitions("t", PARTITIONS_PER_REQUEST_MAX + 1), "INVALID_PARTITIONS"),
    (MorePartitions("t", 3, [(1, 9)]), "INVALID_REPLICA_ASSIGNMENT"),
    (MorePartitions("t", 4, [(1, 2)]), "INVALID_REPLICA_ASSIGNMENT"),
    (MorePartitions("t", 3, [(1, 1)]), "INVALID_REPLICA_ASSIGNMENT"),
    (MorePartitions("t", 3, [(1,)]), "INVALID_REPLICA_ASSIGNMENT"),
    (MorePartitions("t", 3, [()]), "INVALID_REPLICA_ASSIGNMENT"),
    (MorePartitions("t", 3, []), "INVALID_REPLICA_ASSIGNMENT"),
    (MorePartitions("leaving", 3), "INVALID_TOPIC_EXCEPTION"),
    (MorePartitions("moving", 3), "REASSIGNMENT_IN_PROGRESS"),
]


def test_what_cannot_be_is_refused_and_nothing_is_written() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", 2, 2), NewTopic("leaving", 2, 2)])
        world.controller.queued_for_deletion.add("leaving")
        moving = TopicAssignment({0: ReplicaAssignment((1, 2), (2,), (1,))})
        await world.client.create(topic_path("moving"), moving.encode())
        before = await world.data(topic_path("t"))
        for more, code in REFUSALS:
            assert await grow(world, more) == {more.topic: code}, more
        assert await world.data(topic_path("t")) == before

    in_world(main)


def test_validate_only_writes_nothing() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", 2, 2)])
        before = await world.data(topic_path("t"))
        assert await grow(world, MorePartitions("t", 3), validate_only=True) == {"t": 3}
        assert await world.data(topic_path("t")) == before

    in_world(main)


def test_somebody_who_changed_the_topic_meanwhile_is_not_overwritten() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", assignment=[(0, (1,))])])
        submit = world.client.submit
        overtaken: list[object] = []

        async def overtake(operations: Any) -> list[Any]:
            if not overtaken and any(isinstance(operation, Multi) for operation in operations):
                overtaken.append(True)
                grown = {number: ReplicaAssignment((2,)) for number in range(3)}
                await world.client.set_data(topic_path("t"), TopicAssignment(grown).encode())
            return await submit(operations)

        world.client.submit = overtake  # type: ignore[method-assign]
        assert await grow(world, MorePartitions("t", 3)) == {"t": "INVALID_PARTITIONS"}
        assert await grow(world, MorePartitions("t", 4)) == {"t": 4}
        partitions = (await world.assignment("t")).partitions
        assert [partitions[number].replicas for number in range(3)] == [(2,)] * 3

    in_world(main)


def test_a_lost_answer_is_found_out() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", 1, 1)])
        submit = world.client.submit
        lost: list[object] = []

        async def losing(operations: Any) -> list[Any]:
            outcomes = await submit(operations)
            if not lost and any(isinstance(operation, Multi) for operation in operations):
                lost.append(True)
                return [ConnectionLossError("/brokers/topics/t") for _ in operations]
            return outcomes

        world.client.submit = losing  # type: ignore[method-assign]
        assert await grow(world, MorePartitions("t", 3)) == {"t": 3}
        assert lost
        assert len(json.loads(await world.data(topic_path("t")) or b"")["partitions"]) == 3

    in_world(main)


def test_only_the_controller_adds_partitions() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", 1, 1)])
        await world.become_controller(2)
        assert await grow(world, MorePartitions("t", 3)) == {"t": "NOT_CONTROLLER"}

    in_world(main)
