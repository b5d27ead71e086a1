"""Deletion of topics: never stuck, whoever fails, and whenever the controller crashes."""

from __future__ import annotations

import pytest

from barnabas.controller.effects import BrokerRequest
from barnabas.controller.replica_states import ReplicaState
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.layout.admin import DELETE_TOPICS_PATH
from barnabas.coordination.layout.configs import ConfigEntityType, config_path
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, topic_path
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import UpdateMetadataRequest
from barnabas.wire.sentinels import LEADER_DURING_DELETE
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import LISTENER
from tests.unit.controller.term_harness import CONTROLLER, CrashError, Terms


def with_topic(*brokers: int) -> Terms:
    terms = Terms(*(brokers or (1, 2, 3)))
    terms.elect()
    terms.create("t", (1, 2, 3), (2, 3), (3, 1))
    terms.store.put_data(config_path(ConfigEntityType.TOPICS, "t"), b'{"version":1,"config":{}}')
    terms.settle()
    return terms


def is_gone(terms: Terms) -> bool:
    left = [path for path in terms.store.znodes if "/t/" in f"{path}/"]
    return not left and not terms.store.children(DELETE_TOPICS_PATH)


def test_a_deleted_topic_leaves_nothing() -> None:
    terms = with_topic()
    terms.delete("t")
    terms.settle()
    assert is_gone(terms)
    assert not terms.term.context.has_topic("t")
    assert terms.refusals() == []


def test_brokers_forget_the_topic_before_they_delete_it() -> None:
    terms = with_topic()
    terms.shell.requests.clear()
    terms.delete("t")
    terms.run(terms.term.deletions_changed())
    kinds = [request.api_key.name for request in terms.shell.requests if request.broker_id == 1]
    assert kinds == ["UPDATE_METADATA", "STOP_REPLICA", "STOP_REPLICA"]
    metadata = terms.shell.requests[0].message
    assert isinstance(metadata, UpdateMetadataRequest)
    assert {state.leader for state in metadata.topic_states[0].partition_states} == {LEADER_DURING_DELETE}


def test_the_request_for_a_topic_that_is_not_there_is_removed() -> None:
    terms = with_topic()
    terms.delete("other")
    terms.settle()
    assert terms.store.children(DELETE_TOPICS_PATH) == []
    assert terms.term.context.has_topic("t")


def test_nothing_is_deleted_where_that_is_disabled() -> None:
    terms = Terms(1, 2, 3, settings=ControllerSettings(CONTROLLER, LISTENER, delete_topic_enable=False))
    terms.elect()
    terms.create("t", (1, 2))
    terms.settle()
    terms.delete("t")
    terms.settle()
    assert terms.term.context.has_topic("t")
    assert terms.store.children(DELETE_TOPICS_PATH) == []
    terms.delete("t")
    terms.elect()
    assert terms.store.children(DELETE_TOPICS_PATH) == []


def test_a_deletion_waits_for_a_dead_broker_and_goes_on_when_it_is_back() -> None:
    terms = with_topic()
    terms.stop_broker(3)
    terms.settle()
    terms.delete("t")
    terms.settle()
    context = terms.term.context
    assert context.is_ineligible_for_deletion("t")
    assert context.counts().topics_ineligible_to_delete_count == 1
    terms.start_broker(3)
    terms.settle()
    assert is_gone(terms)
    assert terms.refusals() == []


def test_a_broker_that_dies_before_it_answers_is_waited_for() -> None:
    terms = with_topic()
    terms.delete("t")
    terms.run(terms.term.deletions_changed())
    terms.stop_broker(2)
    terms.run(terms.term.brokers_changed())
    terms.events.clear()
    terms.settle()
    assert not is_gone(terms)
    terms.start_broker(2)
    terms.settle()
    assert is_gone(terms)
    assert terms.refusals() == []


def test_a_broker_that_bounced_while_its_answer_was_on_the_way_is_asked_again() -> None:
    terms = with_topic()
    terms.delete("t")
    terms.run(terms.term.deletions_changed())
    terms.events.clear()
    asked = [request for request in terms.sent("STOP_REPLICA") if request.broker_id == 2][-1]
    terms.stop_broker(2)
    terms.start_broker(2)
    terms.run(terms.term.brokers_changed())
    late = terms.stop_replica_response(asked)
    late.error_code = ErrorCode.STALE_BROKER_EPOCH
    terms.run(terms.term.replicas_deleted(2, asked.message, late))  # type: ignore[arg-type]
    terms.settle()
    assert is_gone(terms)
    assert terms.refusals() == []


def test_a_replica_that_could_not_be_deleted_holds_the_topic_until_its_broker_restarts() -> None:
    terms = with_topic()
    broken = TopicPartition("t", 1)

    def answer(request: BrokerRequest, partition: TopicPartition) -> ErrorCode:
        fails = partition == broken and request.broker_id == 3
        return ErrorCode.KAFKA_STORAGE_ERROR if fails else ErrorCode.NONE

    terms.answers = answer
    terms.delete("t")
    terms.settle()
    context = terms.term.context
    assert context.is_ineligible_for_deletion("t")
    assert len(context.replicas_in("t", ReplicaState.DELETION_SUCCESSFUL)) == 6
    terms.answers = lambda _request, _partition: ErrorCode.NONE
    terms.stop_broker(3)
    terms.start_broker(3)
    terms.settle()
    assert is_gone(terms)
    assert terms.refusals() == []


def test_a_topic_can_be_made_again_under_the_same_name() -> None:
    terms = with_topic()
    terms.delete("t")
    terms.settle()
    terms.create("t", (1, 2))
    terms.settle()
    known = terms.state("t")
    assert known is not None
    assert (known.leader, known.leader_epoch, known.isr) == (1, 0, (1, 2))


def test_partitions_that_are_added_during_the_deletion_are_taken_back() -> None:
    terms = with_topic(1, 2)
    before = terms.store.znodes[topic_path("t")][0]
    terms.delete("t")
    terms.settle()
    grown = TopicAssignment.decode(before, topic_path("t"))
    partitions = {**grown.partitions, 3: ReplicaAssignment((1,))}
    terms.store.put_data(topic_path("t"), TopicAssignment(partitions, grown.topic_id).encode())
    terms.settle()
    assert terms.store.znodes[topic_path("t")][0] == before


def effects_of_deletion() -> int:
    terms = with_topic()
    before = terms.shell.carried_out
    terms.delete("t")
    terms.settle()
    return terms.shell.carried_out - before


@pytest.mark.parametrize("step", range(1, effects_of_deletion() + 1))
def test_a_crash_at_any_step_is_made_good_by_the_next_controller(step: int) -> None:
    terms = with_topic()
    terms.shell.crash_at = terms.shell.carried_out + step
    terms.delete("t")
    with pytest.raises(CrashError):
        terms.settle()
    terms.elect()
    terms.settle()
    assert is_gone(terms)
    assert not terms.term.context.has_topic("t")
    assert terms.refusals() == []


@pytest.mark.parametrize("step", range(1, effects_of_deletion() + 1))
def test_a_crash_of_the_controllers_broker_at_any_step_is_made_good_when_it_is_back(step: int) -> None:
    terms = with_topic()
    terms.shell.crash_at = terms.shell.carried_out + step
    terms.delete("t")
    with pytest.raises(CrashError):
        terms.settle()
    terms.stop_broker(1)
    terms.elect()
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    assert is_gone(terms)
    assert terms.refusals() == []
