"""Brokers of a simulation that are all controller: the production controller, session and registration, and behind its
requests a script in place of logs and replication, which keeps Kafka's rules of epochs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from barnabas.controller.broker_requests import FULL
from barnabas.controller.controller import Controller
from barnabas.controller.ports import ControllerPorts
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.errors import CoordinationError, NodeExistsError, SessionExpiredError
from barnabas.coordination.layout.access import PERSISTENT_PATHS
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.coordination.operations import Create
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
from barnabas.link.limits import LinkLimits
from barnabas.link.outgoing import Outgoing
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.errors import DuplicateBrokerError
from barnabas.server.features import FinalizedFeatureCache
from barnabas.server.registration import Registration
from barnabas.testing.simulated_host import Main
from barnabas.wire import codec
from barnabas.wire.classes import Message
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.headers import read_request_header
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.wire.topics import TopicPartition

COORDINATOR_PORT = 2181
BROKER_PORT = 9092
SESSION_TIMEOUT_MS = 6_000
LISTENER = "PLAINTEXT"
ANY_EPOCH, EPOCH_DURING_DELETE = -1, -2


async def coordinator_main(host: Host) -> None:
    coordinator = EmbeddedCoordinator(host, CoordinatorConfig("/data", host="0.0.0.0", port=COORDINATOR_PORT))
    await coordinator.start()
    await coordinator.failure


class RefusalWatch(logging.Handler):
    """Keeps the lines that say that a state machine was asked for an illegal move, and errors nobody expected."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "is not allowed in state" in message or message.startswith("Uncaught error"):
            self._lines.append(self.format(record))


@dataclass(slots=True)
class Observations:
    """What all brokers of a cluster have seen, and what they must not see."""

    controllers: dict[int, int] = field(default_factory=dict)
    leaders: dict[tuple[TopicPartition, bytes, int], int] = field(default_factory=dict)
    alarming_lines: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def see_controller(self, epoch: int, controller_id: int) -> None:
        known = self.controllers.setdefault(epoch, controller_id)
        if known != controller_id:
            raise AssertionError(f"brokers {known} and {controller_id} were both controllers of epoch {epoch}")

    def see_leader(self, partition: TopicPartition, topic_id: bytes, leader_epoch: int, leader: int) -> None:
        known = self.leaders.setdefault((partition, topic_id, leader_epoch), leader)
        if known != leader:
            raise AssertionError(f"{partition} had the leaders {known} and {leader} in leader epoch {leader_epoch}")


@dataclass(slots=True)
class Disk:
    """The replicas of one broker, which outlive its processes."""

    replicas: dict[TopicPartition, bytes] = field(default_factory=dict)


class ScriptedReplicas:
    """What a broker does with the requests of controllers. `led` has what it leads, with the state it was told."""

    def __init__(self, broker_id: int, disk: Disk, seen: Observations, broker_epoch: Callable[[], int]) -> None:
        self.broker_id = broker_id
        self.disk = disk
        self._seen = seen
        self._broker_epoch = broker_epoch
        self.controller_epoch = 0
        self.controller_id = -1
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.led: dict[TopicPartition, LeaderAndIsrRequest.LeaderAndIsrPartitionState] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.live_brokers: dict[int, tuple[str, int]] = {}
        self.metadata: dict[TopicPartition, int] = {}
        # A request that was sent twice may come, the first time, after what was sent behind the second one.
        self._deleted: dict[tuple[TopicPartition, bytes], None] = {}

    def answer(self, request: Message) -> Message:
        match request:
            case LeaderAndIsrRequest():
                return self._lead_or_follow(request)
            case UpdateMetadataRequest():
                return UpdateMetadataResponse(error_code=self._learn(request))
            case StopReplicaRequest():
                return self._stop(request)
        raise TypeError(f"no script for {type(request).__name__}")

    def _refusal(self, request: Any) -> ErrorCode:
        if request.controller_epoch < self.controller_epoch:
            self._seen.count("stale controller epochs")
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.broker_epoch != -1 and request.broker_epoch < self._broker_epoch():
            self._seen.count("stale broker epochs")
            return ErrorCode.STALE_BROKER_EPOCH
        self._seen.see_controller(request.controller_epoch, request.controller_id)
        self.controller_epoch, self.controller_id = request.controller_epoch, request.controller_id
        return ErrorCode.NONE

    def _lead_or_follow(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        error = self._refusal(request)
        if error:
            return LeaderAndIsrResponse(error_code=error)
        response = LeaderAndIsrResponse()
        for topic in request.topic_states:
            errors = LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id)
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                code = self._take(partition, topic.topic_id, state)
                errors.partition_errors.append(
                    LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=code
                    )
                )
            response.topics.append(errors)
        return response

    def _take(
        self, partition: TopicPartition, topic_id: bytes, state: LeaderAndIsrRequest.LeaderAndIsrPartitionState
    ) -> ErrorCode:
        if self.disk.replicas.get(partition, topic_id) != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= self.leader_epochs.get(partition, -1) or (partition, topic_id) in self._deleted:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if state.leader >= 0:
            self._seen.see_leader(partition, topic_id, state.leader_epoch, state.leader)
            self._seen.count("leaders")
        self.disk.replicas[partition] = topic_id
        self.topic_ids[partition.topic] = topic_id
        self.leader_epochs[partition] = state.leader_epoch
        if state.leader == self.broker_id:
            self.led[partition] = state
        else:
            self.led.pop(partition, None)
        return ErrorCode.NONE

    def _learn(self, request: UpdateMetadataRequest) -> ErrorCode:
        error = self._refusal(request)
        if error:
            return error
        self.live_brokers = {
            broker.id: (broker.endpoints[0].host, broker.endpoints[0].port) for broker in request.live_brokers
        }
        if request.type == FULL:
            self.metadata.clear()
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if state.leader == EPOCH_DURING_DELETE:
                    self.metadata.pop(partition, None)
                else:
                    self.metadata[partition] = state.leader
        return ErrorCode.NONE

    def _stop(self, request: StopReplicaRequest) -> StopReplicaResponse:
        error = self._refusal(request)
        if error:
            return StopReplicaResponse(error_code=error)
        response = StopReplicaResponse()
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                known = self.leader_epochs.get(partition, -1)
                code = ErrorCode.NONE
                if state.leader_epoch not in {ANY_EPOCH, EPOCH_DURING_DELETE} and state.leader_epoch < known:
                    code = ErrorCode.FENCED_LEADER_EPOCH
                else:
                    self.led.pop(partition, None)
                    if state.delete_partition:
                        self._seen.count("deleted replicas", int(partition in self.disk.replicas))
                        topic_id = self.disk.replicas.pop(partition, None)
                        if topic_id is not None:
                            self._deleted[partition, topic_id] = None
                        self.leader_epochs.pop(partition, None)
                response.partition_errors.append(
                    StopReplicaResponse.StopReplicaPartitionError(
                        topic_name=partition.topic, partition_index=partition.partition, error_code=code
                    )
                )
        return response


class _Connection(asyncio.Protocol):
    """One connection of another broker: frames in, answers out, in order."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        for frame in _frames(self._received):
            key, version, correlation_id, _, position = read_request_header(frame, 0, len(frame))
            request, _ = codec.request_decoder(key, version)(frame, position, len(frame))
            self._broker.handle(request, version, self._answerer(key, version, correlation_id))

    def _answerer(self, key: int, version: int, correlation_id: int) -> Callable[[Message], None]:
        def answer(message: Message) -> None:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.writelines(codec.response_encoder(key, version)(correlation_id, message))

        return answer


def _frames(received: bytearray) -> Iterator[bytes]:
    while len(received) >= 4:
        (size,) = struct.unpack_from(">i", received)
        if len(received) < 4 + size:
            return
        yield bytes(received[4 : 4 + size])
        del received[: 4 + size]


class Connections:
    """`controller.ports.BrokerConnections`."""

    def __init__(self, host: Host, link: LinkContext) -> None:
        self._host = host
        self._link = link

    def connect(self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str) -> Outgoing:
        return Outgoing(self._link, self._host.random, host, port, client_id="controller")


class ScriptedBroker:
    """One process of a broker."""

    def __init__(
        self,
        host: Host,
        broker_id: int,
        address: str,
        coordinator: str,
        disk: Disk,
        seen: Observations,
        balance_seconds: int | None = None,
    ) -> None:
        self._host = host
        self.broker_id = broker_id
        self._address = address
        self._seen = seen
        logs = Logs(f"broker-{broker_id}", host.clock, RefusalWatch(seen.alarming_lines))
        self._timers = Timers(host.loop)
        logger = logs.logger("kafka.server.KafkaServer")
        settings = ClientSettings(f"{coordinator}:{COORDINATOR_PORT}", session_timeout_ms=SESSION_TIMEOUT_MS)
        self.session = CoordinationSession(host, settings, logger)
        self.registration = Registration(self.session, broker_id, self._payload, host.loop, logger)
        self.features = FinalizedFeatureCache(host.loop, self.session, logger)
        self._link = LinkContext.of(host.loop, self._timers, LinkLimits(), logger)
        self.metrics = MetricsRegistry(host.loop.time)
        self.controller = Controller(
            host,
            ControllerSettings(
                broker_id,
                LISTENER,
                request_timeout_ms=5_000,
                auto_leader_rebalance_enable=balance_seconds is not None,
                leader_imbalance_check_interval_ms=(balance_seconds or 0) * 1000,
            ),
            ControllerPorts(
                self.registration,
                Connections(host, self._link),
                self.features,
            ),
            timers=self._timers,
            logs=logs,
            metrics=self.metrics,
        )
        self.replicas = ScriptedReplicas(broker_id, disk, seen, lambda: self.registration.broker_epoch)
        self._to_controller: tuple[int, Outgoing] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        # What was proposed and not answered yet: it is proposed again until it is, as the answer may have been lost.
        self._proposed: dict[TopicPartition, tuple[int, list[int]]] = {}
        self.stops = False
        self.on_stopped: Callable[[], None] = lambda: None

    def _payload(self) -> BrokerRegistration:
        return BrokerRegistration((BrokerEndpoint(LISTENER, self._address, BROKER_PORT, LISTENER),), 0)

    async def run(self) -> None:
        """Starts, and then proposes ISRs for what it leads, until it is to stop."""
        await self.session.connect()
        await self._host.loop.create_server(lambda: _Connection(self), "0.0.0.0", BROKER_PORT)
        await self._make_paths()
        self.features.start()
        self.session.add_session_listener(self.features)
        self.session.add_session_listener(self.controller)
        while self.registration.broker_epoch < 0:
            try:
                await self.registration.register()
            except (CoordinationError, DuplicateBrokerError):
                # The coordinator may keep a dead session for longer than a broker waits, after a crash of its own.
                await self._timers.sleep(500)
        self.controller.start(self.session)
        while not self.stops:
            await self._timers.sleep(400)
            await self._propose()
        await self._stop()

    async def _make_paths(self) -> None:
        """Each attempt may meet the end of the session."""
        paths: dict[str, None] = {}
        for path in PERSISTENT_PATHS:
            names = path.split("/")[1:]
            paths.update(dict.fromkeys("/" + "/".join(names[:length]) for length in range(1, len(names) + 1)))
        while paths:
            outcomes = await self.session.submit([Create(path, None) for path in paths])
            for path, outcome in zip(list(paths), outcomes, strict=True):
                if isinstance(outcome, NodeExistsError) or not isinstance(outcome, Exception):
                    del paths[path]
            if paths:
                await self._timers.sleep(500)

    async def _stop(self) -> None:
        """A controlled shutdown: asks the controller a few times, and then goes in any case."""
        for _ in range(3):
            request = ControlledShutdownRequest(broker_id=self.broker_id, broker_epoch=self.registration.broker_epoch)
            with contextlib.suppress(ConnectionError, TimeoutError):
                response = await self.send_to_controller(request, 3)
                if isinstance(response, ControlledShutdownResponse) and not response.error_code:
                    self._seen.count("controlled shutdowns")
                    if not response.remaining_partitions:
                        break
            await self._timers.sleep(200)
        await self.controller.stop()
        await self.session.close()
        self.on_stopped()

    def handle(self, request: Message, version: int, answer: Callable[[Message], None]) -> None:
        if isinstance(request, AlterPartitionRequest | ControlledShutdownRequest):
            task = self._host.loop.create_task(self._ask_controller(request, version, answer))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        else:
            answer(self.replicas.answer(request))

    async def _ask_controller(self, request: Message, version: int, answer: Callable[[Message], None]) -> None:
        if isinstance(request, AlterPartitionRequest):
            try:
                answer(await self.controller.alter_partition(request, version))
            except KafkaError as error:
                answer(AlterPartitionResponse(error_code=error.code))
        elif isinstance(request, ControlledShutdownRequest):
            try:
                remaining = await self.controller.controlled_shutdown(request.broker_id, request.broker_epoch)
            except KafkaError as error:
                answer(ControlledShutdownResponse(error_code=error.code))
                return
            answer(
                ControlledShutdownResponse(
                    remaining_partitions=[
                        ControlledShutdownResponse.RemainingPartition(topic_name=topic, partition_index=partition)
                        for topic, partition in remaining
                    ]
                )
            )

    async def send_to_controller(self, message: Message, version: int) -> Message:
        """Raises what a connection raises, and ConnectionError while no controller is known."""
        controller_id = self.replicas.controller_id
        address = self.replicas.live_brokers.get(controller_id)
        if address is None:
            raise ConnectionError("no controller is known")
        if self._to_controller is None or self._to_controller[0] != controller_id:
            if self._to_controller is not None:
                self._to_controller[1].close()
            self._to_controller = (controller_id, Outgoing(self._link, self._host.random, *address, client_id="test"))
        response: Message = await self._to_controller[1].send(message, version, 3_000)
        return response

    async def _propose(self) -> None:
        """Asks for all live replicas to be in sync, as a leader would whose followers have caught up."""
        replicas = self.replicas
        topics: dict[str, AlterPartitionRequest.TopicData] = {}
        for partition, state in replicas.led.items():
            wanted = [replica for replica in state.replicas if replica in replicas.live_brokers]
            epoch, proposed = self._proposed.get(partition, (-1, []))
            if epoch == state.leader_epoch:
                wanted = proposed
            elif self.broker_id not in wanted or set(wanted) == set(state.isr):
                continue
            self._proposed[partition] = (state.leader_epoch, wanted)
            topic = topics.setdefault(
                partition.topic,
                AlterPartitionRequest.TopicData(
                    topic_name=partition.topic, topic_id=replicas.topic_ids[partition.topic]
                ),
            )
            topic.partitions.append(
                AlterPartitionRequest.PartitionData(
                    partition_index=partition.partition,
                    leader_epoch=state.leader_epoch,
                    new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=replica) for replica in wanted],
                    partition_epoch=state.partition_epoch,
                )
            )
        if not topics:
            return
        request = AlterPartitionRequest(
            broker_id=self.broker_id, broker_epoch=self.registration.broker_epoch, topics=list(topics.values())
        )
        try:
            response = await self.send_to_controller(request, 3)
        except (ConnectionError, TimeoutError):
            return
        if not isinstance(response, AlterPartitionResponse) or response.error_code:
            self._seen.count("refused ISRs")
            return
        names = {topic_id: name for name, topic_id in replicas.topic_ids.items()}
        for answered in response.topics:
            for data in answered.partitions:
                partition = TopicPartition(names.get(answered.topic_id, ""), data.partition_index)
                led = replicas.led.get(partition)
                if data.error_code != ErrorCode.NOT_CONTROLLER:
                    self._proposed.pop(partition, None)
                if data.error_code:
                    self._seen.count(f"ISR: {ErrorCode.for_code(data.error_code).name}")
                elif led is not None and led.leader_epoch == data.leader_epoch:
                    led.isr, led.partition_epoch = data.isr, data.partition_epoch
                    self._seen.count("changed ISRs")


def broker_main(
    broker_id: int,
    address: str,
    coordinator: str,
    disk: Disk,
    seen: Observations,
    running: dict[int, ScriptedBroker],
    balance_seconds: int | None = None,
) -> Main:
    async def main(host: Host) -> None:
        while True:
            broker = running[broker_id] = ScriptedBroker(
                host, broker_id, address, coordinator, disk, seen, balance_seconds
            )
            try:
                await broker.run()
            except SessionExpiredError:
                # The very first session, over before it was used.
                continue
            return

    return main
