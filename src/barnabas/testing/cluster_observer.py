"""Looks at simulated brokers while they run, from outside, and notes what a `History` wants to know.

Some things are seen by looking again and again, between the turns of the loops; others (who begins to lead, what is
truncated) by probes around production methods, which change nothing and are taken away with the observer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.coordination.embedded.sessions import SessionTable
from barnabas.coordination.embedded.tree import ZnodeTree, child_names
from barnabas.coordination.layout.brokers import BROKER_IDS_PATH
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import (
    TOPICS_PATH,
    PartitionState,
    ReplicaAssignment,
    TopicAssignment,
    partition_state_path,
    topic_path,
)
from barnabas.kernel.metrics import Meter
from barnabas.leader.partition import Partition
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.network.admission import Admission
from barnabas.network.server import NetworkServer
from barnabas.security.login import Login, LoginState
from barnabas.testing.cluster_history import ExposedHighWatermark, Forgot, UncleanElection
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.probes import after, before
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.network.connection import ServerConnection
    from barnabas.server.broker import Broker
    from barnabas.testing.cluster_history import History
    from barnabas.testing.simulated_host import SimulatedMachine

COUNTING_SECONDS: Final = 1.0
REGISTERED_SECONDS_MIN: Final = 0.5
"""A controller may not have heard yet, when it elects, of a broker that registered less long ago."""
LED_WITHOUT_DISK_SECONDS_MAX: Final = 3.0
"""A controller that is there needs a moment; one that has yet to be elected, or is cut off, some more."""
CLOCKS_DIFFER_MS_MAX: Final = 600_000
"""How far clocks that were set again and again may differ, and so the age of a record from the time of the run."""
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
    logs: dict[tuple[TopicPartition, int, PartitionLog], StoredLog] = field(default_factory=dict)
    """What was read of the partitions that it leads, by leader epoch and log: one in another log directory is read from
    its beginning."""
    counts: Counter[str] = field(default_factory=Counter)


class Observer:
    """Notes what the brokers of one simulation do."""

    def __init__(
        self,
        history: History,
        now: Callable[[], float],
        topic: str,
        partitions: int,
        directories: tuple[str, ...],
        others: Sequence[TopicPartition] = (),
    ) -> None:
        """`others` are partitions that have to be kept, too, once they are there."""
        self.history = history
        self.coordinator: EmbeddedCoordinator | None = None
        """The one that runs, or ran last."""
        self.running: dict[int, RunningBroker] = {}
        """The processes that serve, by broker id."""
        self.coverage: Counter[str] = Counter()
        self._now = now
        self._directories = directories
        self.watched = [TopicPartition(topic, number) for number in range(partitions)]
        """The partitions of the users' topic."""
        self._others = list(others)
        self._power_failures: dict[int, int] = {}
        self._forgotten: dict[int, dict[TopicPartition, int]] = {}
        self._registered_at: dict[int, float] = {}
        self._elected_uncleanly: dict[tuple[TopicPartition, int], tuple[int, tuple[int, ...]]] = {}
        """By partition and leader epoch, until somebody leads: who was elected, and which members of the ISR were
        registered.
        """
        self._in_force: dict[str, tuple[PartitionState, bytes]] = {}
        """By the path of a state: the last of the latest leader epoch that was written, whatever the znode holds."""
        self.former_states: dict[str, bytes] = {}
        """By path: the last state of the leader epoch before."""
        self._set_back: dict[str, None] = {}
        self._let_in: set[Login] = set()
        """Of connections between brokers, where they log in."""
        self._without_disk_since: dict[tuple[int, TopicPartition], float] = {}
        self._paths = {partition_state_path(*partition): partition for partition in self._known_partitions()}

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
            survived = log.surviving_end_offset(self.history.deletable.get(partition, 0))
            forgotten[partition] = min(survived, forgotten.get(partition, 2**63))

    def started(self, broker_id: int, machine: SimulatedMachine, broker: Broker) -> None:
        """The broker is registered and serves."""
        self.running[broker_id] = RunningBroker(broker, machine)
        for partition, from_offset in self._forgotten.pop(broker_id, {}).items():
            state = self.committed_state(partition)
            in_isr = state is not None and broker_id in state.isr
            epoch = NO_EPOCH if state is None else state.leader_epoch
            self.history.forgot.append(Forgot(self._now(), broker_id, partition, from_offset, in_isr, epoch))

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions of the users' topic; those of the groups' offsets, and others, as far as they are there."""
        return [
            partition
            for partition in self._known_partitions()
            if partition in self.watched or self.committed_state(partition) is not None
        ]

    def _known_partitions(self) -> list[TopicPartition]:
        offsets = [TopicPartition(OFFSETS_TOPIC, number) for number in range(_OFFSETS_PARTITIONS_MAX)]
        return [*self.watched, *offsets, *self._others]

    def tree(self) -> ZnodeTree | None:
        """What the coordinator has; None while there has been none."""
        return None if self.coordinator is None else self.coordinator.engine.tree

    def highest_seen(self, partition: TopicPartition) -> int:
        """The high watermark that the partition's leader had when it was looked at last."""
        return next(
            (exposed.high_watermark for exposed in reversed(self.history.exposed) if exposed.partition == partition), 0
        )

    def committed_state(self, partition: TopicPartition) -> PartitionState | None:
        """What the coordinator has of a partition; None where that is nothing, or cannot be read."""
        path = partition_state_path(partition.topic, partition.partition)
        tree = self.tree()
        node = None if tree is None else tree.find(path)
        return None if node is None else _decode_state(node[0], path)

    def leader(self, partition: TopicPartition) -> int | None:
        """Who leads the partition, by what the controller has written last; None where that cannot be read."""
        state = self.committed_state(partition)
        return None if state is None else state.leader

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment | None:
        """Where the coordinator has a partition; None where it has none, or that cannot be read."""
        path, tree = topic_path(partition.topic), self.tree()
        node = None if tree is None else tree.find(path)
        if node is None:
            return None
        try:
            return TopicAssignment.decode(node[0], path).partitions.get(partition.partition)
        except LayoutError:
            return None

    # Looking.

    def look(self) -> None:
        """Notes high watermarks, what is committed, and controllers."""
        for broker_id, running in list(self.running.items()):
            if not running.machine.running:
                del self.running[broker_id]
                continue
            self._look_at_controller(broker_id, running)
            self._look_at_directories(broker_id, running)
            for partition in self.watched:
                self._look_at(broker_id, running, partition)

    def count(self) -> None:
        """Adds up the meters of all brokers that run."""
        for running in self.running.values():
            self._count(running)

    def _look_at_controller(self, broker_id: int, running: RunningBroker) -> None:
        controller = running.broker.components.controller
        if controller.is_active:
            self.history.controllers.setdefault(controller.epoch, {}).setdefault(broker_id, self._now())

    def _look_at_directories(self, broker_id: int, running: RunningBroker) -> None:
        """Whether it leads, as the coordinator has it, what it has no log of any more, and others could."""
        if not running.broker.components.storage.log_manager.offline_directories:
            for partition in self.watched:
                self._without_disk_since.pop((broker_id, partition), None)
            return
        logs = running.broker.components.storage.log_manager.logs
        for partition in self.watched:
            state = self.committed_state(partition)
            key = (broker_id, partition)
            if state is None or state.leader != broker_id or partition in logs or set(state.isr) == {broker_id}:
                self._without_disk_since.pop(key, None)
                continue
            since = self._without_disk_since.setdefault(key, self._now())
            if self._now() - since > LED_WITHOUT_DISK_SECONDS_MAX:
                del self._without_disk_since[key]
                self.history.led_without_disk.append(
                    f"broker {broker_id} has led {partition.topic}-{partition.partition} for "
                    f"{LED_WITHOUT_DISK_SECONDS_MAX:g} s at {self._now():.3f} s, and its log directory has failed"
                )

    def _look_at(self, broker_id: int, running: RunningBroker, topic_partition: TopicPartition) -> None:
        partition = running.broker.components.replica_manager.find_partition(topic_partition)
        if partition is None or not partition.is_leader or partition.log is None:
            return
        epoch, high_watermark = partition.leader_epoch, partition.log.high_watermark
        log = running.logs.get((topic_partition, epoch, partition.log))
        if log is None:
            log = StoredLog(running.machine.disk, [partition.log.log_directory.path], topic_partition)
            running.logs = {key: kept for key, kept in running.logs.items() if key[0] != topic_partition}
            running.logs[topic_partition, epoch, partition.log] = log
        elif high_watermark == log.end_offset:
            return
        # What retention has taken meanwhile was never looked at.
        from_offset = max(log.end_offset, log.first_offset)
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
        network = running.broker.components.network
        counts["connections refused"] = network.connections_refused
        counts["clients that made room for brokers"] = network.connections_displaced
        self.coverage += counts - running.counts
        running.counts = counts

    # Probes.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Production methods tell of what they do, while this lasts."""
        with (
            after(Partition, "become_leader", self._became_leader),
            before(PartitionLog, "truncate_to", self._truncating),
            after(SessionTable, "take_expired", self._expired),
            before(ZnodeTree, "set_data", self._writing),
            before(ZnodeTree, "create", self._creating),
            before(ZnodeTree, "delete", self._deleting),
            after(PartitionLog, "delete_first_segments", self._retained),
            after(Login, "take", self._logged_in),
            after(Admission, "take", self._came),
            after(NetworkServer, "_let_in", self._let_in_or_refused),
        ):
            yield

    def _came(self, is_in: bool, *_arguments: Any) -> None:
        self.coverage["connections held back"] += not is_in

    def _let_in_or_refused(self, is_in: bool, _server: NetworkServer, connection: ServerConnection) -> None:
        if not is_in and connection.listener.is_protected:
            self.history.kept_out.append(f"{connection.peer} at {connection.listener.name}, at {self._now():.3f} s")

    def _logged_in(self, _answer: bytes, login: Login, *_arguments: Any) -> None:
        if login.state is LoginState.AUTHENTICATED:
            self.coverage["logins"] += 1
            # A login that is repeated begins in a connection that has been let in.
            self.coverage["logins repeated"] += login in self._let_in
            self._let_in.add(login)

    def _became_leader(self, result: bool, partition: Partition, *_arguments: Any) -> None:
        if partition.is_leader:
            key = (partition.topic_partition, partition.leader_epoch)
            brokers = self.history.leaders.setdefault(key, {})
            if result and not brokers:
                self.coverage["elections"] += 1
                self._judge_election(partition)
            brokers.setdefault(partition.leader_id, self._now())

    def _judge_election(self, partition: Partition) -> None:
        """Notes an unclean election as soon as its leader, or one after it, leads: until then nothing has been lost."""
        if partition.log is None:
            return
        epoch = partition.leader_epoch
        keys = [key for key in self._elected_uncleanly if key[0] == partition.topic_partition and key[1] <= epoch]
        for key in keys:
            elected, registered = self._elected_uncleanly.pop(key)
            self.coverage["unclean elections"] += 1
            self.history.unclean.append(
                UncleanElection(self._now(), elected, key[0], key[1], partition.log.log_end_offset, registered)
            )

    def is_known_to_all(self, path: str, broker_count: int) -> bool:
        """Whether all brokers run, and have heard of the leader epoch in which a state is in force."""
        partition, in_force = self._paths[path], self._in_force.get(path)
        if in_force is None or len(self.running) < broker_count:
            return False
        for each in self.running.values():
            topic = each.broker.components.metadata_cache.image.topics.get(partition.topic)
            told = None if topic is None else topic.partitions.get(partition.partition)
            if told is None or told.leader_epoch < in_force[0].leader_epoch:
                return False
        return True

    def _writing(self, tree: ZnodeTree, path: str, data: bytes | None, *_arguments: Any) -> None:
        """The state of a partition changes; of those that a coordinator reads again when it starts, nothing is new."""
        partition = self._paths.get(path)
        if partition is None:
            self._writing_assignment(tree, path, data)
            return
        node = tree.find(path)
        old, new = (None if node is None else _decode_state(node[0], path)), _decode_state(data, path)
        if new is None:
            return
        in_force = self._in_force.get(path)
        if in_force is not None and node is not None and new.leader_epoch < in_force[0].leader_epoch:
            # No controller writes that; a coordinator that starts reads it again.
            if old is None:
                self.coverage["states set back"] += 1
                self._set_back[path] = None
            return
        if in_force is not None and new.leader_epoch > in_force[0].leader_epoch:
            if path in self._set_back:
                del self._set_back[path]
                self.coverage["states put right"] += 1
            self.former_states[path] = in_force[1]
            old = in_force[0]
        if data is not None:
            self._in_force[path] = (new, data)
        if old is None or new.leader < 0 or new.leader in old.isr:
            return
        key = (partition, new.leader_epoch)
        if any(known >= new.leader_epoch for other, known in self.history.leaders if other == partition):
            return
        ids = tree.find(BROKER_IDS_PATH)
        present = {int(name) for name in child_names(ids)} if ids is not None else set()
        latest = self._now() - REGISTERED_SECONDS_MIN
        registered = (
            member for member in old.isr if member in present and self._registered_at.get(member, 0.0) <= latest
        )
        self._elected_uncleanly[key] = (new.leader, tuple(registered))

    def _writing_assignment(self, tree: ZnodeTree, path: str, data: bytes | None) -> None:
        """The replicas of a topic change: counts the ends of moves to brokers none of which had a replica."""
        node = tree.find(path)
        if node is None or path.rpartition("/")[0] != TOPICS_PATH:
            return
        try:
            old, new = TopicAssignment.decode(node[0], path), TopicAssignment.decode(data, path)
        except LayoutError:
            return
        for number, after_it in new.partitions.items():
            before_it = old.partitions.get(number)
            if before_it is not None and before_it.adding_replicas and before_it.removing_replicas:
                is_whole = set(before_it.adding_replicas) == set(after_it.replicas)
                self.coverage["moves of whole sets"] += is_whole and not after_it.is_being_reassigned

    def _creating(self, _tree: ZnodeTree, path: str, *_arguments: Any, **_keywords: Any) -> None:
        parent, _, name = path.rpartition("/")
        if parent == BROKER_IDS_PATH:
            self._registered_at[int(name)] = self._now()

    def _deleting(self, _tree: ZnodeTree, path: str, *_arguments: Any) -> None:
        # A topic of that name that is made again begins with epoch 0.
        for key in [key for key in self.history.leaders if path == topic_path(key[0].topic)]:
            del self.history.leaders[key]
        if path == topic_path(OFFSETS_TOPIC):
            self.history.offsets_deleted_at.append(self._now())
            for of_path in (self._in_force, self.former_states, self._set_back):
                for known in [known for known in of_path if known.startswith(path)]:
                    del of_path[known]

    def _retained(self, count: int, log: PartitionLog, *arguments: Any) -> None:
        """Retention has given up segments: that is lawful as far as a config says so."""
        if not count:
            return
        self.coverage["segments retired"] += count
        reason = str(arguments[-1])
        self.history.note_deletion(log.partition, log.segments.first.base_offset)
        if "size" in reason and log.size_bytes < log.config.retention_bytes:
            self.history.unlawful.append(
                f"{log.partition.topic}-{log.partition.partition} kept {log.size_bytes} bytes at {self._now():.3f} s, "
                f"with retention.bytes {log.config.retention_bytes}"
            )
        if "time" in reason and log.config.retention_ms > self._now() * 1000 + CLOCKS_DIFFER_MS_MAX:
            self.history.unlawful.append(
                f"{log.partition.topic}-{log.partition.partition} gave up segments by their age at {self._now():.3f} s,"
                f" with retention.ms {log.config.retention_ms}"
            )

    def _expired(self, sessions: list[Any], *_arguments: Any) -> None:
        self.coverage["expiries"] += len(sessions)

    def _truncating(self, log: PartitionLog, offset: int) -> None:
        if offset < log.log_end_offset:
            self.coverage["truncations"] += 1


def _decode_state(data: bytes | None, path: str) -> PartitionState | None:
    try:
        return PartitionState.decode(data, path)
    except LayoutError:
        return None
