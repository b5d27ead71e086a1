"""Faults that only somebody who knows the cluster can make: the strikers of a `Nemesis` for a simulated cluster."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import ConfigOperation, ResourceType
from barnabas.coordination.layout.admin import REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.layout.configs import DEFAULT_ENTITY, ConfigEntityType, config_path
from barnabas.coordination.layout.controller import (
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    decode_controller_epoch,
)
from barnabas.coordination.layout.topics import PartitionState, ReplicaAssignment, partition_state_path, topic_path
from barnabas.testing.cluster_configs import BROKER_VALUES, TOPIC_VALUES, acting_value, has_stored
from barnabas.testing.faults import FaultKind, Nemesis, Striker, Undo
from barnabas.testing.simulated_disk import FaultRule
from barnabas.wire.topics import OFFSETS_TOPIC, ElectionType

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.testing.cluster_effects import Effects
    from barnabas.testing.cluster_log_moves import LogMoves
    from barnabas.testing.cluster_many import LargeRequests
    from barnabas.testing.cluster_observer import Observer
    from barnabas.testing.cluster_operator import Operator
    from barnabas.testing.cluster_plan import Plan
    from barnabas.testing.cluster_throttles import Throttles
    from barnabas.testing.renewed_topic import RenewedTopic
    from barnabas.testing.simulated_host import Main, SimulatedMachine
    from barnabas.testing.simulation import Simulation
    from barnabas.wire.topics import TopicPartition

RESTART_SPREAD_SECONDS: Final = (0.0, 3.0)
START_STEPS_SECONDS: Final = (0.05, 0.5, 6.0)
"""How long a start takes: without a former session, with one that is gone soon, with one that must expire."""
ROLLING_PAUSE_SECONDS: Final = (0.0, 2.0)
STOP_SECONDS_MAX: Final = 20.0
WHOLE_SET_PROBABILITY: Final = 0.4
"""Of a move to brokers none of which has a replica, where there are such."""
HANGING_SLOWNESS: Final = (1_000.0, 3_000.0)
"""A sync takes 0.2 to 9 s, and an append on the loop some thousandths of a second."""
_LOOKING_SECONDS: Final = 0.1
_CHECKPOINTS: Final = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
)
_WRITES: Final = frozenset({"write", "truncate", "rename", "unlink", "make_directories", "remove_directory"})
_ALL_CALLS: Final = _WRITES | {"open", "read", "fsync", "fsync_directory", "status", "list_directory", "size"}
_DIRECTORY_FAULTS: Final = {
    FaultKind.DIRECTORY_ERROR: (errno.EIO, _ALL_CALLS),
    FaultKind.DIRECTORY_FULL: (errno.ENOSPC, frozenset({"write", "make_directories"})),
    FaultKind.DIRECTORY_READ_ONLY: (errno.EROFS, _WRITES),
}


class ClusterFaults:
    """How each kind is carried out. `nemesis` is to be set before the first strike."""

    nemesis: Nemesis

    def __init__(
        self,
        simulation: Simulation,
        plan: Plan,
        brokers: Mapping[int, SimulatedMachine],
        directories: tuple[str, ...],
        main_of: Callable[[int], Main],
        observer: Observer,
        operator: Operator,
        large_requests: LargeRequests,
        renewed_topic: RenewedTopic,
        log_moves: LogMoves,
        throttles: Throttles,
        effects: Effects,
    ) -> None:
        """`main_of` gives what a broker runs; `effects` is told what to look for."""
        self._simulation = simulation
        self._plan = plan
        self._brokers = dict(brokers)
        self._directories = directories
        self._main_of = main_of
        self._observer = observer
        self._operator = operator
        self._large_requests = large_requests
        self._renewed_topic = renewed_topic
        self._log_moves = log_moves
        self._throttles = throttles
        log_moves.strike_down = self._strike_down
        self._effects = effects
        self._random = simulation.world.random("cluster faults")
        self._rolling: list[int] = []
        self._ends_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Something that was begun goes on."""
        return bool(self._rolling) or self._operator.is_busy

    def strikers(self) -> Mapping[FaultKind, Striker]:
        """For the nemesis."""
        return {
            FaultKind.CRASH_ALL: self._crash_all,
            FaultKind.ROLLING_RESTART: self._begin_rolling,
            FaultKind.EXPIRY: self._expire_any,
            FaultKind.CONTROLLER_DELETED: self._delete_controller,
            FaultKind.ZNODE_SPOILED: self._spoil_znode,
            FaultKind.STATE_SET_BACK: self._set_state_back,
            FaultKind.STATE_DELETED: self._delete_state,
            FaultKind.CONFIG_CHANGED: self._change_config,
            FaultKind.RECORDS_DELETED: self._delete_records,
            FaultKind.INTERNAL_TOPIC_DELETED: self._delete_internal_topic,
            FaultKind.REASSIGNED: self._reassign,
            FaultKind.LOG_MOVED: self._log_moves.strike,
            FaultKind.LEADERS_ELECTED: self._elect_leaders,
            FaultKind.THROTTLED: self._throttles.strike,
            FaultKind.TOPIC_MADE_ANEW: self._make_topic_anew,
            FaultKind.DIRECTORY_SLOW: self._slow_directory,
            FaultKind.DIRECTORY_HANGS: self._hang_directory,
            FaultKind.CHECKPOINT_SPOILED: self._spoil_checkpoint,
            FaultKind.MANY_ASKED_FOR: self._ask_for_many,
            **{kind: functools.partial(self._break_directory, kind) for kind in _DIRECTORY_FAULTS},
        }

    # Processes.

    def _crash_all(self) -> Undo | None:
        struck = self.nemesis.take_all(list(self._brokers.values()))
        for machine in struck:
            machine.crash()

        def mend() -> None:
            for machine in struck:
                start = functools.partial(self._start_again, machine)
                self.nemesis.undo_after(RESTART_SPREAD_SECONDS, start)

        return mend if struck else None

    def _strike_down(self, machine: SimulatedMachine) -> None:
        """A broker falls just now, if another fault may, and comes back soon."""
        kind = self._random.choice((FaultKind.CRASH, FaultKind.POWER))
        if not self.nemesis.is_active or self.nemesis.take(kind, machine) is None:
            return
        if kind is FaultKind.POWER:
            machine.power_fail()
        else:
            machine.crash()
        self.nemesis.undo_after(RESTART_SPREAD_SECONDS, functools.partial(self._start_again, machine))

    def _start_again(self, machine: SimulatedMachine) -> None:
        self.nemesis.give_back(machine)
        machine.restart()

    def _begin_rolling(self) -> Undo | None:
        if self._rolling:
            return None
        self._rolling = sorted(self._brokers)
        self._stop_next()
        return _nothing

    def _stop_next(self) -> None:
        """Stops the next broker as soon as it serves and no other fault has it."""
        if not self._rolling:
            return
        machine = self._brokers[self._rolling[0]]
        if self._rolling[0] not in self._observer.running:
            self._simulation.after(_LOOKING_SECONDS, self._stop_next)
            return
        taken = self.nemesis.take(FaultKind.ROLLING_RESTART, machine)
        if taken is None:
            self._simulation.after(_LOOKING_SECONDS, self._stop_next)
            return
        for process in machine.processes:
            process.terminate()
        self._ends_at = self._simulation.now + STOP_SECONDS_MAX
        self._await_stop()

    def _await_stop(self) -> None:
        broker_id = self._rolling[0]
        machine = self._brokers[broker_id]
        if machine.running and self._simulation.now < self._ends_at:
            self._simulation.after(_LOOKING_SECONDS, self._await_stop)
            return
        self._rolling.pop(0)
        if not self._rolling:
            self._effects.happened(FaultKind.ROLLING_RESTART)
        machine.crash()
        machine.start(self._main_of(broker_id))
        self.nemesis.give_back(machine)
        self._simulation.after(self._random.uniform(*ROLLING_PAUSE_SECONDS), self._stop_next)

    # ZooKeeper.

    def _expire_any(self) -> Undo | None:
        addresses = [machine.address for machine in self._brokers.values()]
        return _nothing if self._expire(self._random.choice(addresses)) else None

    def expire_at_start(self, machine: SimulatedMachine) -> None:
        """A broker starts or stops: its session may end at some step."""
        if self._random.random() < self._plan.expiries_at_start:
            seconds = self._random.uniform(0.0, self._random.choice(START_STEPS_SECONDS))
            self._simulation.after(seconds, lambda: self._expire(machine.address))

    def _expire(self, address: str) -> bool:
        """Ends the sessions that somebody there has; False where there are none."""
        coordinator = self._observer.coordinator
        if coordinator is None or coordinator.loop.is_closed():
            return False
        engine = coordinator.engine
        ids = [
            session.id
            for session in engine.sessions
            if session.attachment is not None and getattr(session.attachment, "peer", ("",))[0] == address
        ]

        def end() -> None:
            for session_id in ids:
                session = engine.sessions.get(session_id)
                if session is not None:
                    self._effects.happened(FaultKind.EXPIRY)
                    engine.close_session(session)
                    if session.attachment is not None:
                        session.attachment.finish()

        coordinator.loop.call_soon(end)
        return bool(ids)

    def _delete_controller(self) -> Undo:
        def deleted() -> None:
            tree = self._observer.tree()
            node = None if tree is None else tree.find(CONTROLLER_EPOCH_PATH)
            if node is not None:
                # Another broker, or the same one again, must be elected.
                epoch, controllers = decode_controller_epoch(node[0]), self._observer.history.controllers
                self._effects.when_seen(FaultKind.CONTROLLER_DELETED, lambda: max(controllers, default=epoch) > epoch)

        self._operator.delete_znode(CONTROLLER_PATH, deleted)
        return _nothing

    def _spoil_znode(self) -> Undo | None:
        tree = self._observer.tree()
        if tree is None:
            return None
        topic, broker_id = self._plan.load.topic, self._random.choice(list(self._brokers))
        number = self._random.randrange(self._plan.load.partitions)
        paths = [
            partition_state_path(topic, number),
            partition_state_path(OFFSETS_TOPIC, self._random.randrange(2)),
            topic_path(topic),
            broker_id_path(broker_id),
            config_path(ConfigEntityType.TOPICS, topic),
            config_path(ConfigEntityType.BROKERS, self._random.choice((str(broker_id), DEFAULT_ENTITY))),
        ]
        there = [path for path in paths if tree.find(path) is not None]
        if not there:
            return None
        path = self._random.choice(there)
        forget = self._effects.when_reported(FaultKind.ZNODE_SPOILED, f"{path}: ")
        mend = self._operator.spoil_znode(path)

        def end() -> None:
            forget()
            mend()

        return end

    def _set_state_back(self) -> Undo | None:
        former = self._observer.former_states
        if not former:
            return None
        path = self._random.choice(list(former))
        state = former[path]
        # Who has not heard of the state in force cannot tell, and says so: then the operator is a careful one.
        return self._operator.spoil_znode(
            path, lambda: state if self._observer.is_known_to_all(path, len(self._brokers)) else None
        )

    def _delete_state(self) -> Undo | None:
        tree = self._observer.tree()
        path = partition_state_path(self._plan.load.topic, self._random.randrange(self._plan.load.partitions))
        node = None if tree is None else tree.find(path)
        if node is None or not self._observer.is_known_to_all(path, len(self._brokers)):
            return None
        before = PartitionState.decode(node[0], path).leader_epoch

        def is_made_again() -> bool:
            now = self._observer.tree()
            found = None if now is None else now.find(path)
            return found is not None and PartitionState.decode(found[0], path).leader_epoch > before

        self._operator.delete_znode(path, lambda: self._effects.when_seen(FaultKind.STATE_DELETED, is_made_again))
        # Nobody watches states: who changes nothing of the partition learns it as the next controller only.
        return self._depose

    def _depose(self) -> None:
        self._delete_controller()

    # What an administrator does.

    def _change_config(self) -> Undo:
        entity = self._random.choice(("", str(self._random.choice(list(self._brokers))), self._plan.load.topic))
        is_topic = entity == self._plan.load.topic
        values = TOPIC_VALUES if is_topic else BROKER_VALUES
        key = self._random.choice(list(values))
        value = self._random.choice((None, *values[key]))
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        type_ = ResourceType.TOPIC if is_topic else ResourceType.BROKER

        async def change(admin: Admin) -> None:
            await admin.alter_configs(type_, entity, [(key, operation, value)], timeout_ms=10_000)

        self._await_config(entity, key, value)
        self._operator.administer(change)
        return _nothing

    def _await_config(self, entity: str, key: str, value: str | None) -> None:
        """The change has come to something when a broker goes by another value than now, and by that one."""
        topic = self._plan.load.topic
        running = self._observer.running
        concerned = [int(entity)] if entity.isdecimal() else list(self._brokers)
        before = {each: acting_value(running[each].broker, key, topic) for each in concerned if each in running}
        type_ = ConfigEntityType.TOPICS if entity == topic else ConfigEntityType.BROKERS

        def acts() -> bool:
            now = {each: acting_value(running[each].broker, key, topic) for each in before if each in running}
            changed = any(
                found is not None and found != before[each] and value in (None, found) for each, found in now.items()
            )
            tree = self._observer.tree()
            return changed and tree is not None and has_stored(tree, type_, entity or DEFAULT_ENTITY, key, value)

        self._effects.when_seen(FaultKind.CONFIG_CHANGED, acts)

    def _delete_records(self) -> Undo | None:
        partition = self._random.choice(self._observer.watched)
        high_watermark = self._observer.highest_seen(partition)
        if not high_watermark:
            return None
        offset = self._random.randint(0, high_watermark)
        self._observer.history.note_deletion(partition, offset)
        start = self._log_start(partition)
        if start is not None and start < offset:
            # Retention goes by segments; it hardly ever comes to the same offset.
            self._effects.when_seen(FaultKind.RECORDS_DELETED, lambda: self._log_start(partition) == offset)

        async def delete(admin: Admin) -> None:
            await admin.delete_records({partition: offset}, timeout_ms=10_000)

        self._operator.administer(delete)
        return _nothing

    def _log_start(self, partition: TopicPartition) -> int | None:
        """The start offset of its leader's log; None where it has no leader."""
        replicas = (
            running.broker.components.replica_manager.find_partition(partition)
            for running in self._observer.running.values()
        )
        return next(
            (each.log.log_start_offset for each in replicas if each and each.is_leader and each.log is not None), None
        )

    def _delete_internal_topic(self) -> Undo:
        deletions = self._observer.history.offsets_deleted_at
        already = len(deletions)
        self._effects.when_seen(FaultKind.INTERNAL_TOPIC_DELETED, lambda: len(deletions) > already)

        async def delete(admin: Admin) -> None:
            await admin.delete_topics([OFFSETS_TOPIC], timeout_ms=10_000)

        self._operator.administer(delete)
        return _nothing

    def _reassign(self) -> Undo | None:
        partition = self._random.choice(self._observer.all_partitions())
        present = self._observer.assignment(partition)
        if present is None:
            return None
        others = [each for each in sorted(self._brokers) if each not in present.replicas]
        if len(others) > 1 and self._random.random() < WHOLE_SET_PROBABILITY:
            target = tuple(self._random.sample(others, self._random.randint(2, len(others))))
        else:
            target = tuple(self._random.sample(sorted(self._brokers), self._random.randint(2, len(self._brokers))))
        way = self._random.choice(("api", "api", "znode", "cancel"))
        if way == "znode":
            self._operator.create_znode(REASSIGN_PARTITIONS_PATH, Reassignment({partition: target}).encode())
        else:
            wanted = {partition: None if way == "cancel" else target}

            async def alter(admin: Admin) -> None:
                await admin.alter_partition_reassignments(wanted, timeout_ms=10_000)

            self._operator.administer(alter)
        if way != "cancel" and present.replicas != target:
            self._effects.when_seen(
                FaultKind.REASSIGNED, lambda: self._observer.assignment(partition) == ReplicaAssignment(target)
            )
        return _nothing

    def _elect_leaders(self) -> Undo:
        """Of all partitions or of one; it has come to something when the controller says so of any."""
        one = self._random.choice(self._observer.all_partitions())
        partitions = self._random.choice((None, [one]))
        types = tuple(ElectionType) if self._observer.history.allows_unclean else (ElectionType.PREFERRED,)
        election_type = self._random.choice(types)

        async def elect(admin: Admin) -> None:
            outcomes = await admin.elect_leaders(election_type, partitions, timeout_ms=10_000)
            if None in outcomes.values():
                self._effects.happened(FaultKind.LEADERS_ELECTED)

        self._operator.administer(elect)
        return _nothing

    def _make_topic_anew(self) -> Undo:
        happened = functools.partial(self._effects.happened, FaultKind.TOPIC_MADE_ANEW)
        self._operator.start(lambda host: self._renewed_topic.renew(host, happened))
        return _nothing

    def _ask_for_many(self) -> Undo:
        self._operator.start(self._large_requests.ask)
        return _nothing

    # Disks.

    def _break_directory(self, kind: FaultKind) -> Undo | None:
        """One directory of a broker fails; the broker is restarted when it has been mended."""
        machine = self._take_broker(kind)
        if machine is None:
            return None
        number, calls = _DIRECTORY_FAULTS[kind]
        directory = self._random.choice(self._directories)
        rules = [FaultRule(calls, pattern, number) for pattern in (directory, f"{directory}/*")]
        machine.disk.fault_rules += rules
        broker_id = next(each for each, broker in self._brokers.items() if broker is machine)
        forget = self._effects.when_seen(kind, lambda: self._is_offline(broker_id, directory))

        def mend() -> None:
            forget()
            for rule in rules:
                machine.disk.fault_rules.remove(rule)
            self._start_again(machine)

        return mend

    def _is_offline(self, broker_id: int, directory: str) -> bool:
        running = self._observer.running.get(broker_id)
        return running is not None and any(
            each.path == directory for each in running.broker.components.storage.log_manager.offline_directories
        )

    def _slow_directory(self) -> Undo | None:
        machine = self._random.choice(list(self._brokers.values()))
        directory = self._random.choice(self._directories)
        machine.disk.slow_paths[directory] = self._random.uniform(5.0, 100.0)
        return lambda: _nothing(machine.disk.slow_paths.pop(directory, None))

    def _hang_directory(self) -> Undo | None:
        """Syncs that are under way when it ends take their time yet."""
        broker_id = self._random.choice(list(self._brokers))
        directory = self._random.choice(self._directories)
        paths = self._brokers[broker_id].disk.slow_paths
        if directory in paths:
            return None
        paths[directory] = self._random.uniform(*HANGING_SLOWNESS)
        forget = self._effects.when_seen(FaultKind.DIRECTORY_HANGS, lambda: self._is_held(broker_id, directory))

        def mend() -> None:
            forget()
            del paths[directory]

        return mend

    def _is_held(self, broker_id: int, directory: str) -> bool:
        running = self._observer.running.get(broker_id)
        return running is not None and any(
            each.path == directory and each.is_held
            for each in running.broker.components.storage.log_manager.directories
        )

    def _spoil_checkpoint(self) -> Undo | None:
        machine = self._take_broker(FaultKind.CHECKPOINT_SPOILED)
        if machine is None:
            return None
        machine.crash()
        path = f"{self._random.choice(self._directories)}/{self._random.choice(_CHECKPOINTS)}"
        machine.disk.scribble(path, b"0\n1\nspoiled\n")
        self._effects.when_reported(FaultKind.CHECKPOINT_SPOILED, f"{path} ")
        return lambda: self._start_again(machine)

    def _take_broker(self, kind: FaultKind) -> SimulatedMachine | None:
        return self.nemesis.take(kind, self._random.choice(list(self._brokers.values())))


def _nothing(_: object = None) -> None:
    """Nothing to mend."""
