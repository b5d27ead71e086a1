"""ElectLeaders: what the controller elected, once the metadata shows it; errors where Kafka has them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import pytest

from barnabas.api.administration.leader_waits import PARTITIONS_PER_OPERATION
from barnabas.api.elect_leaders import ElectLeadersHandler
from barnabas.kernel.steps import Steps, at_once
from barnabas.wire import codec
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ElectLeadersRequest, ElectLeadersResponse
from barnabas.wire.topics import ElectionType, TopicPartition
from tests.unit.api.administration.admin_world import AdminWorld, in_world

Result = TypeVar("Result")
T0, T1, T2, U0 = (TopicPartition(name, number) for name, number in (("t", 0), ("t", 1), ("t", 2), ("u", 0)))
NEEDLESS = KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "it has its leader")
VERSIONS = range(3)


class Context:
    """Counts the steps between which others have their turns."""

    authorizer = None

    def __init__(self, version: int, received: float) -> None:
        self.api_version = version
        self.received = received
        self.is_parked = False
        self.steps = 0

    def park(self) -> None:
        self.is_parked = True

    async def in_steps(self, steps: Steps[Result]) -> Result:
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return cast("Result", stop.value)
            await self.turn()

    async def turn(self) -> None:
        self.steps += 1
        await asyncio.sleep(0)


class Controller:
    """Elects what it is told to, and keeps what it was asked."""

    def __init__(self, outcomes: Mapping[TopicPartition, int | KafkaError], error: KafkaError | None = None) -> None:
        self.asked: list[tuple[list[TopicPartition], ElectionType]] = []
        self._outcomes = outcomes
        self._error = error

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], election_type: ElectionType
    ) -> dict[TopicPartition, int | KafkaError]:
        self.asked.append((list(partitions), election_type))
        if self._error is not None:
            raise self._error
        return {partition: self._outcomes[partition] for partition in reversed(partitions)}


def named(*partitions: TopicPartition) -> list[Any]:
    return [ElectLeadersRequest.TopicPartitions(topic=name, partitions=[number]) for name, number in partitions]


def flat(response: ElectLeadersResponse) -> list[tuple[str, int, str, str | None]]:
    return [
        (topic.topic, result.partition_id, ErrorCode.for_code(result.error_code).name, result.error_message)
        for topic in response.replica_election_results
        for result in topic.partition_result
    ]


async def ask(
    world: AdminWorld, controller: Controller, request: ElectLeadersRequest, version: int = 2
) -> ElectLeadersResponse:
    """The answer after a journey over the wire in this version; errors as the dispatcher answers them."""
    context: Any = Context(version, world.host.loop.time())
    handler = ElectLeadersHandler(cast("Any", controller), world.leader_waits, world.metadata)
    try:
        answer = handler.handle(context, request)
        assert context.is_parked
        response = await answer
    except KafkaError as error:
        response = at_once(handler.error_response(context, request, error))
    return codec.decode(ElectLeadersResponse, version, b"".join(codec.encode(response, version)))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_partition_has_its_outcome_in_the_order_asked_for(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"t": [1, 2, 3], "u": [1]})
        refused = KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "it is dead")
        controller = Controller({T0: 1, T2: refused, U0: NEEDLESS})
        response = await ask(world, controller, ElectLeadersRequest(topic_partitions=named(T2, U0, T0, T2)), version)
        assert flat(response) == [
            ("t", 2, "PREFERRED_LEADER_NOT_AVAILABLE", "it is dead"),
            ("t", 0, "NONE", None),
            ("u", 0, "ELECTION_NOT_NEEDED", "it has its leader"),
        ]
        assert response.error_code == 0
        assert controller.asked == [([T2, U0, T0], ElectionType.PREFERRED)]

    in_world(main)


@pytest.mark.parametrize("version", VERSIONS)
def test_version_0_knows_preferred_leaders_only(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        controller = Controller({T0: NEEDLESS})
        await ask(world, controller, ElectLeadersRequest(election_type=1, topic_partitions=named(T0)), version)
        ((_, election_type),) = controller.asked
        assert election_type is (ElectionType.PREFERRED if version == 0 else ElectionType.UNCLEAN)

    in_world(main)


@pytest.mark.parametrize("version", VERSIONS)
def test_asked_for_all_it_leaves_out_what_had_its_leader(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"t": [1, 2], "u": [3]})
        controller = Controller({T0: NEEDLESS, T1: 2, U0: NEEDLESS})
        response = await ask(world, controller, ElectLeadersRequest(topic_partitions=None), version)
        assert flat(response) == [("t", 1, "NONE", None)]
        assert controller.asked == [([T0, T1, U0], ElectionType.PREFERRED)]

    in_world(main)


def test_it_answers_when_the_metadata_shows_the_leaders() -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"t": [2, 2]})
        request = ElectLeadersRequest(topic_partitions=named(T0, T1), timeout_ms=60_000)
        asking = asyncio.create_task(ask(world, Controller({T0: 1, T1: 1}), request))
        await asyncio.sleep(1)
        world.show({"t": [1, 2]})
        await asyncio.sleep(1)
        assert not asking.done()
        world.show({"t": [1, 1]})
        assert flat(await asking) == [("t", 0, "NONE", None), ("t", 1, "NONE", None)]

    in_world(main)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 3_000])
def test_what_the_metadata_do_not_show_in_time_has_timed_out(timeout_ms: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"t": [1, 2]})
        before = world.host.loop.time()
        request = ElectLeadersRequest(topic_partitions=named(T0, T1, U0), timeout_ms=timeout_ms)
        response = await ask(world, Controller({T0: 1, T1: 1, U0: NEEDLESS}), request)
        assert flat(response) == [
            ("t", 0, "NONE", None),
            ("t", 1, "REQUEST_TIMED_OUT", None),
            ("u", 0, "ELECTION_NOT_NEEDED", "it has its leader"),
        ]
        assert world.host.loop.time() - before == pytest.approx(max(0, timeout_ms) / 1000, abs=0.01)

    in_world(main)


@pytest.mark.parametrize("is_all", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_who_is_not_the_controller_says_so_of_each_partition(version: int, is_all: bool) -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"t": [1], "u": [1]})
        controller = Controller({}, KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller"))
        request = ElectLeadersRequest(topic_partitions=None if is_all else named(T0, U0))
        response = await ask(world, controller, request, version)
        assert response.error_code == 0
        assert flat(response) == [("t", 0, "NOT_CONTROLLER", None), ("u", 0, "NOT_CONTROLLER", None)]

    in_world(main)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("election_type", [-1, 2, 127])
def test_a_type_that_there_is_not_fails_as_a_whole_and_for_each_partition(version: int, election_type: int) -> None:
    async def main(world: AdminWorld) -> None:
        controller = Controller({})
        request = ElectLeadersRequest(election_type=election_type, topic_partitions=named(T0, U0))
        response = await ask(world, controller, request, version)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert flat(response) == [("t", 0, "UNKNOWN_SERVER_ERROR", None), ("u", 0, "UNKNOWN_SERVER_ERROR", None)]
        all_of_them = ElectLeadersRequest(election_type=election_type, topic_partitions=None)
        response = await ask(world, controller, all_of_them, version)
        assert (response.error_code, flat(response)) == (ErrorCode.UNKNOWN_SERVER_ERROR, [])
        assert not controller.asked

    in_world(main)


def test_very_many_partitions_take_many_turns() -> None:
    async def main(world: AdminWorld) -> None:
        count = 8 * PARTITIONS_PER_OPERATION
        world.show({"t": [2] * count})
        partitions = [TopicPartition("t", number) for number in range(count)]
        context: Any = Context(2, world.host.loop.time())
        controller: Any = Controller(dict.fromkeys(partitions, 1))
        handler = ElectLeadersHandler(controller, world.leader_waits, world.metadata)
        answering = asyncio.create_task(handler.handle(context, ElectLeadersRequest(topic_partitions=None)))
        await asyncio.sleep(1)
        world.show({"t": [1] * count})
        response = await answering
        assert len(response.replica_election_results[0].partition_result) == count
        assert context.steps >= 3 * count / 256

    in_world(main)
