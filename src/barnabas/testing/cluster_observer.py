"""Looks at simulated brokers while they run, from outside, and notes what a `History` wants to know.

Some things are seen by looking again and again, between the turns of the loops; others (who begins to lead, what is
truncated) by probes around production methods, which change nothing and are taken away with the observer.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.coordination.embedded.sessions import SessionTable
from barnabas.coordination.layout.topics import OFFSETS_TOPIC, PartitionState, TopicPartition, partition_state_path
from barnabas.kernel.metrics import Meter
from barnabas.log.partition_log import PartitionLog
from barnabas.replication.partition import Partition
from barnabas.testing.cluster_history import ExposedHighWatermark, Forgot
from barnabas.testing.cluster_logs import StoredLog

if TYPE_CHECKING:
    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.server.broker import Broker
    from barnabas.testing.cluster_history import History
    from barnabas.testing.simulated_host import SimulatedMachine

COUNTING_SECONDS: Final = 1.0
_OFFSETS_PARTITIONS_MAX: Final = 8
_FENCED: Final = frozenset(
    {
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "STALE_BROKER_EPOCH",
        "STALE_CONTROLLER_EPOCH",
        "INVALID_UPDATE_VERSION",
        "NOT_CONTROLLER",
        "FENCED_INSTANCE_ID",
        "INVALID_PRODUCER_EPOCH",
        "ILLEGAL_GENERATION",
    }
)


@dataclass(slots=True)
class RunningBroker:
    """A process of a broker, as long as it lives."""

    broker: Broker
    machine: SimulatedMachine
    logs: dict[tuple[TopicPartition, int], StoredLog] = field(default_factory=dict)
    """What was read of the partitions that it leads, by leader epoch."""
    counts: Counter[str] = field(default_factory=Counter)


class Observer:
    """Notes what the brokers of one simulation do."""

    def __init__(
        self, history: History, now: Callable[[], float], topic: str, partitions: int, directories: tuple[str, ...]
    ) -> None:
        self.history = history
        self.coordinator: EmbeddedCoordinator | None = None
        """The one that runs, or ran last."""
        self.running: dict[int, RunningBroker] = {}
        """The processes that serve, by broker id."""
        self.coverage: Counter[str] = Counter()
        self._now = now
        self._directories = directories
        self._watched = [TopicPartition(topic, number) for number in range(partitions)]
        self._power_failures: dict[int, int] = {}
        self._forgotten: dict[int, dict[TopicPartition, int]] = {}

    # Processes come and go.

    def starting(self, broker_id: int, machine: SimulatedMachine) -> None:
        """A process of a broker begins; after a loss of power, its disk says what it has forgotten."""
        self.running.pop(broker_id, None)
        if self._power_failures.get(broker_id, 0) == machine.power_failures:
            return
        self._power_failures[broker_id] = machine.power_failures
        forgotten = self._forgotten.setdefault(broker_id, {})
        for partition in self.all_partitions():
            log = StoredLog(machine.disk, self._directories, partition)
            forgotten[partition] = min(log.surviving_end_offset(), forgotten.get(partition, 2**63))

    def started(self, broker_id: int, machine: SimulatedMachine, broker: Broker) -> None:
        """The broker is registered and serves."""
        self.running[broker_id] = RunningBroker(broker, machine)
        for partition, from_offset in self._forgotten.pop(broker_id, {}).items():
            state = self.committed_state(partition)
            in_isr = state is not None and broker_id in state.isr
            epoch = -1 if state is None else state.leader_epoch
            self.history.forgot.append(Forgot(self._now(), broker_id, partition, from_offset, in_isr, epoch))

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions of the users' topic, and those of the groups' offsets as far as they are there."""
        offsets = (TopicPartition(OFFSETS_TOPIC, number) for number in range(_OFFSETS_PARTITIONS_MAX))
        return self._watched + [partition for partition in offsets if self.committed_state(partition) is not None]

    def committed_state(self, partition: TopicPartition) -> PartitionState | None:
        """What the coordinator has of a partition."""
        path = partition_state_path(partition.topic, partition.partition)
        node = None if self.coordinator is None else self.coordinator.engine.tree.find(path)
        return None if node is None else PartitionState.decode(node[0], path)

    # Looking.

    def look(self) -> None:
        """Notes high watermarks, what is committed, and controllers."""
        for broker_id, running in list(self.running.items()):
            if not running.machine.running:
                del self.running[broker_id]
                continue
            self._look_at_controller(broker_id, running)
            for partition in self._watched:
                self._look_at(broker_id, running, partition)

    def count(self) -> None:
        """Adds up the meters of all brokers that run."""
        for running in self.running.values():
            self._count(running)

    def _look_at_controller(self, broker_id: int, running: RunningBroker) -> None:
        controller = running.broker.rooms.controller
        if controller.is_active:
            self.history.controllers.setdefault(controller.epoch, {}).setdefault(broker_id, self._now())

    def _look_at(self, broker_id: int, running: RunningBroker, topic_partition: TopicPartition) -> None:
        partition = running.broker.rooms.replica_manager.find_partition(topic_partition)
        if partition is None or not partition.is_leader or partition.log is None:
            return
        epoch, high_watermark = partition.leader_epoch, partition.log.high_watermark
        log = running.logs.get((topic_partition, epoch))
        if log is None:
            log = StoredLog(running.machine.disk, self._directories, topic_partition)
            running.logs = {key: kept for key, kept in running.logs.items() if key[0] != topic_partition}
            running.logs[topic_partition, epoch] = log
        elif high_watermark == log.end_offset:
            return
        from_offset = log.end_offset
        batches = log.read(high_watermark)
        self.history.exposed.append(
            ExposedHighWatermark(self._now(), broker_id, topic_partition, epoch, high_watermark, from_offset, batches)
        )

    def _count(self, running: RunningBroker) -> None:
        """Adds up the meters of all processes; a new process begins at 0."""
        counts: Counter[str] = Counter()
        for name, metric in running.broker.metrics:
            if not isinstance(metric, Meter):
                continue
            if name.name == "IsrShrinksPerSec":
                counts["ISR shrinks"] += metric.count
            elif name.name == "IsrExpandsPerSec":
                counts["ISR growths"] += metric.count
            elif name.name == "ErrorsPerSec" and dict(name.tags).get("error") in _FENCED:
                counts["fenced requests"] += metric.count
        self.coverage += counts - running.counts
        running.counts = counts

    # Probes.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Production methods tell of what they do, while this lasts."""
        with (
            _after(Partition, "become_leader", self._became_leader),
            _before(PartitionLog, "truncate_to", self._truncating),
            _after(SessionTable, "take_expired", self._expired),
        ):
            yield

    def _became_leader(self, result: bool, partition: Partition, *_arguments: Any) -> None:
        if partition.is_leader:
            key = (partition.topic_partition, partition.leader_epoch)
            brokers = self.history.leaders.setdefault(key, {})
            if result and not brokers:
                self.coverage["elections"] += 1
            brokers.setdefault(partition.leader_id, self._now())

    def _expired(self, sessions: list[Any], *_arguments: Any) -> None:
        self.coverage["expiries"] += len(sessions)

    def _truncating(self, log: PartitionLog, offset: int) -> None:
        if offset < log.log_end_offset:
            self.coverage["truncations"] += 1


@contextmanager
def _after(owner: type, name: str, tell: Callable[..., object]) -> Iterator[None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def probe(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        tell(result, *arguments)
        return result

    setattr(owner, name, probe)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _before(owner: type, name: str, tell: Callable[..., object]) -> Iterator[None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def probe(*arguments: Any, **keywords: Any) -> Any:
        tell(*arguments)
        return original(*arguments, **keywords)

    setattr(owner, name, probe)
    try:
        yield
    finally:
        setattr(owner, name, original)
