"""Reassignments: the rows that a coordinator sees, what is refused, and what becomes of them when things fail."""

from __future__ import annotations

import pytest

from barnabas.controller.effects import ControllerMovedError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.coordination.errors import RuntimeInconsistencyError
from barnabas.coordination.layout.admin import REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, IsrChange
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, partition_state_path, topic_path
from barnabas.coordination.operations import SetData
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.term_harness import CrashError, Terms

T0 = TopicPartition("t", 0)
Row = tuple[frozenset[int], int, frozenset[int]]
"""The assigned replicas, the leader and the ISR."""


def with_topic(*replicas: tuple[int, ...], brokers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)) -> Terms:
    terms = Terms(*brokers)
    terms.elect()
    terms.create("t", *(replicas or ((1, 2, 3),)))
    terms.settle()
    terms.shell.requests.clear()
    terms._answered = 0
    return terms


def known(terms: Terms, partition: int = 0) -> LeaderAndIsr:
    state = terms.state("t", partition)
    assert state is not None
    return state


def row(terms: Terms) -> Row:
    state = known(terms)
    return frozenset(terms.assignment("t").replicas), state.leader, frozenset(state.isr)


def watch_rows(terms: Terms) -> list[Row]:
    """The rows as they come, each once."""
    rows = [row(terms)]

    def look() -> None:
        if (present := row(terms)) != rows[-1]:
            rows.append(present)

    terms.store.before_batch = look
    return rows


def ask_by_znode(terms: Terms, **targets: tuple[int, ...]) -> None:
    """`t0=(4, 5)`: partition 0 of t."""
    wanted = {TopicPartition(name[0], int(name[1:])): target for name, target in targets.items()}
    terms.store.put_data(REASSIGN_PARTITIONS_PATH, Reassignment(wanted).encode())
    terms.settle()


def code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


OLD, BOTH, NEW = frozenset({1, 2, 3}), frozenset({1, 2, 3, 4, 5, 6}), frozenset({4, 5, 6})
SIX_ROWS = [(OLD, 1, OLD), (BOTH, 1, OLD), (BOTH, 1, BOTH), (BOTH, 4, BOTH), (BOTH, 4, NEW), (NEW, 4, NEW)]


@pytest.mark.parametrize("is_api", [True, False])
def test_all_replicas_are_replaced_in_exactly_six_rows(is_api: bool) -> None:
    terms = with_topic()
    rows = watch_rows(terms)
    if is_api:
        assert terms.reassign(T0, 4, 5, 6) is None
    else:
        ask_by_znode(terms, t0=(4, 5, 6))
        assert REASSIGN_PARTITIONS_PATH in terms.store.znodes
    assert terms.assignment("t") == ReplicaAssignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert terms.propose(T0, 1, 2, 3, 4, 5, 6) is ErrorCode.NONE
    terms.settle()
    assert rows == SIX_ROWS
    assert terms.assignment("t") == ReplicaAssignment((4, 5, 6))
    assert known(terms).leader_epoch == 3
    assert REASSIGN_PARTITIONS_PATH not in terms.store.znodes
    assert terms.refusals() == []


def test_replicas_learn_of_it_and_the_old_ones_are_deleted() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    told = {}
    for request in terms.sent("LEADER_AND_ISR"):
        assert isinstance(request.message, LeaderAndIsrRequest)
        state = request.message.topic_states[0].partition_states[0]
        told[request.broker_id] = (state.leader_epoch, state.is_new)
        assert (state.replicas, state.adding_replicas, state.removing_replicas) == (
            [4, 5, 6, 1, 2, 3],
            [4, 5, 6],
            [1, 2, 3],
        )
    assert told == {**dict.fromkeys((1, 2, 3), (1, False)), **dict.fromkeys((4, 5, 6), (1, True))}
    terms.shell.requests.clear()
    terms._answered = 0
    terms.propose(T0, 1, 2, 3, 4, 5, 6)
    stopped: dict[int, list[tuple[int, bool]]] = {}
    for request in terms.sent("STOP_REPLICA"):
        assert isinstance(request.message, StopReplicaRequest)
        for stop in request.message.topic_states[0].partition_states:
            stopped.setdefault(request.broker_id, []).append((stop.leader_epoch, stop.delete_partition))
    # In the epoch of the election, and then, without the ISR, in that of their removal.
    assert stopped == {broker_id: [(2, False), (3, True)] for broker_id in (1, 2, 3)}
    last = terms.sent("LEADER_AND_ISR")[-1].message
    assert isinstance(last, LeaderAndIsrRequest)
    state = last.topic_states[0].partition_states[0]
    assert (state.leader, state.leader_epoch, sorted(state.isr), state.replicas) == (4, 3, [4, 5, 6], [4, 5, 6])
    told_all = terms.shell.requests[-1].message
    assert isinstance(told_all, UpdateMetadataRequest)
    assert told_all.topic_states[0].partition_states[0].replicas == [4, 5, 6]


def test_it_waits_until_the_whole_target_is_in_sync() -> None:
    terms = with_topic()
    terms.reassign(T0, 1, 4, 5)
    assert terms.propose(T0, 1, 2, 3, 4) is ErrorCode.NONE
    assert terms.assignment("t").adding_replicas == (4, 5)
    assert terms.propose(T0, 1, 4, 5) is ErrorCode.NONE
    assert terms.assignment("t") == ReplicaAssignment((1, 4, 5))
    # The leader stays, and learns in a new epoch whom it may take into the ISR.
    assert (known(terms).leader, known(terms).leader_epoch) == (1, 2)
    assert terms.refusals() == []


def test_a_new_order_and_the_same_replicas_are_done_at_once() -> None:
    terms = with_topic()
    assert terms.reassign(T0, 3, 2, 1) is None
    assert terms.assignment("t") == ReplicaAssignment((3, 2, 1))
    assert (known(terms).leader, known(terms).leader_epoch) == (1, 1)
    ask_by_znode(terms, t0=(3, 2, 1))
    assert REASSIGN_PARTITIONS_PATH not in terms.store.znodes
    assert terms.refusals() == []


def test_fewer_and_more_replicas() -> None:
    terms = with_topic()
    assert terms.reassign(T0, 2) is None
    assert row(terms) == (frozenset({2}), 2, frozenset({2}))
    assert terms.reassign(T0, 2, 5) is None
    assert terms.propose(T0, 2, 5) is ErrorCode.NONE
    assert row(terms) == (frozenset({2, 5}), 2, frozenset({2, 5}))


# Refusals.


@pytest.mark.parametrize(
    ("partition", "target", "expected"),
    [
        (T0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (4, 4), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (-1, 4), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, tuple(range(1_001)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (TopicPartition("t", 1), (1, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("u", 0), (1, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("u", 0), (9,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicPartition("u", 0), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    partition: TopicPartition, target: tuple[int, ...] | None, expected: ErrorCode
) -> None:
    terms = with_topic()
    before = dict(terms.store.znodes)
    outcome = terms.run(terms.term.reassignments.alter({partition: target, T0._replace(topic="v"): None}))
    assert [code(error) for error in outcome.values()] == [expected, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    assert terms.store.znodes == before


def test_a_dead_broker_may_stay_but_not_come_in() -> None:
    terms = with_topic()
    terms.stop_broker(3)
    terms.settle()
    assert code(terms.reassign(T0, 1, 2, 3)) is ErrorCode.NONE
    terms.stop_broker(4)
    terms.settle()
    refused = terms.reassign(T0, 1, 2, 4)
    assert code(refused) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "not alive: [4]" in str(refused)


@pytest.mark.parametrize("target", [(), (4, 4), (-1,), tuple(range(1_001))])
def test_the_znode_can_ask_for_nothing_that_no_partition_can_have(target: tuple[int, ...]) -> None:
    terms = with_topic()
    ask_by_znode(terms, t0=target, t7=(1,))
    assert row(terms) == (OLD, 1, OLD)
    assert REASSIGN_PARTITIONS_PATH not in terms.store.znodes


def test_garbage_in_the_znode_asks_for_nothing_until_it_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic()
    terms.store.put_data(REASSIGN_PARTITIONS_PATH, b"{")
    terms.settle()
    assert "cannot be read" in caplog.text
    assert terms.reassign(T0, 1, 4) is None
    ask_by_znode(terms, t0=(1, 5))
    assert terms.assignment("t") == ReplicaAssignment((1, 5, 2, 3), (5,), (2, 3))


# Replaced and cancelled.


def test_a_cancelled_one_leaves_the_original_replicas() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.propose(T0, 1, 2, 3, 5)
    assert terms.reassign(T0) is None
    assert row(terms) == (OLD, 1, OLD)
    assert terms.assignment("t") == ReplicaAssignment((1, 2, 3))
    assert {request.broker_id for request in terms.sent("STOP_REPLICA")} == {4, 5, 6}
    assert code(terms.reassign(T0)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert terms.refusals() == []


def test_one_that_is_replaced_keeps_what_both_have() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.propose(T0, 1, 2, 3, 4, 5)
    assert terms.reassign(T0, 5, 1) is None
    assert terms.assignment("t") == ReplicaAssignment((5, 1))
    assert (known(terms).leader, sorted(known(terms).isr)) == (1, [1, 5])
    assert terms.refusals() == []


def test_a_new_replica_that_leads_gives_up_its_leadership_first() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.propose(T0, 1, 2, 3, 4)
    terms.stop_broker(1)
    terms.settle()
    assert known(terms).leader == 4
    assert terms.reassign(T0) is None
    assert (known(terms).leader, sorted(known(terms).isr)) == (2, [2, 3])
    assert terms.refusals() == []


def test_what_is_only_on_new_replicas_is_not_deleted() -> None:
    terms = with_topic((1,))
    terms.reassign(T0, 4, 5)
    terms.propose(T0, 1, 4)
    terms.stop_broker(1)
    terms.settle()
    assert row(terms) == (frozenset({1, 4, 5}), 4, frozenset({4}))
    assert code(terms.reassign(T0)) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert row(terms) == (frozenset({1, 4, 5}), 4, frozenset({4}))
    assert terms.assignment("t") == ReplicaAssignment((4, 5, 1), (4, 5), (1,))
    terms.start_broker(1)
    terms.settle()
    terms.propose(T0, 4, 1)
    assert terms.reassign(T0) is None
    assert row(terms) == (frozenset({1}), 1, frozenset({1}))


def test_a_request_of_the_api_displaces_that_of_the_znode() -> None:
    terms = with_topic((1, 2, 3), (1, 2, 3))
    ask_by_znode(terms, t0=(4, 5, 6), t1=(4, 5, 6))
    assert terms.reassign(T0, 1, 5) is None
    asked = Reassignment.decode(terms.store.znodes[REASSIGN_PARTITIONS_PATH][0])
    assert dict(asked.partitions) == {TopicPartition("t", 1): (4, 5, 6)}
    terms.settle()
    assert terms.assignment("t").adding_replicas == (5,)
    assert terms.assignment("t", 1).adding_replicas == (4, 5, 6)
    assert terms.run(terms.term.reassignments.under_way()).keys() == {T0, TopicPartition("t", 1)}
    assert terms.run(terms.term.reassignments.under_way([T0, TopicPartition("u", 0)])).keys() == {T0}


def test_other_partitions_that_somebody_adds_meanwhile_stay() -> None:
    terms = with_topic()
    before = TopicAssignment.decode(terms.store.znodes[topic_path("t")][0], "t")
    grown = {**before.partitions, 1: ReplicaAssignment((2,))}
    terms.store.put_data(topic_path("t"), TopicAssignment(grown, before.topic_id).encode())
    # Before the controller has noticed.
    assert terms.reassign(T0, 1, 4) is None
    terms.settle()
    assert terms.assignment("t", 1) == ReplicaAssignment((2,))
    assert known(terms, 1).leader == 2


# Brokers that are dead.


def test_a_dead_target_is_waited_for_and_told_and_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic(brokers=(1, 2, 3, 4))
    ask_by_znode(terms, t0=(1, 9))
    assert "waits for brokers [9]" in caplog.text
    assert terms.run(terms.term.reassignments.under_way()) == {T0: ReplicaAssignment((1, 9, 2, 3), (9,), (2, 3))}
    terms.elect()
    assert terms.assignment("t") == ReplicaAssignment((1, 9, 2, 3), (9,), (2, 3))
    assert terms.reassign(T0) is None
    assert terms.assignment("t").replicas == (1, 2, 3)
    assert REASSIGN_PARTITIONS_PATH not in terms.store.znodes
    ask_by_znode(terms, t0=(1, 8))
    terms.start_broker(8)
    terms.settle()
    assert terms.propose(T0, 1, 2, 3, 8) is ErrorCode.NONE
    assert terms.assignment("t") == ReplicaAssignment((1, 8))
    assert terms.refusals() == []


def test_a_removed_replica_whose_broker_is_dead_is_not_waited_for() -> None:
    terms = with_topic()
    terms.reassign(T0, 1, 4)
    terms.stop_broker(3)
    terms.settle()
    terms.propose(T0, 1, 2, 4)
    assert row(terms) == (frozenset({1, 4}), 1, frozenset({1, 4}))
    terms.start_broker(3)
    terms.settle()
    assert terms.refusals() == []


def test_nothing_is_removed_while_no_replica_of_the_target_can_lead() -> None:
    terms = with_topic((1,))
    terms.reassign(T0, 4)
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    # Both are in sync, the whole target is there: and then it is not.
    state = known(terms)
    terms.store.put(T0, LeaderAndIsr(state.leader, state.leader_epoch + 1, (4,), terms.epoch))
    terms.stop_broker(4)
    terms.elect()
    terms.settle()
    assert terms.assignment("t").removing_replicas == (1,)
    terms.start_broker(4)
    terms.settle()
    assert row(terms) == (frozenset({4}), 4, frozenset({4}))
    assert terms.refusals() == []


def test_a_partition_that_never_had_a_leader_gets_one_among_the_new_replicas() -> None:
    terms = Terms(1, 4)
    terms.elect()
    terms.create("t", (2,))
    terms.settle()
    assert terms.state("t") is None
    assert terms.reassign(T0, 4) is None
    terms.settle()
    assert row(terms) == (frozenset({4}), 4, frozenset({4}))
    assert terms.refusals() == []


# Beside other changes.


def test_the_deletion_of_a_topic_waits_and_is_not_kept_by_a_dead_target() -> None:
    terms = with_topic(brokers=(1, 2, 3, 4))
    ask_by_znode(terms, t0=(1, 9))
    terms.delete("t")
    terms.settle()
    assert code(terms.reassign(T0, 1, 2)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert terms.assignment("t").is_being_reassigned
    assert terms.reassign(T0) is None
    terms.settle()
    assert topic_path("t") not in terms.store.znodes
    assert terms.refusals() == []


def test_the_cancel_that_a_deletion_waits_for_is_never_refused() -> None:
    terms = with_topic((1,))
    ask_by_znode(terms, t0=(4, 9))
    terms.propose(T0, 1, 4)
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    assert code(terms.reassign(T0)) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    terms.delete("t")
    terms.settle()
    assert row(terms) == (frozenset({1, 4, 9}), 4, frozenset({4}))
    assert terms.reassign(T0) is None
    terms.settle()
    assert topic_path("t") not in terms.store.znodes
    assert terms.refusals() == []


def test_a_topic_is_deleted_when_its_reassignment_has_ended() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.delete("t")
    terms.settle()
    terms.propose(T0, 1, 2, 3, 4, 5, 6)
    assert topic_path("t") in terms.store.znodes
    terms.settle()
    assert topic_path("t") not in terms.store.znodes
    assert terms.refusals() == []


def test_it_goes_on_after_leaders_that_write_isrs_themselves_have_told_of_them() -> None:
    terms = with_topic()
    terms.write_isrs_themselves(1)
    terms.reassign(T0, 1, 4)
    state = known(terms)
    changed = LeaderAndIsr(state.leader, state.leader_epoch, (1, 2, 3, 4), state.controller_epoch)
    terms.store.put(T0, changed)
    terms.store.put_data(f"{ISR_CHANGES_PATH}/isr_change_0", IsrChange((T0,)).encode())
    terms.settle()
    assert row(terms) == (frozenset({1, 4}), 1, frozenset({1, 4}))


def test_a_step_that_fails_is_tried_again_and_deletes_nothing_before() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.propose(T0, 1, 2, 3, 4, 5)
    path = topic_path("t")

    def fail_writes_of_the_assignment() -> None:
        if row(terms)[1:] == (4, NEW):
            terms.store.faults[path] = RuntimeInconsistencyError(path)

    terms.store.before_batch = fail_writes_of_the_assignment
    with pytest.raises(RuntimeInconsistencyError):
        terms.propose(T0, 1, 2, 3, 4, 5, 6)
    assert row(terms) == (BOTH, 4, NEW)
    assert terms.term.context.assignment(T0) == terms.assignment("t")
    terms.store.before_batch = lambda: None
    del terms.store.faults[path]
    terms.stop_broker(5)
    terms.settle()
    terms.start_broker(5)
    terms.settle()
    terms.propose(T0, 4, 5, 6)
    assert row(terms) == (NEW, 4, NEW)
    assert terms.refusals() == []


def test_a_state_that_cannot_be_read_is_waited_for() -> None:
    terms = with_topic()
    path = partition_state_path("t", 0)
    good = terms.store.znodes[path][0]
    terms.store.put_data(path, b"{")
    assert terms.reassign(T0, 1, 4) is None
    assert terms.term.must_read_again
    terms.store.put_data(path, good)
    terms.run(terms.term.read_again())
    terms.settle()
    assert terms.propose(T0, 1, 2, 3, 4) is ErrorCode.NONE
    assert row(terms) == (frozenset({1, 4}), 1, frozenset({1, 4}))
    assert not terms.term.must_read_again


# Crashes.


def finish(terms: Terms) -> None:
    """The successor takes over, and the leader goes on taking into the ISR whoever is to be in it."""
    terms.elect()
    terms.settle()
    for _ in range(3):
        state, assigned = known(terms), terms.assignment("t")
        if frozenset(state.isr) == frozenset(assigned.replicas):
            break
        assert terms.propose(T0, state.leader, *(each for each in assigned.replicas if each != state.leader)) is (
            ErrorCode.NONE
        )
        terms.settle()


def begin_and_end(terms: Terms, crash_at: int | None, *, is_api: bool) -> None:
    """Runs the whole reassignment, and crashes instead of the effect of this number."""
    terms.shell.crash_at = None if crash_at is None else terms.shell.carried_out + crash_at
    if is_api:
        terms.reassign(T0, 4, 5, 6)
    else:
        ask_by_znode(terms, t0=(4, 5, 6))
    terms.propose(T0, 1, 2, 3, 4, 5, 6)
    terms.settle()


def effects_of_all(*, is_api: bool) -> int:
    terms = with_topic()
    before = terms.shell.carried_out
    begin_and_end(terms, None, is_api=is_api)
    return terms.shell.carried_out - before


@pytest.mark.parametrize("is_api", [True, False])
def test_a_successor_ends_it_wherever_the_controller_crashes(is_api: bool) -> None:
    count = effects_of_all(is_api=is_api)
    assert count > 40
    seen: set[Row] = set()
    for crash_at in range(1, count + 1):
        terms = with_topic()
        with pytest.raises(CrashError):
            begin_and_end(terms, crash_at, is_api=is_api)
        terms.shell.crash_at = None
        assert set(known(terms).isr) <= set(terms.assignment("t").replicas)
        seen.add(row(terms))
        is_begun = terms.assignment("t").is_being_reassigned or row(terms)[0] == NEW
        finish(terms)
        if is_begun or not is_api:
            assert row(terms) == (NEW, 4, NEW), crash_at
            assert terms.assignment("t") == ReplicaAssignment((4, 5, 6))
        else:
            assert row(terms) == (OLD, 1, OLD)
        assert REASSIGN_PARTITIONS_PATH not in terms.store.znodes
        assert terms.refusals() == []
    assert seen == set(SIX_ROWS)


def cancel(terms: Terms, crash_at: int | None) -> None:
    terms.shell.crash_at = None if crash_at is None else terms.shell.carried_out + crash_at
    terms.reassign(T0)
    terms.settle()


def begun() -> Terms:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.propose(T0, 1, 2, 3, 4)
    return terms


def test_a_cancel_is_done_or_not_begun_wherever_the_controller_crashes() -> None:
    terms = begun()
    before = terms.shell.carried_out
    cancel(terms, None)
    outcomes: set[Row] = set()
    for crash_at in range(1, terms.shell.carried_out - before + 1):
        crashed = begun()
        with pytest.raises(CrashError):
            cancel(crashed, crash_at)
        # Whoever is in sync is assigned at every moment.
        assert set(known(crashed).isr) <= set(crashed.assignment("t").replicas)
        finish(crashed)
        outcomes.add(row(crashed))
        assert crashed.refusals() == []
    assert outcomes == {(OLD, 1, OLD), (NEW, 4, NEW)}


@pytest.mark.parametrize("batch", range(1, 20, 3))
def test_a_deposed_controller_changes_nothing_more(batch: int) -> None:
    terms = with_topic()
    left = batch
    after: dict[str, tuple[bytes | None, int]] = {}

    def depose() -> None:
        nonlocal left
        left -= 1
        if not left:
            epoch = SetData(CONTROLLER_EPOCH_PATH, encode_controller_epoch(terms.epoch + 1), -1)
            terms.store.before_batch = lambda: None
            terms.store.submit((epoch,))
            after.update(terms.store.znodes)

    terms.store.before_batch = depose
    with pytest.raises(ControllerMovedError):
        begin_and_end(terms, None, is_api=False)
    assert terms.store.znodes == after
