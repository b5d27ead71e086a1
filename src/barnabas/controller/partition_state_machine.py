"""Moves partitions between their states: writes who leads them, and tells the brokers.

A call moves many. Illegal transitions and failures are reported for each partition; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from barnabas.controller.broker_requests import RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import (
    ITEMS_PER_PIECE,
    StateChange,
    Steps,
    UncleanElections,
    each_in_pieces,
    give_way,
    pieces,
    read_znodes,
    told,
)
from barnabas.controller.elections import (
    Elected,
    Election,
    ElectionStrategy,
    NotElected,
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_offline,
    elect_preferred,
)
from barnabas.controller.known_brokers import ContextError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_states import PARTITION_TRANSITIONS, PartitionState
from barnabas.controller.partition_znodes import (
    ATTEMPTS_MAX,
    NobodyElectedError,
    StateChangeFailedError,
    create_leadership,
    read_leadership,
    write_leadership,
)
from barnabas.controller.recent_transitions import StateTransition, to_be_told
from barnabas.controller.settings import PARTITIONS_PER_BATCH, ControllerSettings
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.wire.topics import TopicPartition

UNCLEAN_ELECTION_CONFIG = "unclean.leader.election.enable"


@dataclass(slots=True)
class PartitionMoves:
    """The outcome of a call: the new leadership of partitions that were brought online, those elected uncleanly, the
    illegal transitions, and the failures.
    """

    elected: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    unclean: list[TopicPartition] = field(default_factory=list)
    refused: dict[TopicPartition, IllegalTransitionError] = field(default_factory=dict)
    failed: dict[TopicPartition, Exception] = field(default_factory=dict)


class PartitionStateMachine:
    """The one place that elects leaders. Every method is a part of an event and may raise `ControllerMovedError`, after
    which nothing more is sent.

    Invariant: a leader that is not in sync is elected only where no member of the ISR is registered, and none can be
    expected. When all brokers restart they register one after the other, so at the beginning of a term members are
    expected, until `allow_unclean_elections`. An election on demand (OFFLINE_UNCLEAN) does not wait for them, but
    passes over no registered member either.
    """

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        *,
        is_debug_logged: Callable[[], bool] = lambda: True,
        unclean_elections_wait: bool = False,
    ) -> None:
        """`is_debug_logged` says whether lines for moves to OFFLINE and NON_EXISTENT are worth making."""
        self._context = context
        self._settings = settings
        self._is_debug_logged = is_debug_logged
        self._unclean_elections_wait = unclean_elections_wait
        self._is_anybody_waiting = False
        self.has_unreadable_configs = False
        """Whether a partition has no leader since the last `try_online` because its topic's config cannot be read."""

    def reconfigure(self, settings: ControllerSettings) -> None:
        """From now on elections follow these settings."""
        self._settings = settings

    def allow_unclean_elections(self) -> Steps[None]:
        """Members of ISRs have had time to register: partitions that waited for them may elect uncleanly now."""
        self._unclean_elections_wait = False
        if self._is_anybody_waiting:
            self._is_anybody_waiting = False
            yield from self.try_online()

    def start_up(self) -> Steps[PartitionMoves]:
        """For a controller that has just loaded its context: finds every partition's state, and elects where there is
        no live leader. Returns what `try_online` does.
        """
        context = self._context
        for piece in pieces(context.partitions):
            for partition in piece:
                known = context.leadership(partition)
                if known is None:
                    # A partition whose state cannot be read had a leader, and may still have it; a leader is elected
                    # once it can be read.
                    unreadable = partition in context.unreadable_partitions
                    state = PartitionState.OFFLINE if unreadable else PartitionState.NEW
                elif context.is_replica_online(known.leader, partition):
                    state = PartitionState.ONLINE
                else:
                    state = PartitionState.OFFLINE
                context.set_partition_state(partition, state)
            yield from give_way()
        return (yield from self.try_online())

    def try_online(self, topic: str | None = None) -> Steps[PartitionMoves]:
        """Tries to bring the new and the offline partitions online, of all topics or of one, but none whose topic is
        queued for deletion. Why others stay as they are is in the log, and is not returned: where the brokers of very
        many partitions are dead, it is more than all that is kept of these.
        """
        partitions: list[TopicPartition] = []
        for piece in pieces(self._context.partitions_in(PartitionState.OFFLINE, PartitionState.NEW)):
            partitions += [
                partition
                for partition in piece
                if topic in {None, partition.topic} and not self._context.is_queued_for_deletion(partition.topic)
            ]
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        tried = PartitionMoves()
        for batch in _batches(partitions):
            moves = yield from self._move(batch, PartitionState.ONLINE, ElectionStrategy.OFFLINE)
            tried.elected |= moves.elected
            tried.unclean += moves.unclean
            if len(batch) == PARTITIONS_PER_BATCH:
                yield from give_way()
        return tried

    def move(
        self, partitions: Iterable[TopicPartition], target: PartitionState, strategy: ElectionStrategy | None = None
    ) -> Steps[PartitionMoves]:
        """Moves partitions to `target`, in batches. To bring those online that had a leader before takes a `strategy`;
        ValueError without one, before anything is done to the first of them.
        """
        all_moves = PartitionMoves()
        for batch in _batches(partitions):
            moves = yield from self._move(batch, target, strategy)
            all_moves.elected |= moves.elected
            all_moves.unclean += moves.unclean
            all_moves.refused |= moves.refused
            all_moves.failed |= moves.failed
            if len(batch) == PARTITIONS_PER_BATCH:
                yield from give_way()
        return all_moves

    def _move(
        self, partitions: list[TopicPartition], target: PartitionState, strategy: ElectionStrategy | None
    ) -> Steps[PartitionMoves]:
        context = self._context
        before = {partition: context.partition_state(partition) for partition in partitions}
        advanced = PARTITION_TRANSITIONS.advance_all(before.items(), target)
        moves = PartitionMoves(refused=dict(advanced.refusals))
        batch = RequestBatch(context, self._settings)
        if target is PartitionState.ONLINE:
            new = [partition for partition in advanced.states if before[partition] is PartitionState.NEW]
            others = [partition for partition in advanced.states if before[partition] is not PartitionState.NEW]
            if others and strategy is None:
                raise ValueError(f"{len(others)} partitions had leaders before: give the strategy of their election")
            yield from self._initialize(new, moves, batch)
            if strategy is not None:
                yield from self._elect(others, strategy, moves, batch)
            for partition in moves.elected:
                context.set_partition_state(partition, PartitionState.ONLINE)
        else:
            for partition in advanced.states:
                try:
                    context.set_partition_state(partition, target)
                except ContextError as error:
                    moves.failed[partition] = error
        if moves.unclean:
            yield (UncleanElections(len(moves.unclean)),)
        yield from told(self._lines(before, target, moves))
        effects = yield from batch.effects()
        if effects:
            yield effects
        return moves

    def _initialize(
        self, partitions: Iterable[TopicPartition], moves: PartitionMoves, batch: RequestBatch
    ) -> Steps[None]:
        """Gives new partitions their first leader and ISR: all live replicas of the assignment."""
        context = self._context
        changes: dict[TopicPartition, LeaderAndIsr] = {}

        def decide(partition: TopicPartition) -> None:
            live = context.online_replicas(partition)
            if live:
                changes[partition] = LeaderAndIsr.initial(live, context.epoch)
            else:
                replicas = list(context.assignment(partition).replicas)
                moves.failed[partition] = StateChangeFailedError(f"none of the replicas {replicas} is alive")

        yield from each_in_pieces(decide, partitions)
        if not changes:
            return
        written = yield from create_leadership(context, changes)
        moves.failed.update(written.failed)

        def take_over(partition: TopicPartition) -> None:
            known = written.leadership[partition]
            context.set_leadership(partition, known)
            moves.elected[partition] = known
            batch.add_leader_and_isr(known.isr, partition, known, is_new=True)

        yield from each_in_pieces(take_over, written.leadership)

    def _elect(
        self,
        partitions: Iterable[TopicPartition],
        strategy: ElectionStrategy,
        moves: PartitionMoves,
        batch: RequestBatch,
    ) -> Steps[None]:
        """Elects, and decides again where the leader changed the znode in between."""
        remaining = tuple(partitions)
        if strategy in {ElectionStrategy.OFFLINE, ElectionStrategy.OFFLINE_UNCLEAN}:
            remaining = self._electable(remaining, strategy, moves)
        for _ in range(ATTEMPTS_MAX):
            if not remaining:
                return
            remaining = yield from self._elect_once(remaining, strategy, moves, batch)
        for partition in remaining:
            moves.failed[partition] = StateChangeFailedError(
                f"the state in ZooKeeper changed before each of {ATTEMPTS_MAX} writes"
            )

    def _electable(
        self, partitions: Iterable[TopicPartition], strategy: ElectionStrategy, moves: PartitionMoves
    ) -> tuple[TopicPartition, ...]:
        """The partitions with a live replica. The others cannot be led, whatever their state is."""
        electable = []
        for partition in partitions:
            if self._context.online_replicas(partition):
                electable.append(partition)
            else:
                replicas = list(self._context.assignment(partition).replicas)
                moves.failed[partition] = NobodyElectedError(
                    strategy.value, f"none of the replicas {replicas} is alive"
                )
        return tuple(electable)

    def _elect_once(
        self,
        partitions: Iterable[TopicPartition],
        strategy: ElectionStrategy,
        moves: PartitionMoves,
        batch: RequestBatch,
    ) -> Steps[tuple[TopicPartition, ...]]:
        context = self._context
        found = yield from read_leadership(context, partitions)
        current: dict[TopicPartition, LeaderAndIsr] = {}
        for partition, known in found.items():
            if isinstance(known, LeaderAndIsr):
                current[partition] = known
            else:
                missing = StateChangeFailedError("it had a leader, but its state in ZooKeeper is gone")
                moves.failed[partition] = missing if known is None else known
        unclean_allowed = yield from self._unclean_allowed(current, strategy)
        elections: dict[TopicPartition, Elected] = {}

        def decide(partition: TopicPartition) -> None:
            allowed = unclean_allowed.get(partition.topic, False)
            if isinstance(allowed, Exception):
                moves.failed[partition] = allowed
                self.has_unreadable_configs = True
                return
            election = self._election(partition, current[partition], strategy, unclean_allowed=allowed)
            if isinstance(election, NotElected):
                moves.failed[partition] = NobodyElectedError(strategy.value, election.reason)
            else:
                elections[partition] = election

        yield from each_in_pieces(decide, current)
        changes = {
            partition: election.leader_and_isr.by_controller(context.epoch) for partition, election in elections.items()
        }
        written = yield from write_leadership(context, changes)
        moves.failed.update(written.failed)

        def take_over(partition: TopicPartition) -> None:
            known = written.leadership[partition]
            context.set_leadership(partition, known)
            moves.elected[partition] = known
            context.put_back_partitions.pop(partition, None)
            if elections[partition].unclean:
                moves.unclean.append(partition)
            batch.add_leader_and_isr(elections[partition].recipients, partition, known, is_new=False)

        yield from each_in_pieces(take_over, written.leadership)
        return written.conflicts

    def _election(
        self, partition: TopicPartition, current: LeaderAndIsr, strategy: ElectionStrategy, *, unclean_allowed: bool
    ) -> Election:
        context = self._context
        assignment = context.assignment(partition)
        live = context.online_replicas(partition)
        match strategy:
            case ElectionStrategy.OFFLINE | ElectionStrategy.OFFLINE_UNCLEAN:
                return self._elect_offline(partition, current, live, strategy, unclean_allowed=unclean_allowed)
            case ElectionStrategy.REASSIGN:
                removing = assignment.removing_replicas
                target = tuple(replica for replica in assignment.replicas if replica not in removing)
                return elect_for_reassignment(current, target, live)
            case ElectionStrategy.PREFERRED:
                return elect_preferred(current, assignment.replicas, live)
            case ElectionStrategy.CONTROLLED_SHUTDOWN:
                present = context.online_replicas(partition, include_shutting_down=True)
                return elect_for_controlled_shutdown(
                    current, assignment.replicas, present, context.shutting_down_brokers
                )

    def _elect_offline(
        self,
        partition: TopicPartition,
        current: LeaderAndIsr,
        live: Collection[int],
        strategy: ElectionStrategy,
        *,
        unclean_allowed: bool,
    ) -> Election:
        context = self._context
        election = elect_offline(
            current,
            context.assignment(partition).replicas,
            live,
            unclean_allowed=unclean_allowed,
            recovery_supported=self._settings.leader_recovery_supported,
        )
        if isinstance(election, NotElected) or not election.unclean:
            return election
        registered = context.registered_members(partition, current.isr)
        if registered:
            return NotElected(
                f"brokers {list(registered)} of the ISR {list(current.isr)} are registered and have every committed "
                "record, but cannot lead now: wait until they can or have stopped, or stop them; before that none is "
                "elected that is not in sync"
            )
        if self._unclean_elections_wait and strategy is ElectionStrategy.OFFLINE:
            self._is_anybody_waiting = True
            return NotElected(
                f"no replica that is in sync is alive (in sync {list(current.isr)}, alive {list(live)}); brokers may "
                f"be starting still, so for {self._settings.unclean_election_delay_ms} ms after the controller took "
                "over none is elected that is not in sync"
            )
        return election

    def _unclean_allowed(
        self, current: Mapping[TopicPartition, LeaderAndIsr], strategy: ElectionStrategy
    ) -> Steps[dict[str, bool | Exception]]:
        """Whether unclean elections are enabled, by topic, for topics with a partition without a live in-sync replica;
        or why that cannot be read.
        """
        if strategy not in {ElectionStrategy.OFFLINE, ElectionStrategy.OFFLINE_UNCLEAN}:
            return {}
        topics = list(
            dict.fromkeys(
                partition.topic
                for partition, known in current.items()
                if not any(self._context.is_replica_online(replica, partition) for replica in known.isr)
            )
        )
        if strategy is ElectionStrategy.OFFLINE_UNCLEAN:
            return dict.fromkeys(topics, True)
        paths = [config_path(ConfigEntityType.TOPICS, topic) for topic in topics]
        outcomes = yield from read_znodes(paths)
        allowed: dict[str, bool | Exception] = {}
        for topic, path, outcome in zip(topics, paths, outcomes, strict=True):
            if isinstance(outcome, NoNodeError):
                allowed[topic] = self._settings.unclean_leader_election_enable
            elif isinstance(outcome, Exception):
                allowed[topic] = outcome
            else:
                allowed[topic] = self._decode_unclean_allowed(outcome.data, path)
        return allowed

    def _decode_unclean_allowed(self, data: bytes | None, path: str) -> bool | Exception:
        try:
            value = EntityConfig.decode(data, path).config.get(UNCLEAN_ELECTION_CONFIG)
        except LayoutError as error:
            return error
        if value is None:
            return self._settings.unclean_leader_election_enable
        if value.strip().lower() not in {"true", "false"}:
            return LayoutError(path, f"{UNCLEAN_ELECTION_CONFIG} is {value!r}; it must be true or false")
        return value.strip().lower() == "true"

    def _lines(
        self, before: Mapping[TopicPartition, PartitionState], target: PartitionState, moves: PartitionMoves
    ) -> Iterator[StateChange]:
        """One line per partition, with the epochs."""
        head = f"controller {self._settings.broker_id} epoch {self._context.epoch}: partition"
        quiet = target in {PartitionState.OFFLINE, PartitionState.NON_EXISTENT}
        level = logging.DEBUG if quiet else logging.INFO
        is_logged = not quiet or self._is_debug_logged()
        all_of_them = is_logged or bool(moves.refused or moves.failed)
        for partition, state in to_be_told(before, all_of_them=all_of_them):
            fault = moves.refused.get(partition) or moves.failed.get(partition)
            known = moves.elected.get(partition) if fault is None else None
            move = StateTransition(
                *partition,
                None,
                state.name,
                target.name,
                known or self._context.leadership(partition),
                fault=None if fault is None else str(fault),
            )
            change = f"{head} {partition.topic}-{partition.partition} from {state.name} to {target.name}"
            if fault is not None:
                yield StateChange(logging.ERROR, f"{change} failed: {fault}", move)
                continue
            leads = (
                ""
                if known is None
                else f": leader {known.leader}, leader epoch {known.leader_epoch}, in sync {list(known.isr)}, "
                f"partition epoch {known.partition_epoch}"
            )
            yield StateChange(level, f"{change}{leads}", move)


def _batches(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    remaining = iter(partitions)
    while batch := list(islice(remaining, PARTITIONS_PER_BATCH)):
        yield batch
