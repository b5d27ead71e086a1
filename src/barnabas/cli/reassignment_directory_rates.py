"""The rate of copies between the log directories of a broker, where several executions want it at once.

A broker has one rate for all such copies. No list names those who want it, as topics have one for copies between
brokers; so others are known by their copies alone, which brokers tell (DescribeLogDirs).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.cli.reassignment_directories import Map, Replica


@dataclass(slots=True)
class DirectoryCopies:
    """Of one execution that sets a rate for copies between log directories: its own copies, and the brokers of the
    cluster, which are asked for those of others.

    Invariant: whoever set the rate that a broker has removes it in the end, so that none is left when all have ended;
    and a broker that still copies for one of them has a rate, its own, another's or the operator's, but for the seconds
    until that one looks: whoever ends also removes a rate of the same size that may be another's. A rate from before is
    given back where nobody copied when it was found, for then it is nobody's but the operator's.
    """

    own: Collection[Replica] = ()
    watched: Collection[int] = ()
    lacking: set[int] = field(default_factory=set)
    """Brokers that did not have the rate at the last look."""

    def brokers(self) -> frozenset[int]:
        """Those that copy for it."""
        return frozenset(node_id for _, node_id in self.own)

    def under_way(self, where: Map) -> list[int]:
        """The brokers that still copy for it."""
        return sorted({each[1] for each in where.futures() if each in self.own})

    def lacks_its_rate(self, node_id: int, found: str | None, present: str | None) -> bool:
        """Whether a broker that copies for it has had no rate, or the one `found` before, at two looks, one after the
        other: at one only, it may not have learnt yet of a rate that was just set.
        """
        is_lacking, was_lacking = present is None or present == found, node_id in self.lacking
        self.lacking.discard(node_id)
        if is_lacking and not was_lacking:
            self.lacking.add(node_id)
        return is_lacking and was_lacking

    def has_rate_of_others(self, where: Map, node_id: int, known: Collection[str | None], present: str | None) -> bool:
        """Whether the rate that a broker has at the end is that of others, who go on there. It is not where it is
        `known`, found before or its own: a broker may not have learnt yet of what was set.
        """
        are_others = any(each[1] == node_id and each not in self.own for each in where.futures())
        return are_others and present is not None and present not in known
