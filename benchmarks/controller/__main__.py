"""How long the controller takes to fail over, and to make a topic.

    PYTHONPATH=. python -m benchmarks.controller [--partitions N] [--topics N] [--created N] [--live] [--brokers N]
        [--core] [--json FILE]

Failover: partitions with three replicas are in a coordinator of its own process, all on brokers that are dead, as when
Apache Kafka was measured; one live broker, with nothing on it, becomes the controller. Creation: a topic of 1,000
partitions with three replicas on three live brokers, whose connections answer at once, from the write of the topic's
znode to the last request to the brokers. "Longest stall" is the longest turn of the loop of those over 50 ms,
each of which is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from barnabas.controller.controller import Controller
from barnabas.controller.ports import ControllerPorts
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.states import ControllerState
from barnabas.coordination.client import Client
from barnabas.coordination.layout.access import PERSISTENT_PATHS
from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.topics import (
    PartitionState,
    ReplicaAssignment,
    TopicAssignment,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from barnabas.coordination.operations import Create, Operation
from barnabas.coordination.protocol import CreateMode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.ids import Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.long_turns import LongTurn
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.real_collector import rest_while_importing
from barnabas.kernel.real_host import RealHost, fastest_loop_factory, run
from barnabas.kernel.real_turn_watch import TurnWatch
from barnabas.kernel.timers import Timers
from barnabas.server.turn_names import broker_turn_names
from barnabas.wire import codec
from barnabas.wire.classes import Message
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tests.support.embedded_coordinator import embedded_coordinator

LISTENER = "PLAINTEXT"
DEAD = (1, 2, 3)
FIRST_LIVE = 4
LIVE_BROKERS = 3


@dataclass(slots=True)
class Figures:
    """Seconds, bytes and counts of one run."""

    partitions: int
    failover_seconds: float = 0.0
    failover_cpu_seconds: float = 0.0
    failover_longest_stall_seconds: float = 0.0
    memory_bytes: int = 0
    created_partitions: int = 0
    creation_seconds: float = 0.0
    creation_longest_stall_seconds: float = 0.0
    failure_seconds: float = 0.0
    failure_cpu_seconds: float = 0.0
    failure_longest_stall_seconds: float = 0.0
    control_requests: int = 0


class Connection:
    """A broker that answers at once. What it is sent is encoded in one go, unless the core alone is of interest."""

    def __init__(self, figures: Figures, *, encodes: bool) -> None:
        self._figures = figures
        self._encodes = encodes

    async def send(self, message: Message, version: int, timeout_ms: float) -> Message:
        if self._encodes:
            codec.encode(message, version)
        self._figures.control_requests += 1
        if isinstance(message, LeaderAndIsrRequest):
            return LeaderAndIsrResponse()
        return UpdateMetadataResponse() if isinstance(message, UpdateMetadataRequest) else StopReplicaResponse()

    def close(self) -> None:
        pass


class Ports:
    """All three ports of the controller."""

    def __init__(self, figures: Figures, *, encodes: bool) -> None:
        self._figures = figures
        self._encodes = encodes

    async def register(self) -> int:
        raise NotImplementedError("one session is enough here")

    def connect(self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str) -> Connection:
        return Connection(self._figures, encodes=self._encodes)

    async def wait_for_epoch(self, epoch: int, timeout_ms: float) -> None:
        return


class Stalls:
    """The turns of the loop over 50 ms."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._longest_ms = 0
        self._watch = TurnWatch(loop, self._count, broker_turn_names())
        self._watch.start()

    def take(self) -> float:
        """The longest one since the last call, in seconds; 0 when there was none."""
        longest, self._longest_ms = self._longest_ms, 0
        return longest / 1000

    def stop(self) -> None:
        self._watch.stop()

    def _count(self, turn: LongTurn) -> None:
        self._longest_ms = max(self._longest_ms, turn.duration_ms)
        print(f"{turn.duration_ms} ms ({turn.processor_ms} ms): {turn.name}, in {turn.place}", file=sys.stderr)


async def write_partitions(
    client: Client, host: RealHost, topics: int, partitions: int, brokers: Sequence[int], *, aged: bool = False
) -> None:
    """Topics whose replicas are all on these brokers, three or more. Of `aged` ones hardly any have the same epoch, as
    in a cluster that has lived; all others are as if just made, and equal.
    """
    # As whoever wrote the states left it: a controller that finds none would look for it in all of them.
    operations: list[Operation[object]] = [Create(CONTROLLER_EPOCH_PATH, encode_controller_epoch(1))]  # type: ignore[list-item]
    chance = random.Random(1)
    for first in range(topics):
        topic = f"topic-{first:05}"
        assigned = {
            number: ReplicaAssignment(tuple(brokers[(first + number + offset) % len(brokers)] for offset in range(3)))
            for number in range(partitions // topics)
        }
        assignment = TopicAssignment(assigned, Uuid.generate(host.entropy))
        operations.append(Create(topic_path(topic), assignment.encode()))  # type: ignore[arg-type]
        operations.append(Create(partitions_path(topic), None))  # type: ignore[arg-type]
        for number, replicas in assigned.items():
            leader_epoch = chance.randrange(1_000_000) if aged else 0
            state = PartitionState(replicas.replicas[0], leader_epoch, replicas.replicas, 1)
            operations.append(Create(partition_path(topic, number), None))  # type: ignore[arg-type]
            operations.append(Create(partition_state_path(topic, number), state.encode()))  # type: ignore[arg-type]
    outcomes = await client.submit(operations)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failed:
        raise failed[0]


async def measure(host: RealHost, address: str, given: argparse.Namespace) -> Figures:
    created: int = given.created
    figures = Figures(given.partitions, created_partitions=created)
    client = Client(host, ClientSettings(address, session_timeout_ms=30_000))
    await client.connect()
    for path in PERSISTENT_PATHS:
        await client.ensure_path(path)
    live = range(FIRST_LIVE, FIRST_LIVE + given.brokers)
    replicas_on = live if given.live else DEAD
    await write_partitions(client, host, given.topics, given.partitions, replicas_on, aged=given.aged)
    for broker_id in live:
        registration = BrokerRegistration((BrokerEndpoint(LISTENER, "localhost", 9092, LISTENER),), 0)
        await client.create(broker_id_path(broker_id), registration.encode(), mode=CreateMode.EPHEMERAL)
    timers, ports = Timers(host.loop), Ports(figures, encodes=not given.core)
    logs = Logs("benchmark", host.clock, logging.StreamHandler(sys.stderr), levels={"state.change.logger": "FATAL"})
    metrics = MetricsRegistry(host.loop.time)
    controller = Controller(
        host,
        ControllerSettings(live[0], LISTENER),
        ControllerPorts(ports, ports, ports),
        timers=timers,
        logs=logs,
        metrics=metrics,
    )
    stalls = Stalls(host.loop)
    gc.collect()
    gc.freeze()
    began, cpu_began = time.perf_counter(), time.process_time()
    controller.start(client)
    await controller.idle()
    figures.failover_cpu_seconds = time.process_time() - cpu_began
    figures.failover_seconds = time.perf_counter() - began
    figures.failover_longest_stall_seconds = stalls.take()
    figures.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assigned = {
        number: ReplicaAssignment(tuple(live[(number + i) % len(live)] for i in range(3))) for number in range(created)
    }
    began = time.perf_counter()
    await client.create(topic_path("created"), TopicAssignment(assigned, Uuid.generate(host.entropy)).encode())
    term = controller.term
    if term is None:
        raise RuntimeError("the benchmark's controller is not active")
    while not term.context.has_topic("created") or controller.state is not ControllerState.IDLE:
        await timers.sleep(1)
    figures.creation_seconds = time.perf_counter() - began
    figures.creation_longest_stall_seconds = stalls.take()
    if given.live:
        began, cpu_began = time.perf_counter(), time.process_time()
        await client.delete(broker_id_path(live[-1]))
        while live[-1] in term.context.live_or_shutting_down_brokers or controller.state is not ControllerState.IDLE:
            await timers.sleep(1)
        figures.failure_seconds = time.perf_counter() - began
        figures.failure_cpu_seconds = time.process_time() - cpu_began
        figures.failure_longest_stall_seconds = stalls.take()
    stalls.stop()
    await controller.stop()
    await client.close()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the controller's failover, and the creation of a topic.")
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--created", type=int, default=1_000)
    parser.add_argument("--brokers", type=int, default=LIVE_BROKERS, help="How many brokers are alive.")
    parser.add_argument("--live", action="store_true", help="The brokers of the partitions are alive; then one dies.")
    parser.add_argument("--aged", action="store_true", help="Epochs differ, as in a cluster that has lived.")
    parser.add_argument("--core", action="store_true", help="Nothing is encoded.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rest_while_importing()
    with tempfile.TemporaryDirectory() as directory, embedded_coordinator(Path(directory)) as coordinator:
        figures = run(
            lambda host: measure(host, coordinator.address, given),
            loop_factory=fastest_loop_factory(),
        )
    text = json.dumps(asdict(figures), indent=2)
    if given.json is not None:
        given.json.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
