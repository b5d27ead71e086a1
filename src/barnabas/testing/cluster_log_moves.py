"""Somebody moves replicas between the log directories of simulated brokers, whatever else goes wrong (0023).

Invariants, looked at all the time: in the log directories of a broker that are online, a partition has one current log;
and that is the one that the broker goes on with. When the cluster is at rest, no replica is on its way, and no copy of
one that is there is left.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import ConfigOperation, ResourceType
from barnabas.log.directories.names import DirectoryKind, parse_partition_directory, partition_directory_name
from barnabas.log.manager.log_manager import LogManager
from barnabas.testing.faults import FaultKind
from barnabas.testing.probes import after

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from barnabas.client.admin import Admin
    from barnabas.testing.cluster_effects import Effects
    from barnabas.testing.cluster_observer import Observer, RunningBroker
    from barnabas.testing.cluster_operator import Operator
    from barnabas.testing.faults import Undo
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.testing.simulation import Simulation
    from barnabas.wire.topics import TopicPartition

THROTTLE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
THROTTLES: Final = (None, None, "3000", "30000")
"""Bytes per second: the slow ones have a move last as long as leaders do."""
STRUCK_DOWN_PROBABILITY: Final = 0.25
"""How probable it is that a broker falls within a moment after a step of a move."""
STRUCK_DOWN_SECONDS: Final = (0.0, 0.06)
_CALL_MS: Final = 10_000


class LogMoves:
    """Who moves, and what becomes of it. `strike_down` is to be set before the first move."""

    strike_down: Callable[[SimulatedMachine], None]
    """Has a broker fall, if it may."""

    def __init__(
        self,
        simulation: Simulation,
        observer: Observer,
        operator: Operator,
        effects: Effects,
        brokers: Mapping[int, SimulatedMachine],
        directories: Sequence[str],
    ) -> None:
        self._simulation = simulation
        self._observer = observer
        self._operator = operator
        self._effects = effects
        self._brokers = dict(brokers)
        self._directories = tuple(directories)
        self._random = simulation.world.random("log moves")
        self._known: set[tuple[int, TopicPartition, str]] = set()

    # What the operator does.

    def strike(self) -> Undo:
        """Some replicas of a broker go to a directory, or are to be made there; the throttle changes sometimes."""
        broker_id = self._random.choice(sorted(self._brokers))
        partitions = self._observer.all_partitions()
        moved = self._random.sample(partitions, self._random.randint(1, min(3, len(partitions))))
        wanted = {partition: self._random.choice(self._directories) for partition in moved}
        for partition, directory in wanted.items():
            self._await_move(broker_id, partition, directory)
        throttle = self._random.choice(THROTTLES)
        changes_throttle = self._random.random() < 0.3

        async def move(admin: Admin) -> None:
            if changes_throttle:
                operation = ConfigOperation.DELETE if throttle is None else ConfigOperation.SET
                await admin.alter_configs(
                    ResourceType.BROKER, "", [(THROTTLE, operation, throttle)], timeout_ms=_CALL_MS
                )
            await admin.alter_replica_log_dirs(broker_id, wanted, timeout_ms=_CALL_MS)

        self._operator.administer(move)
        return _nothing

    def end_throttle(self) -> None:
        """What is under way is to come to its end."""

        async def end(admin: Admin) -> None:
            await admin.alter_configs(
                ResourceType.BROKER, "", [(THROTTLE, ConfigOperation.DELETE, None)], timeout_ms=_CALL_MS
            )

        self._operator.administer(end)

    def _await_move(self, broker_id: int, partition: TopicPartition, directory: str) -> None:
        if self._place(broker_id, partition) not in (None, directory):
            self._effects.when_seen(FaultKind.LOG_MOVED, lambda: self._place(broker_id, partition) == directory)

    def _place(self, broker_id: int, partition: TopicPartition) -> str | None:
        """The log directory that the partition's log is in; None where there is none now."""
        running = self._observer.running.get(broker_id)
        log = None if running is None else _manager(running).get_log(partition)
        return None if log is None else log.log_directory.path

    # Steps.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Brokers fall at the steps of a move, while this lasts."""
        with (
            after(LogManager, "create_future_log", lambda _, manager, *__: self._stepped(manager)),
            after(LogManager, "prepare_replacement", lambda _, manager, *__: self._stepped(manager)),
            after(LogManager, "replace_current", self._replaced),
        ):
            yield

    def _replaced(self, log: object, manager: LogManager, *_: object) -> None:
        if log is not None:
            self._observer.coverage["logs replaced"] += 1
            self._stepped(manager)

    def _stepped(self, manager: LogManager) -> None:
        running = next((each for each in self._observer.running.values() if _manager(each) is manager), None)
        if running is not None and self._random.random() < STRUCK_DOWN_PROBABILITY:
            machine = running.machine
            self._simulation.after(self._random.uniform(*STRUCK_DOWN_SECONDS), lambda: self.strike_down(machine))

    # What must hold.

    def look(self) -> None:
        """Notes what breaks an invariant."""
        partitions = [(each, partition_directory_name(each)) for each in self._observer.all_partitions()]
        for broker_id, running in self._observer.running.items():
            if not running.machine.running:
                continue
            names = _names_by_directory(running)
            for partition, name in partitions:
                places = [path for path, there in names.items() if name in there]
                if len(places) > 1:
                    self._found(broker_id, partition, f"lies in {' and in '.join(places)}")
                self._look_at(broker_id, running, partition)

    def _look_at(self, broker_id: int, running: RunningBroker, partition: TopicPartition) -> None:
        replica = running.broker.components.replica_manager.find_partition(partition)
        log = _manager(running).get_log(partition)
        if replica is not None and replica.log is not None and log is not None and replica.log is not log:
            self._found(broker_id, partition, "goes on with a log that was replaced")

    def are_done(self) -> bool:
        """Whether no replica is on its way. One that was moved to another broker, and that no controller has had
        deleted (Kafka's leave some, too), is none any more, and its copy is one of nothing.
        """
        return not any(
            _is_hosted(running, partition)
            for running in self._observer.running.values()
            for partition in _manager(running).future_logs
        )

    def judge(self) -> None:
        """Notes the copies that are left in a cluster at rest. One of a replica that is not there is left alone."""
        for broker_id, running in self._observer.running.items():
            for path, names in _names_by_directory(running).items():
                for name in sorted(names):
                    parsed = parse_partition_directory(name)
                    if parsed is None or parsed.kind is not DirectoryKind.FUTURE:
                        continue
                    if not _is_hosted(running, parsed.partition):
                        self._observer.coverage["copies left alone"] += 1
                    else:
                        self._found(broker_id, parsed.partition, f"has a copy that stays: {path}/{name}")

    def _found(self, broker_id: int, partition: TopicPartition, what: str) -> None:
        if (broker_id, partition, what) not in self._known:
            self._known.add((broker_id, partition, what))
            self._observer.history.misplaced.append(
                f"{partition_directory_name(partition)} on broker {broker_id} {what}, at {self._simulation.now:.3f} s"
            )


def _manager(running: RunningBroker) -> LogManager:
    return running.broker.components.storage.log_manager


def _names_by_directory(running: RunningBroker) -> dict[str, Collection[str]]:
    """What lies in each log directory that is not offline, by its path."""
    found = {each.path: running.machine.disk.find(each.path) for each in _manager(running).live_directories}
    return {path: () if node is None else node.entries or () for path, node in found.items()}


def _is_hosted(running: RunningBroker, partition: TopicPartition) -> bool:
    return running.broker.components.replica_manager.find_partition(partition) is not None


def _nothing() -> None:
    """Nothing to mend."""
