"""Faults by call, as real clients see them; tests/cluster/test_kafka_cluster_processes.py has those of processes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from barnabas.testing import KafkaCluster, NodeError
from barnabas.testing.cluster_nodes import NodeCluster
from barnabas.testing.real_links import NodeLinks
from tests.unit.testing.user_clients import consume, produce

Made = Callable[..., KafkaCluster]


@pytest.fixture(scope="module")
def made() -> Made:
    """What makes a cluster, of the kind that these tests are about."""
    return KafkaCluster


@pytest.fixture(scope="module")
def three(made: Made) -> Iterator[KafkaCluster]:
    with made(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers without faults, all in sync again before the next test."""
    yield three
    three.mend()


def test_a_killed_leader_is_replaced_and_no_acknowledged_record_is_lost(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    leader = cluster.leader(topic)
    assert produce(cluster.bootstrap_servers, topic, b"before", acks="all")[0][0] is None
    cluster.kill(leader)
    assert not cluster.is_running(leader)
    with pytest.raises(NodeError, match="does not run"):
        cluster.kill(leader)
    assert cluster.leader(topic) == leader, "its session is left to expire"
    cluster.expire_session(leader)
    assert cluster.wait_for_leader(topic, other_than=leader) != leader
    assert produce(cluster.bootstrap_servers, topic, b"after", acks="all")[0][0] is None
    cluster.start_broker(leader)
    assert consume(cluster.bootstrap_servers, topic, 2, "after-a-kill") == [b"before", b"after"]


def test_a_killed_broker_resets_its_connections() -> None:
    with KafkaCluster() as cluster:
        topic = cluster.create_topic()
        host, _, port = cluster.address(1).rpartition(":")
        connection = socket.create_connection((host, int(port)), 30)
        errors: list[str] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "error_cb": lambda error: errors.append(error.name())}
        )
        assert topic in producer.list_topics(timeout=30).topics
        cluster.kill(1)
        with connection, pytest.raises(ConnectionResetError):
            connection.recv(1)
        ends_at = time.monotonic() + 30
        while not errors and time.monotonic() < ends_at:
            producer.poll(0.05)
        assert "_TRANSPORT" in errors or "_ALL_BROKERS_DOWN" in errors
        cluster.expire_session(1)
        cluster.start_broker(1)
        assert topic in producer.list_topics(timeout=30).topics


def test_a_paused_broker_answers_nobody_and_goes_on_where_it_was(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(replication_factor=1)
    leader = cluster.leader(topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    reports: list[object] = []
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    cluster.pause(leader)
    producer.produce(topic, b"meanwhile", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(0.5) == 1
    assert reports == []
    with pytest.raises(NodeError, match="is paused: resume it first"):
        cluster.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", broker=leader)
    cluster.resume(leader)
    assert producer.flush(30) == 0
    assert reports == [None]


def test_a_paused_broker_stays_so_while_partitions_of_others_come_and_go(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(replication_factor=1)
    paused = cluster.leader(topic)
    one, other = (broker for broker in cluster.broker_ids if broker != paused)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    cluster.partition(paused, one)
    cluster.pause(paused)
    producer.produce(topic, b"meanwhile")
    with pytest.raises(NodeError, match="is paused: resume it first"):
        cluster.partition(paused, other)
    cluster.partition(one, other)
    cluster.heal()
    assert producer.flush(0.5) == 1
    cluster.resume(paused)
    assert producer.flush(30) == 0
    assert cluster.create_topic(replication_factor=3), "all reach each other"


def test_a_stopped_broker_hands_its_leaders_over_and_comes_back_on_its_port(cluster: KafkaCluster) -> None:
    topic, servers = cluster.create_topic(), cluster.bootstrap_servers
    leader = cluster.leader(topic)
    cluster.stop_broker(leader)
    # The broker that is asked may be told of it a moment later.
    assert cluster.wait_for_leader(topic, other_than=leader) not in {-1, leader}
    cluster.start_broker(leader)
    assert cluster.bootstrap_servers == servers
    cluster.move_leader(topic, to=leader)
    assert cluster.leader(topic) == leader


def test_a_leader_moves_also_to_a_broker_without_a_replica(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(replication_factor=1)
    assert produce(cluster.bootstrap_servers, topic, b"before")[0][0] is None
    other = next(broker for broker in cluster.broker_ids if broker != cluster.leader(topic))
    cluster.move_leader(topic, to=other)
    assert (cluster.leader(topic), cluster.replicas(topic)) == (other, (other,))
    assert consume(cluster.bootstrap_servers, topic, 1, "after-a-move") == [b"before"]


def test_a_broker_that_no_other_reaches_leaves_the_isr_while_clients_reach_it(made: Made) -> None:
    with made(brokers=3, config={"replica.lag.time.max.ms": 1000}) as cluster:
        topic = cluster.create_topic()
        leader = cluster.leader(topic)
        cut_off = next(broker for broker in cluster.broker_ids if broker not in {leader, cluster.controller()})
        cluster.partition(cut_off, *(broker for broker in cluster.broker_ids if broker != cut_off))
        assert produce(cluster.bootstrap_servers, topic, b"one", acks="all")[0][0] is None
        _until(lambda: cut_off not in cluster.in_sync_replicas(topic))
        cluster.heal()
        _until(lambda: cut_off in cluster.in_sync_replicas(topic))


def test_a_broker_without_the_coordinator_loses_its_session_and_its_leaders(made: Made) -> None:
    with made(brokers=2, session_timeout_ms=4_000) as cluster:
        topic = cluster.create_topic()
        leader = cluster.leader(topic)
        cluster.partition(leader, "coordinator")
        other = cluster.wait_for_leader(topic, other_than=leader)
        # The one that is cut off takes itself for the leader, and says so to clients that ask it.
        assert produce(cluster.address(other), topic, b"one")[0][0] is None
        cluster.heal()
        _until(lambda: set(cluster.in_sync_replicas(topic)) == {leader, other})


def test_a_broker_whose_session_expires_registers_again(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    leader = cluster.leader(topic)
    cluster.expire_session(leader)
    _until(lambda: set(cluster.in_sync_replicas(topic)) == set(cluster.broker_ids))
    assert produce(cluster.bootstrap_servers, topic, b"one", acks="all")[0][0] is None


def test_who_was_mended_is_known_to_the_controller(cluster: KafkaCluster) -> None:
    for broker in cluster.broker_ids:
        cluster.expire_session(broker)
        cluster.mend()
        cluster.create_topic(replication_factor=3)


def test_the_next_produce_requests_fail_with_the_error_and_no_more(cluster: KafkaCluster) -> None:
    import kafka.errors

    topic = cluster.create_topic()
    servers, leader = cluster.bootstrap_servers, cluster.leader(topic)
    producer = kafka.KafkaProducer(bootstrap_servers=servers, retries=0, acks=1, enable_idempotence=False)
    assert producer.send(topic, b"first").get(30).offset == 0
    cluster.fail_requests("Produce", "MESSAGE_TOO_LARGE", count=2, broker=leader)
    for _ in range(2):
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            producer.send(topic, b"refused").get(30)
    assert cluster.requests_to_fail("Produce") == 0
    assert producer.send(topic, b"second").get(30).offset == 1
    producer.close()
    assert consume(servers, topic, 2, "after-errors") == [b"first", b"second"]


def test_a_producer_that_repeats_gets_over_an_error(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    cluster.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", count=3, broker=cluster.leader(topic))
    ((error, message),) = produce(cluster.bootstrap_servers, topic, b"one")
    assert (error, message.offset()) == (None, 0)
    assert cluster.requests_to_fail("Produce") == 0


def test_faults_follow_each_other_and_spare_other_clients(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    leader = cluster.leader(topic)
    for error in ("MESSAGE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED"):
        cluster.fail_requests("Produce", error, broker=leader, client_id="one")
    assert produce(cluster.bootstrap_servers, topic, b"x", client_id="two")[0][0] is None
    names = [produce(cluster.bootstrap_servers, topic, b"x", client_id="one")[0][0].name() for _ in range(2)]
    assert names == ["MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED"]
    cluster.fail_requests("Fetch", "UNKNOWN_SERVER_ERROR", count=1000, broker=leader)
    assert produce(cluster.bootstrap_servers, topic, b"x", acks="all")[0][0] is None, "followers fetch as before"
    assert cluster.requests_to_fail("Fetch") == 1000


def test_faults_of_requests_spare_what_the_cluster_itself_asks(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    for api in ("Metadata", "CreateTopics", "DeleteTopics"):
        cluster.fail_requests(api, "UNKNOWN_SERVER_ERROR")
    assert cluster.leader(topic) in cluster.broker_ids
    cluster.delete_topic(cluster.create_topic())
    assert [cluster.requests_to_fail(api) for api in ("Metadata", "CreateTopics", "DeleteTopics")] == [3, 3, 3]


def test_a_client_is_not_taken_for_a_broker_that_has_its_port_on_another_connection() -> None:
    """A port of our own is one for each listener that it is connected to."""
    links = NodeLinks()
    made = []
    for port in (9001, 9002):
        made.append(links.wrap(asyncio.Protocol, port)())
        made[-1].connection_made(ConnectedTransport())
    assert links.has_connection(40000, 9001)
    assert not links.has_connection(40000, 9003)
    made[0].connection_lost(None)
    assert (links.has_connection(40000, 9001), links.has_connection(40000, 9002)) == (False, True)


class ConnectedTransport(asyncio.Transport):
    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 40000) if name == "sockname" else default


def test_an_answer_that_is_lost_makes_a_plain_producer_write_twice_and_an_idempotent_one_once(
    cluster: KafkaCluster,
) -> None:
    for is_idempotent, count in ((False, 2), (True, 1)):
        topic = cluster.create_topic()
        cluster.lose_answers("Produce", broker=cluster.leader(topic))
        reports = produce(
            cluster.bootstrap_servers, topic, b"once?", enable_idempotence=is_idempotent, retry_backoff_ms=10
        )
        assert reports[0][0] is None
        assert produce(cluster.bootstrap_servers, topic, b"end")[0][1].offset() == count


def test_a_delayed_answer_comes_late_and_the_next_in_time(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    producer.produce(topic, b"first")
    assert producer.flush(30) == 0
    cluster.delay_requests("Produce", 0.7, broker=cluster.leader(topic))
    began = time.monotonic()
    producer.produce(topic, b"late")
    assert producer.flush(30) == 0
    assert time.monotonic() - began >= 0.65
    assert cluster.requests_to_fail("Produce") == 0
    cluster.delay_requests("Produce", 300, broker=cluster.leader(topic))
    producer.produce(topic, b"very late")
    _until(lambda: cluster.requests_to_fail("Produce") == 0)
    assert producer.flush(0.3) == 1
    cluster.clear_faults()
    assert producer.flush(60) == 0


def test_a_slow_disk_holds_acknowledgements_up(made: Made) -> None:
    with made() as cluster:
        topic = cluster.create_topic()
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        producer.produce(topic, b"first")
        assert producer.flush(30) == 0
        cluster.slow_disk(1, 0.5)
        began = time.monotonic()
        producer.produce(topic, b"slow")
        assert producer.flush(30) == 0
        assert time.monotonic() - began >= 0.45
        with pytest.raises(ValueError, match="0 to 60 s"):
            cluster.slow_disk(1, 61)
        cluster.slow_disk(1, 0)


def test_a_disk_that_is_fast_again_is_so_for_what_waits_for_it_too(made: Made) -> None:
    with made() as cluster:
        topic = cluster.create_topic()
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        producer.produce(topic, b"first")
        assert producer.flush(30) == 0
        cluster.slow_disk(1, 60)
        producer.produce(topic, b"slow")
        assert producer.flush(0.5) == 1
        cluster.slow_disk(1, 0)
        assert producer.flush(30) == 0


def test_requests_without_faults_take_the_fast_path_again(cluster: KafkaCluster) -> None:
    """The hook is gone when it is not used: what the dispatcher has is what it had."""
    topic = cluster.create_topic()
    leader = cluster.leader(topic)
    nodes = cluster._running()
    assert isinstance(nodes, NodeCluster)
    broker = nodes._members[leader].broker
    assert broker is not None
    dispatcher = broker.components.dispatcher
    produce(cluster.bootstrap_servers, topic, b"one")
    cluster.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", broker=leader)
    assert all(route.fast_path is None for route in dispatcher._routes.values() if route.api_key == 0)
    produce(cluster.bootstrap_servers, topic, b"two")
    assert not dispatcher._stand_ins
    assert all(route.fast_path is not None for route in dispatcher._routes.values() if route.api_key == 0)


def test_what_there_is_not_is_said(cluster: KafkaCluster) -> None:
    with pytest.raises(ValueError, match="brokers 1 to 3 and 'coordinator'"):
        cluster.pause(4)
    with pytest.raises(ValueError, match="there is no API 'Produced'"):
        cluster.fail_requests("Produced", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ValueError, match="Kafka has no error 'OOPS'"):
        cluster.fail_requests("Produce", "OOPS")
    wrong: tuple[Any, ...] = (0, 2.5, "3")
    for count in wrong:
        with pytest.raises(ValueError, match="a whole number and at least 1"):
            cluster.fail_requests("Produce", 6, count=count)
    assert cluster.requests_to_fail("Produce") == 0
    assert threading.active_count() < 100


def _until(holds: object) -> None:
    ends_at = time.monotonic() + 60
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < ends_at, "it did not come to that"
        time.sleep(0.01)
