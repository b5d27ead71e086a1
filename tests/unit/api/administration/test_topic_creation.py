"""Topics as znodes: what is written, what is refused and how, beside a real coordinator in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.api.administration import topic_creation
from barnabas.api.administration.guarded_writes import ONE_ZNODE
from barnabas.api.administration.partition_creation import MorePartitions
from barnabas.api.administration.topic_creation import PARTITIONS_PER_REQUEST_MAX, NewTopic, PlannedTopic
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH
from barnabas.coordination.layout.topics import TOPICS_PATH, ReplicaAssignment
from barnabas.coordination.operations import Multi
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.api.administration.admin_world import AdminWorld, codes, in_world


def refused(outcome: object) -> tuple[str, str | None]:
    assert isinstance(outcome, KafkaError)
    return outcome.code.name, outcome.detail


def test_writes_the_configs_and_the_topic_as_kafka_does() -> None:
    async def main(world: AdminWorld) -> None:
        outcomes = await world.creator.create(
            [NewTopic("t", 4, 2, configs={"retention.ms": "5", "cleanup.policy": "compact"})]
        )
        made = outcomes["t"]
        assert isinstance(made, PlannedTopic)
        assert json.loads(await world.data("/config/topics/t") or b"") == {
            "version": 1,
            "config": {"retention.ms": "5", "cleanup.policy": "compact"},
        }
        written = json.loads(await world.data("/brokers/topics/t") or b"")
        assert written == {
            "partitions": {str(number): list(replicas) for number, replicas in made.assignment.items()},
            "topic_id": str(made.topic_id),
            "adding_replicas": {},
            "removing_replicas": {},
            "version": 3,
        }
        assert sorted(made.assignment) == [0, 1, 2, 3]
        assert all(len(set(replicas)) == 2 for replicas in made.assignment.values())
        # Kafka announces no change for a topic that is new.
        assert await world.children(CONFIG_CHANGES_PATH) == []

    in_world(main)


def test_a_topic_that_fits_into_no_znode_is_refused_in_words_about_the_topic() -> None:
    async def main(world: AdminWorld) -> None:
        outcomes = await world.creator.create([NewTopic("small", 10, 1), NewTopic("large", 99_000, 1)])
        code, detail = refused(outcomes["large"])
        assert code == "INVALID_REQUEST"
        assert detail is not None
        assert detail.startswith("Creating topic large with 99000 partitions takes ")
        assert detail.endswith(f"do not fit into one znode of 1 MiB (jute.maxbuffer): {ONE_ZNODE}.")
        assert "/" not in detail, "no znode is named that the user has not asked for"
        assert await world.children(TOPICS_PATH) == ["small"]

    in_world(main)


@pytest.mark.parametrize("validate_only", [False, True])
def test_what_can_be_seen_not_to_fit_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, validate_only: bool
) -> None:
    def assigned(*_: Any) -> None:
        raise AssertionError("it has begun to assign replicas")

    monkeypatch.setattr(topic_creation, "assign_replicas_in_steps", assigned)

    async def main(world: AdminWorld) -> None:
        outcomes = await world.creator.create([NewTopic("large", 99_000, 1)], validate_only=validate_only)
        code, detail = refused(outcomes["large"])
        assert code == "INVALID_REQUEST"
        assert detail is not None
        assert "takes at least 11" in detail
        outcomes = await world.creator.create([NewTopic("large/", 99_000, 1)])
        assert refused(outcomes["large/"])[0] == "INVALID_TOPIC_EXCEPTION"
        outcomes = await world.creator.create([NewTopic("large", 99_000, 9)])
        assert refused(outcomes["large"])[0] == "INVALID_REPLICATION_FACTOR"

    in_world(main)


def test_a_topic_that_just_fits_is_made() -> None:
    async def main(world: AdminWorld) -> None:
        assert codes(await world.creator.create([NewTopic("large", 85_000, 1)])) == {"large": None}
        assert len((await world.assignment("large")).partitions) == 85_000
        outcomes = await world.creator.create([NewTopic("too-large", 40_000, 3)])
        assert codes(outcomes) == {"too-large": None}
        more = await world.partitions.create([MorePartitions("too-large", 80_000)], validate_only=False)
        code, detail = refused(more["too-large"])
        assert (code, "takes at least 1" in str(detail)) == ("INVALID_REQUEST", True)
        assert len((await world.assignment("too-large")).partitions) == 40_000

    in_world(main)


def test_a_topic_without_configs_has_an_empty_znode_for_them() -> None:
    async def main(world: AdminWorld) -> None:
        assert codes(await world.creator.create([NewTopic("t")])) == {"t": None}
        assert json.loads(await world.data("/config/topics/t") or b"") == {"version": 1, "config": {}}

    in_world(main)


def test_configs_and_topic_appear_together() -> None:
    """Whoever sees the topic sees its configs: they are one transaction."""

    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", configs={"retention.ms": "5"})])
        config = (await world.client.get_data("/config/topics/t")).stat
        topic = (await world.client.get_data("/brokers/topics/t")).stat
        assert config.czxid == topic.czxid

    in_world(main)


def test_the_configs_of_a_former_topic_are_replaced() -> None:
    async def main(world: AdminWorld) -> None:
        await world.client.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"1"}}')
        assert codes(await world.creator.create([NewTopic("t", configs={"segment.ms": "7"})])) == {"t": None}
        assert json.loads(await world.data("/config/topics/t") or b"")["config"] == {"segment.ms": "7"}

    in_world(main)


def test_the_broker_chooses_by_its_own_defaults() -> None:
    async def main(world: AdminWorld) -> None:
        made = (await world.creator.create([NewTopic("t")]))["t"]
        assert isinstance(made, PlannedTopic)
        assert (len(made.assignment), made.replication_factor) == (6, 3)

    in_world(main, static={"num.partitions": "6", "default.replication.factor": "3"})


def test_replicas_are_spread_over_racks() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}

    async def main(world: AdminWorld) -> None:
        made = (await world.creator.create([NewTopic("t", 12, 2)]))["t"]
        assert isinstance(made, PlannedTopic)
        assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in made.assignment.values())
        assert {replicas[0] for replicas in made.assignment.values()} == {1, 2, 3, 4}

    in_world(main, racks=racks)


def test_a_manual_assignment_is_kept_also_for_brokers_that_are_not_there() -> None:
    """As Kafka: the partition waits for them."""

    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t", assignment=[(1, (3, 9)), (0, (2, 1))])])
        assert (await world.assignment("t")).partitions == {
            0: ReplicaAssignment((2, 1)),
            1: ReplicaAssignment((3, 9)),
        }

    in_world(main)


def test_brokers_before_2_8_give_topics_no_id() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t")])
        assert (await world.assignment("t")).topic_id is None

    in_world(main, static={"inter.broker.protocol.version": "2.7", "log.message.format.version": "2.7"})


REFUSALS: list[tuple[NewTopic, str]] = [
    (NewTopic("bad name"), "INVALID_TOPIC_EXCEPTION"),
    (NewTopic(""), "INVALID_TOPIC_EXCEPTION"),
    (NewTopic("t" * 250), "INVALID_TOPIC_EXCEPTION"),
    (NewTopic("known"), "TOPIC_ALREADY_EXISTS"),
    (NewTopic("t", 0, 1), "INVALID_PARTITIONS"),
    (NewTopic("t", PARTITIONS_PER_REQUEST_MAX + 1, 1), "INVALID_PARTITIONS"),
    (NewTopic("t", 1, 0), "INVALID_REPLICATION_FACTOR"),
    (NewTopic("t", 1, 4), "INVALID_REPLICATION_FACTOR"),
    (NewTopic("t", 1, 1, [(0, (1,))]), "INVALID_REQUEST"),
    (NewTopic("t", assignment=[(0, (1,)), (2, (1,))]), "INVALID_REPLICA_ASSIGNMENT"),
    (NewTopic("t", assignment=[(0, (1,)), (0, (2,))]), "INVALID_REPLICA_ASSIGNMENT"),
    (NewTopic("t", assignment=[(0, (1, 1))]), "INVALID_REPLICA_ASSIGNMENT"),
    (NewTopic("t", assignment=[(0, (1,)), (1, (1, 2))]), "INVALID_REPLICA_ASSIGNMENT"),
    (NewTopic("t", configs={"retention.ms": None}), "INVALID_CONFIG"),
    (NewTopic("t", configs={"retention.ms": "soon"}), "INVALID_CONFIG"),
    (NewTopic("t", configs={"retention.msec": "1"}), "INVALID_CONFIG"),
]


def test_what_cannot_be_is_refused_and_nothing_is_written() -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"known": [1]})
        for topic, code in REFUSALS:
            assert codes(await world.creator.create([topic])) == {topic.name: code}, topic
        assert await world.children(TOPICS_PATH) == []
        assert await world.children("/config/topics") == []

    in_world(main)


def test_one_refusal_keeps_no_other_topic_from_being_made() -> None:
    async def main(world: AdminWorld) -> None:
        outcomes = await world.creator.create([NewTopic("a"), NewTopic("b", 0, 1), NewTopic("c")])
        assert codes(outcomes) == {"a": None, "b": "INVALID_PARTITIONS", "c": None}
        assert await world.children(TOPICS_PATH) == ["a", "c"]

    in_world(main)


def test_a_topic_that_only_zookeeper_knows_exists() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("t")])
        before = await world.data("/brokers/topics/t")
        assert refused((await world.creator.create([NewTopic("t", configs={"segment.ms": "9"})]))["t"]) == (
            "TOPIC_ALREADY_EXISTS",
            "Topic 't' already exists.",
        )
        assert await world.data("/brokers/topics/t") == before
        assert json.loads(await world.data("/config/topics/t") or b"")["config"] == {}

    in_world(main)


@pytest.mark.parametrize("is_there_still", [True, False])
def test_a_topic_that_is_to_be_deleted_cannot_be_made(is_there_still: bool) -> None:
    async def main(world: AdminWorld) -> None:
        if is_there_still:
            await world.creator.create([NewTopic("t")])
        await world.client.create(delete_topic_path("t"), None)
        assert refused((await world.creator.create([NewTopic("t")]))["t"]) == (
            "TOPIC_ALREADY_EXISTS",
            "Topic 't' is marked for deletion.",
        )

    in_world(main)


def test_names_collide_with_topics_that_exist_and_with_each_other() -> None:
    async def main(world: AdminWorld) -> None:
        await world.creator.create([NewTopic("a.b")])
        outcomes = await world.creator.create([NewTopic("a_b"), NewTopic("c.d"), NewTopic("c_d"), NewTopic("ab")])
        assert codes(outcomes) == {
            "a_b": "INVALID_TOPIC_EXCEPTION",
            "c.d": None,
            "c_d": "INVALID_TOPIC_EXCEPTION",
            "ab": None,
        }
        assert "a.b" in (refused(outcomes["a_b"])[1] or "")

    in_world(main)


def test_validate_only_writes_nothing_and_says_what_would_be() -> None:
    async def main(world: AdminWorld) -> None:
        outcomes = await world.creator.create([NewTopic("t", 2, 3), NewTopic("u", 1, 9)], validate_only=True)
        assert codes(outcomes) == {"t": None, "u": "INVALID_REPLICATION_FACTOR"}
        planned = outcomes["t"]
        assert isinstance(planned, PlannedTopic)
        assert (len(planned.assignment), planned.replication_factor) == (2, 3)
        assert await world.children(TOPICS_PATH) == []

    in_world(main)


@pytest.mark.parametrize("controller", [None, 2])
def test_only_the_controller_makes_topics(controller: int | None) -> None:
    async def main(world: AdminWorld) -> None:
        if controller is not None:
            await world.become_controller(controller)
        assert codes(await world.creator.create([NewTopic("t")])) == {"t": "NOT_CONTROLLER"}
        assert await world.children(TOPICS_PATH) == []

    in_world(main, is_controller=False)


def test_a_controller_that_is_deposed_in_between_makes_nothing() -> None:
    async def main(world: AdminWorld) -> None:
        submit = world.client.submit

        async def deposing(operations: Any) -> list[Any]:
            if any(isinstance(operation, Multi) for operation in operations):
                await world.become_controller(2)
            return await submit(operations)

        world.client.submit = deposing  # type: ignore[method-assign]
        assert codes(await world.creator.create([NewTopic("t")])) == {"t": "NOT_CONTROLLER"}
        assert await world.children(TOPICS_PATH) == []

    in_world(main)


@pytest.mark.parametrize("was_done", [True, False])
def test_a_lost_answer_is_found_out_by_the_topics_id(was_done: bool) -> None:
    async def main(world: AdminWorld) -> None:
        submit = world.client.submit
        lost: list[object] = []

        async def losing(operations: Any) -> list[Any]:
            if not lost and any(isinstance(operation, Multi) for operation in operations):
                lost.append(operations)
                if was_done:
                    await submit(operations)
                return [ConnectionLossError("/brokers/topics/t") for _ in operations]
            return await submit(operations)

        world.client.submit = losing  # type: ignore[method-assign]
        made = (await world.creator.create([NewTopic("t")]))["t"]
        assert lost
        assert isinstance(made, PlannedTopic)
        assert (await world.assignment("t")).topic_id == made.topic_id

    in_world(main)


def test_another_who_is_faster_wins() -> None:
    async def main(world: AdminWorld) -> None:
        submit, other = world.client.submit, Uuid(bytes(range(16)))

        async def overtaken(operations: Any) -> list[Any]:
            if any(isinstance(operation, Multi) for operation in operations):
                data = f'{{"partitions":{{"0":[1]}},"topic_id":"{other}","version":3}}'.encode()
                await world.client.create("/brokers/topics/t", data)
            return await submit(operations)

        world.client.submit = overtaken  # type: ignore[method-assign]
        assert codes(await world.creator.create([NewTopic("t")])) == {"t": "TOPIC_ALREADY_EXISTS"}
        assert (await world.assignment("t")).topic_id == other

    in_world(main)


def test_many_topics_cost_two_rounds() -> None:
    async def main(world: AdminWorld) -> None:
        submit = world.client.submit
        rounds: list[int] = []

        async def counting(operations: Any) -> list[Any]:
            rounds.append(len(operations))
            return await submit(operations)

        world.client.submit = counting  # type: ignore[method-assign]
        outcomes = await world.creator.create([NewTopic(f"t{number}", 3, 3) for number in range(50)])
        assert set(codes(outcomes).values()) == {None}
        assert rounds == [152, 50]

    in_world(main)


def test_a_request_is_bounded_in_all() -> None:
    async def main(world: AdminWorld) -> None:
        half = PARTITIONS_PER_REQUEST_MAX // 2 + 1
        outcomes = await world.creator.create([NewTopic("a", half, 1), NewTopic("b", half, 1)], validate_only=True)
        assert codes(outcomes) == {"a": None, "b": ErrorCode.INVALID_PARTITIONS.name}

    in_world(main)
