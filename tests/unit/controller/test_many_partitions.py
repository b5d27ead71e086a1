"""Events that are about many partitions: carried out in bounded pieces, between which the loop does everything else."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.controller.broker_requests import FULL
from barnabas.controller.effects import ITEMS_PER_PIECE, Effect, GiveWay
from barnabas.controller.settings import PARTITIONS_PER_BATCH
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.wire.messages import UpdateMetadataRequest
from tests.unit.controller.term_harness import CrashingShell, Terms

TOPICS = 3
PARTITIONS = 700
REPLICAS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


class CountingShell(CrashingShell):
    gave_way = 0

    def carry_out(self, effect: Effect) -> Any:
        self.gave_way += isinstance(effect, GiveWay)
        return super().carry_out(effect)


@pytest.fixture
def many() -> Terms:
    """A controller that has just taken over 2,100 partitions of brokers 1 to 3."""
    terms = Terms(1, 2, 3)
    terms.elect()
    for topic in range(TOPICS):
        terms.create(f"t{topic}", *(REPLICAS[number % 3] for number in range(PARTITIONS)))
        terms.settle()
    return terms


def counted(terms: Terms) -> CountingShell:
    terms.shell = CountingShell(terms.store)
    return terms.shell


def partition_counts(shell: CrashingShell, api: str) -> list[int]:
    messages: list[Any] = [request.message for request in shell.requests if request.api_key.name == api]
    return [sum(len(topic.partition_states) for topic in message.topic_states) for message in messages]


def test_brokers_that_fail_together_are_dealt_with_in_pieces_and_stay_in_sync_together(many: Terms) -> None:
    shell = counted(many)
    for broker_id in (2, 3):
        many.stop_broker(broker_id)
    many.settle()
    for api in ("LEADER_AND_ISR", "UPDATE_METADATA"):
        told = partition_counts(shell, api)
        assert max(told) <= PARTITIONS_PER_BATCH
        assert sum(told) >= TOPICS * PARTITIONS
    assert shell.gave_way >= 3
    states = [many.state(f"t{topic}", number) for topic in range(TOPICS) for number in range(PARTITIONS)]
    assert {(state.leader, state.isr) for state in states if state is not None} == {(1, (1,))}


def test_the_whole_isr_that_fails_at_once_stays_in_it(many: Terms) -> None:
    before = many.state("t1", 600)
    assert before is not None
    for broker_id in (1, 2, 3):
        many.stop_broker(broker_id)
    many.settle()
    after = many.state("t1", 600)
    assert after is not None
    assert (after.leader, after.isr) == (-1, before.isr)


def test_a_takeover_gives_way_and_tells_all_at_once_what_there_is(many: Terms) -> None:
    many.watches.end()
    terms = many
    gave_way = []

    class Watching(CountingShell):
        def carry_out(self, effect: Effect) -> Any:
            if isinstance(effect, GiveWay):
                gave_way.append(len(self.requests))
            return super().carry_out(effect)

    terms.shell = Watching(terms.store)
    terms.term.context.begin_shutdown(1)
    terms.run(terms.term._brokers.send_full_metadata([2]))
    (request,) = terms.sent("UPDATE_METADATA")
    assert isinstance(request.message, UpdateMetadataRequest)
    assert request.message.type == FULL
    named = {
        TopicPartition(topic.topic_name, state.partition_index)
        for topic in request.message.topic_states
        for state in topic.partition_states
    }
    assert len(named) == TOPICS * PARTITIONS
    assert gave_way == [0] * (TOPICS * PARTITIONS // ITEMS_PER_PIECE)


def test_a_broker_of_many_partitions_that_shuts_down_is_told_in_pieces_and_before_it_leaves_the_isrs(
    many: Terms,
) -> None:
    shell = counted(many)
    led = many.run(many.term.shut_down(2, many.term.context.live_or_shutting_down_brokers[2].epoch))
    assert led == []
    stopped = partition_counts(shell, "STOP_REPLICA")
    assert sum(stopped) >= TOPICS * PARTITIONS * 2 // 3
    assert max(stopped) <= ITEMS_PER_PIECE
    assert shell.gave_way >= 4
    states = [many.state(f"t{topic}", number) for topic in range(TOPICS) for number in range(PARTITIONS)]
    assert all(state is not None and 2 not in state.isr and state.leader in (1, 3) for state in states)


def test_very_many_topics_are_deleted_in_pieces(many: Terms) -> None:
    shell = counted(many)
    for topic in range(TOPICS):
        many.delete(f"t{topic}")
    many.events.clear()
    many.run(many.term.deletions_changed())
    told = partition_counts(shell, "UPDATE_METADATA")
    assert max(told) <= ITEMS_PER_PIECE
    assert shell.gave_way >= 4
    many._answered = 0
    many.settle()
    assert all(many.state(f"t{topic}") is None for topic in range(TOPICS))
