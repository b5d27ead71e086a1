"""A cluster in virtual time, as tests of users have it: their asyncio code, unchanged, and faults by call."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time

import aiokafka
import aiokafka.errors
import pytest

from barnabas.client.client import Client
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings
from barnabas.testing import SimulatedCluster
from barnabas.testing.faults import FaultKind
from barnabas.testing.simulation import SimulationFailedError


async def _produce(servers: str, topic: str, count: int, acknowledged: list[int]) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, request_timeout_ms=5_000, retry_backoff_ms=200
    )
    await producer.start()
    try:
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number)
            acknowledged.append(number)
            await asyncio.sleep(0.2)
    finally:
        await producer.stop()


async def _consume(servers: str, topic: str, count: int) -> list[int]:
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest", request_timeout_ms=5_000
    )
    await consumer.start()
    found: list[int] = []
    try:
        while len(set(found)) < count:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [int(record.value) for record in records]
    finally:
        await consumer.stop()
    return found


@pytest.mark.kafka_simulation(seeds=2)
def test_aiokafka_loses_nothing_while_a_leader_is_killed(kafka_simulation: SimulatedCluster) -> None:
    cluster = kafka_simulation
    topic = cluster.create_topic()
    acknowledged: list[int] = []
    began_at = cluster.now
    producing = cluster.start(_produce, cluster.bootstrap_servers, topic, 60, acknowledged)
    cluster.run_until(lambda: len(acknowledged) > 10)
    leader = cluster.leader(topic)
    cluster.kill(leader)
    cluster.run_until(lambda: producing.ended, 60)
    assert cluster.leader(topic) not in {-1, leader}
    assert leader not in cluster.in_sync_replicas(topic)
    cluster.settle()
    assert len(cluster.in_sync_replicas(topic)) == 3
    assert [int(record.value or b"") for record in cluster.records(topic)] == list(range(60))
    assert sorted(set(cluster.run(_consume, cluster.bootstrap_servers, topic, 60))) == list(range(60))
    assert cluster.now - began_at > 60 * 0.2


def test_random_faults_come_of_the_seed() -> None:
    def run(seed: int) -> tuple[dict[FaultKind, int], str]:
        with SimulatedCluster(seed) as cluster:
            cluster.create_topic("flights", partitions=3)
            struck = cluster.strike(15)
            cluster.settle()
            return struck, cluster.simulation.trace.digest()

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert sum(run(3)[0].values()) > 2


def test_our_client_runs_on_the_host_of_its_process() -> None:
    with SimulatedCluster(brokers=1) as cluster:
        topic = cluster.create_topic()

        async def produce() -> int:
            settings = ClientSettings(bootstrap_servers=(cluster.bootstrap_servers,))
            async with (
                Client(cluster.host, settings, logging.getLogger("test")) as client,
                Producer(client) as producer,
            ):
                delivery = await producer.send(ProducerRecord(topic, value=b"one"))
                return (await delivery).offset

        assert cluster.run(produce) == 0
        assert [record.value for record in cluster.records(topic)] == [b"one"]
        with pytest.raises(RuntimeError, match="only code that this cluster runs"):
            cluster.host  # noqa: B018 - raises


def test_clocks_and_random_numbers_of_python_are_those_of_the_run() -> None:
    async def look() -> tuple[float, float, float, float]:
        before, wall, loop = time.monotonic(), time.time(), asyncio.get_running_loop().time()
        assert before == loop
        await asyncio.sleep(1_000)
        ends_at = time.monotonic() + 50
        while time.monotonic() < ends_at:
            time.sleep(1)  # holds the loop, in virtual time
        await asyncio.sleep(0)
        return time.monotonic() - before, time.time() - wall, time.perf_counter() - before, random.random()

    def run() -> tuple[float, float, float, float]:
        with SimulatedCluster(brokers=1) as cluster:
            return cluster.run(look, limit_seconds=2_000)

    real, state, began_at = time.time, random.getstate(), time.perf_counter()
    found = run()
    assert found == run()
    assert all(1_049.9 < seconds < 1_052 for seconds in found[:3])
    assert time.perf_counter() - began_at < 100
    assert time.time is real
    assert random.getstate() == state


def test_other_threads_keep_their_clocks() -> None:
    seen: list[float] = []
    with SimulatedCluster(brokers=1) as cluster:

        async def ask_in_a_thread() -> None:
            thread = threading.Thread(target=lambda: seen.append(time.time()))
            thread.start()
            thread.join()

        before = time.time()
        cluster.run(ask_in_a_thread)
        assert before <= seen[0] <= time.time()


def test_one_simulation_at_a_time() -> None:
    with (
        SimulatedCluster(brokers=1),
        pytest.raises(RuntimeError, match="another simulation is open"),
        SimulatedCluster(brokers=1),
    ):
        pass


def test_a_failure_names_the_seed() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as failure, SimulatedCluster(77, brokers=1) as cluster:
        cluster.run(fail)
    assert any("BARNABAS_SIMULATION_SEED=77" in note for note in failure.value.__notes__)
    with pytest.raises(SimulationFailedError, match="seed 78"), SimulatedCluster(78, brokers=1) as cluster:
        cluster.start(fail)
        cluster.run_for(5)
    with pytest.raises(SimulationFailedError, match=r"(?s)did not come within 3 s.*_for_ever"):

        async def _for_ever() -> None:
            while True:
                await asyncio.sleep(1)

        with SimulatedCluster(brokers=1) as cluster:
            cluster.run(_for_ever, limit_seconds=3)


def test_brokers_stop_pause_and_are_cut_off() -> None:
    with SimulatedCluster(5) as cluster:
        topic = cluster.create_topic(partitions=1)
        leader = cluster.leader(topic)
        cluster.stop_broker(leader)
        cluster.run_until(lambda: not cluster.is_running(leader))
        second = cluster.leader(topic)
        assert second not in {-1, leader}
        cluster.start_broker(leader)
        cluster.settle()
        cluster.pause(second)
        cluster.run_for(12)
        assert cluster.leader(topic) not in {-1, second}
        cluster.resume(second)
        cluster.settle()
        third = cluster.leader(topic)
        cluster.partition(third)
        cluster.run_for(12)
        cluster.heal()
        cluster.run_for(2)
        assert cluster.leader(topic) not in {-1, third}
        cluster.power_fail(1)
        assert not cluster.is_running(1)
        cluster.kill("coordinator")
        cluster.run_for(3)
        cluster.start_coordinator()
        cluster.settle()
        assert len(cluster.in_sync_replicas(topic)) == 3


def test_code_that_is_cut_off_from_the_cluster_says_so() -> None:
    with SimulatedCluster(brokers=1) as cluster:
        cluster.machine("app")
        cluster.partition("app", 1)

        async def connect() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=2_000)
            try:
                await producer.start()
            finally:
                await producer.stop()

        with pytest.raises(aiokafka.errors.KafkaConnectionError):
            cluster.run(connect, limit_seconds=200)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="brokers"):
        SimulatedCluster(brokers=0)
    with pytest.raises(ValueError, match=r"zookeeper\.connect"):
        SimulatedCluster(config={"zookeeper.connect": "elsewhere"})
    with SimulatedCluster(brokers=1) as cluster, pytest.raises(ValueError, match="there is no broker 2"):
        cluster.kill(2)


def test_who_waits_in_a_brokers_purgatories_can_be_counted() -> None:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("flights")
        cluster.run_for(1)
        waiting = cluster.waiting(1)
        assert {"Fetch", "Produce", "DeleteRecords", "topic", "ElectLeader"} <= waiting.keys()
        assert waiting["Fetch"] == 1  # of the other broker
        assert waiting["Produce"] == 0
        cluster.kill(2)
        assert cluster.waiting(2) == {}


def test_what_replicas_and_the_coordinator_have_can_be_looked_at() -> None:
    with SimulatedCluster() as cluster:
        topic = cluster.create_topic()
        assert cluster.produce(topic, b"one", b"two") == [0, 1]
        leader = cluster.leader(topic)
        found = cluster.replica(leader, topic)
        assert found is not None
        assert (found.is_leader, found.leader_epoch, found.log_end_offset, found.high_watermark) == (True, 0, 2, 2)
        assert cluster.replica(leader, "no such topic") is None
        assert f'"brokerid":{cluster.controller()}' in (cluster.znode("/controller") or "")
        assert cluster.znode("/no/such/znode") is None
        cluster.kill(leader)
        assert cluster.replica(leader, topic) is None
        cluster.kill("coordinator")
        assert cluster.znode("/controller") is None
