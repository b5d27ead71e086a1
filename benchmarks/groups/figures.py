"""Who owns what, by what members themselves say, and how memory grows with groups."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

GROWTH_MAX = 1.25
"""Times what a group costs where groups are few: what it may cost where they are many, and still be called linear."""


class Ownership:
    """Which member owns each partition of one topic. A member says it when it has given up or taken something."""

    def __init__(self, partition_count: int, clock: Callable[[], float]) -> None:
        """`clock` in seconds."""
        self.overlaps = 0
        """How often a member took what another one had."""
        self.on_settled: Callable[[], object] = lambda: None
        self._settled_at: float | None = None
        self._clock = clock
        self._count = partition_count
        self._owned: dict[Hashable, frozenset[int]] = {}
        self._owners: dict[int, Hashable] = {}
        self._unowned_seconds = 0.0
        self._counted_at = clock()

    def begin(self, members: Iterable[Hashable]) -> None:
        """These are the members from now on; what others had is nobody's."""
        self._count_unowned()
        self._unowned_seconds = 0.0
        staying = set(members)
        for member in [member for member in self._owned if member not in staying]:
            self.owns(member, frozenset())
            del self._owned[member]
        for member in staying:
            self._owned.setdefault(member, frozenset())
        self._look()

    def owns(self, member: Hashable, partitions: frozenset[int]) -> None:
        """From now on the member owns these, and nothing else. One that has left owns nothing."""
        if member not in self._owned and not partitions:
            return
        self._count_unowned()
        before = self._owned.get(member, frozenset())
        for number in before - partitions:
            if self._owners.get(number) == member:
                del self._owners[number]
        for number in partitions - before:
            if number in self._owners:
                self.overlaps += 1
            self._owners[number] = member
        self._owned[member] = partitions
        self._look()

    def settled_at(self) -> float | None:
        """When the members last came to own all, in equal shares; None while they do not."""
        return self._settled_at

    @property
    def unowned_seconds(self) -> float:
        """Since `begin`: how long partitions had no owner, in all."""
        self._count_unowned()
        return self._unowned_seconds

    @property
    def unowned(self) -> int:
        return self._count - len(self._owners)

    def _count_unowned(self) -> None:
        now = self._clock()
        self._unowned_seconds += self.unowned * (now - self._counted_at)
        self._counted_at = now

    def _look(self) -> None:
        if not self._is_settled():
            self._settled_at = None
        elif self._settled_at is None:
            self._settled_at = self._clock()
            self.on_settled()

    def _is_settled(self) -> bool:
        if self.unowned or not self._owned:
            return False
        least, more = divmod(self._count, len(self._owned))
        most = least + (more > 0)
        return all(least <= len(partitions) <= most for partitions in self._owned.values())


def bytes_per_group(memory: Mapping[int, float]) -> dict[int, float]:
    """Of memory in bytes by how many groups there are, the least of which is what it is compared with: what each group
    has cost that came since the next smaller count, by count. ValueError for fewer than two.
    """
    counts = sorted(memory)
    if len(counts) < 2:
        raise ValueError("memory is to be known at two counts of groups or more")
    return {more: (memory[more] - memory[less]) / (more - less) for less, more in itertools.pairwise(counts)}


def is_linear(costs: Mapping[int, float]) -> bool:
    """Whether groups cost no more each where there are many, by `bytes_per_group`: the last ones at most `GROWTH_MAX`
    times the first.
    """
    first, last = costs[min(costs)], costs[max(costs)]
    return last <= GROWTH_MAX * first


def growth_table(memory: Mapping[str, Sequence[Mapping[int, float]]]) -> str:
    """Rounds by protocol as a table in Markdown: what a group cost each, medians of the rounds, in KiB."""
    lines = ["| groups | " + " | ".join(f"{protocol}: KiB a group" for protocol in memory) + " |"]
    lines.append("|---" * (len(memory) + 1) + "|")
    costs = {
        protocol: {
            count: statistics.median(each[count] for each in map(bytes_per_group, rounds))
            for count in sorted(rounds[0])[1:]
        }
        for protocol, rounds in memory.items()
    }
    counts = sorted(next(iter(memory.values()))[0])
    for less, more in itertools.pairwise(counts):
        found = " | ".join(f"{costs[protocol][more] / 1024:.1f}" for protocol in memory)
        lines.append(f"| from {less:,} to {more:,} | {found} |")
    verdicts = " | ".join("linear" if is_linear(costs[protocol]) else "**NOT linear**" for protocol in memory)
    lines.append(f"| the last at most {GROWTH_MAX} times the first | {verdicts} |")
    return "\n".join(lines)
