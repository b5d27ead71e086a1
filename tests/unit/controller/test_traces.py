"""Spans of the controller: one for each event, with the moves that it brought about, and one for each reassignment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.controller.events import ControllerEvent, Startup
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.recent_transitions import StateTransition
from barnabas.controller.traces import MOVES_MAX, REASSIGNMENTS_MAX, ControllerTraces
from barnabas.kernel.tracing import Span
from barnabas.wire.topics import TopicPartition


class Context:
    def __init__(self, epoch: int = 7) -> None:
        self.epoch = epoch
        self.reassigned: dict[TopicPartition, None] = {}

    def is_being_reassigned(self, partition: TopicPartition) -> bool:
        return partition in self.reassigned

    @property
    def reassigned_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self.reassigned)


class World:
    """A controller's traces, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 50.0
        loop = SimpleNamespace(time=lambda: self.now)
        clock = SimpleNamespace(time_ms=lambda: int(self.now * 1000))
        self.spans: list[Span] = []
        self.context: Context | None = Context()
        traces = SimpleNamespace(add=self.spans.append)
        self.traces = ControllerTraces(cast("Any", SimpleNamespace(loop=loop, clock=clock)), traces)

    def process(self, *moves: StateTransition, seconds: float = 0.0, error: Exception | None = None) -> None:
        async def process(_event: ControllerEvent) -> None:
            for move in moves:
                self.traces.add(move)
            self.now += seconds
            if error is not None:
                raise error

        term = None if self.context is None else cast("Any", SimpleNamespace(context=self.context))
        asyncio.run(self.traces.process(Startup(), process, lambda: term))


def move(partition: int, broker_id: int | None = None, fault: str | None = None) -> StateTransition:
    leadership = LeaderAndIsr(2, 5, (2, 3), 7) if broker_id is None and fault is None else None
    return StateTransition("flights", partition, broker_id, "OFFLINE", "ONLINE", leadership, fault)


def test_an_event_is_a_span_with_its_moves() -> None:
    world = World()
    world.process(move(1), move(2, broker_id=3), move(4, fault="nobody is alive"), seconds=0.25)
    world.process()
    first, second = world.spans
    assert (first.name, first.duration_ms, first.end_ms, first.error) == ("controller Startup", 250, 50_250, None)
    assert first.attributes == {"kafka.controller.state": "CONTROLLER_CHANGE", "kafka.controller.epoch": 7}
    of_partition, of_replica, failed = first.events
    assert (of_partition.name, of_partition.time_ms) == ("partition state change", 50_000)
    assert of_partition.attributes["kafka.leader"] == 2
    assert of_partition.attributes["kafka.leader.epoch"] == 5
    assert (of_replica.name, of_replica.attributes["kafka.broker.id"]) == ("replica state change", 3)
    assert failed.attributes["error.message"] == "nobody is alive"
    assert second.events == ()
    assert [timed.move.partition for timed in world.traces.latest(10)] == [1, 2, 4]


def test_a_span_has_a_bounded_number_of_moves_and_says_what_it_left_out() -> None:
    world = World()
    world.process(*(move(number) for number in range(MOVES_MAX + 3)))
    world.process(move(1))
    first, second = world.spans
    assert (len(first.events), first.attributes["kafka.state_changes.left_out"]) == (MOVES_MAX, 3)
    assert "kafka.state_changes.left_out" not in second.attributes


def test_an_event_that_failed_says_why_and_fails_on() -> None:
    world = World()
    with pytest.raises(ValueError, match="broken"):
        world.process(move(1), error=ValueError("broken"))
    world.context = None
    world.process()
    assert [span.error for span in world.spans] == ["ValueError: broken", None]
    assert "kafka.controller.epoch" not in world.spans[1].attributes


def reassignments(world: World) -> list[tuple[object, float]]:
    spans = [span for span in world.spans if span.name == "reassignment"]
    return [(span.attributes["messaging.destination.partition.id"], span.duration_ms) for span in spans]


def test_a_reassignment_is_a_span_from_its_beginning_to_its_end() -> None:
    world = World()
    assert world.context is not None
    one, other = TopicPartition("flights", 1), TopicPartition("flights", 2)
    world.context.reassigned[one] = None
    world.process()
    world.now += 3
    world.context.reassigned[other] = None
    world.process()
    world.now += 4
    del world.context.reassigned[one]
    world.process()
    world.process()
    assert reassignments(world) == [("1", 7_000)]
    del world.context.reassigned[other]
    world.process()
    assert reassignments(world) == [("1", 7_000), ("2", 4_000)]


def test_what_goes_on_under_another_controller_is_not_said_to_have_ended_here() -> None:
    world = World()
    assert world.context is not None
    world.context.reassigned[TopicPartition("flights", 1)] = None
    world.process()
    world.context = None
    world.process()
    world.context = Context(9)
    world.process()
    assert reassignments(world) == []


def test_few_reassignments_are_followed_at_a_time() -> None:
    world = World()
    assert world.context is not None
    world.context.reassigned = dict.fromkeys(TopicPartition("flights", number) for number in range(3000))
    world.process()
    assert len(world.traces._reassignments) == REASSIGNMENTS_MAX
    for number in range(REASSIGNMENTS_MAX):
        del world.context.reassigned[TopicPartition("flights", number)]
    world.process()
    assert len(reassignments(world)) == REASSIGNMENTS_MAX
    assert len(world.traces._reassignments) == REASSIGNMENTS_MAX
