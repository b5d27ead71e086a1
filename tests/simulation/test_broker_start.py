"""Three production brokers and the coordinator in virtual time: they form a cluster, and keep what they acknowledge."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
from barnabas.link.limits import LinkLimits
from barnabas.link.outgoing import Outgoing
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    CreateTopicsRequest,
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.simulation.broker_machines import BrokerMachines

SEEDS = simulation_seeds(5)
BROKERS = (1, 2, 3)
PORT = 9092
TOPIC = "events"
PARTITIONS = 3
TIMEOUT_MS = 5_000


def properties(broker_id: int) -> str:
    return "\n".join(
        [
            f"broker.id={broker_id}",
            f"listeners=PLAINTEXT://:{PORT}",
            "zookeeper.connect=coordinator:2181",
            "zookeeper.session.timeout.ms=6000",
            "log.dirs=/data/one,/data/two",
            "default.replication.factor=3",
            "min.insync.replicas=2",
        ]
    )


class Cluster(BrokerMachines):
    """The machines, and the brokers that run on them now."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, BROKERS, properties)

    def forms(self, *broker_ids: int) -> bool:
        """Whether each of these brokers knows just these, and the same controller among them."""
        images = [self.brokers[each].components.metadata_cache.image for each in broker_ids if each in self.brokers]
        return (
            len(images) == len(broker_ids)
            and all(set(image.brokers) == set(broker_ids) for image in images)
            and {image.controller_id for image in images} <= set(broker_ids)
            and len({image.controller_id for image in images}) == 1
        )

    def controllers(self) -> list[int]:
        return [broker_id for broker_id, broker in self.brokers.items() if broker.components.controller.is_active]


class Requests:
    """Plain requests to brokers by id, from a machine of its own."""

    def __init__(self, host: Host, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
        self._topic = topic
        self._partitions = partitions
        self._clock = host.clock
        self._timers = Timers(host.loop)
        context = LinkContext.of(host.loop, self._timers, LinkLimits(), logging.getLogger("test"))
        self._to = {
            broker_id: Outgoing(context, host.random, f"broker{broker_id}", PORT, client_id="test")
            for broker_id in BROKERS
        }

    async def send(self, broker_id: int, message: Any, version: int) -> Any:
        return await self._to[broker_id].send(message, version, TIMEOUT_MS)

    async def metadata(self) -> MetadataResponse:
        """From whichever broker answers."""
        asked = [MetadataRequest.MetadataRequestTopic(name=self._topic)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        while True:
            for broker_id in BROKERS:
                try:
                    found: MetadataResponse = await self.send(broker_id, request, 9)
                except OSError:
                    continue
                return found
            await self._timers.sleep(50)

    async def leaders(self) -> dict[int, int]:
        """The leader of every partition, once each has one."""
        while True:
            found = await self.metadata()
            partitions = found.topics[0].partitions
            leaders = {each.partition_index: each.leader_id for each in partitions if not each.error_code}
            if len(leaders) == self._partitions:
                return leaders
            await self._timers.sleep(20)

    async def create_topic(self) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name=self._topic, num_partitions=self._partitions, replication_factor=3
        )
        while True:
            controller = (await self.metadata()).controller_id
            try:
                response = await self.send(controller, CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS), 5)
            except (OSError, KeyError):
                continue
            code = response.topics[0].error_code
            if code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                return
            await self._timers.sleep(50)

    async def produce(self, partition: int, value: bytes) -> int:
        """The offset of a record that every broker in sync has; tried until it is acknowledged."""
        while True:
            builder = RecordBatchBuilder(base_offset=0)
            builder.append(self._clock.time_ms(), None, value)
            data = ProduceRequest.PartitionProduceData(index=partition, records=memoryview(builder.build()))
            request = ProduceRequest(
                acks=-1,
                timeout_ms=TIMEOUT_MS,
                topic_data=[ProduceRequest.TopicProduceData(name=self._topic, partition_data=[data])],
            )
            try:
                leader = (await self.leaders())[partition]
                response = await self.send(leader, request, 9)
            except (OSError, KeyError):
                continue
            answer = response.responses[0].partition_responses[0]
            if not answer.error_code:
                return int(answer.base_offset)
            await self._timers.sleep(50)

    async def fetch(self, partition: int, until: int) -> dict[int, bytes]:
        """The committed records of a partition, by offset, once there are those up to the offset `until`.

        A new leader's high watermark may be behind for a while.
        """
        found: dict[int, bytes] = {}
        offset = 0
        while offset <= until:
            asked = FetchRequest.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
            )
            topic = FetchRequest.FetchTopic(topic=self._topic, partitions=[asked])
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
            leader = (await self.leaders())[partition]
            response = await self.send(leader, request, 11)
            answer = response.responses[0].partitions[0]
            assert answer.error_code == ErrorCode.NONE
            records = read_records(answer.records) if answer.records else []
            values = {record.offset: bytes(record.value or b"") for record in records if record.offset >= offset}
            found |= values
            offset = max(found, default=-1) + 1
            await self._timers.sleep(20)
        return found


@pytest.mark.parametrize("seed", SEEDS)
def test_three_brokers_form_a_cluster_and_replicate(seed: int) -> None:
    async def use(host: Host) -> None:
        requests = Requests(host)
        await requests.create_topic()
        for partition in range(PARTITIONS):
            for number in range(5):
                assert await requests.produce(partition, b"%d" % number) == number
        for partition in range(PARTITIONS):
            assert await requests.fetch(partition, 4) == {number: b"%d" % number for number in range(5)}

    with Simulation(seed) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.forms(*BROKERS), 30)
        assert len(cluster.controllers()) == 1
        simulation.run_on(simulation.machine("client"), use)
        for broker in cluster.brokers.values():
            for partition in broker.components.replica_manager.partitions.values():
                assert partition.log is not None
                assert partition.log.log_end_offset == 5


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_outlives_the_crash_of_a_broker(seed: int) -> None:
    acknowledged: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}

    async def write(host: Host) -> None:
        requests = Requests(host)
        await requests.create_topic()
        for number in range(60):
            value = b"%d" % number
            offset = await requests.produce(number % PARTITIONS, value)
            acknowledged[number % PARTITIONS][offset] = value

    async def check(host: Host) -> None:
        requests = Requests(host)
        for partition in range(PARTITIONS):
            found = await requests.fetch(partition, max(acknowledged[partition]))
            assert acknowledged[partition].items() <= found.items()

    with Simulation(seed) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.forms(*BROKERS), 30)
        writer = simulation.machine("client").start(write)
        simulation.run_until(lambda: sum(map(len, acknowledged.values())) >= 10)
        victim = 1 + seed % 3
        cluster.machines[victim].crash()
        del cluster.brokers[victim]
        others = [broker_id for broker_id in BROKERS if broker_id != victim]
        simulation.run_until(lambda: cluster.forms(*others), 30)
        simulation.run_until(lambda: writer.ended, 60)
        writer.result()
        cluster.machines[victim].restart()
        simulation.run_until(lambda: cluster.forms(*BROKERS), 60)
        simulation.run_on(simulation.machine("reader"), check)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_cluster_loses_its_processes_and_comes_back(seed: int) -> None:
    written: dict[int, bytes] = {}

    async def write(host: Host) -> None:
        requests = Requests(host)
        await requests.create_topic()
        for number in range(10):
            written[await requests.produce(0, b"%d" % number)] = b"%d" % number

    async def check(host: Host) -> None:
        assert written.items() <= (await Requests(host).fetch(0, max(written))).items()

    with Simulation(seed) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.forms(*BROKERS), 30)
        simulation.run_on(simulation.machine("client"), write)
        for machine in (*cluster.machines.values(), cluster.coordinator):
            machine.crash()
        cluster.brokers.clear()
        simulation.run_for(1.0)
        for machine in (*cluster.machines.values(), cluster.coordinator):
            machine.restart()
        simulation.run_until(lambda: cluster.forms(*BROKERS), 60)
        simulation.run_on(simulation.machine("reader"), check)
