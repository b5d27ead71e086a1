"""Where replicas and leaders should be: a plan with the least movement, by bytes, load and number.

Pure: the same input gives the same plan. A plan

- leaves every partition as many replicas as it has, on brokers that may have them, none twice;
- never puts the replicas of a partition on fewer racks than they are on, and keeps them apart where brokers permit;
- leaves nothing on brokers that are to be drained, and of other replicas moves none then;
- moves replicas only onto the brokers that are to be filled, where there are such; what is drained goes there first;
- has, where it balances all, no replica left whose move to another broker would even them out further, but for the
  tolerance: of partitions alike, brokers that permit it have the same number within one;
- moves no replica that could as well have stayed: to take any move back makes the brokers less even. Of partitions
  alike it moves as few as can be; to drain a broker it copies what the broker has, and not a byte more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from barnabas.wire.topics import TopicPartition

_IMPROVEMENT_MIN: Final = 1e-9
_WEIGHTS: Final = (1.0, 1.0, 0.25)
"""How much an uneven spread of bytes, of load and of the number of replicas counts."""


class PlanError(ValueError):
    """There is no such plan; the text says why."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is alive; `rack` is None where it does not tell one."""

    node_id: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a partition is, the preferred leader first, and what each of its replicas takes."""

    replicas: tuple[int, ...]
    size_bytes: int = 0
    load: float = 0.0
    """Bytes per second that are written to it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to do: by default to even out all brokers."""

    drain: frozenset[int] = frozenset()
    """Brokers that are to have nothing."""
    onto: frozenset[int] = frozenset()
    """Brokers that are to get their share, and the only ones to get anything."""
    topics: frozenset[str] | None = None
    """Topics that may be moved; None for all."""
    tolerance: float = 0.0
    """Brokers that differ by no more than this part of the average are even."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that is to change."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int

    @property
    def adding(self) -> tuple[int, ...]:
        """Brokers that get a copy."""
        return tuple(each for each in self.after if each not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        """Brokers that lose theirs."""
        return tuple(each for each in self.before if each not in self.after)

    @property
    def moved_bytes(self) -> int:
        """What is copied between brokers; nothing where only the order changes."""
        return self.size_bytes * len(self.adding)


def plan(partitions: Mapping[TopicPartition, Placed], brokers: Iterable[Broker], wish: Wish) -> list[Move]:
    """The moves, in order of partitions. Raises PlanError, which says what cannot be."""
    return _Planner(partitions, brokers, wish).moves()


class _Planner:
    def __init__(self, partitions: Mapping[TopicPartition, Placed], brokers: Iterable[Broker], wish: Wish) -> None:
        self._before = {each: partitions[each] for each in sorted(partitions)}
        self._after = {each: list(placed.replicas) for each, placed in self._before.items()}
        self._wish = wish
        known = sorted(brokers, key=lambda broker: broker.node_id)
        self._node_ids = [broker.node_id for broker in known if broker.node_id not in wish.drain]
        racks = {broker.node_id: broker.rack for broker in known if broker.node_id not in wish.drain}
        self._racks = racks if racks and None not in racks.values() else dict.fromkeys(racks)
        self._movable = [each for each in self._before if wish.topics is None or each.topic in wish.topics]
        self._check({broker.node_id for broker in known})
        self._weights = self._shares_of_replicas()
        self._fills = {
            partition: sum(weight * share for weight, share in zip(_WEIGHTS, shares, strict=True))
            for partition, shares in self._weights.items()
        }
        self._filled = {node_id: [0.0] * len(_WEIGHTS) for node_id in self._node_ids}
        self._having: dict[int, set[TopicPartition]] = {node_id: set() for node_id in self._node_ids}
        for partition, replicas in self._after.items():
            for node_id in replicas:
                self._put(partition, node_id)

    def moves(self) -> list[Move]:
        wish = self._wish
        if wish.drain:
            self._drain()
        if not wish.drain:
            if not wish.onto:
                self._keep_racks_apart()
            while True:
                self._even_out(wish.onto or frozenset(self._node_ids))
                if not self._take_back_what_is_needless():
                    break
        self._spread_leaders()
        return [
            Move(partition, placed.replicas, tuple(self._after[partition]), placed.size_bytes)
            for partition, placed in self._before.items()
            if tuple(self._after[partition]) != placed.replicas
        ]

    # What brokers have.

    def _check(self, known: Collection[int]) -> None:
        wish = self._wish
        both = wish.drain & wish.onto
        if both:
            raise PlanError(f"broker {min(both)} cannot be drained and filled at once")
        unknown = sorted(wish.onto - {*known})
        if unknown:
            raise PlanError(f"broker {unknown[0]} is not in the cluster; it has {_listed(known)}")
        holding = {node_id for placed in self._before.values() for node_id in placed.replicas}
        unknown = sorted(wish.drain - {*known} - holding)
        if unknown:
            raise PlanError(f"broker {unknown[0]} is not in the cluster, and has no replicas; it has {_listed(known)}")
        for partition in self._movable:
            replicas = self._before[partition].replicas
            if wish.drain.intersection(replicas) and len(replicas) > len(self._node_ids):
                left = len(self._node_ids)
                raise PlanError(
                    f"{partition} has {len(replicas)} replicas, and only {left} would be left of the brokers: add "
                    "some first"
                )

    def _shares_of_replicas(self) -> dict[TopicPartition, tuple[float, ...]]:
        """Of each partition, what one of its replicas is of all bytes, of all load and of all replicas."""
        sums = [
            sum(placed.size_bytes * len(placed.replicas) for placed in self._before.values()) or 1,
            sum(placed.load * len(placed.replicas) for placed in self._before.values()) or 1.0,
            sum(len(placed.replicas) for placed in self._before.values()) or 1,
        ]
        return {
            partition: (placed.size_bytes / sums[0], placed.load / sums[1], 1 / sums[2])
            for partition, placed in self._before.items()
        }

    def _put(self, partition: TopicPartition, node_id: int, sign: int = 1) -> None:
        """A replica comes to a broker, or with -1 goes; brokers that are gone or to be drained are not counted."""
        if node_id not in self._filled:
            return
        filled = self._filled[node_id]
        for at, share in enumerate(self._weights[partition]):
            filled[at] += sign * share
        if sign > 0:
            self._having[node_id].add(partition)
        else:
            self._having[node_id].discard(partition)

    def _move(self, partition: TopicPartition, source: int, target: int) -> None:
        replicas = self._after[partition]
        replicas[replicas.index(source)] = target
        self._put(partition, source, -1)
        self._put(partition, target)

    def _fullness(self, node_id: int) -> float:
        return sum(weight * share for weight, share in zip(_WEIGHTS, self._filled[node_id], strict=True))

    def _gain(self, partition: TopicPartition, source: int, target: int) -> float:
        """How much more even a move makes the brokers: by what the sum of the squares of what they have goes down."""
        giving, taking = self._filled[source], self._filled[target]
        size, load, one = self._weights[partition]
        return (
            _WEIGHTS[0] * size * (giving[0] - taking[0] - size)
            + _WEIGHTS[1] * load * (giving[1] - taking[1] - load)
            + _WEIGHTS[2] * one * (giving[2] - taking[2] - one)
        )

    def _rack_count(self, replicas: Iterable[int]) -> int:
        return len({self._racks.get(node_id) for node_id in replicas} - {None})

    def _may_move(self, partition: TopicPartition, source: int, target: int) -> bool:
        replicas = self._after[partition]
        if target in replicas:
            return False
        if self._racks[target] is None or self._racks[target] == self._racks.get(source):
            return True
        others = [target if node_id == source else node_id for node_id in replicas]
        return self._rack_count(others) >= self._rack_count(replicas)

    # The steps.

    def _drain(self) -> None:
        """Moves what drained brokers have, the largest first, each to where it keeps racks apart, and least is."""
        doomed = [
            (partition, node_id)
            for partition in self._movable
            for node_id in self._before[partition].replicas
            if node_id in self._wish.drain
        ]
        doomed.sort(key=lambda each: -self._fill_of(each[0]))
        for partition, source in doomed:
            replicas = self._after[partition]
            others = [node_id for node_id in replicas if node_id != source]
            free = [node_id for node_id in self._node_ids if node_id not in replicas]
            wanted = [node_id for node_id in free if node_id in self._wish.onto] or free
            target = min(
                wanted,
                key=lambda node_id: (-self._rack_count([*others, node_id]), self._fullness(node_id), node_id),
            )
            self._move(partition, source, target)

    def _fill_of(self, partition: TopicPartition) -> float:
        return self._fills[partition]

    def _keep_racks_apart(self) -> None:
        """Moves replicas that share a rack to racks that have none of the partition."""
        for partition in self._movable:
            while True:
                replicas = self._after[partition]
                if any(node_id not in self._filled for node_id in replicas):
                    break
                count = self._rack_count(replicas)
                better = [
                    (self._fullness(target) - self._fullness(source), source, target)
                    for source in replicas
                    for target in self._node_ids
                    if target not in replicas
                    and self._rack_count([*(each for each in replicas if each != source), target]) > count
                ]
                if not better:
                    break
                _, source, target = min(better)
                self._move(partition, source, target)

    def _even_out(self, targets: Collection[int]) -> None:
        """Moves replicas from fuller to emptier brokers as long as that evens them out."""
        while True:
            filled = sorted(self._node_ids, key=lambda node_id: (self._fullness(node_id), node_id))
            pairs = sorted(
                ((source, target) for source in filled for target in filled if target in targets and source != target),
                key=lambda pair: (self._fullness(pair[1]) - self._fullness(pair[0]), pair),
            )
            if not any(self._improve(source, target) for source, target in pairs):
                return

    def _improve(self, source: int, target: int) -> bool:
        """Moves the best replicas of one broker to another, at most half of what makes either even with the average;
        False where none would be better there.
        """
        if source in self._wish.onto or self._is_even(source, target):
            return False
        average = sum(map(self._fullness, self._node_ids)) / len(self._node_ids)
        room = average - self._fullness(target)
        found = []
        for partition in self._having[source]:
            if self._wish.onto and self._fill_of(partition) / 2 > room:
                # Its share is what it is to get, even where others are much fuller.
                continue
            if self._wish.topics is not None and partition.topic not in self._wish.topics:
                continue
            gain = self._gain(partition, source, target)
            if gain > _IMPROVEMENT_MIN * self._fill_of(partition) and self._may_move(partition, source, target):
                found.append((-gain, partition))
        if not found:
            return False
        found.sort()
        to_even = min(self._fullness(source) - average, room) / 2
        moved = 0.0
        for _, partition in found:
            share = self._fill_of(partition)
            if moved and moved + share > to_even:
                break
            if self._gain(partition, source, target) > _IMPROVEMENT_MIN * share:
                self._move(partition, source, target)
                moved += share
        return True

    def _is_even(self, source: int, target: int) -> bool:
        count = len(self._node_ids)
        return all(
            self._filled[source][at] - self._filled[target][at]
            <= self._wish.tolerance * sum(self._filled[node_id][at] for node_id in self._node_ids) / count
            for at in range(len(_WEIGHTS))
        )

    def _take_back_what_is_needless(self) -> bool:
        """Brings replicas back to where they were, where that leaves brokers as even as they are; whether it did."""
        has_changed = False
        for partition in self._movable:
            before = self._before[partition].replicas
            for node_id in [each for each in self._after[partition] if each not in before]:
                for home in before:
                    if home not in self._filled or not self._may_move(partition, node_id, home):
                        continue
                    if self._gain(partition, node_id, home) >= -_IMPROVEMENT_MIN / 2 * self._fill_of(partition):
                        self._move(partition, node_id, home)
                        has_changed = True
                        break
        return has_changed

    # Leaders.

    def _spread_leaders(self) -> None:
        """Changes who is preferred, among the replicas that there are, until brokers lead about as many partitions;
        when not all is evened out, of those only that are moved anyway.
        """
        wish = self._wish
        leads = Counter(dict.fromkeys(self._node_ids, 0))
        ways: dict[int, dict[int, list[TopicPartition]]] = {}
        is_whole = not (wish.drain or wish.onto)
        for replicas in self._after.values():
            if not replicas or replicas[0] not in self._filled:
                continue
            leads[replicas[0]] += 1
        movable = [
            each for each in self._movable if is_whole or tuple(self._after[each]) != self._before[each].replicas
        ]
        for partition in movable:
            self._add_ways(ways, partition)
        while True:
            path = self._path_of_leaders(leads, ways)
            if path is None:
                return
            for source, target in pairwise(path):
                partition = ways[source][target][-1]
                self._remove_ways(ways, partition)
                replicas = self._after[partition]
                at = replicas.index(target)
                replicas[0], replicas[at] = replicas[at], replicas[0]
                self._add_ways(ways, partition)
            leads[path[0]] -= 1
            leads[path[-1]] += 1

    def _add_ways(self, ways: dict[int, dict[int, list[TopicPartition]]], partition: TopicPartition) -> None:
        first, *others = self._after[partition]
        if first not in self._filled:
            # Who is gone leads nothing that could be given away.
            return
        for node_id in others:
            if node_id in self._filled:
                ways.setdefault(first, {}).setdefault(node_id, []).append(partition)

    def _remove_ways(self, ways: dict[int, dict[int, list[TopicPartition]]], partition: TopicPartition) -> None:
        first, *others = self._after[partition]
        for node_id in others:
            if node_id in self._filled:
                ways[first][node_id].remove(partition)

    def _path_of_leaders(
        self, leads: Mapping[int, int], ways: Mapping[int, Mapping[int, Sequence[TopicPartition]]]
    ) -> list[int] | None:
        """Brokers, each of which can give the leadership of a partition to the next, from one that leads two or more
        than the last does; None where there is no such.
        """
        for source in sorted(leads, key=lambda node_id: (-leads[node_id], node_id)):
            came_from: dict[int, int] = {source: source}
            waiting = deque([source])
            while waiting:
                at = waiting.popleft()
                if leads[source] - leads[at] > 1:
                    path = [at]
                    while path[-1] != source:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                for target in sorted(ways.get(at, {})):
                    if ways[at][target] and target not in came_from:
                        came_from[target] = at
                        waiting.append(target)
        return None


def _listed(node_ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(node_ids)))
