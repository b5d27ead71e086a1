"""kill -9 of the controller at each numbered step of a reassignment and of a deletion: the next controller finishes it.

The steps are known by what the controller writes: a door before the coordinator stops it there. What it does between
two writes (new replicas, requests to brokers) is done, or not, when it is stopped at the next one. One step of each by
default; all of them, each behind its write, with BARNABAS_LONG_FAILURES=1 (`make test-cluster`; two of each in
`.ci/run`); and with BARNABAS_ALL_STEPS=1 too, as the nightly does, also ahead of it: the step before, but for what is
done in between. By night all of it on Apache ZooKeeper too. Beside that: a controller that writes late, when another is
elected, and a target that is dead.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from tests.support.broker_process import BrokerProcess
from tests.support.by_night import by_night
from tests.support.coordinator_door import CoordinatorDoor, Write
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.raw_zookeeper import Operation, RawSession, create, delete, read
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at, call, controller_port, leaders, metadata
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(900)
LONG = os.environ.get("BARNABAS_LONG_FAILURES") == "1"
SECONDS_MAX = 150.0
BROKERS = (1, 2, 3, 4)
OLD, NEW = (1, 2), (3, 4)
RECORDS = 20
REQUESTS = "/admin/reassign_partitions"
BEFORE, BEHIND = pytest.param(False, id="before it is written"), pytest.param(True, id="when it is written")
ALL_STEPS = LONG and os.environ.get("BARNABAS_ALL_STEPS") == "1"
OTHER_STEP = "10 to 20 s for each step, and no commit says that one has found anything"
REAL_ZOOKEEPER = by_night("10 to 20 s for each test, and no commit says that it has found anything", "zookeeper")
COORDINATORS = ("embedded", *REAL_ZOOKEEPER) if LONG else ("embedded",)
WHERE = pytest.mark.parametrize("is_behind", [BEFORE, BEHIND] if ALL_STEPS else [BEHIND])
OVERRIDES = {
    "zookeeper.session.timeout.ms": 4_000,
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.replication.factor": 1,
}


class Cluster:
    """Four brokers, whose coordinator is behind a door."""

    def __init__(self, directory: Path, coordinator: str) -> None:
        self.coordinator: EmbeddedCoordinator | ZooKeeperServer = (
            ZooKeeperServer(directory / "coordinator")
            if coordinator == "zookeeper"
            else EmbeddedCoordinator(directory / "coordinator", options=("--tick-time", "500"))
        )
        self.coordinator.start()
        self.door = CoordinatorDoor(self.coordinator.port)
        self.brokers = {
            number: BrokerProcess(
                directory / f"broker-{number}", number, f"127.0.0.1:{self.door.port}", overrides=OVERRIDES
            )
            for number in BROKERS
        }
        for broker in self.brokers.values():
            broker.start(wait=False)
        self.wait_until_whole()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.door.close()
        self.coordinator.stop()

    def wait_until_whole(self) -> None:
        for broker in self.brokers.values():
            broker.wait_until_ready(SECONDS_MAX)
        for broker in self.brokers.values():
            self.wait(lambda: brokers_known_at(broker.port) == list(BROKERS), "all brokers know all")  # noqa: B023

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, SECONDS_MAX, self.tails)

    def tails(self) -> str:
        return "\n".join(broker.log_tail(20) for broker in self.brokers.values())

    # Znodes, past the door.

    def get(self, path: str) -> Any:
        """What a znode holds; None where there is none."""
        with self._session() as session:
            reply = session.call(read(Operation.GET_DATA, path))
        return None if reply.error else json.loads(reply.body[0] or b"null")

    def exists(self, path: str) -> bool:
        with self._session() as session:
            return not session.call(read(Operation.EXISTS, path)).error

    def remove(self, *paths: str) -> None:
        with self._session() as session:
            for path in paths:
                assert session.call(delete(path)).error == 0

    def session_of(self, broker_id: int) -> object:
        """In which the broker is registered."""
        with self._session() as session:
            return session.call(read(Operation.EXISTS, f"/brokers/ids/{broker_id}")).body.ephemeral_owner

    def times_resigned(self, broker_id: int) -> int:
        return self.brokers[broker_id].log_path.read_text("utf-8", "replace").count("Resigned")

    def put(self, path: str, value: Any) -> None:
        with self._session() as session:
            assert session.call(create(path, json.dumps(value).encode())).error == 0

    @contextlib.contextmanager
    def _session(self) -> Iterator[RawSession]:
        session = RawSession(self.coordinator.port)
        session.connect()
        try:
            yield session
        finally:
            session.close()

    # What is done to it.

    def make_topic(self, topic: str) -> None:
        """With records on all of its replicas."""
        self.put(topic_path(topic), {"version": 1, "partitions": {"0": OLD}})
        self.wait(lambda: self.is_led_by_all(topic, OLD), "the topic is there")
        failures: list[object] = []
        producer = Producer({"bootstrap.servers": self.brokers[1].address, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(SECONDS_MAX) == 0
        assert failures == [None] * RECORDS

    def is_led_by_all(self, topic: str, replicas: tuple[int, ...]) -> bool:
        state = self.get(state_path(topic))
        return bool(
            state
            and set(state["isr"]) == set(replicas)
            and all(leaders(broker.port, topic) == {0: state["leader"]} for broker in self.brokers.values())
        )

    def kill_the_controller_at(
        self, is_there: Callable[[Write], bool], is_behind: bool, act: Callable[[], None]
    ) -> int:
        """`act` has the controller begin; once it has come there it is killed, and started when another is elected.
        Returns which broker it was.
        """
        stop = self.door.stop_at(is_there, is_behind=is_behind)
        act()
        self.wait(stop.reached.is_set, "the controller comes there")
        killed = self.get("/controller")["brokerid"]
        self.brokers[killed].kill()
        self.wait(lambda: (self.get("/controller") or {}).get("brokerid", killed) != killed, "another is elected")
        self.brokers[killed].start(wait=False)
        self.wait_until_whole()
        return int(killed)

    def has_directory(self, broker_id: int, topic: str) -> bool:
        """Of a replica; one that is deleted has another name until it is gone."""
        return (self.brokers[broker_id].directory / "data" / f"{topic}-0").exists()

    def count_records(self, topic: str) -> int | None:
        consumer = Consumer({"bootstrap.servers": self.brokers[1].address, "group.id": "none"})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20.0)[1])
        except KafkaException:
            return None
        finally:
            consumer.close()


def topic_path(topic: str) -> str:
    return f"/brokers/topics/{topic}"


def state_path(topic: str) -> str:
    return f"{topic_path(topic)}/partitions/0/state"


@pytest.fixture(scope="module", params=COORDINATORS)
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    built = Cluster(tmp_path_factory.mktemp("controller-kill"), request.param)
    try:
        yield built
    finally:
        built.close()


# Reassignment.


def assigns(write: Write, topic: str, *, is_over: bool) -> bool:
    if write.operation != Operation.SET_DATA or write.path != topic_path(topic):
        return False
    written = json.loads(write.data)
    return bool(written.get("adding_replicas", {}).get("0")) is not is_over and written["partitions"]["0"] != [*OLD]


def leads(write: Write, topic: str, leader: tuple[int, ...], isr: tuple[int, ...]) -> bool:
    """The state with one of these leaders, and just this ISR."""
    if write.operation != Operation.SET_DATA or write.path != state_path(topic):
        return False
    written = json.loads(write.data)
    return written["leader"] in leader and set(written["isr"]) == set(isr)


STEPS_OF_REASSIGNMENT: dict[str, Callable[[Write, str], bool]] = {
    "1 the assignment": lambda write, topic: assigns(write, topic, is_over=False),
    "1 the leader epoch": lambda write, topic: leads(write, topic, OLD, OLD),
    "2 and 3 the target in sync": lambda write, topic: leads(write, topic, OLD, OLD + NEW),
    "4 to 6 the leader": lambda write, topic: leads(write, topic, NEW, OLD + NEW),
    "7 the removed ones leave the ISR": lambda write, topic: leads(write, topic, NEW, NEW),
    "8 and 9 the assignment": lambda write, topic: assigns(write, topic, is_over=True),
    "10 and 11 the request": lambda write, topic: write.path == REQUESTS,
}


def steps(names: Iterable[str], *by_day: str) -> list[Any]:
    """The first one by default, these by day, all by night."""
    if not LONG:
        return [*by_day[:1]]
    return [*by_day, *by_night(OTHER_STEP, *(name for name in names if name not in by_day))]


@WHERE
@pytest.mark.parametrize("step", steps(STEPS_OF_REASSIGNMENT, "4 to 6 the leader", "8 and 9 the assignment"))
def test_a_reassignment_is_finished_by_the_next_controller(cluster: Cluster, step: str, is_behind: bool) -> None:
    topic = f"moved-{[*STEPS_OF_REASSIGNMENT].index(step)}-{is_behind}".lower()
    cluster.make_topic(topic)
    request = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": NEW}]}
    killed = cluster.kill_the_controller_at(
        lambda write: STEPS_OF_REASSIGNMENT[step](write, topic), is_behind, lambda: cluster.put(REQUESTS, request)
    )
    cluster.wait(lambda: not cluster.exists(REQUESTS), "the request is done")
    assert cluster.get(topic_path(topic))["partitions"] == {"0": [*NEW]}
    assert not cluster.get(topic_path(topic))["adding_replicas"]
    assert not cluster.get(topic_path(topic))["removing_replicas"]
    cluster.wait(lambda: cluster.is_led_by_all(topic, NEW), "the new replicas are in sync, and one leads")
    assert cluster.get(state_path(topic))["leader"] in NEW
    # That of a broker that was away is left behind, as with Kafka: nobody waits for its deletion.
    for broker_id in OLD:
        if broker_id != killed:
            cluster.wait(lambda: not cluster.has_directory(broker_id, topic), "the replica is deleted")  # noqa: B023
    cluster.wait(lambda: cluster.count_records(topic) == RECORDS, "every record is there")


# Deletion.


def deletes(write: Write, path: str) -> bool:
    return write.operation == Operation.DELETE and write.path == path


STEPS_OF_DELETION: dict[str, Callable[[Write, str], bool]] = {
    "replicas offline": lambda write, topic: write.operation == Operation.SET_DATA and write.path == state_path(topic),
    "replicas deleted, the states": lambda write, topic: deletes(write, state_path(topic)),
    "the topic": lambda write, topic: deletes(write, topic_path(topic)),
    "the config": lambda write, topic: deletes(write, f"/config/topics/{topic}"),
    "the request": lambda write, topic: deletes(write, f"/admin/delete_topics/{topic}"),
}


@WHERE
@pytest.mark.parametrize("step", steps(STEPS_OF_DELETION, "replicas deleted, the states", "the topic"))
def test_a_deletion_is_finished_by_the_next_controller(cluster: Cluster, step: str, is_behind: bool) -> None:
    topic = f"deleted-{[*STEPS_OF_DELETION].index(step)}-{is_behind}".lower()
    request = f"/admin/delete_topics/{topic}"
    cluster.put(f"/config/topics/{topic}", {"version": 1, "config": {}})
    cluster.make_topic(topic)
    cluster.kill_the_controller_at(
        lambda write: STEPS_OF_DELETION[step](write, topic), is_behind, lambda: cluster.put(request, None)
    )
    cluster.wait(lambda: not cluster.exists(request), "the request is done")
    assert not cluster.exists(topic_path(topic))
    assert not cluster.exists(f"/config/topics/{topic}")
    for broker in cluster.brokers.values():
        cluster.wait(
            lambda: metadata(broker.port, [topic]).topics[0].error_code == 3,  # noqa: B023 - called in this turn
            "nobody knows the topic",
        )
    for broker_id in OLD:
        cluster.wait(lambda: not cluster.has_directory(broker_id, topic), "the replica is deleted")  # noqa: B023


# A controller that is not the controller any more.


def test_what_a_deposed_controller_writes_late_changes_nothing(cluster: Cluster) -> None:
    """Its write is on its way when another is elected, and its session lives: but for the epoch it would be taken,
    since nobody else has written the znode.
    """
    topic = "late"
    cluster.make_topic(topic)
    request = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": NEW}]}
    delay = cluster.door.delay(lambda write: assigns(write, topic, is_over=False))
    cluster.put(REQUESTS, request)
    cluster.wait(delay.reached.is_set, "the controller begins")
    deposed, epoch = cluster.get("/controller")["brokerid"], cluster.get("/controller_epoch")
    # The next controller is to have no reason to write it.
    cluster.remove(REQUESTS, "/controller")
    cluster.wait(lambda: (cluster.get("/controller") or {}).get("brokerid", deposed) != deposed, "another is elected")
    assert cluster.get("/controller_epoch") == epoch + 1
    session, resigned = cluster.session_of(deposed), cluster.times_resigned(deposed)
    delay.release()
    cluster.wait(delay.answered.is_set, "the late write is answered")
    assert cluster.session_of(deposed) == session
    cluster.wait(lambda: cluster.times_resigned(deposed) > resigned, "it resigns")
    assert cluster.get(topic_path(topic))["partitions"] == {"0": [*OLD]}
    assert not cluster.get(topic_path(topic)).get("adding_replicas")
    assert cluster.get("/controller_epoch") == epoch + 1
    cluster.wait_until_whole()
    assert cluster.is_led_by_all(topic, OLD)
    assert cluster.count_records(topic) == RECORDS


# A target that is not there.


def test_a_reassignment_whose_target_has_died_is_shown_and_cancelled_by_the_api(cluster: Cluster) -> None:
    topic = "stuck"
    cluster.make_topic(topic)
    controller = cluster.get("/controller")["brokerid"]
    target = next(broker_id for broker_id in NEW if broker_id != controller)
    others = [broker_id for broker_id in BROKERS if broker_id != target]
    # It is there still when the reassignment begins, and does nothing.
    cluster.brokers[target].suspend()
    try:
        cluster.wait(lambda: alter(cluster, topic, [1, target]) == 0, "the reassignment begins")
        for broker_id in others:
            port = cluster.brokers[broker_id].port
            cluster.wait(lambda: brokers_known_at(port) == others, "its target is dead")  # noqa: B023
        assert cluster.get(topic_path(topic))["adding_replicas"] == {"0": [target]}
        cluster.wait(lambda: moves(cluster) == {topic: ([target], [2])}, "it is shown")
        cluster.wait(lambda: alter(cluster, topic, None) == 0, "it is cancelled")
        assert moves(cluster) == {}
        assert cluster.get(topic_path(topic))["partitions"] == {"0": [*OLD]}
        assert not cluster.get(topic_path(topic))["adding_replicas"]
    finally:
        cluster.brokers[target].resume()
    cluster.wait_until_whole()
    cluster.wait(lambda: cluster.is_led_by_all(topic, OLD), "everything is as before")
    cluster.wait(lambda: cluster.count_records(topic) == RECORDS, "every record is there")


def alter(cluster: Cluster, topic: str, replicas: list[int] | None) -> int:
    """The error code of the partition, or of all."""
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=replicas)
    wanted = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[partition])
    request = AlterPartitionReassignmentsRequest(timeout_ms=60_000, topics=[wanted])
    port = controller_port(cluster.brokers[1].port)
    answer = call(port, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
    return int(answer.error_code or answer.responses[0].partitions[0].error_code)


def moves(cluster: Cluster) -> dict[str, tuple[list[int], list[int]]]:
    """By topic, what partition 0 gains and loses."""
    request = ListPartitionReassignmentsRequest(timeout_ms=60_000, topics=None)
    port = controller_port(cluster.brokers[1].port)
    answer = call(port, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, request)
    return {
        topic.name: (topic.partitions[0].adding_replicas, topic.partitions[0].removing_replicas)
        for topic in answer.topics
    }
