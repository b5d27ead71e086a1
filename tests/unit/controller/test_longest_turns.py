"""What an event about one very large topic does between two turns of the loop, counted in calls of functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.controller.effects import (
    GiveWay,
    ReadChildren,
    ReadZnodes,
    Steps,
    ZnodeOperations,
)
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, topic_path
from barnabas.wire.topics import ElectionType, TopicPartition
from tests.unit.controller.term_harness import Terms

PARTITIONS = 2_000
REPLICAS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
CALLS_MAX = 22_000
"""Each takes a third to half of a microsecond: some 8 ms."""
_TURNS = (GiveWay, ReadChildren, ReadZnodes, ZnodeOperations)


class Turns(Terms):
    """Counts the calls of the core in each turn, without those of the store; `longest` has the most, and where."""

    longest: tuple[int, str] = (0, "nothing")

    def run(self, steps: Steps[Any]) -> Any:
        return super().run(self._counted(steps))

    def _counted(self, steps: Steps[Any]) -> Steps[Any]:
        calls, results = 0, None

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in {"call", "c_call"}

        while True:
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                effects = steps.send(results)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
            finally:
                sys.setprofile(before)
                self.longest = max(self.longest, (calls, _place(steps)))
            if any(isinstance(effect, _TURNS) for effect in effects):
                calls = 0
            results = yield effects


def _place(steps: Any) -> str:
    """Where the steps stand."""
    places = []
    while steps is not None and getattr(steps, "gi_frame", None) is not None:
        places.append(f"{steps.gi_code.co_name}:{steps.gi_frame.f_lineno}")
        steps = steps.gi_yieldfrom
    return " > ".join(places[-5:])


@pytest.fixture
def terms() -> Iterator[Turns]:
    """A controller of brokers 1 to 4 that knows a topic of very many partitions on 1 to 3."""
    made = Turns(1, 2, 3, 4)
    made.elect()
    made.create("t", *(REPLICAS[number % 3] for number in range(PARTITIONS)))
    made.settle()
    yield made
    assert made.longest[0] > 1_000
    assert made.longest[0] <= CALLS_MAX, made.longest


def all_partitions() -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(PARTITIONS)]


def test_the_topic_is_made(terms: Turns) -> None:
    assert all(terms.state("t", number) is not None for number in range(PARTITIONS))


def test_it_gets_more_partitions(terms: Turns) -> None:
    terms.longest = (0, "")
    assigned = {number: ReplicaAssignment(REPLICAS[number % 3]) for number in range(2 * PARTITIONS)}
    topic_id = terms.term.context.topic_id("t")
    terms.store.put_data(topic_path("t"), TopicAssignment(assigned, topic_id).encode())
    terms.settle()
    assert terms.state("t", 2 * PARTITIONS - 1) is not None


def test_it_is_deleted(terms: Turns) -> None:
    terms.longest = (0, "")
    terms.delete("t")
    terms.settle()
    assert not terms.term.context.has_topic("t")


def test_a_broker_of_it_dies_and_comes_back(terms: Turns) -> None:
    terms.longest = (0, "")
    terms.stop_broker(2)
    terms.settle()
    assert {terms.state("t", number).leader for number in range(PARTITIONS)} == {1, 3}  # type: ignore[union-attr]
    terms.start_broker(2)
    terms.settle()


def test_a_broker_of_it_shuts_down_and_all_its_leaders_go_back(terms: Turns) -> None:
    terms.longest = (0, "")
    terms.run(terms.term.shut_down(2, terms.term.context.live_or_shutting_down_brokers[2].epoch))
    terms.stop_broker(2)
    terms.settle()
    terms.start_broker(2)
    terms.settle()
    for number in range(PARTITIONS):
        terms.propose(TopicPartition("t", number), *sorted(REPLICAS[number % 3])) if number < 3 else None
    terms.run(terms.term.replica_elections.elect(all_partitions(), ElectionType.PREFERRED))


def test_all_of_it_is_moved(terms: Turns) -> None:
    terms.longest = (0, "")
    targets = dict.fromkeys(all_partitions(), (4, 1, 2))
    outcomes = terms.run(terms.term.reassignments.alter(targets))
    assert set(outcomes.values()) == {None}
    terms.settle()


def test_a_new_controller_takes_over(terms: Turns) -> None:
    terms.longest = (0, "")
    terms.elect()
