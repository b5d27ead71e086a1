"""Elections that somebody asks for, and the return of leadership to the preferred replicas."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from barnabas.controller.effects import ControllerMovedError, Effect, GiveWay
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.replica_elections import ElectionOutcomes
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.errors import NoAuthError
from barnabas.coordination.layout.admin import PREFERRED_REPLICA_ELECTION_PATH, PreferredReplicaElection
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, partition_state_path, topic_path
from barnabas.coordination.operations import SetData
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_LEADER
from barnabas.wire.topics import ElectionType, TopicPartition
from tests.unit.controller.memory_store import LISTENER
from tests.unit.controller.term_harness import CONTROLLER, CrashError, Terms

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def terms_with(
    topics: Mapping[str, Sequence[tuple[int, ...]]], brokers: tuple[int, ...] = (1, 2, 3), percentage: int = 10
) -> Terms:
    settings = ControllerSettings(CONTROLLER, LISTENER, leader_imbalance_per_broker_percentage=percentage)
    terms = Terms(*brokers, settings=settings)
    terms.elect()
    for topic, replicas in topics.items():
        terms.create(topic, *replicas)
    terms.settle()
    return terms


def come_back(terms: Terms, broker_id: int) -> None:
    """A broker restarts, and its followers' fetches bring it back into the ISRs; its leaderships are elsewhere."""
    terms.stop_broker(broker_id)
    terms.settle()
    terms.start_broker(broker_id)
    terms.settle()
    join(terms, broker_id)
    terms.shell.requests.clear()
    terms._answered = 0


def join(terms: Terms, broker_id: int) -> None:
    """As leaders of inter.broker.protocol.version 2.6 write it."""
    context = terms.term.context
    for partition in context.partitions_on_broker(broker_id):
        known = terms.state(*partition)
        if known is not None and broker_id not in known.isr and known.leader != NO_LEADER:
            put(terms, partition, dataclasses.replace(known, isr=(*known.isr, broker_id)))


def put(terms: Terms, partition: TopicPartition, known: LeaderAndIsr) -> None:
    """The state as it is after an ISR change that the controller has made."""
    terms.store.put_data(partition_state_path(*partition), known.to_znode().encode())
    stored = terms.store.leadership(partition)
    assert stored is not None
    terms.term.context.set_leadership(partition, stored)


def elect(terms: Terms, election_type: ElectionType, *partitions: TopicPartition) -> ElectionOutcomes:
    return terms.run(terms.term.replica_elections.elect(partitions, election_type))


def names(outcomes: ElectionOutcomes) -> dict[TopicPartition, int | str]:
    return {
        partition: outcome if isinstance(outcome, int) else outcome.code.name for partition, outcome in outcomes.items()
    }


def state(terms: Terms, topic: str, partition: int = 0) -> LeaderAndIsr:
    known = terms.state(topic, partition)
    assert known is not None
    return known


# On demand.


def test_the_preferred_replica_leads_again_in_a_new_epoch_and_all_replicas_hear_of_it() -> None:
    terms = terms_with({"t": [(1, 2, 3), (2, 3, 1)]})
    come_back(terms, 1)
    before = state(terms, "t")
    assert before.leader == 2
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    assert names(elect(terms, PREFERRED, t0, t1, t0)) == {t0: 1, t1: "ELECTION_NOT_NEEDED"}
    after = state(terms, "t")
    assert (after.leader, after.leader_epoch, after.isr) == (1, before.leader_epoch + 1, before.isr)
    told = terms.shell.sent("LEADER_AND_ISR")
    assert {broker_id: list(states) for broker_id, states in told.items()} == {1: [t0], 2: [t0], 3: [t0]}
    assert {states[t0].leader for states in told.values()} == {1}


def test_each_partition_has_its_own_error() -> None:
    terms = terms_with({"t": [(1, 2, 3)], "gone": [(1, 2)], "stopped": [(3, 2)]})
    terms.stop_broker(3)
    terms.settle()
    terms.answers = lambda _request, _partition: pytest.fail("the deletion is not to go on")
    terms.delete("gone")
    terms.run(terms.term.deletions_changed())
    t0, gone = TopicPartition("t", 0), TopicPartition("gone", 0)
    stopped, nobody, nowhere = TopicPartition("stopped", 0), TopicPartition("nobody", 0), TopicPartition("t", 7)
    outcomes = elect(terms, PREFERRED, t0, gone, stopped, nobody, nowhere)
    assert str(outcomes[stopped]).endswith(
        "Failed to elect leader for partition stopped-0 under strategy "
        "PreferredReplicaPartitionLeaderElectionStrategy: the preferred replica 3 is not both alive and in sync"
    )
    assert names(outcomes) == {
        t0: "ELECTION_NOT_NEEDED",
        gone: "INVALID_TOPIC_EXCEPTION",
        stopped: "PREFERRED_LEADER_NOT_AVAILABLE",
        nobody: "UNKNOWN_TOPIC_OR_PARTITION",
        nowhere: "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert state(terms, "stopped").leader == 2
    assert terms.refusals() == []


def test_a_preferred_replica_that_has_lagged_does_not_lead() -> None:
    terms = terms_with({"t": [(1, 2)]}, (1, 2))
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    t0 = TopicPartition("t", 0)
    before = state(terms, "t")
    assert (before.leader, before.isr) == (2, (2,))
    assert names(elect(terms, PREFERRED, t0)) == {t0: "PREFERRED_LEADER_NOT_AVAILABLE"}
    assert state(terms, "t") == before


def without_leader(*, is_other_live: bool) -> Terms:
    """Replica 2 alone was in sync, and is gone."""
    terms = terms_with({"t": [(1, 2)]}, (1, 2, 3))
    terms.stop_broker(1)
    terms.settle()
    terms.stop_broker(2)
    terms.settle()
    if is_other_live:
        terms.start_broker(1)
        terms.settle()
    assert terms.term.context.with_offline_leader([TopicPartition("t", 0)])
    return terms


def test_what_the_coordinator_does_not_let_write_is_told_and_changes_nothing() -> None:
    terms = terms_with({"t": [(1, 2, 3), (1, 3, 2)]})
    come_back(terms, 1)
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    before = state(terms, "t")
    perform = terms.store._perform

    def refuse(operation: Any) -> Any:
        if isinstance(operation, SetData) and operation.path == partition_state_path(*t0):
            raise NoAuthError(operation.path)
        return perform(operation)

    terms.store._perform = refuse  # type: ignore[method-assign]
    assert names(elect(terms, PREFERRED, t0, t1)) == {t0: "UNKNOWN_SERVER_ERROR", t1: 1}
    assert state(terms, "t") == before == terms.term.context.leadership(t0)


def test_on_demand_a_replica_leads_that_was_not_in_sync() -> None:
    terms = without_leader(is_other_live=True)
    t0 = TopicPartition("t", 0)
    assert names(elect(terms, PREFERRED, t0)) == {t0: "PREFERRED_LEADER_NOT_AVAILABLE"}
    assert names(elect(terms, UNCLEAN, t0)) == {t0: 1}
    assert (state(terms, "t").leader, state(terms, "t").isr) == (1, (1,))
    assert terms.shell.unclean_elections == 1
    assert names(elect(terms, UNCLEAN, t0)) == {t0: "ELECTION_NOT_NEEDED"}


@pytest.mark.parametrize("obstacle", ["shutting down", "held back"])
def test_on_demand_too_nobody_overtakes_a_registered_member_and_the_answer_says_what_to_do(obstacle: str) -> None:
    terms = terms_with({"t": [(1, 2)]}, (1, 2, 3))
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    before = state(terms, "t")
    assert (before.leader, before.isr) == (2, (2,))
    context, t0 = terms.term.context, TopicPartition("t", 0)
    if obstacle == "shutting down":
        context.begin_shutdown(2)
    else:
        context.hold_back([2])
    (refusal,) = elect(terms, UNCLEAN, t0).values()
    assert isinstance(refusal, KafkaError)
    assert refusal.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert "brokers [2] of the ISR [2] are registered" in refusal.message
    assert "wait until they can or have stopped, or stop them" in refusal.message
    assert state(terms, "t") == before
    terms.stop_broker(2)
    terms.settle()
    assert names(elect(terms, UNCLEAN, t0)) == {t0: 1}


def test_on_demand_a_member_whose_directory_has_failed_is_overtaken() -> None:
    terms = terms_with({"t": [(1, 2)]}, (1, 2, 3))
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    t0 = TopicPartition("t", 0)
    terms.term.context.log_dirs_failed(2, [t0])
    assert names(elect(terms, UNCLEAN, t0)) == {t0: 1}


def test_where_nobody_lives_nobody_is_eligible() -> None:
    terms = without_leader(is_other_live=False)
    t0 = TopicPartition("t", 0)
    assert names(elect(terms, UNCLEAN, t0)) == {t0: "ELIGIBLE_LEADERS_NOT_AVAILABLE"}


def test_a_partition_that_never_had_a_leader_gets_its_first_one_once_a_replica_lives() -> None:
    terms = terms_with({"t": [(2,)]}, (1,))
    t0 = TopicPartition("t", 0)
    assert terms.state("t") is None
    assert names(elect(terms, PREFERRED, t0)) == {t0: "PREFERRED_LEADER_NOT_AVAILABLE"}
    assert names(elect(terms, UNCLEAN, t0)) == {t0: "ELIGIBLE_LEADERS_NOT_AVAILABLE"}


def test_a_deposed_controller_elects_nobody() -> None:
    terms = terms_with({"t": [(1, 2, 3)]})
    come_back(terms, 1)
    before = state(terms, "t")
    terms.store.put_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(9))
    with pytest.raises(ControllerMovedError):
        elect(terms, PREFERRED, TopicPartition("t", 0))
    assert state(terms, "t") == before
    assert terms.shell.requests == []


def test_very_many_partitions_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = terms_with({"t": [(1, 2, 3)]})
    ways: list[GiveWay] = []
    carry_out = terms.shell.carry_out

    def counting(effect: Effect) -> Any:
        if isinstance(effect, GiveWay):
            ways.append(effect)
        return carry_out(effect)

    monkeypatch.setattr(terms.shell, "carry_out", counting)
    asked = [TopicPartition("nobody", number) for number in range(5_000)]
    assert set(names(elect(terms, PREFERRED, *asked)).values()) == {"UNKNOWN_TOPIC_OR_PARTITION"}
    assert len(ways) >= 5


# By the znode.


def request_by_znode(terms: Terms, *partitions: TopicPartition) -> None:
    terms.store.put_data(PREFERRED_REPLICA_ELECTION_PATH, PreferredReplicaElection(partitions).encode())


def test_the_znode_asks_for_preferred_leaders_and_is_deleted_each_time() -> None:
    terms = terms_with({"t": [(1, 2, 3), (2, 3, 1)]})
    for _ in range(2):
        come_back(terms, 1)
        assert state(terms, "t").leader == 2
        request_by_znode(terms, TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("nobody", 0))
        terms.settle()
        assert state(terms, "t").leader == 1
        assert PREFERRED_REPLICA_ELECTION_PATH not in terms.store.znodes


def test_a_request_that_is_pending_at_a_failover_is_carried_out() -> None:
    terms = terms_with({"t": [(1, 2, 3)]})
    come_back(terms, 1)
    terms.watches.end()
    request_by_znode(terms, TopicPartition("t", 0))
    terms.elect()
    assert state(terms, "t").leader == 1
    assert PREFERRED_REPLICA_ELECTION_PATH not in terms.store.znodes
    come_back(terms, 1)
    request_by_znode(terms, TopicPartition("t", 0))
    terms.settle()
    assert state(terms, "t").leader == 1


@pytest.mark.parametrize("step", range(1, 9))
def test_a_crash_at_any_step_of_a_request_is_made_good_by_the_next_controller(step: int) -> None:
    terms = terms_with({"t": [(1, 2, 3)]})
    come_back(terms, 1)
    request_by_znode(terms, TopicPartition("t", 0))
    terms.shell.carried_out, terms.shell.crash_at = 0, step
    try:
        terms.settle()
    except CrashError:
        terms.elect()
        terms.settle()
    else:
        assert step > 5, "the request takes some steps"
    assert state(terms, "t").leader == 1
    assert PREFERRED_REPLICA_ELECTION_PATH not in terms.store.znodes


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":1}', b'{"version":1,"partitions":[{"topic":"t"}]}'])
def test_a_request_that_cannot_be_read_is_deleted_and_the_next_one_is_heard(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    terms = terms_with({"t": [(1, 2, 3)]})
    come_back(terms, 1)
    with caplog.at_level(logging.WARNING):
        terms.store.put_data(PREFERRED_REPLICA_ELECTION_PATH, data)
        terms.settle()
    assert "cannot be read" in caplog.text
    assert PREFERRED_REPLICA_ELECTION_PATH not in terms.store.znodes
    request_by_znode(terms, TopicPartition("t", 0))
    terms.settle()
    assert state(terms, "t").leader == 1


def test_what_is_written_over_a_request_meanwhile_is_carried_out_too() -> None:
    terms = terms_with({"t": [(1, 2, 3), (1, 3, 2)]})
    come_back(terms, 1)
    request_by_znode(terms, TopicPartition("t", 0))
    batches = iter(range(100))

    def before_batch() -> None:
        # After the read of the znode, which is the second batch.
        if next(batches) == 3:
            request_by_znode(terms, TopicPartition("t", 1))

    terms.store.before_batch = before_batch
    terms.settle()
    assert (state(terms, "t").leader, state(terms, "t", 1).leader) == (1, 1)
    assert PREFERRED_REPLICA_ELECTION_PATH not in terms.store.znodes


# By itself.


def rebalance(terms: Terms) -> None:
    terms.run(terms.term.replica_elections.rebalance())


def leaders(terms: Terms, topic: str, count: int) -> list[int]:
    return [state(terms, topic, number).leader for number in range(count)]


def test_leadership_goes_back_to_a_broker_that_has_returned_without_a_burst() -> None:
    terms = terms_with({"t": [(1, 2, 3)] * 40 + [(2, 3, 1)] * 40 + [(3, 1, 2)] * 40})
    come_back(terms, 1)
    assert terms.term.context.counts().preferred_replica_imbalance_count == 40
    rebalance(terms)
    assert leaders(terms, "t", 120) == [1] * 40 + [2] * 40 + [3] * 40
    assert terms.term.context.counts().preferred_replica_imbalance_count == 0
    sent = [(request.broker_id, request.api_key.name) for request in terms.shell.requests]
    assert sorted(sent) == sorted(
        (broker_id, api) for broker_id in (1, 2, 3) for api in ("LEADER_AND_ISR", "UPDATE_METADATA")
    )
    terms.shell.requests.clear()
    rebalance(terms)
    assert terms.shell.requests == []


def test_what_two_brokers_led_goes_back_to_both_at_once() -> None:
    terms = terms_with({"t": [(1, 3), (2, 3), (1, 3), (2, 3)]})
    for broker_id in (1, 2):
        come_back(terms, broker_id)
    assert leaders(terms, "t", 4) == [3] * 4
    rebalance(terms)
    assert leaders(terms, "t", 4) == [1, 2, 1, 2]
    assert len(terms.sent("LEADER_AND_ISR")) == 3


@pytest.mark.parametrize(("percentage", "led_elsewhere", "is_moved"), [(10, 1, False), (10, 2, True), (0, 1, True)])
def test_only_a_share_above_the_percentage_is_moved(percentage: int, led_elsewhere: int, is_moved: bool) -> None:
    terms = terms_with({"t": [(1, 2, 3)] * 10 + [(2, 1, 3)] * 30}, percentage=percentage)
    for number in range(led_elsewhere):
        known = state(terms, "t", number)
        put(terms, TopicPartition("t", number), known.elect(2, known.isr))
    rebalance(terms)
    still_elsewhere = 0 if is_moved else led_elsewhere
    assert leaders(terms, "t", 10) == [2] * still_elsewhere + [1] * (10 - still_elsewhere)


def test_a_preferred_replica_that_is_not_in_sync_or_not_live_is_left_in_peace() -> None:
    terms = terms_with({"t": [(1, 2, 3)], "u": [(3, 2)], "alone": [(3,)]})
    terms.stop_broker(3)
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    terms.shell.requests.clear()
    lines = len(terms.shell.lines)
    rebalance(terms)
    assert terms.shell.requests == []
    assert len(terms.shell.lines) == lines


@pytest.mark.parametrize(
    "moved",
    [
        ReplicaAssignment((1, 2, 3), removing_replicas=(3,)),
        ReplicaAssignment((1, 2, 3), adding_replicas=(3,)),
        ReplicaAssignment((1, 2, 3), adding_replicas=(1,), removing_replicas=(3,)),
    ],
    ids=["removing", "adding", "both"],
)
def test_topics_that_are_deleted_and_partitions_that_are_reassigned_are_left_in_peace(moved: ReplicaAssignment) -> None:
    terms = terms_with({"deleted": [(1, 2, 3)], "moved": [(1, 2, 3)], "t": [(1, 2, 3)]})
    topic_id = terms.term.context.topic_id("moved")
    come_back(terms, 1)
    terms.store.znodes[topic_path("moved")] = (TopicAssignment({0: moved}, topic_id).encode(), 1)
    terms.term.context.set_assignment(TopicPartition("moved", 0), moved)
    terms.term.context.queue_for_deletion(["deleted"])
    rebalance(terms)
    assert (state(terms, "t").leader, state(terms, "moved").leader, state(terms, "deleted").leader) == (1, 2, 2)
