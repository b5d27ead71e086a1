"""One cluster of Barnabas and Apache Kafka 3.9.1, on one coordinator, either kind being the controller.

What the kinds say to each other (LeaderAndIsr, UpdateMetadata, StopReplica, ControlledShutdown, AlterPartition,
AllocateProducerIds, the followers' Fetch and OffsetForLeaderEpoch) and what they write for each other (znodes, records
of `__consumer_offsets`) is held here by what becomes of it. `test_mixed_cluster_failures.py` kills brokers under load.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.coordinators.placement import partition_for
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AllocateProducerIdsRequest,
    AlterClientQuotasRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeGroupsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    LeaderAndIsrRequest,
    ProduceRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.command_suite import barnabas
from tests.support.mixed_cluster import ALL_IDS, IDS, Kind, MixedCluster, kind_of, mixed_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, delete_topic

# Longer than the time after which a follower lags: that must show in the ISR before the session is over.
OVERRIDES: Final[Mapping[str, object]] = {"zookeeper.session.timeout.ms": 9_000}
OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_ASSIGNMENT: Final = ((1, 11, 2), (11, 1, 12), (2, 12, 1), (12, 2, 11))
PROVOKED_COMPLAINTS: Final = (
    "due to stale broker epoch 0 for broker",
    "Out of order sequence number for producer",
    r"controller epoch \d+ is old",
    r"from an old controller \d+ with epoch",
)
KINDS: Final = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
PATIENCE_SECONDS: Final = 90.0
ALL_REPLICAS: Final = -1
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
SET: Final = 0


@pytest.fixture(scope="module")
def cluster(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with mixed_cluster(tmp_path_factory.mktemp("mixed"), coordinator="embedded", overrides=OVERRIDES) as running:
        create_assigned_topic(running, OFFSETS_TOPIC, OFFSETS_ASSIGNMENT, **{"cleanup.policy": "compact"})
        yield running
        assert running.unexpected_complaints(*PROVOKED_COMPLAINTS) == []


def create_assigned_topic(
    cluster: MixedCluster, name: str, assignment: Sequence[Sequence[int]], **configs: str
) -> None:
    """Creates a topic whose replicas are where the test wants them; waits until all are in sync."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(assignment)
        ],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=60_000)
    (result,) = call(cluster.port(cluster.controller()), ApiKey.CREATE_TOPICS, 5, request).topics
    assert result.error_code == 0, result.error_message
    cluster.wait_until_whole(name)


def batch(values: Sequence[str], producer: tuple[int, int, int] | None = None) -> bytearray:
    """`producer` is its id, its epoch and the sequence of the first record."""
    builder = (
        RecordBatchBuilder()
        if producer is None
        else RecordBatchBuilder(producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2])
    )
    for value in values:
        builder.append(time.time_ns() // 1_000_000, None, value.encode())
    return builder.build()


def produce(
    cluster: MixedCluster,
    topic: str,
    records: bytearray,
    *,
    acks: int = ALL_REPLICAS,
    partition: int = 0,
    leader: int | None = None,
) -> Any:
    """Sends a batch to the partition's leader, whom to find where none is given; its response for the partition."""
    data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(records))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    port = cluster.port(cluster.leader(topic, partition) if leader is None else leader)
    return call(port, ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]


def log_of(cluster: MixedCluster, broker_id: int, topic: str, partition: int) -> bytes:
    """The bytes of a replica's segments, one after the other; the batches name their leader epochs."""
    directory = cluster.data_directory(broker_id) / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def wait_until_equal(cluster: MixedCluster, topic: str, partition: int, replicas: Sequence[int]) -> bytes:
    """Waits until all replicas are the same, byte for byte; returns the bytes."""

    def same() -> bytes | None:
        logs = [log_of(cluster, each, topic, partition) for each in replicas]
        return logs[0] if all(log == logs[0] for log in logs) else None

    def evidence() -> str:
        return str({each: len(log_of(cluster, each, topic, partition)) for each in replicas})

    return wait_until(same, f"the replicas of {topic}-{partition} are equal", PATIENCE_SECONDS, evidence)


def elect_preferred_leaders(cluster: MixedCluster, topic: str, partitions: int) -> None:
    """Apache Kafka's controller elects the first replica of every partition."""
    cluster.move_controller(12)
    asked = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=list(range(partitions)))
    request = ElectLeadersRequest(election_type=0, topic_partitions=[asked], timeout_ms=30_000)
    answer = call(cluster.port(12), ApiKey.ELECT_LEADERS, 2, request)
    codes = {each.error_code for result in answer.replica_election_results for each in result.partition_result}
    assert codes <= {0, ErrorCode.ELECTION_NOT_NEEDED}
    for partition in range(partitions):
        leader = OFFSETS_ASSIGNMENT[partition][0]
        wait_until(lambda: cluster.leader(topic, partition) == leader, f"{leader} leads", PATIENCE_SECONDS)  # noqa: B023


def set_config(cluster: MixedCluster, broker_id: int, resource: tuple[int, str], name: str, value: str) -> None:
    """Sets one config of a topic or of the brokers, asking this broker."""
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=SET, value=value)
    wanted = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource[0], resource_name=resource[1], configs=[change]
    )
    request = IncrementalAlterConfigsRequest(resources=[wanted])
    (result,) = call(cluster.port(broker_id), ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert result.error_code == 0, result.error_message


@KINDS
def test_topics_come_grow_and_go_under_either_controller(cluster: MixedCluster, kind: Kind) -> None:
    controller = IDS[kind][0]
    cluster.move_controller(controller)
    topic = f"topics-of-{kind.value}"
    create_topic(cluster.port(controller), topic, 6, 3)
    growth = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=8, assignments=None)
    request = CreatePartitionsRequest(topics=[growth], timeout_ms=30_000)
    (grown,) = call(cluster.port(controller), ApiKey.CREATE_PARTITIONS, 3, request).results
    assert grown.error_code == 0, grown.error_message
    wait_until(lambda: cluster.partition_state(topic, 7), "the new partitions have leaders", PATIENCE_SECONDS)
    _controller, _cluster_id, brokers, ((_name, topic_id, _error, _internal, partitions),) = cluster.wait_until_whole(
        topic
    )
    assert [broker_id for broker_id, *_rest in brokers] == sorted(ALL_IDS)
    assert len(partitions) == 8
    assert {leader for _index, _error, leader, *_rest in partitions} == set(ALL_IDS)
    assert all(produce(cluster, topic, batch(["value"]), partition=index).error_code == 0 for index in range(8))
    # The id is the same for the controller's znode, for clients, and in the log directories of both kinds.
    text = base64.urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")
    assert cluster.znode(f"/brokers/topics/{topic}")["topic_id"] == text
    for index, _error, _leader, _epoch, replicas, *_rest in partitions:
        for broker_id in replicas:
            kept = (cluster.data_directory(broker_id) / f"{topic}-{index}" / "partition.metadata").read_text("ascii")
            assert kept.split() == ["version:", "0", "topic_id:", text]
    delete_topic(cluster.port(controller), topic)
    wait_until(lambda: not cluster.children("/admin/delete_topics"), "the topic is deleted", PATIENCE_SECONDS)
    assert topic not in [*cluster.children("/brokers/topics"), *cluster.children("/config/topics")]
    for broker_id in ALL_IDS:
        left = [path.name for path in cluster.data_directory(broker_id).glob(f"{topic}-*")]
        assert all(name.endswith("-delete") for name in left), left
    wait_until(lambda: cluster.view(1, [topic])[3][0][2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "clients know")
    cluster.wait_until_agreed()


@KINDS
def test_all_brokers_describe_one_cluster(cluster: MixedCluster, kind: Kind) -> None:
    controller = IDS[kind][0]
    cluster.move_controller(controller)
    described = {
        broker_id: call(cluster.port(broker_id), ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
        for broker_id in ALL_IDS
    }
    for answer in described.values():
        answer.brokers.sort(key=lambda broker: broker.broker_id)
    assert len({repr(answer) for answer in described.values()}) == 1
    assert described[controller].controller_id == controller
    assert described[controller].cluster_id == cluster.znode("/cluster/id")["id"]
    seen = cluster.wait_until_agreed()
    assert (seen[0], seen[1]) == (controller, described[controller].cluster_id)


@KINDS
def test_the_commands_find_the_controller_from_every_broker(cluster: MixedCluster, kind: Kind) -> None:
    controller = IDS[kind][0]
    cluster.move_controller(controller)
    for broker_id in ALL_IDS:
        bootstrap = f"127.0.0.1:{cluster.port(broker_id)}"
        shown = barnabas(bootstrap, "controller", "show", "--json").document
        assert (shown["id"], shown["port"]) == (controller, cluster.port(controller))
        # Of a controller that is not ours the protocol tells no more.
        assert shown["software"] == ("barnabas" if kind is Kind.BARNABAS else "other")
        assert shown.get("epoch") == (cluster.controller_epoch() if kind is Kind.BARNABAS else None)
        described = barnabas(bootstrap, "cluster", "describe", "--json").document
        assert described["controller"] == controller
        assert {broker["id"]: broker["software"] for broker in described["brokers"]} == {
            each: "barnabas" if kind_of(each) is Kind.BARNABAS else "other" for each in ALL_IDS
        }


def test_replicas_of_both_kinds_are_equal_byte_for_byte(cluster: MixedCluster) -> None:
    topic = "copies"
    assignment = ((1, 11, 2, 12), (11, 1, 12, 2), (2, 12, 11, 1), (12, 2, 1, 11))
    create_assigned_topic(cluster, topic, assignment, **{"segment.bytes": "300000", "min.insync.replicas": "4"})
    failures: list[str] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "compression.type": codec,
                "batch.size": 20_000,
            }
        )
        for number in range(2_000):
            producer.produce(
                topic,
                f"{codec} {number} ".encode() * 20,
                partition=number % 4,
                on_delivery=lambda error, _message: failures.append(str(error)) if error else None,
            )
        producer.produce(topic, b"large" * 50_000, partition=0)
        assert producer.flush(60) == 0
    assert not failures
    for partition, replicas in enumerate(assignment):
        segments = wait_until_equal(cluster, topic, partition, replicas)
        assert len(segments) > 100_000


def test_followers_of_both_kinds_fetch_in_sessions_at_leaders_of_both_kinds(cluster: MixedCluster) -> None:
    create_assigned_topic(cluster, "sessions", [(1, 11, 2, 12), (11, 1, 12, 2)])

    def write() -> None:
        answers = [produce(cluster, "sessions", batch(["value"]), partition=index) for index in (0, 1)]
        assert [answer.error_code for answer in answers] == [0, 0]

    # The three followers of each have fetched this; sessions of fetchers that ended stay until there is no room.
    write()
    before = {leader: cluster.fetch_session_count(leader) for leader in (1, 11)}
    for _ in range(10):
        write()
    # All of it was fetched three times, by requests that went on with the sessions that there were.
    assert before == {leader: cluster.fetch_session_count(leader) for leader in (1, 11)}
    assert min(before.values()) >= 3


@KINDS
def test_a_leader_that_comes_back_truncates_what_no_other_had(cluster: MixedCluster, kind: Kind) -> None:
    """The leader is of `kind`, the follower, which leads next, of the other; the controller is the leader's fellow."""
    first, fellow = IDS[kind]
    second = IDS[kind.other][0]
    topic = f"truncated-by-{kind.value}"
    cluster.move_controller(fellow)
    create_assigned_topic(cluster, topic, [(first, second)])
    assert produce(cluster, topic, batch(["both"] * 10)).base_offset == 0
    with cluster.suspended(second):
        # The first of these may be the answer to the fetch that waits; the others, nobody has fetched.
        for _ in range(5):
            assert produce(cluster, topic, batch(["lost"]), acks=1, leader=first).error_code == 0
        cluster.brokers[first].kill()
    wait_until(lambda: cluster.partition_state(topic, 0)["leader"] == second, "the follower leads", PATIENCE_SECONDS)
    answer = produce(cluster, topic, batch(["kept"] * 3))
    assert answer.error_code == 0
    assert 10 <= answer.base_offset < 15
    cluster.brokers[first].start()
    cluster.wait_until_whole(topic)
    segments = wait_until_equal(cluster, topic, 0, (first, second))
    assert (segments.count(b"both"), segments.count(b"kept")) == (10, 3)
    assert segments.count(b"lost") == answer.base_offset - 10


@pytest.mark.night(
    "40 s for each kind; it has found nothing, and log directories go from one kind to the other by day too"
)
@KINDS
def test_a_broker_goes_on_where_one_of_the_other_kind_stopped(cluster: MixedCluster, kind: Kind) -> None:
    """With its id, on its log directory; and back."""
    broker_id, other = IDS[kind][0], IDS[kind.other][1]
    topic = f"exchanged-{kind.value}"
    create_assigned_topic(cluster, topic, [(broker_id, other)])
    for values in (["first"] * 20, ["second"] * 20):
        assert produce(cluster, topic, batch(values)).error_code == 0
    with cluster.exchanged(broker_id):
        cluster.wait_until_whole(topic)
        assert produce(cluster, topic, batch(["third"] * 20)).base_offset == 40
        wait_until_equal(cluster, topic, 0, (broker_id, other))
    cluster.wait_until_whole(topic)
    assert produce(cluster, topic, batch(["fourth"])).base_offset == 60
    wait_until_equal(cluster, topic, 0, (broker_id, other))


@KINDS
def test_leaders_of_either_kind_change_the_isr_by_controllers_of_the_other(cluster: MixedCluster, kind: Kind) -> None:
    """The leader is of `kind`; the follower that sleeps, and the controller, are of the other."""
    leader, (follower, controller) = IDS[kind][0], IDS[kind.other]
    topic = f"in-sync-with-{kind.value}"
    cluster.move_controller(controller)
    create_assigned_topic(cluster, topic, [(leader, follower)])
    before = cluster.partition_state(topic, 0)
    with cluster.suspended(follower):
        # Acknowledged by all in sync: only once the follower is out of the ISR.
        assert produce(cluster, topic, batch(["without"]), leader=leader).error_code == 0
        shrunk = cluster.partition_state(topic, 0)
        assert str(follower) in cluster.children("/brokers/ids")
    assert shrunk == {**before, "isr": [leader]}
    assert cluster.wait_until_whole(topic)
    assert cluster.partition_state(topic, 0) == before
    wait_until_equal(cluster, topic, 0, (leader, follower))


@KINDS
def test_configs_changed_at_either_kind_act_at_both(cluster: MixedCluster, kind: Kind) -> None:
    """The change is asked of a broker of `kind`; it must act at leaders of both kinds."""
    topic = f"configs-of-{kind.value}"
    create_assigned_topic(cluster, topic, [(1, 11), (11, 1)])
    small, large = batch(["x" * 100]), batch(["x" * 5_000])

    def takes(records: bytearray) -> list[bool]:
        codes = [produce(cluster, topic, records, partition=partition).error_code for partition in (0, 1)]
        assert set(codes) <= {0, ErrorCode.MESSAGE_TOO_LARGE}
        return [code == 0 for code in codes]

    assert takes(large) == [True, True]
    changes = len(cluster.children("/config/changes"))
    # Of all brokers, by the name that a topic's config has there; then of the topic, which goes first.
    for resource, name, value, acts in (
        ((BROKER_RESOURCE, ""), "message.max.bytes", "1000", [False, False]),
        ((TOPIC_RESOURCE, topic), "max.message.bytes", "10000", [True, True]),
        ((BROKER_RESOURCE, ""), "message.max.bytes", "1048588", [True, True]),
        ((TOPIC_RESOURCE, topic), "max.message.bytes", "2000", [False, False]),
    ):
        set_config(cluster, IDS[kind][0], resource, name, value)
        changes += 1
        assert len(cluster.children("/config/changes")) == changes
        wait_until(lambda: takes(large) == acts, f"{name}={value} acts", PATIENCE_SECONDS)  # noqa: B023
    assert takes(small) == [True, True]


def test_notifications_about_what_is_not_there_yet_do_no_harm(cluster: MixedCluster) -> None:
    """Apache Kafka's brokers change quotas of clients, which Barnabas has not yet; later changes must still act."""
    entity = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name="someone")
    quota = AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1e9, remove=False)
    request = AlterClientQuotasRequest(
        entries=[AlterClientQuotasRequest.EntryData(entity=[entity], ops=[quota])], validate_only=False
    )
    (answer,) = call(cluster.port(11), ApiKey.ALTER_CLIENT_QUOTAS, 1, request).entries
    assert answer.error_code == 0
    create_assigned_topic(cluster, "after-quotas", [(1, 11)])
    set_config(cluster, 11, (TOPIC_RESOURCE, "after-quotas"), "max.message.bytes", "1000")
    wait_until(
        lambda: produce(cluster, "after-quotas", batch(["x" * 5_000])).error_code == ErrorCode.MESSAGE_TOO_LARGE,
        "the change acts",
        PATIENCE_SECONDS,
    )


@KINDS
def test_producer_ids_are_given_once_by_either_controller(cluster: MixedCluster, kind: Kind) -> None:
    controller = IDS[kind][0]
    cluster.move_controller(controller)
    blocks = []
    for broker_id in ALL_IDS:
        epoch = cluster.broker_epoch(broker_id)
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        answer = call(cluster.port(controller), ApiKey.ALLOCATE_PRODUCER_IDS, 0, request)
        assert (answer.error_code, answer.producer_id_len) == (0, 1_000)
        blocks.append(answer.producer_id_start)
        first, last = str(answer.producer_id_start), str(answer.producer_id_start + 999)
        kept = {"version": 1, "broker": broker_id, "block_start": first, "block_end": last}
        assert cluster.znode("/latest_producer_id_block") == kept
    assert blocks == list(range(blocks[0], blocks[0] + 4_000, 1_000))
    stale = AllocateProducerIdsRequest(broker_id=1, broker_epoch=0)
    refused = call(cluster.port(controller), ApiKey.ALLOCATE_PRODUCER_IDS, 0, stale)
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH
    given = [init_producer_id(cluster, broker_id) for broker_id in ALL_IDS for _ in range(5)]
    assert len(set(given)) == len(given)
    assert not {identity // 1_000 for identity in given} & {start // 1_000 for start in blocks}


@KINDS
def test_requests_to_a_brokers_former_life_and_of_a_former_controller_are_refused_by_both_kinds(
    cluster: MixedCluster, kind: Kind
) -> None:
    """An epoch above the broker's own is taken: the request may overtake its registration; so is none at all. What is
    taken names no partition, and what is refused would do harm.
    """
    broker_id = IDS[kind][1]
    controller, epoch = cluster.controller(), cluster.controller_epoch()
    life = cluster.broker_epoch(broker_id)

    def answered(api_key: ApiKey, version: int, request: Any, broker_epoch: int, controller_epoch: int = epoch) -> int:
        request.controller_id, request.controller_epoch = controller, controller_epoch
        request.broker_epoch = broker_epoch
        return int(call(cluster.port(broker_id), api_key, version, request).error_code)

    for stale in (0, life - 1):
        assert answered(ApiKey.UPDATE_METADATA, 8, UpdateMetadataRequest(), stale) == ErrorCode.STALE_BROKER_EPOCH
        assert answered(ApiKey.LEADER_AND_ISR, 7, LeaderAndIsrRequest(), stale) == ErrorCode.STALE_BROKER_EPOCH
        assert answered(ApiKey.STOP_REPLICA, 4, StopReplicaRequest(), stale) == ErrorCode.STALE_BROKER_EPOCH
    for known in (life, life + 1, -1):
        assert answered(ApiKey.LEADER_AND_ISR, 7, LeaderAndIsrRequest(), known) == 0
        assert answered(ApiKey.STOP_REPLICA, 4, StopReplicaRequest(), known) == 0
    refused = ErrorCode.STALE_CONTROLLER_EPOCH
    assert answered(ApiKey.LEADER_AND_ISR, 7, LeaderAndIsrRequest(), life, epoch - 1) == refused
    assert answered(ApiKey.STOP_REPLICA, 4, StopReplicaRequest(), life, epoch - 1) == refused
    assert answered(ApiKey.UPDATE_METADATA, 8, UpdateMetadataRequest(), life, epoch - 1) == refused
    cluster.wait_until_agreed()


def init_producer_id(cluster: MixedCluster, broker_id: int) -> int:
    """A new producer id from this broker; waits while it has to ask the controller."""

    def given() -> Any:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = call(cluster.port(broker_id), ApiKey.INIT_PRODUCER_ID, 4, request)
        assert answer.error_code in {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        return answer if answer.error_code == 0 else None

    return int(wait_until(given, "a producer id is given", PATIENCE_SECONDS).producer_id)


def test_groups_and_producers_go_on_when_controlled_shutdowns_move_leaders_between_kinds(cluster: MixedCluster) -> None:
    """From Barnabas to Apache Kafka, by Apache Kafka's controller, and back, by ours."""
    topic, group = (
        "moving",
        next(f"group-{number}" for number in range(100) if partition_for(f"group-{number}", 4) == 0),
    )
    assert OFFSETS_ASSIGNMENT[0] == (1, 11, 2)
    create_assigned_topic(cluster, topic, [(1, 11, 2), (1, 11, 2)], **{"min.insync.replicas": "2"})
    elect_preferred_leaders(cluster, OFFSETS_TOPIC, len(OFFSETS_ASSIGNMENT))
    members = [
        Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "client.id": f"member-{number}",
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 500,
                "enable.auto.commit": False,
            }
        )
        for number in range(2)
    ]
    try:
        for member in members:
            member.subscribe([topic])
        wait_until(lambda: have_shares(members), "both members have a share", PATIENCE_SECONDS)
        described = describe_group(cluster, 1, group)
        assert described[1] == "Stable"
        assert len(described[4]) == 2
        producer_id, sequence = init_producer_id(cluster, 1), 0
        last = None
        for coordinator, successor, controller in ((1, 11, 12), (11, 1, 2)):
            cluster.move_controller(controller)
            assert cluster.leader(topic) == cluster.leader(OFFSETS_TOPIC) == coordinator
            first, repeated = (
                batch(["a"] * 3, (producer_id, 0, sequence)),
                batch(["b"] * 2, (producer_id, 0, sequence + 3)),
            )
            assert [produce(cluster, topic, each).error_code for each in (first, repeated)] == [0, 0]
            sequence += 5
            for member in members:
                (share,) = member.assignment()
                offset = TopicPartition(topic, share.partition, sequence * 10 + share.partition, f"by {coordinator}")
                (done,) = member.commit(offsets=[offset], asynchronous=False)
                assert done.error is None
            epoch = cluster.partition_state(topic, 0)["leader_epoch"]
            cluster.brokers[coordinator].stop()
            assert cluster.leader(topic) == cluster.leader(OFFSETS_TOPIC) == successor
            assert cluster.partition_state(topic, 0)["leader_epoch"] == epoch + 1
            wait_until(lambda: describe_group(cluster, successor, group)[0] == 0, "the group is loaded")  # noqa: B023
            assert describe_group(cluster, successor, group) == described
            committed = members[0].committed([TopicPartition(topic, index) for index in (0, 1)], timeout=60)
            assert [(each.offset, each.metadata) for each in committed] == [
                (sequence * 10 + index, f"by {coordinator}") for index in (0, 1)
            ]
            # A repetition is known as one, and a gap is refused, by a leader that never saw the producer before.
            again, gap = (
                produce(cluster, topic, repeated),
                produce(cluster, topic, batch(["c"], (producer_id, 0, sequence + 1))),
            )
            assert (again.error_code, again.base_offset) == (0, sequence - 2)
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            cluster.brokers[coordinator].start()
            cluster.wait_until_whole(topic)
            cluster.wait_until_whole(OFFSETS_TOPIC)
            last = successor
        assert last == 1
        assert describe_group(cluster, 1, group) == described
    finally:
        for member in members:
            member.close()
    wait_until_equal(cluster, OFFSETS_TOPIC, 0, OFFSETS_ASSIGNMENT[0])
    assert wait_until_equal(cluster, topic, 0, (1, 11, 2))


def have_shares(members: Sequence[Consumer]) -> bool:
    """Whether every member has a partition; each is polled, which is how it joins."""
    for member in members:
        member.poll(0.05)
    return all(member.assignment() for member in members)


def describe_group(cluster: MixedCluster, broker_id: int, group: str) -> Any:
    """Error, state, protocol and members of a group as this broker tells."""
    request = DescribeGroupsRequest(groups=[group])
    (found,) = call(cluster.port(broker_id), ApiKey.DESCRIBE_GROUPS, 5, request).groups
    members = sorted(
        (each.member_id, each.client_id, each.client_host, bytes(each.member_metadata), bytes(each.member_assignment))
        for each in found.members
    )
    return found.error_code, found.group_state, found.protocol_type, found.protocol_data, members
