"""One simulated broker beside an embedded coordinator: everything that administration stands on, for tests."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from barnabas.api.administration.config_alteration import ConfigAlterer
from barnabas.api.administration.leader_waits import LeaderWaits
from barnabas.api.administration.partition_creation import PartitionCreator
from barnabas.api.administration.topic_creation import TopicCreator
from barnabas.api.administration.topic_deletion import TopicDeleter
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.client_throttles import ClientThrottles, MutationQuotas
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.broker_config import check_broker_config
from barnabas.coordination.client import Client
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.layout.access import PERSISTENT_PATHS
from barnabas.coordination.layout.controller import (
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    ControllerRegistration,
    encode_controller_epoch,
)
from barnabas.coordination.layout.topics import TopicAssignment, topic_path
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.kernel.ids import ZERO_UUID
from barnabas.kernel.steps import StepRunner
from barnabas.kernel.timers import Timers
from barnabas.quotas.settings import ClientQuotaSettings, ControllerQuotaSettings
from barnabas.security.password_encoder import PasswordEncoderSettings
from barnabas.security.stored_passwords import StoredPasswords
from barnabas.testing.simulation import Simulation
from barnabas.wire.messages import UpdateMetadataRequest
from tests.unit.network.serving import Lines

PORT = 2181
BROKER_ID = 1
LIMIT_SECONDS = 3600.0
"""Of virtual time."""
STATIC = {"zookeeper.connect": "coordinator:2181", "broker.id": str(BROKER_ID)}


class Controller:
    """Says that it is the controller, or not, and which topics it is about to delete."""

    def __init__(self) -> None:
        self.is_active = True
        self.queued_for_deletion: set[str] = set()

    def is_topic_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.queued_for_deletion


class AdminWorld:
    """What one broker has; `racks` are those of the brokers that its metadata knows."""

    def __init__(self, host: Host, client: Client, racks: Mapping[int, str | None], static: Mapping[str, str]) -> None:
        self.host = host
        self.client = client
        self.lines = Lines()
        self.logger = logging.getLogger(f"kafka.server.ZkAdminManager of {id(self)}")
        self.logger.setLevel(logging.DEBUG)
        self.logger.addHandler(self.lines)
        self.timers = Timers(host.loop)
        self.racks = racks
        self.metadata = MetadataCache(BROKER_ID, self.logger)
        self.controller = Controller()
        self.epoch = 0
        config = check_broker_config({**STATIC, **static}, "test")
        self.broker_configs = BrokerConfigs(config, broker_id=BROKER_ID, logger=self.logger)
        self.waits = TopicWaits(self.metadata, host.loop, self.timers, self.logger)
        self.leader_waits = LeaderWaits(self.metadata, host.loop, self.timers, self.logger)
        steps = StepRunner(host.loop)
        self.creator = TopicCreator(host, client, self.metadata, self.broker_configs, self.logger, steps)
        self.deleter = TopicDeleter(client, self.logger)
        self.partitions = PartitionCreator(
            host, client, self.metadata, self.broker_configs, self.controller, self.logger, steps
        )
        self.throttles = ClientThrottles(
            ClientQuotaSettings(), ControllerQuotaSettings(), host.loop.time, host.clock.stopwatch
        )
        self.mutations = MutationQuotas(self.throttles)
        self.passwords = StoredPasswords(host, PasswordEncoderSettings.of(config.values), self.logger)
        self.alterer = ConfigAlterer(client, self.metadata, self.broker_configs, self.passwords, self.logger)
        self.show({})

    def show(self, leaders: Mapping[str, list[int]], topic_ids: Mapping[str, bytes] | None = None) -> None:
        """As the controller's UpdateMetadata: leader by partition of each topic; -2 takes it away."""
        brokers = [
            UpdateMetadataRequest.UpdateMetadataBroker(
                id=broker_id,
                rack=rack,
                endpoints=[
                    UpdateMetadataRequest.UpdateMetadataEndpoint(
                        port=9092, host=f"host-{broker_id}", listener="PLAINTEXT", security_protocol=0
                    )
                ],
            )
            for broker_id, rack in self.racks.items()
        ]
        states = [
            UpdateMetadataRequest.UpdateMetadataTopicState(
                topic_name=topic,
                topic_id=(topic_ids or {}).get(topic, ZERO_UUID),
                partition_states=[
                    UpdateMetadataRequest.UpdateMetadataPartitionState(
                        topic_name=topic, partition_index=number, leader=leader, replicas=[1], isr=[1]
                    )
                    for number, leader in enumerate(by_partition)
                ],
            )
            for topic, by_partition in leaders.items()
        ]
        self.metadata.apply(UpdateMetadataRequest(controller_id=1, live_brokers=brokers, topic_states=states))

    async def become_controller(self, broker_id: int = BROKER_ID) -> None:
        """As an election: the former controller is gone, the epoch moves on."""
        if await self.client.exists(CONTROLLER_PATH) is not None:
            await self.client.delete(CONTROLLER_PATH)
        if await self.client.exists(CONTROLLER_EPOCH_PATH) is None:
            await self.client.create(CONTROLLER_EPOCH_PATH, encode_controller_epoch(0))
        self.epoch += 1
        await self.client.set_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(self.epoch))
        await self.client.create(CONTROLLER_PATH, ControllerRegistration(broker_id, 1).encode())

    async def data(self, path: str) -> bytes | None:
        return (await self.client.get_data(path)).data

    async def assignment(self, topic: str) -> TopicAssignment:
        return TopicAssignment.decode(await self.data(topic_path(topic)), topic_path(topic))

    async def children(self, path: str) -> list[str]:
        return sorted((await self.client.get_children(path)).names)


async def _serve(host: Host) -> None:
    coordinator = EmbeddedCoordinator(host, CoordinatorConfig("/data", host="0.0.0.0", port=PORT))
    await coordinator.start()
    await coordinator.failure


def in_world(
    test: Callable[[AdminWorld], Awaitable[None]],
    *,
    racks: Mapping[int, str | None] | None = None,
    static: Mapping[str, str] | None = None,
    is_controller: bool = True,
) -> None:
    """Runs a test beside a coordinator that has Kafka's persistent znodes."""
    with Simulation(1) as simulation:
        server = simulation.machine("coordinator")
        server.start(_serve)

        async def main(host: Host) -> None:
            client = Client(host, ClientSettings(f"{server.address}:{PORT}"))
            await client.connect()
            for path in PERSISTENT_PATHS:
                await client.ensure_path(path)
            world = AdminWorld(host, client, racks or {1: None, 2: None, 3: None}, static or {})
            if is_controller:
                await world.become_controller()
            try:
                await test(world)
            finally:
                world.timers.close()
                await client.close()

        simulation.run_on(simulation.machine("broker"), main, LIMIT_SECONDS)


def codes(outcomes: Mapping[str, Any]) -> dict[str, str | None]:
    """The names of the errors, None for what was done."""
    return {
        name: error.name if (error := getattr(outcome, "code", None)) is not None else None
        for name, outcome in outcomes.items()
    }
