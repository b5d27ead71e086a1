"""Where replicas and leaders should be: a plan with the least movement, by bytes, load and number.

Pure: the same input gives the same plan. A plan

- leaves every partition as many replicas as it has, on brokers that may have them, none twice;
- never puts the replicas of a partition on fewer racks than they are on, and keeps them apart where brokers permit;
- leaves nothing on brokers that are to be drained, and of other replicas moves none then;
- moves replicas only onto the brokers that are to be filled, where there are such; what is drained goes there first;
- has, where it balances all, no replica left whose move to another broker would even them out further, but for the
  tolerance: of partitions alike, brokers that permit it have the same number within one;
- moves no replica that could as well have stayed: to take any move back makes the brokers less even. Of partitions
  alike it moves as few as can be; to drain a broker it copies what the broker has, and not a byte more;
- is the last: of what it leaves, a second plan moves nothing.

What a broker can give another is looked through once, and again when that is used up, or one in sixteen of its replicas
has changed. Of more than 256 replicas some are looked at each time, by turns, and of a thousand in all several brokers
give before those that differ most are looked for anew: so what a plan costs grows with the replicas, and with the pairs
of brokers. There "no replica" is none of those looked at at the end, "as few as can be" is a few percent more, and
where it is not the end after nine times, up to one in a thousand replicas is left for a second plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final

from barnabas.cli.reassignment_leaders import spread_leaders
from barnabas.kernel.facts import fact
from barnabas.wire.topics import TopicPartition

_IMPROVEMENT_MIN: Final = 1e-9
"""What a move must gain at least, for each part that it moves."""
_GAIN_MIN: Final = 4e-9
"""What a move must gain at least to be worth looking for, of the sum of squares that is about 1 ..."""
_GAIN_OF_AVERAGE_MIN: Final = 1e-3
"""... or, where replicas are so many that each gains little, as much as a thousandth of a broker's average does."""
_WEIGHTS: Final = (1.0, 1.0, 0.25)
"""How much an uneven spread of bytes, of load and of the number of replicas counts."""
_GAIN_STILL_BEST: Final = 0.9
"""The best move known is made as long as it gains that part of what it did when it was found: of replicas alike all
would be looked at again after each move otherwise."""
_REPORTED_EVERY: Final = 10_000
_CHANGES_PER_LOOK: Final = 16
"""A broker is looked through again when one in so many of its replicas has changed."""
_LOOKED_AT_MAX: Final = 256
"""Of more replicas some are looked at each time, large ones and small ones."""
_EXACT_BELOW: Final = 1_000
"""Of fewer replicas a move is made between the two brokers that differ most each time; of more, between others too."""
_REPLICAS_PER_MOVE_LEFT: Final = 1_000
_LOOKS_MAX: Final = 8
"""All is looked through again at the end until nothing is moved, or after so many times no more than one in a thousand
replicas."""


class PlanError(ValueError):
    """There is no such plan; the text says why."""


@fact
class Broker:
    """A broker that is alive; `rack` is None where it does not tell one."""

    node_id: int
    rack: str | None = None


@fact
class Placed:
    """Where a partition is, the preferred leader first, and what each of its replicas takes."""

    replicas: tuple[int, ...]
    size_bytes: int = 0
    load: float = 0.0
    """Bytes per second that are written to it."""


@fact
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


@fact
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


def plan(
    partitions: Mapping[TopicPartition, Placed],
    brokers: Iterable[Broker],
    wish: Wish,
    report: Callable[[str], None] | None = None,
) -> list[Move]:
    """The moves, in order of partitions. Long work is told to `report` now and then: what is done, and how far it is.
    Raises PlanError, which says what cannot be.
    """
    return _Planner(partitions, brokers, wish, report or _quiet).moves()


def _quiet(_doing: str) -> None:
    """Who does not want to know."""


@dataclass(slots=True)
class _Pair:
    """What a broker can give another, the move that gains most first.

    Gains fall when the one gives or the other gets something. So none that is worth a move is missing as long as `got`
    and `gave` are how often the one has got and the other has given something; after that the heap is used up first,
    and then all is looked through again.
    """

    gains: list[tuple[float, TopicPartition]]
    got: int
    gave: int
    looks: int
    """How often some of what the one has was looked at; 0 where it was all."""
    has_given: bool = False


class _Planner:
    def __init__(
        self,
        partitions: Mapping[TopicPartition, Placed],
        brokers: Iterable[Broker],
        wish: Wish,
        report: Callable[[str], None],
    ) -> None:
        self._report = report
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
        self._fullness = dict.fromkeys(self._node_ids, 0.0)
        self._rack_total = len({*self._racks.values()} - {None})
        self._having: dict[int, set[TopicPartition]] = {node_id: set() for node_id in self._node_ids}
        self._got = dict.fromkeys(self._node_ids, 0)
        self._gave = dict.fromkeys(self._node_ids, 0)
        self._pairs: dict[tuple[int, int], _Pair] = {}
        by_size = sorted(self._movable, key=lambda each: (self._fills[each], each))
        self._places = {partition: at for at, partition in enumerate(by_size)}
        self._is_exact = sum(map(len, self._after.values())) < _EXACT_BELOW
        self._sorted: dict[int, tuple[int, list[TopicPartition]]] = {}
        for partition, replicas in self._after.items():
            for node_id in replicas:
                self._put(partition, node_id)
        count = max(1, len(self._node_ids))
        self._average = sum(self._fullness.values()) / count
        self._least_gain = _GAIN_OF_AVERAGE_MIN * self._average
        self._even = [
            wish.tolerance * sum(filled[at] for filled in self._filled.values()) / count for at in range(len(_WEIGHTS))
        ]

    def moves(self) -> list[Move]:
        wish = self._wish
        if wish.drain:
            self._drain()
        if not wish.drain:
            if not wish.onto:
                self._keep_racks_apart()
            self._even_out_all(wish.onto or frozenset(self._node_ids))
        self._spread_leaders()
        return [
            Move(partition, placed.replicas, tuple(self._after[partition]), placed.size_bytes)
            for partition, placed in self._before.items()
            if tuple(self._after[partition]) != placed.replicas
        ]

    def _spread_leaders(self) -> None:
        """Of all partitions that may be moved; when not all is evened out, of those only that are moved anyway."""
        is_whole = not (self._wish.drain or self._wish.onto)
        movable = [
            each for each in self._movable if is_whole or tuple(self._after[each]) != self._before[each].replicas
        ]
        spread_leaders(self._after, movable, self._node_ids)

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
        self._fullness[node_id] += sign * self._fills[partition]
        if sign > 0:
            self._having[node_id].add(partition)
            self._got[node_id] += 1
        else:
            self._having[node_id].discard(partition)
            self._gave[node_id] += 1

    def _move(self, partition: TopicPartition, source: int, target: int) -> None:
        replicas = self._after[partition]
        replicas[replicas.index(source)] = target
        self._put(partition, source, -1)
        self._put(partition, target)

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
        others = [self._racks.get(node_id) for node_id in replicas if node_id != source]
        left = self._racks.get(source)
        return self._racks[target] not in others or left is None or left in others

    # The steps.

    def _drain(self) -> None:
        """Moves what drained brokers have, the largest first, each to where it keeps racks apart, and least is."""
        doomed = [
            (partition, node_id)
            for partition in self._movable
            for node_id in self._before[partition].replicas
            if node_id in self._wish.drain
        ]
        doomed.sort(key=lambda each: -self._fills[each[0]])
        for number, (partition, source) in enumerate(doomed):
            if number and number % _REPORTED_EVERY == 0:
                self._report(f"drained {number:,} of {len(doomed):,} replicas")
            replicas = self._after[partition]
            others = [node_id for node_id in replicas if node_id != source]
            free = [node_id for node_id in self._node_ids if node_id not in replicas]
            wanted = [node_id for node_id in free if node_id in self._wish.onto] or free
            target = min(
                wanted,
                key=lambda node_id: (-self._rack_count([*others, node_id]), self._fullness[node_id], node_id),
            )
            self._move(partition, source, target)

    def _keep_racks_apart(self) -> None:
        """Moves replicas that share a rack to racks that have none of the partition."""
        for number, partition in enumerate(self._movable):
            if number and number % _REPORTED_EVERY == 0:
                self._report(f"racks of {number:,} of {len(self._movable):,} partitions")
            while True:
                replicas = self._after[partition]
                count = self._rack_count(replicas)
                if count >= min(len(replicas), self._rack_total):
                    break
                if any(node_id not in self._filled for node_id in replicas):
                    break
                better = [
                    (self._fullness[target] - self._fullness[source], source, target)
                    for source in replicas
                    for target in self._node_ids
                    if target not in replicas
                    and self._rack_count([*(each for each in replicas if each != source), target]) > count
                ]
                if not better:
                    break
                _, source, target = min(better)
                self._move(partition, source, target)

    def _even_out_all(self, targets: Collection[int]) -> None:
        """Evens out brokers until all was looked through anew, and nothing moved: so a second plan moves nothing.

        Where another replica of a partition has gone to another rack, this one may go where it could not before. Of
        very many replicas the last few are left where they are if that does not come to an end.
        """
        few = sum(map(len, self._after.values())) // _REPLICAS_PER_MOVE_LEFT
        looks = 0
        is_anew = False
        while True:
            moved = self._even_out(targets)
            moved += self._take_back_what_is_needless()
            if is_anew and (not moved or (moved <= few and looks > _LOOKS_MAX)):
                return
            is_anew = moved <= few
            if is_anew:
                looks += 1
                self._pairs.clear()
                self._sorted.clear()

    def _even_out(self, targets: Collection[int]) -> int:
        """Moves replicas from fuller to emptier brokers as long as that evens them out; how many."""
        moved = reported = 0
        while True:
            count = self._even_out_once(targets)
            moved += count
            if not count:
                return moved
            if moved - reported >= _REPORTED_EVERY:
                reported = moved
                self._report(f"evened out brokers by {moved:,} moves of replicas")

    def _even_out_once(self, targets: Collection[int]) -> int:
        """Goes through the pairs that differ most; how many replicas were moved.

        Those that differ by less than half of the first that something was moved between have to wait: others may
        have more to give by then. So do brokers that have less than the average, or would get more: what they pass on
        now might not have to be moved, once others have given what they have too much.
        """
        moved = 0
        is_first_clear = False
        least = 0.0
        for source, target in self._pairs_of(targets):
            differ = self._fullness[source] - self._fullness[target]
            is_clear = self._fullness[source] > self._average > self._fullness[target]
            if moved and (differ < least or self._is_exact):
                break
            if moved and is_first_clear and not is_clear:
                continue
            count = self._improve(source, target)
            if count and not moved:
                is_first_clear = is_clear
                least = differ / 2 if differ > 0 else differ * 2
            moved += count
        return moved

    def _pairs_of(self, targets: Collection[int]) -> Iterator[tuple[int, int]]:
        """Brokers that may give and get, those that differ most first."""
        getting = sorted((self._fullness[node_id], node_id) for node_id in self._node_ids if node_id in targets)
        waiting = [(getting[0][0] - self._fullness[source], source, getting[0][1], 0) for source in self._node_ids]
        heapify(waiting)
        while waiting:
            _, source, target, at = waiting[0]
            if source != target:
                yield source, target
            if at + 1 < len(getting):
                fullness, target = getting[at + 1]
                heapreplace(waiting, (fullness - self._fullness[source], source, target, at + 1))
            else:
                heappop(waiting)

    def _improve(self, source: int, target: int) -> int:
        """Moves the best replicas of one broker to another, at most half of what makes either even with the average;
        how many, 0 where none would be better there.
        """
        if source in self._wish.onto or self._is_even(source, target):
            return 0
        pair = self._pairs.get((source, target))
        count = 0 if pair is None else self._give(pair.gains, source, target)
        if not count and (pair is None or self._is_stale(pair, source, target)):
            pair = self._looked_through(source, target, 0 if pair is None else pair.looks)
            count = self._give(pair.gains, source, target)
        if pair is not None:
            pair.has_given |= count > 0
        return count

    def _is_stale(self, pair: _Pair, source: int, target: int) -> bool:
        """Whether there may be more to give now than what was found: as many have come and gone as make it worth a
        look.
        """
        if pair.looks and pair.has_given:
            return True
        changes = self._got[source] - pair.got + self._gave[target] - pair.gave
        return changes > len(self._having[source]) // _CHANGES_PER_LOOK

    def _give(self, gains: list[tuple[float, TopicPartition]], source: int, target: int) -> int:
        """Moves the best of a heap; how many."""
        moved = 0.0
        count = 0
        to_even = min(self._fullness[source] - self._average, self._average - self._fullness[target]) / 2
        while gains:
            known, partition = gains[0]
            gain = self._possible_gain(partition, source, target)
            if gain is None:
                heappop(gains)
                continue
            if gain < -known * _GAIN_STILL_BEST:
                # It has fallen: others may be better now.
                heapreplace(gains, (-gain, partition))
                if gains[0][1] is not partition:
                    continue
            share = self._fills[partition]
            if moved and moved + share > to_even:
                break
            heappop(gains)
            self._move(partition, source, target)
            moved += share
            count += 1
        return count

    def _looked_through(self, source: int, target: int, looks: int) -> _Pair:
        """What a broker can give another now."""
        pairs = zip(_WEIGHTS, self._filled[source], self._filled[target], strict=True)
        by_size, by_load, by_one = [weight * (giving - taking) for weight, giving, taking in pairs]
        gains = []
        looked_at, looks = self._some_of(source, looks)
        for partition in looked_at:
            size, load, one = self._weights[partition]
            # Of what _gain has, the part that can be positive.
            if size * by_size + load * by_load + one * by_one <= 0:
                continue
            gain = self._possible_gain(partition, source, target)
            if gain is not None:
                gains.append((-gain, partition))
        heapify(gains)
        pair = self._pairs[source, target] = _Pair(gains, self._got[source], self._gave[target], looks)
        return pair

    def _some_of(self, source: int, looks: int) -> tuple[Sequence[TopicPartition], int]:
        """What a broker has that may be moved or, of very much, some of it, large and small, others at each look; and
        how often some was looked at by then, 0 for all.
        """
        changes = self._got[source] + self._gave[source]
        at, found = self._sorted.get(source, (changes, None))
        if found is None or changes - at > len(found) // _CHANGES_PER_LOOK:
            # By size. What has come since then may wait, what has gone is not possible any more.
            found = sorted(filter(self._places.__contains__, self._having[source]), key=self._places.__getitem__)
            self._sorted[source] = changes, found
        step = -(-len(found) // _LOOKED_AT_MAX)
        return (found, 0) if step <= 1 else (found[looks % step :: step], looks + 1)

    def _possible_gain(self, partition: TopicPartition, source: int, target: int) -> float | None:
        """What a move gains; None where it must not be, or is not worth it."""
        gain = self._gain(partition, source, target)
        share = self._fills[partition]
        if gain <= _IMPROVEMENT_MIN * share or gain <= min(_GAIN_MIN, self._least_gain * share):
            return None
        if self._wish.onto and share / 2 > self._average - self._fullness[target]:
            # Its share is what it is to get, even where others are much fuller.
            return None
        if partition not in self._having[source] or not self._may_move(partition, source, target):
            return None
        return gain

    def _is_even(self, source: int, target: int) -> bool:
        giving, taking = self._filled[source], self._filled[target]
        return all(has - other <= even for has, other, even in zip(giving, taking, self._even, strict=True))

    def _take_back_what_is_needless(self) -> int:
        """Brings replicas back to where they were, where that leaves brokers as even as they are; how many."""
        count = 0
        for partition in self._movable:
            before = self._before[partition].replicas
            for node_id in [each for each in self._after[partition] if each not in before]:
                for home in before:
                    if home not in self._filled or not self._may_move(partition, node_id, home):
                        continue
                    if self._gain(partition, node_id, home) >= -_IMPROVEMENT_MIN / 2 * self._fills[partition]:
                        self._move(partition, node_id, home)
                        count += 1
                        break
        return count


def _listed(node_ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(node_ids)))
