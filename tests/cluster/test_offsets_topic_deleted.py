"""`__consumer_offsets` is deleted under groups whose members are active: they go on, with nothing restarted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from barnabas.wire.topics import OFFSETS_TOPIC
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import controller_port, create_topic, delete_topic, metadata

PARTITIONS = 4
MEMBERS = 3
PATIENCE_SECONDS = 60.0
NEW_PARTITIONS = 11


class Member:
    """Reads and commits in a thread until it is closed; counts what it has read, and its commits that succeeded."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self.values: set[str] = set()
        self.commits = 0
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self.values.add(message.value().decode())
            try:
                done = self._consumer.commit(message=message, asynchronous=False)
                self.commits += all(each.error is None for each in done)
            except KafkaException:
                continue  # the group is on its way to its new coordinator
        self._consumer.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    overrides = {"offsets.topic.num.partitions": 5, "offsets.topic.replication.factor": 2}
    with broker_cluster(tmp_path_factory.mktemp("offsets"), 2, overrides=overrides) as made:
        create_topic(made.brokers[1].port, "flights", PARTITIONS, 2)
        yield made


def produce(cluster: BrokerCluster, values: set[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, value in enumerate(sorted(values)):
        producer.produce("flights", value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0


def read_by(members: list[Member], values: set[str]) -> None:
    wait_until(
        lambda: values <= set().union(*(member.values for member in members)),
        "the group reads what is new",
        PATIENCE_SECONDS,
    )


def raise_leader_epochs(cluster: BrokerCluster) -> None:
    """Restarts one broker after the other, and waits until every partition of the topic is led above epoch 0."""
    for broker in cluster.brokers.values():
        assert broker.stop() == 0
        broker.start()
        wait_until(lambda: all(epochs) if (epochs := leader_epochs(broker.port)) else None, "all are led")  # noqa: B023
    wait_until(lambda: min(leader_epochs(cluster.brokers[1].port), default=0) > 0, "epochs above 0")


def leader_epochs(port: int) -> list[int]:
    """Of `__consumer_offsets`, as the broker knows them; empty while a partition lacks a leader or a replica."""
    (topic,) = metadata(port, [OFFSETS_TOPIC]).topics
    partitions = topic.partitions
    if any(partition.leader_id < 0 or len(partition.isr_nodes) < 2 for partition in partitions):
        return []
    return [partition.leader_epoch for partition in partitions]


def created_again(port: int) -> bool:
    """Whether the topic could be made: brokers do not know the old one any more a moment before its znode is gone."""
    try:
        create_topic(port, OFFSETS_TOPIC, NEW_PARTITIONS, 2, **{"cleanup.policy": "compact"})
    except RuntimeError as error:
        if "marked for deletion" not in str(error):
            raise
        return False
    return True


def test_groups_with_active_members_go_on_under_the_new_topic(cluster: BrokerCluster) -> None:
    create_topic(cluster.brokers[1].port, OFFSETS_TOPIC, 5, 2, **{"cleanup.policy": "compact"})
    raise_leader_epochs(cluster)
    members = [Member(cluster.bootstrap_servers, f"g{number}", "flights") for number in range(MEMBERS)]
    members += [Member(cluster.bootstrap_servers, "g0", "flights")]
    first = {f"first-{number}" for number in range(40)}
    produce(cluster, first)
    for group in (members[0:1] + members[3:], members[1:2], members[2:3]):
        read_by(group, first)
    command = [sys.executable, "-m", "barnabas.cli", "topic", "delete", OFFSETS_TOPIC]
    command += ["--bootstrap-server", cluster.bootstrap_servers]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    done = subprocess.run([*command, "--force"], capture_output=True, text=True, timeout=60, check=False)
    # Members make the topic anew at once, so that the command may never see it gone.
    assert "Deleted" in done.stdout or "is known" in done.stderr, done.stderr
    committed = [member.commits for member in members[1:3]]
    second = {f"second-{number}" for number in range(40)}
    produce(cluster, second)
    for group in (members[0:1] + members[3:], members[1:2], members[2:3]):
        read_by(group, second)
    for member, before in zip(members[1:3], committed, strict=True):
        wait_until(lambda: member.commits > before, "commits succeed again")  # noqa: B023
    for member in members:
        member.close()


def test_groups_find_their_place_in_a_topic_of_another_size(cluster: BrokerCluster) -> None:
    port = cluster.brokers[1].port
    # Whatever the test before has left behind, there is a topic now.
    earlier = {"earlier"}
    produce(cluster, earlier)
    member = Member(cluster.bootstrap_servers, "earlier", "flights")
    read_by([member], earlier)
    wait_until(lambda: member.commits > 0, "a commit succeeds")
    member.close()
    wait_until(lambda: metadata(controller_port(port), [OFFSETS_TOPIC]).topics[0].error_code == 0, "it is known")
    delete_topic(port, OFFSETS_TOPIC)
    wait_until(lambda: metadata(port, [OFFSETS_TOPIC]).topics[0].error_code != 0, "the topic is gone")
    wait_until(lambda: created_again(port), "the topic can be made again")
    values = {f"third-{number}" for number in range(40)}
    produce(cluster, values)
    members = [Member(cluster.bootstrap_servers, f"other-{number}", "flights") for number in range(MEMBERS)]
    for member in members:
        read_by([member], values)
        wait_until(lambda: member.commits > 0, "commits succeed")  # noqa: B023
        member.close()
