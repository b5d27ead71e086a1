"""A whole cluster in virtual time for tests of asyncio code: the same brokers as everywhere, on simulated machines.

    with SimulatedCluster(seed=7) as cluster:
        topic = cluster.create_topic(partitions=3)
        app = cluster.start(consume_and_produce, cluster.bootstrap_servers, topic)   # your own coroutine function
        cluster.run_for(10)                                                          # seconds that take milliseconds
        cluster.power_fail(cluster.leader(topic))
        cluster.run_until(lambda: app.ended)

Your code runs as it is, with clients that are asyncio all through: aiokafka, or `barnabas.client`. Its sleeps and
time-outs pass in virtual time, and one seed is one run: a failure names the seed that repeats it. Sets of strings are
walked in an order of their own in every Python process: set PYTHONHASHSEED=0 where a run is to be repeated.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
from asyncio.events import _get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, IsolationLevel, ProducerSettings
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.layout.topics import PartitionState, partition_state_path
from barnabas.kernel.metrics import Gauge
from barnabas.server.cluster_plan import REPLICAS_MAX, ClusterPlan
from barnabas.server.entry import broker_main, coordinator_main
from barnabas.server.property_files import properties_text
from barnabas.testing.cluster_admin import ClusterAdmin
from barnabas.testing.faults import FaultKind, FaultSchedule, Nemesis
from barnabas.testing.killed_code import no_news_of_the_killed
from barnabas.testing.real_clocks import VirtualTime
from barnabas.testing.simulation import LIMIT_SECONDS, Simulation, SimulationFailedError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.records import ConsumerRecord
    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.kernel.host import Host
    from barnabas.server.broker import Broker
    from barnabas.testing.profile import Profile
    from barnabas.testing.simulated_host import Main, SimulatedMachine, SimulatedProcess

Result = TypeVar("Result")
Function = Callable[..., Coroutine[Any, Any, Result]]
Place = int | str
"""A broker's id, "coordinator", or the name of a machine that runs your code."""

COORDINATOR: Final = "coordinator"
APP: Final = "app"
DEFAULT_CONFIG: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.cleaner.enable": "false",
}
"""Broker configs that differ from those of `barnabas up`; `config` goes before them."""
FAULTS_PER_MINUTE: Final[Mapping[FaultKind, float]] = {
    FaultKind.CRASH: 4.0,
    FaultKind.PAUSE: 2.0,
    FaultKind.PARTITION: 2.0,
    FaultKind.CUT: 4.0,
    FaultKind.RESET: 8.0,
}
"""What `strike` does by default. None of it loses a record that the brokers have acknowledged with acks=all."""
USABLE_SECONDS_MAX: Final = 60.0
_LOGGER: Final = logging.getLogger("barnabas.testing")
_OPERATOR: Final = "operator"
_BROKER_PORT: Final = 9092
_COORDINATOR_PORT: Final = 2181
_LOOKING_SECONDS: Final = 0.1
_POLL_MS: Final = 500
_REQUEST_MS: Final = 5_000
_WAITING: Final = ("DelayedOperationPurgatory", "NumDelayedOperations")


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a broker has of a partition at this moment."""

    broker_id: int
    is_leader: bool
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    """Consumers see what is before it; a follower hears of it with the next fetch."""
    log_end_offset: int
    """Where the next record goes."""


class SimulatedCluster:
    """Brokers 1 to `brokers`, their coordinator and your own code on machines of one simulation; used as a context, on
    one thread.

    Time stands still between calls. `run`, `run_for`, `run_until`, `settle` and whatever asks the cluster let it pass,
    for everything there is; faults strike at once and take none. A run ends with SimulationFailedError, which names the
    seed and the last events, where code of a broker or of yours raises what nobody takes.
    """

    def __init__(
        self,
        seed: int = 1,
        brokers: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        session_timeout_ms: int = 6_000,
        profile: Profile | None = None,
        log_handler: logging.Handler | None = None,
    ) -> None:
        """`config` has broker configs for all brokers, by Kafka's names; `profile` says how slow and unreliable the
        network, disks and clocks are. Raises ValueError for what cannot be.
        """
        settings = {name: _text(value) for name, value in (config or {}).items()}
        self._plan = ClusterPlan(
            brokers=brokers,
            data_directory="/data",
            session_timeout_ms=session_timeout_ms,
            overrides={**DEFAULT_CONFIG, **settings},
        )
        self._log_handler = log_handler
        self.simulation = Simulation(seed, profile=profile)
        """Everything else that can be done: clocks, disks and links of single machines, the trace."""
        self._open = contextlib.ExitStack()
        self._topics_made = 0
        self._brokers: dict[int, Broker] = {}
        self._coordinator: EmbeddedCoordinator | None = None
        self._mains = {broker_id: self._main(broker_id) for broker_id in self.broker_ids}

    def __enter__(self) -> Self:
        self._open.enter_context(VirtualTime(self.simulation))
        try:
            self._open.enter_context(self.simulation)
            config = CoordinatorConfig("/data", host="0.0.0.0", port=_COORDINATOR_PORT)  # noqa: S104 - simulated
            self.machine(COORDINATOR).start(coordinator_main(config, on_started=self._coordinator_started))
            for broker_id, main in self._mains.items():
                self.machine(broker_id).start(main)
            usable = self._ask(lambda admin: admin.until_usable(), USABLE_SECONDS_MAX)
            if not usable:
                raise ValueError("groups cannot form: offsets.topic.replication.factor must not be more than brokers")
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._tell_how_to_repeat(error)
        with no_news_of_the_killed():
            try:
                self._open.__exit__(kind, error, trace)
            finally:
                # What is left of them hangs together in rings: a client and its connections name each other.
                gc.collect()

    # What there is.

    @property
    def seed(self) -> int:
        return self.simulation.seed

    @property
    def now(self) -> float:
        """Virtual seconds since the cluster was made."""
        return self.simulation.now

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, with commas between them; simulated code reaches them, nobody else does."""
        return ",".join(self._addresses)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers: 1, 2, ..."""
        return tuple(self._plan.broker_ids)

    @property
    def host(self) -> Host:
        """In simulated code: the host of the process that runs, as `barnabas.client.Client` takes it."""
        loop = _get_running_loop()
        for machine in self.simulation.machines.values():
            for process in machine.processes:
                if process.loop is loop:
                    return process.host
        raise RuntimeError("only code that this cluster runs has a host: start it by run or start")

    def machine(self, place: Place) -> SimulatedMachine:
        """The machine of a broker, of the coordinator, or of that name for your code, which is made when it is new."""
        if isinstance(place, int):
            if place not in self.broker_ids:
                raise ValueError(f"there is no broker {place}: there are 1 to {self._plan.brokers}")
            return self.simulation.machine(f"broker{place}")
        return self.simulation.machine(place)

    # Your code, and time.

    def start(self, function: Function[Any], *arguments: Any, machine: str = APP) -> SimulatedProcess:
        """Starts a process that runs `await function(*arguments)`; returns at once. The process has `ended`,
        `result()`, `crash()` (kill -9), `terminate()` (cancels it, as Ctrl-C does), `pause()` and `resume()`.

        Processes of one machine share its clock and its links to others.
        """
        return self.machine(machine).start(_main(function, arguments), name=_name(function))

    def run(
        self, function: Function[Result], *arguments: Any, limit_seconds: float = LIMIT_SECONDS, machine: str = APP
    ) -> Result:
        """Runs `await function(*arguments)` as a process of its own to its end; returns or raises what it does. Raises
        SimulationFailedError where it has not ended after `limit_seconds` of virtual time.
        """
        process = self.start(function, *arguments, machine=machine)
        self.simulation.run_until(lambda: process.ended, limit_seconds)
        result: Result = process.result()
        return result

    def run_for(self, seconds: float) -> None:
        """Lets that much virtual time pass."""
        self.simulation.run_for(seconds)

    def run_until(self, condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
        """Lets time pass until the condition holds. Raises SimulationFailedError when it does not within the limit."""
        self.simulation.run_until(condition, limit_seconds)

    # The cluster.

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic, and returns its name when all brokers that run know it; None takes a name that is new.

        `replication_factor` is as many as there are brokers by default, three at most. Raises KafkaError.
        """
        self._topics_made += 1
        topic = name or f"topic-{self._topics_made}"
        replicas = replication_factor or min(self._plan.brokers, REPLICAS_MAX)
        settings = {key: _text(value) for key, value in (config or {}).items()}
        known_to = [broker_id for broker_id in self.broker_ids if self.is_running(broker_id)]
        self._ask(lambda admin: admin.create_topic(topic, partitions, replicas, settings, known_to))
        return topic

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads the partition; -1 for none."""
        return self._ask(lambda admin: admin.partition(topic, partition)).leader_id

    def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ids of the brokers that are in sync (ISR)."""
        return self._ask(lambda admin: admin.partition(topic, partition)).isr

    def controller(self) -> int:
        """The id of the controller; -1 for none."""
        return self._ask(lambda admin: admin.controller())

    def produce(
        self, topic: str, *values: bytes, partition: int = 0, acks: int = -1, timeout_seconds: float = 30.0
    ) -> list[int]:
        """Produces records, one after another; their offsets. Raises DeliveryTimeoutError and KafkaError."""

        async def main(host: Host) -> list[int]:
            sending = ProducerSettings(
                acks=acks, idempotent=acks == -1, delivery_timeout_ms=int(timeout_seconds * 1000)
            )
            async with self._client(host) as client, Producer(client, sending) as producer:
                records = [ProducerRecord(topic, value, partition=partition) for value in values]
                return [(await producer.send_and_wait(record)).offset for record in records]

        limit = LIMIT_SECONDS + timeout_seconds * max(1, len(values))
        offsets: list[int] = self.simulation.run_on(self.machine(_OPERATOR), main, limit)
        return offsets

    def replica(self, broker_id: int, topic: str, partition: int = 0) -> ReplicaState | None:
        """What a broker has of a partition, read in its memory; None where it is down or has no replica."""
        broker = self._brokers.get(broker_id) if self.is_running(broker_id) else None
        if broker is None:
            return None
        found = broker.components.replica_manager.find_partition(TopicPartition(topic, partition))
        if found is None or found.log is None:
            return None
        log = found.log
        return ReplicaState(
            broker_id, found.is_leader, found.leader_epoch, log.log_start_offset, log.high_watermark, log.log_end_offset
        )

    def waiting(self, broker_id: int) -> dict[str, int]:
        """How many requests wait in each purgatory of a broker ("Fetch", "Produce", ...); {} where it is down."""
        broker = self._brokers.get(broker_id) if self.is_running(broker_id) else None
        if broker is None:
            return {}
        return {
            dict(name.tags)["delayedOperation"]: int(metric.read())
            for name, metric in broker.metrics
            if (name.type, name.name) == _WAITING and isinstance(metric, Gauge)
        }

    def znode(self, path: str) -> str | None:
        """The text of a znode, as Kafka has it there: "/controller"; None where there is none, or no coordinator."""
        if self._coordinator is None or not self.machine(COORDINATOR).running:
            return None
        found = self._coordinator.engine.tree.find(path)
        return None if found is None else (found[0] or b"").decode()

    def records(self, topic: str, *, limit_seconds: float = LIMIT_SECONDS) -> list[ConsumerRecord]:
        """All records of a topic that consumers of committed records see, by partition and offset."""
        reader = self.machine(_OPERATOR)
        found: list[ConsumerRecord] = self.simulation.run_on(
            reader, lambda host: self._read(host, topic), limit_seconds
        )
        return found

    def settle(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Heals the network, starts or resumes what is down or paused, and lets time pass until all replicas of all
        partitions are in sync and every broker knows it. Raises SimulationFailedError when that takes longer.
        """
        self.heal()
        self.resume(COORDINATOR)
        self.start_coordinator()
        for broker_id in self.broker_ids:
            self.resume(broker_id)
            self.start_broker(broker_id)
        ends_at = self.now + limit_seconds
        while not self._is_whole() and self.now < ends_at:
            self.run_for(_LOOKING_SECONDS)
        self.run_until(self._is_whole, 0)

    # Faults, which strike at once.

    def is_running(self, broker_id: int) -> bool:
        return self.machine(broker_id).running

    def kill(self, place: Place) -> None:
        """Ends everything on a machine as kill -9 does: nothing is flushed, and what was written stays."""
        self.machine(place).crash()

    def power_fail(self, place: Place) -> None:
        """Cuts the power of a machine: what was not synced is lost, connections vanish without a word."""
        self.machine(place).power_fail()

    def stop_broker(self, broker_id: int) -> None:
        """Asks a broker to stop in order; its leaders move away first, which takes time."""
        for process in list(self.machine(broker_id).processes):
            process.terminate()

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that is down, with its data; nothing happens where it runs."""
        machine = self.machine(broker_id)
        if not machine.running:
            machine.start(self._mains[broker_id])

    def start_coordinator(self) -> None:
        """Starts the coordinator after `kill` or `power_fail`; nothing happens where it runs."""
        machine = self.machine(COORDINATOR)
        if not machine.running:
            machine.restart()

    def pause(self, place: Place) -> None:
        """Stops a machine's processes where they are (SIGSTOP)."""
        self.machine(place).pause()

    def resume(self, place: Place) -> None:
        """Lets them go on (SIGCONT)."""
        self.machine(place).resume()

    def partition(self, places: Place | Iterable[Place], *others: Place) -> None:
        """From now on nothing passes between these places and the others, all machines that are not named if none is:
        `partition(1, 2)`, `partition("app", 1)`, `partition([1, 2])`.
        """
        one = [places] if isinstance(places, int | str) else list(places)
        inside = [self.machine(place).name for place in one]
        outside = [self.machine(place).name for place in others]
        outside = outside or [name for name in self.simulation.machines if name not in inside]
        for left in inside:
            for right in outside:
                self.simulation.network.cut(left, right)
                self.simulation.network.cut(right, left)

    def heal(self) -> None:
        """Ends all partitions."""
        self.simulation.network.heal_all()

    def reset_connections(self, one: Place, two: Place) -> int:
        """Breaks every connection between two machines; how many that were."""
        return self.simulation.network.reset_connections(self.machine(one).name, self.machine(two).name)

    def slow_disk(self, place: Place, factor: float) -> None:
        """Makes a machine's disk so many times slower; 1 ends it."""
        self.machine(place).disk.slowness = factor

    def step_clock(self, place: Place, seconds: float) -> None:
        """Sets a machine's wall clock forward, or back when negative."""
        self.machine(place).clock.step(seconds)

    def strike(
        self,
        seconds: float,
        per_minute: Mapping[FaultKind, float] = FAULTS_PER_MINUTE,
        *,
        lasting_seconds: tuple[float, float] = (0.5, 10.0),
    ) -> dict[FaultKind, int]:
        """Lets time pass while random faults strike the brokers, drawn from the seed, and then undoes them; how often
        each kind has struck. One broker at most is down or paused at a time.
        """
        schedule = FaultSchedule(per_minute, lasting_seconds_default=lasting_seconds)
        nemesis = Nemesis(self.simulation, [self.machine(broker_id) for broker_id in self.broker_ids], schedule)
        nemesis.start()
        try:
            self.run_for(seconds)
        finally:
            nemesis.stop()
        return {kind: count for kind, count in nemesis.strikes.items() if count}

    # Inside.

    @property
    def _addresses(self) -> list[str]:
        return [f"broker{broker_id}:{_BROKER_PORT}" for broker_id in self.broker_ids]

    def _properties(self, broker_id: int) -> str:
        properties = self._plan.properties(broker_id, f"{COORDINATOR}:{_COORDINATOR_PORT}", _BROKER_PORT)
        return properties_text({**properties, "listeners": f"PLAINTEXT://broker{broker_id}:{_BROKER_PORT}"})

    def _ask(
        self, ask: Callable[[ClusterAdmin], Coroutine[Any, Any, Result]], limit_seconds: float = LIMIT_SECONDS
    ) -> Result:
        """Asks the cluster from a machine of its own; time passes meanwhile."""

        async def main(host: Host) -> Result:
            admin = ClusterAdmin(host, self._addresses)
            try:
                return await ask(admin)
            finally:
                await admin.close()

        result: Result = self.simulation.run_on(self.machine(_OPERATOR), main, limit_seconds)
        return result

    def _main(self, broker_id: int) -> Main:
        def started(broker: Broker) -> None:
            self._brokers[broker_id] = broker

        run = broker_main(self._properties(broker_id), handler=self._log_handler, on_started=started)

        async def main(host: Host) -> None:
            self._brokers.pop(broker_id, None)
            await run(host)

        return main

    def _coordinator_started(self, coordinator: EmbeddedCoordinator) -> None:
        self._coordinator = coordinator

    def _is_whole(self) -> bool:
        """Whether the coordinator has all replicas in sync, and what brokers know is just that."""
        if any(self.znode(broker_id_path(broker_id)) is None for broker_id in self.broker_ids):
            return False
        for broker_id in self.broker_ids:
            broker = self._brokers.get(broker_id)
            if broker is None:
                return False
            image = broker.components.metadata_cache.image
            if set(image.brokers) != set(self.broker_ids) or image.controller_id not in self.broker_ids:
                return False
            for topic, known in image.topics.items():
                for number, state in known.partitions.items():
                    path = partition_state_path(topic, number)
                    written = self.znode(path)
                    if written is None:
                        return False
                    isr = PartitionState.decode(written.encode(), path).isr
                    if state.leader not in isr or set(isr) != set(state.isr) or set(isr) != set(state.replicas):
                        return False
        return True

    def _client(self, host: Host) -> Client:
        settings = ClientSettings(bootstrap_servers=tuple(self._addresses), request_timeout_ms=_REQUEST_MS)
        return Client(host, settings, _LOGGER)

    async def _read(self, host: Host, topic: str) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        consuming = ConsumerSettings(isolation=IsolationLevel.READ_COMMITTED)
        async with self._client(host) as client, Consumer(client, consuming) as consumer:
            described = (await Admin(client).describe_topics([topic]))[topic]
            partitions = [TopicPartition(topic, number) for number in described.partitions]
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            while [each for each in partitions if await consumer.position(each) < ends[each]]:
                found += await consumer.poll(_POLL_MS)
        return sorted(
            (record for record in found if record.offset < ends[record.partition]),
            key=lambda record: (record.partition, record.offset),
        )

    def _tell_how_to_repeat(self, error: BaseException) -> None:
        if not isinstance(error, SimulationFailedError):  # which tells it itself
            error.add_note(f"at {self.now:.6f} s of virtual time, seed {self.seed}")
            error.add_note(f"reproduce: {self.simulation.reproduction()}")


def _main(function: Function[Any], arguments: tuple[Any, ...]) -> Main:
    def main(host: Host) -> Coroutine[Any, Any, Any]:  # noqa: ARG001 - a main's signature
        return function(*arguments)

    return main


def _name(function: Function[Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


def _text(value: object) -> str:
    """A config's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
