"""Somebody throttles the replication of simulated brokers, and changes that, whatever else goes wrong (KIP-73).

Invariant: of what one follower fetches from one leader, and what both hold back alike, nothing starves: while a replica
that is asked for gets nothing, each other one that is behind as well gets something a few times at most. When
everything is healed, every replica is throttled, at a rate that it can catch up with, and has to be in sync all the
same (which is asked of every plan).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import ConfigOperation, ResourceType
from barnabas.follower.fetcher_partitions import FetchedPartition, FetchPhase
from barnabas.follower.replica_fetcher import ReplicaFetcher
from barnabas.serving.leader_throttle import LeaderThrottle
from barnabas.testing.faults import FaultKind
from barnabas.testing.probes import after, before

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from barnabas.client.admin import Admin
    from barnabas.quotas.replication_quota import ReplicationQuota
    from barnabas.testing.cluster_effects import Effects
    from barnabas.testing.cluster_observer import Observer
    from barnabas.testing.cluster_operator import Operator
    from barnabas.testing.faults import Undo
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.testing.simulation import Simulation

SIDES: Final = ("leader", "follower")
RATES: Final = (None, "300", "500", "1500", "6000")
"""Bytes per second; what producers write to one partition is among the lowest."""
RATE_AT_REST: Final = "20000"
TURNS_MISSED_MAX: Final = 4
"""Of each other partition: more than any order in which they take turns has."""
_CALL_MS: Final = 10_000


class Throttles:
    """Who sets them, and what comes of it."""

    def __init__(
        self,
        simulation: Simulation,
        observer: Observer,
        operator: Operator,
        effects: Effects,
        brokers: Mapping[int, SimulatedMachine],
        topic: str,
    ) -> None:
        self._simulation = simulation
        self._observer = observer
        self._operator = operator
        self._effects = effects
        self._broker_ids = sorted(brokers)
        self._topic = topic
        self._random = simulation.world.random("throttles")
        self._was_behind: set[FetchedPartition] = set()
        """Partitions whose records are being appended, and that were behind when they were fetched."""
        self._missed: dict[FetchedPartition, dict[FetchedPartition, int]] = {}
        """How often each other one got something since a partition did."""

    # What the operator does.

    def strike(self) -> Undo:
        """A rate or a list of throttled replicas is set, changed or removed."""
        side = self._random.choice(SIDES)
        if self._random.random() < 0.6:
            broker_id, rate = self._random.choice(self._broker_ids), self._random.choice(RATES)
            self._await_rate(side, broker_id, rate)
            self._set(ResourceType.BROKER, str(broker_id), f"{side}.replication.throttled.rate", rate)
        else:
            replicas = self._random.choice((None, "*", "*", self._some_replicas()))
            self._set(ResourceType.TOPIC, self._topic, f"{side}.replication.throttled.replicas", replicas)
        return _nothing

    def begin_rest(self) -> None:
        """Everything is throttled, so that it takes a while to catch up, and no longer."""
        for side in SIDES:
            self._set(ResourceType.TOPIC, self._topic, f"{side}.replication.throttled.replicas", "*")
            for broker_id in self._broker_ids:
                self._set(ResourceType.BROKER, str(broker_id), f"{side}.replication.throttled.rate", RATE_AT_REST)

    def _some_replicas(self) -> str:
        partitions = self._observer.watched
        chosen = self._random.sample(partitions, self._random.randint(1, len(partitions)))
        return ",".join(f"{partition.partition}:{each}" for partition in chosen for each in self._broker_ids)

    def _set(self, type_: ResourceType, name: str, key: str, value: str | None) -> None:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET

        async def change(admin: Admin) -> None:
            await admin.alter_configs(type_, name, [(key, operation, value)], timeout_ms=_CALL_MS)

        self._operator.administer(change)

    def _await_rate(self, side: str, broker_id: int, rate: str | None) -> None:
        """It has come to something when the broker goes by another rate than now, and by that one."""
        quota = self._quota(side, broker_id)
        if quota is None or rate is None or quota.bytes_per_second == int(rate):
            return

        def acts() -> bool:
            found = self._quota(side, broker_id)
            return found is not None and found.bytes_per_second == int(rate)

        self._effects.when_seen(FaultKind.THROTTLED, acts)

    def _quota(self, side: str, broker_id: int) -> ReplicationQuota | None:
        running = self._observer.running.get(broker_id)
        if running is None:
            return None
        throttles = running.broker.components.storage.throttles
        return throttles.leader if side == "leader" else throttles.follower

    # What must hold.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Looks at what followers get, while this lasts."""
        with (
            before(ReplicaFetcher, "_append", self._appending),
            after(ReplicaFetcher, "_append", self._appended),
            before(ReplicaFetcher, "_hold_back", self._holding_back),
            after(LeaderThrottle, "holds_back", self._held_back),
        ):
            yield

    def _held_back(self, is_held_back: bool, *_arguments: object) -> None:
        self._observer.coverage["throttled: held back by leaders"] += is_held_back

    def _holding_back(self, *_arguments: object) -> None:
        self._observer.coverage["throttled: held back by followers"] += 1

    def _appending(self, _fetcher: ReplicaFetcher, fetched: FetchedPartition, *_arguments: object) -> None:
        if _is_behind(fetched):
            self._was_behind.add(fetched)

    def _appended(
        self,
        has_appended: bool,
        fetcher: ReplicaFetcher,
        fetched: FetchedPartition,
        *_arguments: object,
    ) -> None:
        was_behind = fetched in self._was_behind
        self._was_behind.discard(fetched)
        if not has_appended:
            return
        self._missed.pop(fetched, None)
        throttled = self._throttled(fetcher, fetched) if was_behind else None
        if throttled is None or not any(throttled):
            return
        for other in fetcher.partitions:
            if other is fetched:
                continue
            if other.delayed_until is not None:
                continue  # not asked for just now
            is_waiting = other.phase is FetchPhase.FETCHING and not other.refusals and _is_behind(other)
            if not is_waiting or not self._has_more(fetcher, other) or self._throttled(fetcher, other) != throttled:
                self._missed.pop(other, None)
                continue
            missed = self._missed.setdefault(other, {})
            missed[fetched] = missed.get(fetched, 0) + 1
            self._observer.coverage["throttled: took turns"] += 1
            if missed[fetched] == TURNS_MISSED_MAX:
                self._observer.history.starved.append(
                    f"{other.topic_partition} got nothing by {fetcher.name} while {fetched.topic_partition} got "
                    f"something {TURNS_MISSED_MAX} times, at {self._simulation.now:.3f} s"
                )

    def _has_more(self, fetcher: ReplicaFetcher, fetched: FetchedPartition) -> bool:
        """The leader has what the follower lacks: one that has just begun in a leader epoch may be behind or not."""
        running = self._observer.running.get(fetcher.leader.broker_id)
        manager = None if running is None else running.broker.components.replica_manager
        replica = None if manager is None else manager.find_partition(fetched.topic_partition)
        return replica is not None and replica.log is not None and replica.log.log_end_offset > fetched.fetch_offset

    def _throttled(self, fetcher: ReplicaFetcher, fetched: FetchedPartition) -> tuple[bool, bool] | None:
        """Whether the leader may hold it back, and the follower; None where the leader cannot be looked at."""
        partition = fetched.topic_partition
        running = self._observer.running.get(fetcher.leader.broker_id)
        replica = None if running is None else running.broker.components.replica_manager.find_partition(partition)
        quota = self._quota("leader", fetcher.leader.broker_id)
        if replica is None or quota is None:
            return None
        follower_id = fetcher._context.broker_id  # noqa: SLF001 - a probe
        by_leader = follower_id not in replica.isr and quota.is_throttled(partition)
        follower_quota = self._quota("follower", follower_id)
        return by_leader, follower_quota is not None and follower_quota.is_throttled(partition)


def _is_behind(fetched: FetchedPartition) -> bool:
    """As far as is known."""
    return fetched.lag != 0


def _nothing() -> None:
    """Nothing to mend."""
