"""Reassignments when a step fails while the controller goes on: what is tried again, and what is spared."""

from __future__ import annotations

import pytest

from barnabas.coordination.errors import RuntimeInconsistencyError
from barnabas.coordination.layout.admin import PARTITIONS_PER_STEP, REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.topics import ReplicaAssignment, topic_path
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
