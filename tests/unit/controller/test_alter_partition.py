"""AlterPartition: the tests and their order, and what is written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from barnabas.controller.effects import Effect, GiveWay, ZnodeOperations
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.settings import PARTITIONS_PER_BATCH
from barnabas.coordination.errors import NoAuthError
from barnabas.coordination.layout.topics import partition_state_path
from barnabas.coordination.operations import Multi
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse, UpdateMetadataRequest
from barnabas.wire.topics import LeaderRecoveryState, TopicPartition
from tests.unit.controller.term_harness import Terms

T0 = TopicPartition("t", 0)


@pytest.fixture
def terms() -> Terms:
    """A partition of brokers 1, 2 and 3: 1 leads in leader epoch 0, and 3 has left the ISR (partition epoch 1)."""
    made = Terms(1, 2, 3)
    made.elect()
    made.create("t", (1, 2, 3))
    made.settle()
    assert answer(made, [1, 2], partition_epoch=0).error_code == 0
    made.shell.requests.clear()
    made._answered = 0
    return made


def answer(terms: Terms, isr: list[int], version: int = 3, **fields: Any) -> AlterPartitionResponse.PartitionData:
    """What one proposal of broker 1 is answered; by default it is up to date."""
    broker_id = fields.pop("broker_id", 1)
    epochs = fields.pop("broker_epochs", {})
    data = AlterPartitionRequest.PartitionData(
        partition_index=fields.pop("partition_index", 0),
        leader_epoch=fields.pop("leader_epoch", 0),
        partition_epoch=fields.pop("partition_epoch", 1),
        leader_recovery_state=fields.pop("leader_recovery_state", 0),
    )
    if version >= 3:
        data.new_isr_with_epochs = [
            AlterPartitionRequest.BrokerState(broker_id=member, broker_epoch=epochs.get(member, -1)) for member in isr
        ]
    else:
        data.new_isr = isr
    topic = AlterPartitionRequest.TopicData(partitions=[data])
    if version >= 2:
        topic.topic_id = fields.pop("topic_id", terms.term.context.topic_id("t"))
    else:
        topic.topic_name = "t"
    live = terms.term.context.live_or_shutting_down_brokers
    request = AlterPartitionRequest(broker_id=broker_id, broker_epoch=live[broker_id].epoch, topics=[topic])
    response = terms.run(terms.term.alter_partition(request, version))
    return response.topics[0].partitions[0]


def test_an_isr_carries_the_epoch_of_the_controller_that_wrote_it(terms: Terms) -> None:
    before = terms.state("t")
    terms.elect()
    assert terms.state("t") == before, "the failover itself changes nothing"
    assert answer(terms, [1, 2, 3]).error_code == 0
    after = terms.state("t")
    assert before is not None
    assert after is not None
    assert (before.controller_epoch, after.controller_epoch) == (1, 2)
    message = terms.sent("UPDATE_METADATA")[-1].message
    assert isinstance(message, UpdateMetadataRequest)
    assert message.topic_states[0].partition_states[0].controller_epoch == 2


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_isr_is_written_and_told_to_all(terms: Terms, version: int) -> None:
    data = answer(terms, [1, 2, 3], version)
    assert (data.error_code, data.isr, data.leader_id, data.leader_epoch, data.partition_epoch) == (
        0,
        [1, 2, 3],
        1,
        0,
        2,
    )
    assert terms.state("t") == LeaderAndIsr(1, 0, (1, 2, 3), 1, partition_epoch=2)
    assert {request.broker_id for request in terms.sent("UPDATE_METADATA")} == {1, 2, 3}
    assert terms.sent("LEADER_AND_ISR") == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": -1, "partition_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 0, "broker_id": 2}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ({"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ({"partition_index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": Uuid(b"\x07" * 16)}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_each_refusal_has_its_error(terms: Terms, fields: dict[str, Any], code: ErrorCode) -> None:
    before = terms.state("t")
    assert answer(terms, [1, 2, 3], **fields).error_code == code
    assert terms.state("t") == before
    assert terms.shell.requests == []


@pytest.mark.parametrize("fields", [{"partition_epoch": 0}, {"partition_epoch": 0, "leader_recovery_state": 1}])
def test_a_leader_that_does_not_know_the_present_state_hears_it_in_a_new_epoch(
    terms: Terms, fields: dict[str, Any]
) -> None:
    """In the old one it would refuse what it is told, and be refused with whatever it asks, for ever."""
    before = terms.state("t")
    assert before is not None
    assert answer(terms, [1, 2, 3], **fields).error_code == ErrorCode.INVALID_UPDATE_VERSION
    after = terms.state("t")
    assert after == dataclasses.replace(
        before, leader_epoch=before.leader_epoch + 1, partition_epoch=before.partition_epoch + 1
    )
    assert 1 in {request.broker_id for request in terms.sent("LEADER_AND_ISR")}


@pytest.mark.parametrize("isr", [[2, 3], [1, 2, 9], []])
def test_no_isr_is_without_its_leader_or_with_a_stranger(terms: Terms, isr: list[int]) -> None:
    assert answer(terms, isr).error_code == ErrorCode.INVALID_REQUEST


def test_what_is_so_already_succeeds_whatever_the_partition_epoch(terms: Terms) -> None:
    data = answer(terms, [2, 1], partition_epoch=0)
    assert (data.error_code, data.isr, data.partition_epoch) == (0, [1, 2], 1)
    assert terms.shell.requests == []


def test_the_recovery_of_a_leader_ends_but_does_not_begin_again(terms: Terms) -> None:
    recovering = LeaderAndIsr(1, 0, (1,), 1, LeaderRecoveryState.RECOVERING)
    terms.store.put(T0, recovering)
    written = terms.state("t")
    assert written is not None
    terms.term.context.set_leadership(T0, written)
    epoch = written.partition_epoch
    assert answer(terms, [1, 2], leader_recovery_state=1, partition_epoch=epoch).error_code == ErrorCode.INVALID_REQUEST
    data = answer(terms, [1], leader_recovery_state=0, partition_epoch=epoch)
    assert (data.error_code, data.leader_recovery_state) == (0, 0)
    again = answer(terms, [1], leader_recovery_state=1, partition_epoch=data.partition_epoch)
    assert again.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.OPERATION_NOT_ATTEMPTED),
        (1, ErrorCode.OPERATION_NOT_ATTEMPTED),
        (2, ErrorCode.INELIGIBLE_REPLICA),
        (3, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_dead_broker_and_one_that_shuts_down_may_not_join(terms: Terms, version: int, code: ErrorCode) -> None:
    terms.term.context.begin_shutdown(3)
    assert answer(terms, [1, 2, 3], version).error_code == code
    terms.stop_broker(3)
    terms.settle()
    present = terms.state("t")
    assert present is not None
    fields = {"leader_epoch": present.leader_epoch, "partition_epoch": present.partition_epoch}
    assert answer(terms, [1, 2, 3], version, **fields).error_code == code


def test_a_broker_may_join_in_its_present_life_only(terms: Terms) -> None:
    epoch = terms.term.context.live_or_shutting_down_brokers[3].epoch
    assert answer(terms, [1, 2, 3], broker_epochs={3: epoch - 1}).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert answer(terms, [1, 2, 3], broker_epochs={3: epoch}).error_code == 0


@pytest.mark.parametrize(("broker_id", "difference"), [(1, -1), (1, 1), (9, 0)])
def test_a_broker_in_another_life_is_refused_as_a_whole(terms: Terms, broker_id: int, difference: int) -> None:
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    request = AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch + difference)
    with pytest.raises(KafkaError) as refused:
        terms.run(terms.term.alter_partition(request, 3))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_write_whose_answer_was_lost_counts_when_it_is_repeated(terms: Terms) -> None:
    state = terms.state("t")
    assert state is not None
    terms.store.put(T0, dataclasses.replace(state, isr=(1, 2, 3)))
    data = answer(terms, [1, 2, 3])
    assert (data.error_code, data.isr, data.partition_epoch) == (0, [1, 2, 3], 2)


def test_after_a_conflict_the_leader_is_told_what_is_in_force(terms: Terms) -> None:
    """Whatever somebody has written into the znode."""
    state = terms.state("t")
    assert state is not None
    terms.store.put(T0, dataclasses.replace(state, isr=(1,)))
    assert answer(terms, [1, 2, 3]).error_code == ErrorCode.INVALID_UPDATE_VERSION
    leadership = terms.term.context.leadership(T0)
    assert leadership is not None
    assert (leadership.leader, leadership.leader_epoch, leadership.isr, leadership.partition_epoch) == (1, 2, (1, 2), 4)
    assert {request.broker_id for request in terms.sent("LEADER_AND_ISR")} == {1, 2, 3}
    assert answer(terms, [1, 2, 3], leader_epoch=2, partition_epoch=4).error_code == 0


def test_a_state_that_cannot_be_written_is_said_so(terms: Terms) -> None:
    terms.store.faults[partition_state_path(*T0)] = NoAuthError()
    assert answer(terms, [1, 2, 3]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_leader_whose_state_is_spoiled_asks_again_until_it_is_mended(terms: Terms) -> None:
    """It would wait to be told after any other error, and nobody tells it of a state that is what it was."""
    path = partition_state_path(*T0)
    before = terms.store.znodes[path][0]
    terms.store.put_data(path, b"{garbage")
    assert answer(terms, [1, 2, 3]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert answer(terms, [1, 2, 3]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    terms.store.put_data(path, before)
    assert answer(terms, [1, 2, 3]).error_code == ErrorCode.INVALID_UPDATE_VERSION
    leadership = terms.term.context.leadership(T0)
    assert leadership is not None
    assert leadership.leader_epoch == 1
    assert {request.broker_id for request in terms.sent("LEADER_AND_ISR")} == {1, 2, 3}


def test_isrs_of_very_many_partitions_are_changed_in_pieces() -> None:
    """Leaders of Apache Kafka ask for as many as there are."""
    count = 3 * PARTITIONS_PER_BATCH + 1
    terms = Terms(1, 2)
    terms.elect()
    terms.create("many", *((1, 2) for _ in range(count)))
    terms.settle()
    topic_id = terms.term.context.topic_id("many")
    assert topic_id is not None
    proposals = [
        AlterPartitionRequest.PartitionData(partition_index=number, leader_epoch=0, new_isr=[1], partition_epoch=0)
        for number in range(count)
    ]
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=terms.term.context.live_or_shutting_down_brokers[1].epoch,
        topics=[AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=proposals)],
    )
    batches: list[int] = []
    carry_out = terms.shell.carry_out

    def watched(effect: Effect) -> Any:
        if isinstance(effect, ZnodeOperations):
            batches.append(sum(len(each.operations) - 1 for each in effect.operations if isinstance(each, Multi)))
        elif isinstance(effect, GiveWay):
            batches.append(0)
        return carry_out(effect)

    terms.shell.carry_out = watched  # type: ignore[method-assign]
    response = terms.run(terms.term.alter_partition(request, 2))
    assert [each.error_code for each in response.topics[0].partitions] == [0] * count
    assert sum(batches) == count
    assert max(batches) <= PARTITIONS_PER_BATCH
    assert batches.count(0) >= 3
    assert {terms.state("many", number).isr for number in range(count)} == {(1,)}  # type: ignore[union-attr]
