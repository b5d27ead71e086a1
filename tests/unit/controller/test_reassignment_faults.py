"""Reassignments when a step fails while the controller goes on: what is tried again, and what is spared."""

from __future__ import annotations

import dataclasses

import pytest

from barnabas.coordination.errors import NoAuthError, RuntimeInconsistencyError
from barnabas.coordination.layout.admin import PARTITIONS_PER_STEP, REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path, topic_path
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.test_reassignment import NEW, T0, ask_by_znode, code, row, with_topic


def test_the_former_one_goes_on_where_its_replacement_cannot_be_written() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    path = topic_path("t")
    good = terms.store.znodes[path][0]
    terms.store.put_data(path, b"{")
    # The replicas that it adds are deleted by now.
    assert code(terms.reassign(T0)) is ErrorCode.UNKNOWN_SERVER_ERROR
    terms.store.put_data(path, good)
    terms.settle()
    terms.shell.requests.clear()
    terms._answered = 0
    is_due = terms.term.must_read_again
    assert is_due
    terms.run(terms.term.read_again())
    assert {4, 5, 6} <= {request.broker_id for request in terms.sent("LEADER_AND_ISR")}
    assert not terms.term.must_read_again
    assert terms.propose(T0, 1, 2, 3, 4, 5, 6) is ErrorCode.NONE
    assert row(terms) == (NEW, 4, NEW)
    assert terms.refusals() == []


def test_one_whose_event_has_ended_with_an_error_is_tried_again() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    path = topic_path("t")

    def fail_writes_of_the_assignment() -> None:
        if row(terms)[1:] == (4, NEW):
            terms.store.faults[path] = RuntimeInconsistencyError(path)

    terms.store.before_batch = fail_writes_of_the_assignment
    with pytest.raises(RuntimeInconsistencyError):
        terms.propose(T0, 1, 2, 3, 4, 5, 6)
    terms.store.before_batch = lambda: None
    del terms.store.faults[path]
    is_due = terms.term.must_read_again
    assert is_due
    terms.run(terms.term.read_again())
    assert row(terms) == (NEW, 4, NEW)
    assert not terms.term.must_read_again
    assert terms.refusals() == []


def test_a_request_that_cannot_be_removed_keeps_nobody_from_the_rest() -> None:
    terms = with_topic()
    ask_by_znode(terms, t0=(4, 5, 6))

    def somebody_writes() -> None:
        if terms.assignment("t") == ReplicaAssignment((4, 5, 6)):
            data, version = terms.store.znodes[REASSIGN_PARTITIONS_PATH]
            terms.store.znodes[REASSIGN_PARTITIONS_PATH] = (data, version + 1)

    terms.store.before_batch = somebody_writes
    terms.delete("t")
    terms.propose(T0, 1, 2, 3, 4, 5, 6)
    assert terms.sent("UPDATE_METADATA")
    terms.store.before_batch = lambda: None
    terms.settle()
    # Its deletion waited for the reassignment.
    assert topic_path("t") not in terms.store.znodes
    assert terms.refusals() == []


def test_a_replica_that_is_in_sync_is_not_made_anew() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.propose(T0, 1, 2, 3, 4)
    terms.elect()
    is_new: dict[int, bool] = {}
    for request in terms.sent("LEADER_AND_ISR"):
        assert isinstance(request.message, LeaderAndIsrRequest)
        state = request.message.topic_states[0].partition_states[0]
        is_new[request.broker_id] = is_new.get(request.broker_id, False) or state.is_new
    assert is_new == {1: False, 2: False, 3: False, 4: False, 5: True, 6: True}


def test_very_many_requests_are_read_in_steps_and_refused_in_a_short_line(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic()
    wanted = Reassignment({TopicPartition("u", number): (1,) for number in range(2 * PARTITIONS_PER_STEP + 1)})
    steps = Reassignment.decode_in_steps(wanted.encode())
    assert sum(1 for _ in steps) == 2
    assert Reassignment.decode(wanted.encode()) == wanted
    terms.store.put_data(REASSIGN_PARTITIONS_PATH, wanted.encode())
    terms.settle()
    assert REASSIGN_PARTITIONS_PATH not in terms.store.znodes
    assert "Ignoring 4097 reassignments" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 10_000


def test_a_state_that_is_not_to_be_had_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    path = partition_state_path("t", 0)
    terms.store.faults[path] = NoAuthError(path)
    terms.term.reassignments.note_changes([T0])
    terms.run(terms.term.reassignments.go_on())
    for _ in range(3):
        is_due = terms.term.must_read_again
        assert is_due
        terms.run(terms.term.read_again())
    said = [record.getMessage() for record in caplog.records if "cannot go on" in record.getMessage()]
    assert len(said) == 1
    assert f"{path}: " in said[0]
    assert "give the brokers access" in said[0]
    del terms.store.faults[path]
    known = terms.state("t")
    assert known is not None
    terms.store.put(T0, dataclasses.replace(known, isr=(1, 2, 3, 4, 5, 6)))
    terms.term.context.set_leadership(T0, dataclasses.replace(known, isr=(1, 2, 3, 4, 5, 6)))
    terms.run(terms.term.read_again())
    assert row(terms) == (NEW, 4, NEW)
    assert not terms.term.must_read_again
    assert terms.refusals() == []


def test_a_state_that_somebody_has_deleted_is_made_again_and_the_move_goes_on() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    before = terms.term.context.leadership(T0)
    assert before is not None
    del terms.store.znodes[partition_state_path("t", 0)]
    terms.term.reassignments.note_changes([T0])
    terms.run(terms.term.reassignments.go_on())
    again = terms.state("t")
    assert again is not None
    assert (again.leader, again.isr, again.leader_epoch) == (before.leader, before.isr, before.leader_epoch + 1)
    terms.run(terms.term.read_again())
    assert not terms.term.must_read_again
    assert terms.propose(T0, 1, 2, 3, 4, 5, 6) is ErrorCode.NONE
    assert row(terms) == (NEW, 4, NEW)


@pytest.mark.parametrize("after", range(1, 9))
def test_nothing_that_waits_to_be_tried_again_is_lost_where_that_ends_with_an_error(after: int) -> None:
    terms = with_topic((1, 2, 3), (1, 2, 3), (1, 2, 3))
    partitions = [TopicPartition("t", number) for number in range(3)]
    paths = [partition_state_path(*partition) for partition in partitions]
    for partition in partitions:
        terms.reassign(partition, 4, 5)
    for path in paths:
        terms.store.faults[path] = NoAuthError(path)
    terms.term.reassignments.note_changes(partitions)
    terms.run(terms.term.reassignments.go_on())
    terms.store.faults.clear()
    for partition in partitions:
        known = terms.state("t", partition.partition)
        assert known is not None
        grown = dataclasses.replace(known, isr=(1, 2, 3, 4, 5))
        terms.store.put(partition, grown)
        terms.term.context.set_leadership(partition, grown)
    batches = 0

    def end_with_an_error() -> None:
        nonlocal batches
        batches += 1
        if batches == after:
            raise OSError

    terms.store.before_batch = end_with_an_error
    with pytest.raises(OSError):
        terms.run(terms.term.read_again())
    terms.store.before_batch = lambda: None
    is_due = terms.term.must_read_again
    assert is_due
    terms.run(terms.term.read_again())
    for number in range(3):
        assert terms.assignment("t", number) == ReplicaAssignment((4, 5))
    assert terms.refusals() == []


def test_what_the_znode_asks_for_is_read_again_where_its_event_has_ended_with_an_error() -> None:
    terms = with_topic((1, 2, 3), (1, 2, 3))
    batches = 0

    def end_with_an_error() -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise OSError

    terms.store.before_batch = end_with_an_error
    with pytest.raises(OSError):
        ask_by_znode(terms, t0=(4, 5), t1=(4, 6))
    terms.store.before_batch = lambda: None
    is_due = terms.term.must_read_again
    assert is_due
    terms.run(terms.term.read_again())
    assert terms.assignment("t", 0).target_replicas == (4, 5)
    assert terms.assignment("t", 1).target_replicas == (4, 6)
    assert not terms.term.must_read_again


@pytest.mark.parametrize("is_deleted_first", [True, False])
def test_one_without_a_leader_does_not_hold_up_the_deletion_of_its_topic(is_deleted_first: bool) -> None:
    terms = with_topic((1,), brokers=(1, 2, 4))
    terms.reassign(T0, 4)
    # Broker 2 is the controller's; 1 leads, and has all records.
    if is_deleted_first:
        terms.delete("t")
        terms.settle()
    terms.stop_broker(1)
    terms.settle()
    if not is_deleted_first:
        terms.delete("t")
    terms.settle()
    assert terms.assignment("t") == ReplicaAssignment((1,))
    assert 4 in {request.broker_id for request in terms.sent("STOP_REPLICA")}
    # It has a replica on a broker that is not there, and so it ends when that one is.
    terms.start_broker(1)
    terms.settle()
    assert topic_path("t") not in terms.store.znodes
    assert not terms.term.must_read_again
    assert terms.refusals() == []


def test_a_next_controller_does_not_hold_up_that_deletion_either() -> None:
    terms = with_topic((1,), brokers=(1, 2, 4))
    terms.reassign(T0, 4)
    terms.watches.end()
    terms.stop_broker(1)
    terms.delete("t")
    terms.elect()
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    assert topic_path("t") not in terms.store.znodes
    assert terms.refusals() == []


def test_a_deletion_waits_for_a_reassignment_that_has_a_leader() -> None:
    terms = with_topic()
    terms.reassign(T0, 4, 5, 6)
    terms.delete("t")
    terms.stop_broker(2)
    terms.settle()
    assert terms.assignment("t").is_being_reassigned
    assert terms.propose(T0, 1, 3, 4, 5, 6) is ErrorCode.NONE
    terms.settle()
    assert topic_path("t") not in terms.store.znodes
