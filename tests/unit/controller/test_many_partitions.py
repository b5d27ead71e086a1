"""Events that are about many partitions: carried out in bounded pieces, between which the loop does everything else."""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any

import pytest

from barnabas.controller.broker_requests import FULL
from barnabas.controller.effects import (
    CHANGES_PER_PIECE,
    ITEMS_PER_PIECE,
    LINES_PER_PIECE,
    ChangeChannels,
    Effect,
    GiveWay,
    ReadChildren,
    ReadZnodes,
    StateChange,
    ZnodeOperations,
)
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import PARTITIONS_PER_BATCH, TOPICS_PER_BATCH
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path
from barnabas.coordination.operations import Multi
from barnabas.wire.messages import StopReplicaRequest, StopReplicaResponse, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
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


def test_why_very_many_partitions_have_no_leader_is_logged_in_pieces(many: Terms) -> None:
    for broker_id in (1, 2, 3):
        many.stop_broker(broker_id)
    many.settle()
    lines = [0]

    class Watching(CountingShell):
        def carry_out(self, effect: Effect) -> Any:
            if isinstance(effect, GiveWay):
                lines.append(0)
            lines[-1] += isinstance(effect, StateChange) and effect.level >= logging.INFO
            return super().carry_out(effect)

    many.shell = Watching(many.store)
    many.run(many.term.try_online())
    assert sum(lines) == TOPICS * PARTITIONS
    assert max(lines) <= LINES_PER_PIECE
    named = [line.message.split()[5] for line in many.shell.lines]
    assert len(set(named)) == TOPICS * PARTITIONS


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
    assert gave_way == [0] * (TOPICS * PARTITIONS // CHANGES_PER_PIECE)


def test_a_takeover_reads_the_next_states_while_it_uses_these(many: Terms) -> None:
    many.watches.end()
    reads: list[ReadZnodes] = []

    class Watching(CountingShell):
        def carry_out(self, effect: Effect) -> Any:
            if isinstance(effect, ReadZnodes):
                reads.append(effect)
            return super().carry_out(effect)

    many.shell = Watching(many.store)
    many.run(many.term._refresh(many.term.context.partitions))
    assert len(reads) == -(-TOPICS * PARTITIONS // PARTITIONS_PER_BATCH)
    assert [read.ahead for read in reads] == [*(read.paths for read in reads[1:]), ()]
    assert max(len(read.paths) for read in reads) == PARTITIONS_PER_BATCH


def test_a_takeover_asks_for_topics_and_states_before_it_needs_them(
    many: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3 * TOPICS_PER_BATCH):
        many.create(f"more-{number:03}", *((1,) for _ in range(20)))
    many.settle()
    before = {partition: many.term.context.leadership(partition) for partition in many.term.context.partitions}
    ahead: dict[type[Effect], tuple[Any, ...]] = {}
    reads: list[tuple[str, bool]] = []
    carry_out = CrashingShell.carry_out

    def watching(shell: CrashingShell, effect: Effect) -> Any:
        if isinstance(effect, ReadZnodes | ZnodeOperations):
            items = effect.paths if isinstance(effect, ReadZnodes) else effect.operations
            what = "states" if isinstance(effect, ReadZnodes) else type(items[0]).__name__
            if len(items) > 1:
                reads.append((what, ahead.pop(type(effect), ()) == items))
            if effect.ahead:
                ahead[type(effect)] = effect.ahead
        elif isinstance(effect, ChangeChannels):
            raise _LoadedError
        return carry_out(shell, effect)

    monkeypatch.setattr(CrashingShell, "carry_out", watching)
    with pytest.raises(_LoadedError):
        many.elect()
    found = {partition: many.term.context.leadership(partition) for partition in many.term.context.partitions}
    assert found == before
    topics = [is_begun for what, is_begun in reads if what == "GetData"][-4:]
    states = [is_begun for what, is_begun in reads if what == "states"]
    assert topics == [False, True, True, True]
    assert states == [False, *[True] * (-(-len(before) // PARTITIONS_PER_BATCH) - 1)]
    # Not first the topics and then the states.
    order = [what for what, _ in reads]
    assert "GetData" in order[order.index("states") :]
    assert not ahead


def test_a_broker_of_many_partitions_that_shuts_down_is_told_in_pieces_and_before_it_leaves_the_isrs(
    many: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = counted(many)
    calls = _Calls(many, "must_leave", monkeypatch)
    led = many.run(many.term.shut_down(2, many.term.context.live_or_shutting_down_brokers[2].epoch))
    assert led == []
    stopped = partition_counts(shell, "STOP_REPLICA")
    assert (calls.all, calls.most) == (2 * TOPICS * PARTITIONS, ITEMS_PER_PIECE)
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


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("are_known", [True, False])
def test_very_many_deletions_that_are_asked_for_together_are_queued_in_pieces(
    are_known: bool, is_enabled: bool
) -> None:
    assert _longest_turn_of_deletions(5_000, are_known, is_enabled) <= 25 * ITEMS_PER_PIECE


def _longest_turn_of_deletions(count: int, are_known: bool, is_enabled: bool) -> int:
    """Calls of functions between two turns of the loop, at most."""
    terms = few_of_many(count)
    terms.settings = dataclasses.replace(terms.settings, delete_topic_enable=is_enabled)
    deletion = terms.term._deletion
    deletion._settings = terms.settings
    names = [f"{'t' if are_known else 'u'}{number}" for number in range(count)]
    calls = most = 0

    def count_calls(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    steps = deletion.enqueue(names)
    results = None
    before = sys.getprofile()
    try:
        while True:
            calls = 0
            sys.setprofile(count_calls)
            effects = steps.send(results)  # type: ignore[arg-type]
            sys.setprofile(before)
            most = max(most, calls)
            results = tuple(
                [[None] * len(each.operations) for each in effect.operations if isinstance(each, Multi)]
                if isinstance(effect, ZnodeOperations)
                else None
                for effect in effects
            )
    except StopIteration:
        sys.setprofile(before)
        return max(most, calls)


class _LoadedError(Exception):
    """A term knows everything, and is about to speak to brokers."""


class _Calls:
    """How often something of the context is asked for, at most, between two turns of the loop; with `counts_items` how
    many items its last argument has.
    """

    def __init__(self, terms: Terms, name: str, monkeypatch: pytest.MonkeyPatch, *, counts_items: bool = False) -> None:
        self.most = 0
        self.all = 0
        self._now = 0
        asked = getattr(terms.term.context, name)
        carry_out = terms.shell.carry_out

        def counting(*arguments: Any) -> Any:
            count = len(arguments[-1]) if counts_items else 1
            self.all += count
            self._now += count
            self.most = max(self.most, self._now)
            return asked(*arguments)

        def carrying_out(effect: Effect) -> Any:
            if isinstance(effect, GiveWay | ZnodeOperations | ReadZnodes | ReadChildren):
                self._now = 0
            return carry_out(effect)

        monkeypatch.setattr(terms.term.context, name, counting)
        monkeypatch.setattr(terms.shell, "carry_out", carrying_out)

    def begin(self) -> None:
        """Counts from here."""
        self.most = self.all = self._now = 0


def test_a_deletion_waits_in_pieces_for_very_many_replicas_that_are_gone(
    many: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.stop_broker(3)
    many.settle()
    for topic in range(TOPICS):
        many.delete(f"t{topic}")
    many.events.clear()
    calls = _Calls(many, "replica_state", monkeypatch)
    many.run(many.term.deletions_changed())
    assert calls.all > TOPICS * PARTITIONS
    assert calls.most <= PARTITIONS_PER_BATCH * 3
    context = many.term.context
    assert all(context.is_ineligible_for_deletion(f"t{topic}") for topic in range(TOPICS))
    many.start_broker(3)
    many._answered = 0
    many.settle()
    assert all(many.state(f"t{topic}") is None for topic in range(TOPICS))


def test_one_topic_of_very_many_partitions_is_deleted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2_500
    terms = Terms(1, 2, 3)
    terms.elect()
    terms.create("t", *(REPLICAS[number % 3] for number in range(count)))
    terms.settle()
    context = terms.term.context
    # Of the first turns, that end the deletion of the replicas, and of those that forget the partitions.
    asked = [_Calls(terms, name, monkeypatch) for name in ("replica_state", "set_replica_state", "_drop_partition")]
    terms.delete("t")
    terms.events.clear()
    terms.run(terms.term.deletions_changed())
    for partition in context.partitions_of("t"):
        for broker_id in context.assignment(partition).replicas:
            context.set_replica_state(PartitionReplica(partition, broker_id), ReplicaState.DELETION_SUCCESSFUL)
    for calls in asked:
        calls.begin()
    terms.run(terms.term._deletion.resume())
    assert not context.has_topic("t")
    assert [calls.all >= count for calls in asked] == [True, True, True]
    assert max(calls.most for calls in asked) <= 3 * ITEMS_PER_PIECE


def test_a_topic_that_somebody_has_removed_is_forgotten_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2_500
    terms = Terms(1, 2, 3)
    terms.elect()
    terms.create("t", *(REPLICAS[number % 3] for number in range(count)))
    terms.settle()
    calls = _Calls(terms, "_drop_partition", monkeypatch)
    for path in [path for path in terms.store.znodes if path.startswith("/brokers/topics/t")]:
        del terms.store.znodes[path]
    terms.run(terms.term.topics_changed())
    assert not terms.term.context.has_topic("t")
    assert calls.all == count
    assert calls.most <= ITEMS_PER_PIECE


def test_many_topics_that_somebody_has_removed_are_forgotten_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * ITEMS_PER_PIECE
    terms = few_of_many(count)
    calls = _Calls(terms, "_drop_partition", monkeypatch)
    for path in [path for path in terms.store.znodes if path.startswith("/brokers/topics/")]:
        del terms.store.znodes[path]
    terms.run(terms.term.topics_changed())
    assert terms.term.context.topics == ()
    assert calls.all == count
    assert calls.most <= ITEMS_PER_PIECE


def few_of_many(topics: int) -> Terms:
    """A controller that knows so many topics of one partition, whose states nobody has written."""
    terms = Terms(1)
    terms.elect()
    context = terms.term.context
    for number in range(topics):
        terms.create(f"t{number}", (1,))
        context.add_topic(f"t{number}", terms.new_topic_id())
        context.set_assignment(TopicPartition(f"t{number}", 0), ReplicaAssignment((1,)))
    terms.events.clear()
    return terms


def test_a_takeover_looks_at_very_many_deletions_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * ITEMS_PER_PIECE
    terms = few_of_many(count)
    calls = _Calls(terms, "is_replica_online", monkeypatch)
    terms.run(terms.term._deletion.load([f"t{number}" for number in range(count)]))
    assert calls.all == count
    assert calls.most <= ITEMS_PER_PIECE
    assert len(terms.term.context.topics_queued_for_deletion) == count


def test_what_comes_into_sync_at_once_ends_its_reassignments_in_pieces(
    many: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last broker that a reassignment of everything waits for has caught up, and its leaders say so."""
    many.start_broker(4)
    many.settle()
    context = many.term.context
    partitions = list(context.partitions_of("t0"))
    target = {partition: (4, *context.assignment(partition).replicas[1:]) for partition in partitions}
    assert not any(many.run(many.term.reassignments.alter(target)).values())
    for partition in partitions:
        known = context.leadership(partition)
        assert known is not None
        joined = dataclasses.replace(known, isr=(*known.isr, 4))
        many.store.put_data(partition_state_path(*partition), joined.to_znode().encode())
        stored = many.store.leadership(partition)
        assert stored is not None
        context.set_leadership(partition, stored)
    shell = counted(many)
    calls = _Calls(many, "set_assignment", monkeypatch)
    many.term.reassignments.note_changes(partitions)
    many.run(many.term.reassignments.go_on())
    assert {partition: context.assignment(partition).replicas for partition in partitions} == target
    assert calls.all >= len(partitions)
    assert calls.most <= PARTITIONS_PER_BATCH
    assert max(partition_counts(shell, "UPDATE_METADATA")) <= PARTITIONS_PER_BATCH


def test_isrs_of_very_many_partitions_are_told_in_pieces(many: Terms) -> None:
    shell = counted(many)
    brokers = many.term._brokers
    many.run(brokers.send_update_metadata([1, 2], many.term.context.partitions))
    told = partition_counts(shell, "UPDATE_METADATA")
    assert sorted(told) == sorted(2 * [ITEMS_PER_PIECE, ITEMS_PER_PIECE, TOPICS * PARTITIONS - 2 * ITEMS_PER_PIECE])
    # Between the requests, and while each is made.
    assert shell.gave_way == 2 + 2 * ITEMS_PER_PIECE // CHANGES_PER_PIECE
    shell.requests.clear()
    many.run(brokers.send_update_metadata([1, 2]))
    assert partition_counts(shell, "UPDATE_METADATA") == [0, 0]


def test_an_answer_to_a_deletion_is_about_its_topics_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the answers of all brokers to a deletion of very many topics take the square of their number."""
    terms = Terms(1, 2)
    terms.elect()
    names = [f"t{number}" for number in range(30)]
    for name in names:
        terms.create(name, (1, 2))
    terms.settle()
    for name in names:
        terms.delete(name)
    terms.events.clear()
    terms.run(terms.term.deletions_changed())
    calls = _Calls(terms, "are_all_replicas_in", monkeypatch)
    for broker_id in (1, 2):
        for name in names[:3]:
            state = StopReplicaRequest.StopReplicaPartitionState(partition_index=0, delete_partition=True)
            request = StopReplicaRequest(
                broker_epoch=terms.term.context.live_or_shutting_down_brokers[broker_id].epoch,
                topic_states=[StopReplicaRequest.StopReplicaTopicState(topic_name=name, partition_states=[state])],
            )
            error = StopReplicaResponse.StopReplicaPartitionError(topic_name=name, partition_index=0)
            terms.run(terms.term.replicas_deleted(broker_id, request, StopReplicaResponse(partition_errors=[error])))
    assert calls.all == 6
    assert set(terms.term.context.topics_queued_for_deletion) == set(names[3:])
    terms.settle()
    assert terms.term.context.topics_queued_for_deletion == ()


def test_very_many_new_topics_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms(1)
    terms.elect()
    count = 3 * TOPICS_PER_BATCH + 1
    for number in range(count):
        terms.create(f"t{number}", (1,))
    terms.events.clear()
    calls = _Calls(terms, "add_topic", monkeypatch)
    terms.run(terms.term.topics_changed())
    assert (calls.all, calls.most) == (count, TOPICS_PER_BATCH)
    assert all(terms.state(f"t{number}") is not None for number in range(count))


def test_many_topics_of_few_partitions_are_assigned_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms(1)
    terms.elect()
    topics, partitions = TOPICS_PER_BATCH, 3 * ITEMS_PER_PIECE // TOPICS_PER_BATCH
    for number in range(topics):
        terms.create(f"t{number}", *((1,) for _ in range(partitions)))
    terms.events.clear()
    calls = _Calls(terms, "set_assignments", monkeypatch, counts_items=True)
    terms.run(terms.term.topics_changed())
    assert calls.all == topics * partitions
    assert calls.most < ITEMS_PER_PIECE + partitions


def test_many_brokers_of_few_partitions_come_back_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = range(1, 11)
    terms = Terms(*brokers)
    terms.elect()
    partitions = 2 * ITEMS_PER_PIECE
    terms.create("t", *((1, 2 + number % 3, 5 + number % 6) for number in range(partitions)))
    terms.settle()
    live = [terms.term.context.live_or_shutting_down_brokers[broker_id] for broker_id in brokers[1:]]
    assert all(len(terms.term.context.partitions_on_broker(broker.broker_id)) < ITEMS_PER_PIECE for broker in live)
    calls = _Calls(terms, "replica_state", monkeypatch)
    terms.run(terms.term._brokers.start_up(live))
    assert calls.all >= 2 * partitions
    # A piece that is looked at, and the next batch of those that move.
    assert calls.most <= ITEMS_PER_PIECE + 3 * PARTITIONS_PER_BATCH
