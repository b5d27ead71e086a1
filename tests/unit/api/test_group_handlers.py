"""The APIs of groups and producer ids, in every version, from the frame of the request to that of the response."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, cast

import pytest

from barnabas.api.client_identity import java_address
from barnabas.api.delete_groups import DeleteGroupsHandler
from barnabas.api.describe_groups import DescribeGroupsHandler
from barnabas.api.find_coordinator import FindCoordinatorHandler
from barnabas.api.heartbeat import HeartbeatHandler
from barnabas.api.init_producer_id import InitProducerIdHandler
from barnabas.api.join_group import JoinGroupHandler
from barnabas.api.leave_group import LeaveGroupHandler
from barnabas.api.list_groups import ListGroupsHandler
from barnabas.api.offset_commit import OffsetCommitHandler
from barnabas.api.offset_delete import OffsetDeleteHandler
from barnabas.api.offset_fetch import OffsetFetchHandler
from barnabas.api.sync_group import SyncGroupHandler
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordination.errors import CoordinationError
from barnabas.coordination.operations import GetData, Operation
from barnabas.coordination.ports import Store
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.coordinators.transaction.coordinator import InitReply, TransactionCoordinator
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.coordinators.transaction.transactions import NO_PRODUCER, Producer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AllocateProducerIdsResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    UpdateMetadataRequest,
)
from barnabas.wire.topics import TopicPartition
from tests.unit.api.calling import Caller, Calls
from tests.unit.controller.memory_store import MemoryStore
from tests.unit.coordinators.group.group_world import GroupWorld

GROUP = "g"
OFFSETS_PARTITIONS = 50


class Creation:
    """Auto topic creation that keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def create_topics(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        self.asked += names
        return {}


class TransactionalIds:
    """A transaction coordinator of which only the answers are wanted."""

    def __init__(self) -> None:
        self.answer = (ErrorCode.NONE, Producer(77, 3))
        self.asked: list[tuple[str, int, Producer | None]] = []

    def partition_for(self, transactional_id: str) -> int:
        assert transactional_id
        return 1

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None, reply: InitReply
    ) -> None:
        self.asked.append((transactional_id, timeout_ms, expected))
        reply(*self.answer)


class Blocks:
    async def allocate(self) -> AllocateProducerIdsResponse:
        return AllocateProducerIdsResponse(producer_id_start=1000, producer_id_len=1000)


class Znodes:
    """As much of a store as offsets in ZooKeeper need."""

    def __init__(self) -> None:
        self.memory = MemoryStore()

    async def perform(self, operation: Operation[Any]) -> Any:
        (outcome,) = self.memory.submit((operation,))
        if isinstance(outcome, CoordinationError):
            raise outcome
        return outcome

    async def submit(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        return self.memory.submit(tuple(operations))

    async def get_many(self, paths: Sequence[str]) -> list[Any]:
        return self.memory.submit(tuple(GetData(path) for path in paths))


class Broker:
    """A group coordinator behind its handlers, and one client."""

    def __init__(self) -> None:
        self.world = GroupWorld(initial_rebalance_delay_ms=10)
        self.world.elect(GROUP)
        self.metadata = MetadataCache(1, logging.getLogger("state.change.logger"))
        self.creation = Creation()
        self.store = Znodes()
        coordinator = self.world.coordinator
        zookeeper_offsets = ZookeeperOffsets(lambda: cast("Store", self.store), logging.getLogger("zookeeper-offsets"))
        self.ids = ProducerIdManager(
            Blocks(), host=self.world.host, timers=self.world.timers, logger=logging.getLogger("ids")
        )
        self.transactions = cast("TransactionCoordinator", TransactionalIds())
        self.calls = Calls(
            self.world.host,
            FindCoordinatorHandler(self.metadata, coordinator, self.transactions, self.creation),
            JoinGroupHandler(coordinator),
            SyncGroupHandler(coordinator),
            HeartbeatHandler(coordinator),
            LeaveGroupHandler(coordinator),
            ListGroupsHandler(coordinator),
            DescribeGroupsHandler(coordinator),
            DeleteGroupsHandler(coordinator),
            OffsetCommitHandler(coordinator, self.metadata, zookeeper_offsets, self.world.clock),
            OffsetFetchHandler(coordinator, self.metadata, zookeeper_offsets),
            OffsetDeleteHandler(coordinator, self.metadata),
            InitProducerIdHandler(self.ids, self.transactions),
        )
        self.caller: Caller = self.calls.connect()
        self.update_metadata("t", 2)

    def update_metadata(self, topic: str, partitions: int, *, leader: int = 1) -> None:
        self.metadata.apply(
            UpdateMetadataRequest(
                controller_id=1,
                controller_epoch=1,
                live_brokers=[
                    UpdateMetadataRequest.UpdateMetadataBroker(
                        id=1,
                        endpoints=[
                            UpdateMetadataRequest.UpdateMetadataEndpoint(
                                port=9092, host="broker-1", listener="PLAINTEXT", security_protocol=0
                            )
                        ],
                    )
                ],
                topic_states=[
                    UpdateMetadataRequest.UpdateMetadataTopicState(
                        topic_name=topic,
                        partition_states=[
                            UpdateMetadataRequest.UpdateMetadataPartitionState(
                                partition_index=index, leader=leader, isr=[1], replicas=[1]
                            )
                            for index in range(partitions)
                        ],
                    )
                ],
            )
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.world.loop.run_until_complete(work)

    def call(self, request: Any, version: int) -> Any:
        self.caller.send(request, version)
        for _ in range(10):
            self.world.pass_ms(10)
            answers = self.caller.received()
            if answers:
                (answer,) = answers
                return answer
        raise AssertionError(f"{request!r} is not answered")

    def join(self, version: int, member_id: str = "") -> Any:
        return self.call(
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
                reason=None,
            ),
            version,
        )

    def joined(self) -> Any:
        """A member of a stable group, as its JoinGroup was answered."""
        given = self.join(9)
        joined = self.join(9, given.member_id)
        self.call(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[
                    SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
                ],
            ),
            4,
        )
        return joined


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.run(broker.ids.stop())
    broker.run(broker.calls.dispatcher.close())
    assert broker.calls.lines.lines == []
    broker.world.close()


def codes(response: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, partition.partition_index): ErrorCode.for_code(partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    }


# FindCoordinator.


@pytest.mark.parametrize("version", range(7))
def test_the_first_question_makes_the_topic(broker: Broker, version: int) -> None:
    request = FindCoordinatorRequest(key=GROUP) if version < 4 else FindCoordinatorRequest(coordinator_keys=["g", "h"])
    response = broker.call(request, version)
    answers = [response] if version < 4 else response.coordinators
    assert {answer.error_code for answer in answers} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert {(answer.node_id, answer.host, answer.port) for answer in answers} == {(-1, "", -1)}
    assert broker.creation.asked == ["__consumer_offsets"]


@pytest.mark.parametrize("version", range(7))
def test_the_leader_of_the_partition_coordinates(broker: Broker, version: int) -> None:
    broker.update_metadata("__consumer_offsets", OFFSETS_PARTITIONS)
    request = FindCoordinatorRequest(key=GROUP) if version < 4 else FindCoordinatorRequest(coordinator_keys=[GROUP])
    response = broker.call(request, version)
    answer = response if version < 4 else response.coordinators[0]
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "broker-1", 9092)
    if 1 <= version < 4:
        assert answer.error_message == "NONE"
    if version >= 4:
        assert (answer.key, answer.error_message) == (GROUP, "")
    assert broker.creation.asked == []


def test_a_partition_without_leader_has_no_coordinator(broker: Broker) -> None:
    broker.update_metadata("__consumer_offsets", OFFSETS_PARTITIONS, leader=-1)
    assert broker.call(FindCoordinatorRequest(key=GROUP), 2).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_other_kinds_of_keys(broker: Broker) -> None:
    for version, key_type, error in (
        (5, 2, ErrorCode.INVALID_REQUEST),
        (6, 2, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (3, 7, ErrorCode.INVALID_REQUEST),
        (6, 7, ErrorCode.INVALID_REQUEST),
    ):
        request = FindCoordinatorRequest(key_type=key_type, key="k" if version < 4 else "")
        request.coordinator_keys = ["k"] if version >= 4 else []
        response = broker.call(request, version)
        assert (response if version < 4 else response.coordinators[0]).error_code == error
    assert broker.creation.asked == []


def test_transactional_ids_have_the_leader_of_their_partition(broker: Broker) -> None:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["t", "u"])
    found = broker.call(request, 4).coordinators
    assert [each.error_code for each in found] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert broker.creation.asked == ["__transaction_state"]
    broker.update_metadata("__transaction_state", 2)
    found = broker.call(request, 4).coordinators
    assert [(each.key, each.error_code, each.node_id) for each in found] == [("t", 0, 1), ("u", 0, 1)]
    assert broker.creation.asked == ["__transaction_state"]


# Members.


@pytest.mark.parametrize("version", range(10))
def test_join_group(broker: Broker, version: int) -> None:
    response = broker.join(version)
    if version >= 4:
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert response.protocol_name == (None if version >= 7 else "")
        assert response.generation_id == -1
        response = broker.join(version, response.member_id)
    assert response.error_code == ErrorCode.NONE
    assert (response.generation_id, response.protocol_name, response.leader) == (1, "range", response.member_id)
    assert [member.member_id for member in response.members] == [response.member_id]
    assert broker.world.group(GROUP).members.rebalance_timeout_ms == (10_000 if version == 0 else 20_000)


@pytest.mark.parametrize("version", range(6))
def test_sync_group(broker: Broker, version: int) -> None:
    joined = broker.joined()
    request = SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
    if version >= 5:
        assert broker.call(request, version).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        request.protocol_type, request.protocol_name = "consumer", "range"
    response = broker.call(request, version)
    assert (response.error_code, response.assignment) == (ErrorCode.NONE, b"all")
    request.generation_id = 7
    assert broker.call(request, version).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(broker: Broker, version: int) -> None:
    joined = broker.joined()
    request = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
    assert broker.call(request, version).error_code == ErrorCode.NONE
    request.member_id = "stranger"
    assert broker.call(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
def test_leave_group(broker: Broker, version: int) -> None:
    joined = broker.joined()
    for expected in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
        if version < 3:
            response = broker.call(LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id), version)
            assert response.error_code == expected
        else:
            members = [LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)]
            response = broker.call(LeaveGroupRequest(group_id=GROUP, members=members), version)
            assert response.error_code == ErrorCode.NONE
            assert [(each.member_id, each.error_code) for each in response.members] == [(joined.member_id, expected)]
    assert broker.call(LeaveGroupRequest(group_id="", member_id="m"), 0).error_code == ErrorCode.INVALID_GROUP_ID


# Groups.


@pytest.mark.parametrize("version", range(6))
def test_list_groups(broker: Broker, version: int) -> None:
    broker.joined()
    (listed,) = broker.call(ListGroupsRequest(), version).groups
    assert (listed.group_id, listed.protocol_type) == (GROUP, "consumer")
    if version >= 4:
        assert listed.group_state == "Stable"
        assert broker.call(ListGroupsRequest(states_filter=["Empty"]), version).groups == []
    if version >= 5:
        assert listed.group_type == "classic"


@pytest.mark.parametrize("version", range(6))
def test_describe_groups(broker: Broker, version: int) -> None:
    joined = broker.joined()
    request = DescribeGroupsRequest(groups=[GROUP, "absent", "elsewhere"])
    if version >= 3:
        request.include_authorized_operations = True
    broker.world.elect("absent")
    found, absent, elsewhere = broker.call(request, version).groups
    assert (found.group_state, found.protocol_data, found.protocol_type) == ("Stable", "range", "consumer")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "tests", "/127.0.0.1")
    assert member.member_assignment == b"all"
    assert (absent.group_state, absent.error_code) == ("Dead", ErrorCode.NONE)
    assert elsewhere.error_code == ErrorCode.NOT_COORDINATOR
    if version >= 3:
        assert (found.authorized_operations, elsewhere.authorized_operations) == (328, -(2**31))


@pytest.mark.parametrize("version", range(3))
def test_delete_groups(broker: Broker, version: int) -> None:
    joined = broker.joined()
    request = DeleteGroupsRequest(groups_names=[GROUP, "elsewhere", GROUP])
    outcomes = [(each.group_id, each.error_code) for each in broker.call(request, version).results]
    assert outcomes == [(GROUP, ErrorCode.NON_EMPTY_GROUP), ("elsewhere", ErrorCode.NOT_COORDINATOR)]
    broker.call(LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id), 0)
    assert broker.call(request, version).results[0].error_code == ErrorCode.NONE


# Offsets.


def commit_request(version: int, **identity: Any) -> OffsetCommitRequest:
    def partition(index: int, offset: int) -> OffsetCommitRequest.OffsetCommitRequestPartition:
        return OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=None if index else "m"
        )

    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=GROUP,
        retention_time_ms=60_000 if 2 <= version <= 4 else -1,
        topics=[
            topic(name="t", partitions=[partition(0, 5), partition(9, 6), partition(1, 7)]),
            topic(name="unknown", partitions=[partition(0, 8)]),
        ],
        **identity,
    )


UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def fetch_request(version: int) -> OffsetFetchRequest:
    if version >= 8:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 9])]
        return OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])
    return OffsetFetchRequest(
        group_id=GROUP, topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 9])]
    )


@pytest.mark.parametrize("version", range(10))
def test_offset_commit_and_fetch(broker: Broker, version: int) -> None:
    assert codes(broker.call(commit_request(version), version)) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 9): UNKNOWN,
        ("t", 1): ErrorCode.NONE,
        ("unknown", 0): UNKNOWN,
    }
    response = broker.call(fetch_request(version), version)
    topics = response.groups[0].topics if version >= 8 else response.topics
    found = {
        (topic.name, each.partition_index): (each.committed_offset, each.error_code)
        for topic in topics
        for each in topic.partitions
    }
    absent = (-1, UNKNOWN if version == 0 else ErrorCode.NONE)
    assert found == {("t", 0): (5, 0), ("t", 1): (7, 0), ("t", 9): absent}
    assert topics[0].partitions[0].metadata == ("m" if version else "")
    stored = broker.world.coordinator._groups.get(GROUP)
    if version == 0:
        assert stored is None  # it is in ZooKeeper
        assert broker.run(broker.store.perform(GetData("/consumers/g/offsets/t/0"))).data == b"5"
    else:
        assert stored is not None
        committed = stored.group.offsets.get(TopicPartition("t", 0))
        assert committed is not None
        expires = broker.world.clock.time_ms() + 60_000 if 2 <= version <= 4 else -1
        assert abs(committed.expire_timestamp_ms - expires) < 100


@pytest.mark.parametrize("version", [1, 5, 8])
def test_a_partition_asked_for_twice_is_answered_once(broker: Broker, version: int) -> None:
    request = fetch_request(version)
    named: list[Any] = [request.topics, *(group.topics for group in request.groups)]
    for topics in named:
        if topics:
            topics.append(topics[0])
            topics[0].partition_indexes.append(topics[0].partition_indexes[0])
    response = broker.call(request, version)
    answers = response.groups[0].topics if version >= 8 else response.topics
    found = [(topic.name, each.partition_index) for topic in answers for each in topic.partitions]
    assert len(found) == len(set(found))
    commit = commit_request(version)
    commit.topics.append(commit.topics[0])
    told = broker.call(commit, version)
    answered = [(topic.name, each.partition_index) for topic in told.topics for each in topic.partitions]
    assert len(answered) == len(set(answered))


@pytest.mark.parametrize("version", range(2, 10))
def test_offset_fetch_of_everything(broker: Broker, version: int) -> None:
    broker.call(commit_request(5), 5)
    if version >= 8:
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=each, topics=None) for each in (GROUP, "other")]
        found, other = broker.call(OffsetFetchRequest(groups=groups), version).groups
        assert other.error_code == ErrorCode.NOT_COORDINATOR
    else:
        found = broker.call(OffsetFetchRequest(group_id=GROUP, topics=None), version)
    assert codes(found) == {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE}


@pytest.mark.parametrize("version", range(1, 10))
def test_errors_of_the_group_are_told_where_the_version_has_room(broker: Broker, version: int) -> None:
    broker.world.resign(GROUP)
    not_coordinator = ErrorCode.NOT_COORDINATOR
    committed = codes(broker.call(commit_request(version), version))
    assert committed == {
        ("t", 0): not_coordinator,
        ("t", 9): UNKNOWN,
        ("t", 1): not_coordinator,
        ("unknown", 0): UNKNOWN,
    }
    response = broker.call(fetch_request(version), version)
    if version >= 8:
        assert response.groups[0].error_code == not_coordinator
    elif version >= 2:
        assert response.error_code == not_coordinator
    else:
        assert set(codes(response).values()) == {not_coordinator}


def test_a_time_of_the_commit_is_kept(broker: Broker) -> None:
    request = commit_request(1)
    request.topics[0].partitions[0].commit_timestamp = 12_345
    broker.call(request, 1)
    committed = broker.world.group(GROUP).offsets.get(TopicPartition("t", 0))
    assert committed is not None
    assert committed.commit_timestamp_ms == 12_345


def test_members_commit_by_generation(broker: Broker) -> None:
    joined = broker.joined()
    request = commit_request(9, generation_id_or_member_epoch=1, member_id=joined.member_id)
    assert codes(broker.call(request, 9))["t", 0] is ErrorCode.NONE
    request.generation_id_or_member_epoch = 2
    assert codes(broker.call(request, 9))["t", 0] is ErrorCode.ILLEGAL_GENERATION


def test_requests_of_one_connection_are_answered_in_order(broker: Broker) -> None:
    broker.world.log.holds_back = True
    broker.caller.send(commit_request(5), 5)
    broker.caller.send(fetch_request(5), 5)
    broker.world.pass_ms(10)
    assert broker.caller.received() == []
    broker.world.log.release()
    broker.world.pass_ms(10)
    committed, fetched = broker.caller.received()
    assert codes(committed)["t", 0] is ErrorCode.NONE
    assert fetched.topics[0].partitions[0].committed_offset == -1  # decided when it came


def test_offset_delete(broker: Broker) -> None:
    broker.call(commit_request(5), 5)
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition
    topics = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name="t", partitions=[partition(partition_index=0), partition(partition_index=9)]
        )
    ]
    response = broker.call(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    assert codes(response) == {("t", 0): ErrorCode.NONE, ("t", 9): UNKNOWN}
    assert broker.world.offset(GROUP, TopicPartition("t", 0)) is None
    broker.world.elect("absent")
    response = broker.call(OffsetDeleteRequest(group_id="absent", topics=topics), 0)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


# Producer ids.


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(broker: Broker, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    first, second = broker.call(request, version), broker.call(request, version)
    assert (first.error_code, first.producer_id, first.producer_epoch) == (ErrorCode.NONE, 1000, 0)
    assert second.producer_id == 1001
    transactions = cast("TransactionalIds", broker.transactions)
    expected = Producer(77, 2) if version >= 3 else None
    for answer, told in (
        ((ErrorCode.NONE, Producer(77, 3)), (ErrorCode.NONE, 77, 3)),
        (
            (ErrorCode.PRODUCER_FENCED, NO_PRODUCER),
            (ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH, -1, -1),
        ),
        ((ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER), (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)),
    ):
        transactions.answer = answer
        request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        if expected is not None:
            request.producer_id, request.producer_epoch = expected
        response = broker.call(request, version)
        assert (response.error_code, response.producer_id, response.producer_epoch) == told
        assert transactions.asked[-1] == ("t", 60_000, expected)
    if version >= 3:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_id=5)
        assert broker.call(request, version).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "/127.0.0.1"), ("::1", "/0:0:0:0:0:0:0:1"), ("fe80::a%eth0", "/fe80:0:0:0:0:0:0:a"), ("x", "/x")],
)
def test_addresses_are_written_as_java_does(host: str, shown: str) -> None:
    assert java_address(host) == shown


def test_the_dispatcher_knows_every_handler(broker: Broker) -> None:
    advertised = {
        8: (0, 9), 9: (0, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 5), 16: (0, 5),
        22: (0, 5), 42: (0, 2), 47: (0, 0),
    }  # fmt: skip
    assert cast("Any", broker.calls.registry.versions()) == advertised
