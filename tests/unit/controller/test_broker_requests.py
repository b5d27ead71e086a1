"""The requests that one call of a state machine makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from barnabas.controller.broker_requests import FULL, RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import BrokerRequest, Effect, SendRequests, StateChange
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.protocol import NEWEST, ControllerProtocol, controller_protocol
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire import codec
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.messages import StopReplicaRequest
from barnabas.wire.stopped_partitions import stopped_partitions
from barnabas.wire.topics import LeaderRecoveryState, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPIC_ID = Uuid(b"i" * 16)


def broker(broker_id: int, listener: str = "INTERNAL") -> LiveBroker:
    endpoints = (
        BrokerEndpoint("CLIENT", f"client-{broker_id}", 9092, "SSL"),
        BrokerEndpoint(listener, f"host-{broker_id}", 9093, "PLAINTEXT"),
    )
    return LiveBroker(broker_id, 100 + broker_id, BrokerRegistration(endpoints, 0, rack=f"r{broker_id}"))


@pytest.fixture
def context() -> ControllerContext:
    made = ControllerContext(5, 8)
    for broker_id in (3, 1, 2):
        made.add_live_broker(broker(broker_id))
    made.add_topic("a", TOPIC_ID)
    made.add_topic("b")
    made.set_assignment(A0, ReplicaAssignment((1, 2, 4), (2,), (4,)))
    made.set_assignment(A1, ReplicaAssignment((2, 1)))
    made.set_assignment(B0, ReplicaAssignment((3,)))
    made.set_leadership(A0, LeaderAndIsr(1, 6, (1, 4), 5, LeaderRecoveryState.RECOVERING, 9))
    made.set_leadership(A1, LeaderAndIsr(2, 0, (2, 1), 4))
    return made


def requests_of(effects: Iterable[Effect]) -> list[BrokerRequest]:
    (*lines, send) = effects
    assert all(isinstance(line, StateChange) for line in lines)
    assert isinstance(send, SendRequests)
    for request in send.requests:  # what cannot be encoded cannot be sent
        codec.encode(request.message, request.api_version)
    return list(send.requests)


def effects_of(batch: RequestBatch) -> tuple[Effect, ...]:
    steps = batch.effects()
    with pytest.raises(StopIteration) as done:
        next(steps)
    effects: tuple[Effect, ...] = done.value.value
    return effects


def batch_of(context: ControllerContext, protocol: ControllerProtocol = NEWEST) -> RequestBatch:
    return RequestBatch(context, ControllerSettings(1, "INTERNAL", protocol=protocol))


def test_one_request_of_a_kind_per_broker_in_the_order_of_kafka(context: ControllerContext) -> None:
    batch = batch_of(context)
    batch.add_stop_replica([3, 2], B0, delete=False)
    for partition in (A0, A1):
        known = context.leadership(partition)
        assert known is not None
        batch.add_leader_and_isr([2, 1, 4, -1], partition, known, is_new=False)
    requests = requests_of(effects_of(batch))
    assert [(request.api_key.name, request.api_version, request.broker_id) for request in requests] == [
        ("LEADER_AND_ISR", 7, 1),
        ("LEADER_AND_ISR", 7, 2),
        ("UPDATE_METADATA", 8, 1),
        ("UPDATE_METADATA", 8, 2),
        ("UPDATE_METADATA", 8, 3),
        ("STOP_REPLICA", 4, 2),
        ("STOP_REPLICA", 4, 3),
    ]
    assert {request.broker_id: request.message.broker_epoch for request in requests} == {1: 101, 2: 102, 3: 103}  # type: ignore[attr-defined]
    assert all((r.message.controller_id, r.message.controller_epoch) == (1, 5) for r in requests)  # type: ignore[attr-defined]
    assert effects_of(batch) == ()


def test_leader_and_isr_says_all_that_a_replica_must_know(context: ControllerContext) -> None:
    batch = batch_of(context)
    known = context.leadership(A0)
    assert known is not None
    batch.add_leader_and_isr([2], A0, known, is_new=True)
    message: Any = requests_of(effects_of(batch))[0].message
    assert [(leader.broker_id, leader.host_name, leader.port) for leader in message.live_leaders] == [
        (1, "host-1", 9093)
    ]
    (topic,) = message.topic_states
    assert (topic.topic_name, topic.topic_id, message.type) == ("a", TOPIC_ID, 0)
    (state,) = topic.partition_states
    assert (state.partition_index, state.controller_epoch, state.leader, state.leader_epoch) == (0, 5, 1, 6)
    assert (state.isr, state.partition_epoch, state.leader_recovery_state, state.is_new) == ([1, 4], 9, 1, True)
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ([1, 2, 4], [2], [4])


def test_what_was_new_once_stays_new_in_the_batch(context: ControllerContext) -> None:
    batch = batch_of(context)
    known = context.leadership(A1)
    assert known is not None
    batch.add_leader_and_isr([1], A1, known, is_new=True)
    batch.add_leader_and_isr([1, 2], A1, known.elect(1, (1,)), is_new=False)
    states = [request.message.topic_states[0].partition_states[0] for request in requests_of(effects_of(batch))[:2]]  # type: ignore[attr-defined]
    assert [(state.is_new, state.leader) for state in states] == [(True, 1), (False, 1)]


def test_update_metadata_tells_of_all_brokers_and_of_offline_replicas(context: ControllerContext) -> None:
    batch = batch_of(context)
    context.begin_shutdown(2)
    batch.add_update_metadata([1, 4], [A0, B0])
    (request,) = requests_of(effects_of(batch))
    message: Any = request.message
    assert [live.id for live in message.live_brokers] == [1, 2, 3]
    assert message.live_brokers[0].rack == "r1"
    assert [(at.listener, at.host, at.port, at.security_protocol) for at in message.live_brokers[0].endpoints] == [
        ("CLIENT", "client-1", 9092, 1),
        ("INTERNAL", "host-1", 9093, 0),
    ]
    (topic,) = message.topic_states  # b-0 never had a leader
    (state,) = topic.partition_states
    assert (state.leader, state.leader_epoch, state.zk_version, state.offline_replicas) == (1, 6, 9, [2, 4])


def test_partitions_with_the_same_brokers_share_their_lists(context: ControllerContext) -> None:
    second = TopicPartition("b", 1)
    context.set_assignment(second, ReplicaAssignment((2, 1)))
    context.set_leadership(second, LeaderAndIsr(2, 3, (2, 1), 4))
    batch = batch_of(context)
    batch.add_update_metadata([1], [A1, second])
    (request,) = requests_of(effects_of(batch))
    message: Any = request.message
    first, other = (topic.partition_states[0] for topic in message.topic_states)
    assert (first.replicas, first.isr, first.offline_replicas) == ([2, 1], [2, 1], [])
    assert first.replicas is other.replicas is first.isr is other.isr
    batch.add_update_metadata([1], [A1])
    (later,) = requests_of(effects_of(batch))
    assert cast("Any", later.message).topic_states[0].partition_states[0].isr is not first.isr


def test_of_very_many_different_lists_not_all_are_remembered_and_each_is_its_own(
    context: ControllerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.controller.broker_requests._SHARED_LISTS_MAX", 3)
    partitions = [TopicPartition("b", number) for number in range(1, 9)]
    for partition in partitions:
        replicas = (partition.partition, 1_000 + partition.partition % 2)
        context.set_assignment(partition, ReplicaAssignment(replicas))
        context.set_leadership(partition, LeaderAndIsr(replicas[0], 0, replicas[:1], 4))
    batch = batch_of(context)
    held: list[int] = []
    listed = RequestBatch._listed

    def counting(batch: RequestBatch, broker_ids: tuple[int, ...]) -> list[int]:
        found = listed(batch, broker_ids)
        held.append(len(batch._lists))
        return found

    monkeypatch.setattr(RequestBatch, "_listed", counting)
    batch.add_update_metadata([1], partitions)
    (request,) = requests_of(effects_of(batch))
    (topic,) = cast("Any", request.message).topic_states
    for state in topic.partition_states:
        number = state.partition_index
        assert (state.isr, state.replicas) == ([number], [number, 1_000 + number % 2])
        assert state.offline_replicas == [each for each in state.replicas if each not in {1, 2, 3}]
    assert max(held) == 3


def test_brokers_can_be_told_of_each_other_before_any_partition(context: ControllerContext) -> None:
    batch = batch_of(context)
    batch.add_update_metadata(context.live_or_shutting_down_brokers)
    requests = requests_of(effects_of(batch))
    assert [request.broker_id for request in requests] == [1, 2, 3]
    assert [len(request.message.topic_states) for request in requests] == [0, 0, 0]  # type: ignore[attr-defined]


def test_a_topic_that_is_being_deleted_has_no_leader_and_overrides_all_epochs(context: ControllerContext) -> None:
    batch = batch_of(context)
    context.queue_for_deletion(["a"])
    batch.add_update_metadata([1], [A0])
    batch.add_stop_replica([1], A0, delete=False)
    batch.add_stop_replica([1], A0, delete=True)
    batch.add_stop_replica([1], A0, delete=False)
    batch.add_stop_replica([1], B0, delete=False)
    update, stop = (request.message for request in requests_of(effects_of(batch)))
    state: Any = update.topic_states[0].partition_states[0]  # type: ignore[attr-defined]
    assert (state.leader, state.leader_epoch, state.zk_version, state.isr) == (-2, 0, 0, [1, 4])
    assert [
        (topic.topic_name, state.partition_index, state.leader_epoch, state.delete_partition)
        for topic in stop.topic_states  # type: ignore[attr-defined]
        for state in topic.partition_states
    ] == [("a", 0, -2, True), ("b", 0, -1, False)]


def test_a_topic_without_an_id_and_a_leader_without_the_listener_are_no_obstacle(context: ControllerContext) -> None:
    context.add_live_broker(broker(3, "OTHER"))
    context.set_leadership(B0, LeaderAndIsr(3, 0, (3,), 5))
    batch = batch_of(context)
    known = context.leadership(B0)
    assert known is not None
    batch.add_leader_and_isr([3], B0, known, is_new=True)
    message: Any = requests_of(effects_of(batch))[0].message
    assert message.topic_states[0].topic_id == ZERO_UUID
    assert message.live_leaders == []


@pytest.mark.parametrize(
    ("protocol", "versions"),
    [
        ("3.9", (7, 8, 4)),
        ("3.4-IV0", (7, 8, 4)),
        ("3.3", (6, 7, 3)),
        ("3.2", (6, 7, 3)),
        ("3.1", (5, 7, 3)),
        ("2.8-IV1", (5, 7, 3)),
        ("2.8-IV0", (4, 6, 3)),
        ("2.6", (4, 6, 3)),
        ("2.5", (4, 6, 2)),
        ("2.4-IV1", (4, 6, 2)),
        ("2.4-IV0", (3, 5, 1)),
        ("2.3-IV1", (2, 5, 1)),
    ],
)
def test_versions_follow_the_protocol_of_the_cluster(
    context: ControllerContext, protocol: str, versions: tuple[int, int, int]
) -> None:
    batch = batch_of(context, controller_protocol(protocol))
    known = context.leadership(A0)
    assert known is not None
    batch.add_leader_and_isr([1], A0, known, is_new=True)
    batch.add_stop_replica([1], A1, delete=True)
    of_broker_1 = [request for request in requests_of(effects_of(batch)) if request.broker_id == 1]
    assert tuple(request.api_version for request in of_broker_1) == versions
    read_again: list[Any] = [
        codec.decode(
            type(request.message), request.api_version, b"".join(codec.encode(request.message, request.api_version))
        )
        for request in of_broker_1
    ]
    (state,) = read_again[0].topic_states[0].partition_states
    has_recovery_state = versions[0] >= 6
    assert (state.leader, state.leader_epoch, state.leader_recovery_state) == (1, 6, int(has_recovery_state))
    assert read_again[0].topic_states[0].topic_id == (TOPIC_ID if versions[0] >= 5 else ZERO_UUID)
    assert read_again[1].topic_states[0].topic_id == (TOPIC_ID if versions[1] >= 7 else ZERO_UUID)
    assert [(p.topic_partition, p.delete) for p in stopped_partitions(read_again[2])] == [(A1, True)]


def test_a_protocol_before_replication_with_leader_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\.3-IV0 is too old; 2\.3-IV1 or newer is needed"):
        controller_protocol("2.3-IV0")


def test_before_version_3_what_is_deleted_and_what_is_only_stopped_are_two_requests(
    context: ControllerContext,
) -> None:
    batch = batch_of(context, controller_protocol("2.5"))
    batch.add_stop_replica([2], A0, delete=True)
    batch.add_stop_replica([2, 3], B0, delete=False)
    batch.add_stop_replica([2], A1, delete=False)
    batch.add_stop_replica([2], A1, delete=True)
    asked: list[tuple[int, bool, list[TopicPartition]]] = []
    for request in requests_of(effects_of(batch)):
        message = request.message
        assert isinstance(message, StopReplicaRequest)
        partitions = [stopped.topic_partition for stopped in stopped_partitions(message)]
        asked.append((request.broker_id, message.delete_partitions, partitions))
    assert asked == [(2, True, [A0, A1]), (2, False, [B0]), (3, False, [B0])]


def test_before_version_8_no_metadata_are_full(context: ControllerContext) -> None:
    for protocol, type_ in (("3.3", 0), ("3.4", FULL)):
        steps = batch_of(context, controller_protocol(protocol)).full_metadata([1])
        with pytest.raises(StopIteration) as done:
            next(steps)
        (request,) = requests_of(done.value.value)
        assert request.message.type == type_  # type: ignore[attr-defined]
