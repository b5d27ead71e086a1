"""A log directory that does not answer for longer than a session lasts: the broker goes on with the other one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.broker_process import BrokerCluster, BrokerProcess
from tests.support.failing_disks import NotPermittedError, StalledDisk
from tests.support.raw_zookeeper import Operation, RawSession, read
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, leaders, metadata

TOPIC = "records"
PARTITIONS = 4
PATIENCE_SECONDS = 60.0
SESSION_SECONDS = 6.0
HELD_AFTER_MS = 4000
_PRODUCE_VERSION = 8


@pytest.mark.timeout(240)
def test_a_directory_that_stalls_stops_neither_the_session_nor_the_other_directory(tmp_path: Path) -> None:
    try:
        disk = StalledDisk(tmp_path / "stalls")
    except NotPermittedError as error:
        pytest.skip(str(error))
    cluster = BrokerCluster(tmp_path, 1, coordinator="embedded")
    broker = cluster.brokers[1] = BrokerProcess(
        tmp_path / "broker-1",
        1,
        cluster.coordinator.address,
        overrides={
            "log.dirs": f"{tmp_path / 'works'},{disk.directory}",
            "zookeeper.session.timeout.ms": round(SESSION_SECONDS * 1000),
            "barnabas.log.dir.patience.ms": HELD_AFTER_MS,
        },
        environment=disk.environment,
    )
    try:
        cluster.start()
        create_topic(broker.port, TOPIC, PARTITIONS, 1)
        wait_until(lambda: len(leaders(broker.port, TOPIC)) == PARTITIONS, "all have leaders", PATIENCE_SECONDS)
        works, stalls = partition_in(tmp_path / "works"), partition_in(disk.directory)
        for partition in (works, stalls):
            wait_until(lambda: not produce(broker, partition), "a record", PATIENCE_SECONDS)  # noqa: B023
        registered = registration(cluster)
        disk.fail()
        wait_until(
            lambda: "has not answered for" in broker.log_path.read_text(),
            "the stall is found out",
            PATIENCE_SECONDS,
            broker.log_tail,
        )
        until = time.monotonic() + 1.2 * SESSION_SECONDS
        while time.monotonic() < until:
            assert produce(broker, works) is ErrorCode.NONE
            assert produce(broker, stalls) is ErrorCode.NOT_ENOUGH_REPLICAS
            assert metadata(broker.port).controller_id == 1
            time.sleep(0.1)
        assert registration(cluster) == registered
        disk.repair()
        wait_until(lambda: not produce(broker, stalls), "records come in again", PATIENCE_SECONDS, broker.log_tail)
        assert registration(cluster) == registered
        assert broker.stop() == 0
    finally:
        cluster.stop()


@pytest.mark.timeout(240)
def test_no_turn_of_the_loop_waits_for_a_directory_that_stalls_as_a_whole(tmp_path: Path) -> None:
    """The first call that waits is the write of a record; and the directory is held only after the session's end."""
    try:
        disk = StalledDisk(tmp_path / "stalls")
    except NotPermittedError as error:
        pytest.skip(str(error))
    cluster = BrokerCluster(tmp_path, 1, coordinator="embedded")
    broker = cluster.brokers[1] = BrokerProcess(
        tmp_path / "broker-1",
        1,
        cluster.coordinator.address,
        overrides={
            "log.dirs": f"{tmp_path / 'works'},{disk.directory}",
            "zookeeper.session.timeout.ms": round(SESSION_SECONDS * 1000),
            "barnabas.log.dir.patience.ms": round(3 * SESSION_SECONDS * 1000),
        },
        environment=disk.environment,
    )
    try:
        cluster.start()
        create_topic(broker.port, TOPIC, PARTITIONS, 1)
        wait_until(lambda: len(leaders(broker.port, TOPIC)) == PARTITIONS, "all have leaders", PATIENCE_SECONDS)
        works, stalls = partition_in(tmp_path / "works"), partition_in(disk.directory)
        for partition in (works, stalls):
            wait_until(lambda: not produce(broker, partition), "a record", PATIENCE_SECONDS)  # noqa: B023
        registered = registration(cluster)
        with ThreadPoolExecutor(3) as producers:
            disk.fail()
            waiting = [producers.submit(produce, broker, stalls) for _ in range(3)]
            until = time.monotonic() + 1.2 * SESSION_SECONDS
            while time.monotonic() < until:
                assert produce(broker, works) is ErrorCode.NONE
                assert metadata(broker.port).controller_id == 1
                time.sleep(0.1)
            assert not any(each.done() for each in waiting)
            assert registration(cluster) == registered
            disk.repair()
            assert [each.result(PATIENCE_SECONDS) for each in waiting] == 3 * [ErrorCode.NONE]
        assert registration(cluster) == registered
        assert broker.stop() == 0
    finally:
        cluster.stop()


def partition_in(directory: Path) -> int:
    """One whose log is there."""
    return min(int(path.name.rpartition("-")[2]) for path in directory.glob(f"{TOPIC}-*"))


def produce(broker: BrokerProcess, partition: int) -> ErrorCode:
    """What the broker says to a record with acks=1."""
    builder = RecordBatchBuilder()
    builder.append(round(time.time() * 1000), None, b"value")
    data = ProduceRequest.PartitionProduceData(index=partition, records=bytes(builder.build()))
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=[topic])
    answer = call(broker.port, ApiKey.PRODUCE, _PRODUCE_VERSION, request, PATIENCE_SECONDS)
    return ErrorCode.for_code(answer.responses[0].partition_responses[0].error_code)


def registration(cluster: BrokerCluster) -> int:
    """Which of its sessions has registered the broker, by the transaction that did it; 0 where none has."""
    session = RawSession(int(cluster.coordinator.address.rpartition(":")[2]))
    session.connect()
    try:
        reply = session.call(read(Operation.EXISTS, broker_id_path(1)))
    finally:
        session.close()
    return 0 if reply.error else int(reply.body.czxid)
