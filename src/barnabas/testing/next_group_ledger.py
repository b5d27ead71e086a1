"""What members of one group of the consumer protocol (KIP-848) were told, and whether the cluster kept it.

Invariants, of a cluster that may lose nothing:

- A partition has one owner at a time. A member owns what an answer has given it until it gives it up, leaves, or is
  fenced, and no longer than the coordinator has to keep it: a session after the last heartbeat that was answered, and
  for what it is to give up its rebalance time-out after it may have been told so. Answers that were lost count as given
  to nobody, requests that were lost as never sent: whichever is earlier.
- A member's epoch never goes down without its having joined again.
- Offsets never go back: nobody is told less than was acknowledged before he asked, and nobody's commit is acknowledged
  when more had been acknowledged before it was sent. A commit that was not answered may take effect late.
- In the end every partition of every topic is owned, all members are at the epoch of the group, and nothing moves.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barnabas.kernel.ids import Uuid

FINDINGS_MAX: Final = 50


class Owned(NamedTuple):
    """A partition; one of a topic that is made anew is another one."""

    topic_id: Uuid
    number: int


@dataclass(slots=True, eq=False)
class Holder:
    """One process that is, or thinks that it is, a member."""

    name: str
    member_id: str = ""
    epoch: int = 0
    session_ends_at: float = 0.0
    """By then the coordinator may have fenced it, in virtual seconds."""
    revoked_by: float = math.inf
    """The same, unless it has given up what it was to give up."""
    owned: dict[Owned, None] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} ({self.member_id}) in epoch {self.epoch}"

    def owns(self, partition: Owned, now: float) -> bool:
        """Whether nobody else may own it now."""
        return partition in self.owned and now < self.session_ends_at and now < self.revoked_by


class NextGroupLedger:
    """One group of one run; times in virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        """How often each thing has happened that a run is to have seen."""
        self.now = now
        self._holders: dict[Owned, dict[Holder, None]] = {}
        """Who has each partition, by their own account."""
        self._acknowledged: dict[int, list[tuple[float, int]]] = {}
        """What was committed of each partition, in the order of acknowledgements: when, and the highest so far."""
        self._uncertain: dict[int, set[int]] = {}

    def find(self, what: str) -> None:
        """Notes what must not be."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(f"at {self.now():.3f} s {what}")

    # Partitions.

    def answered(self, holder: Holder, epoch: int, session_ends_at: float, revoked_by: float) -> None:
        """The member was told that it is one, in that epoch."""
        if epoch < holder.epoch:
            self.find(f"{holder} was told epoch {epoch} after {holder.epoch}")
        holder.epoch = epoch
        holder.session_ends_at = session_ends_at
        holder.revoked_by = revoked_by
        for partition in holder.owned:
            self._check(holder, partition)

    def given(self, holder: Holder, partition: Owned) -> None:
        """An answer has the partition, which the member has not had."""
        self.counts["next: given"] += 1
        holder.owned[partition] = None
        self._holders.setdefault(partition, {})[holder] = None
        self._check(holder, partition)

    def gave_up(self, holder: Holder, partitions: Iterable[Owned]) -> None:
        """The member has nothing to do with them any more, whether somebody was told so or not."""
        for partition in partitions:
            holder.owned.pop(partition, None)
            self._holders[partition].pop(holder, None)

    def _check(self, holder: Holder, partition: Owned) -> None:
        now = self.now()
        for other in self._holders.get(partition, ()):
            if other is not holder and other.owns(partition, now) and holder.owns(partition, now):
                self.find(
                    f"{partition.number} of topic {partition.topic_id} is owned by {holder}, and until "
                    f"{min(other.session_ends_at, other.revoked_by):.3f} s by {other}"
                )

    # Offsets, of the partitions of one topic that is never deleted.

    def committed(self, number: int, offset: int, asked_at: float) -> None:
        """The commit was acknowledged."""
        self.counts["next: committed"] += 1
        highest = self._highest_before(number, asked_at)
        if offset < highest:
            self.find(f"offset {offset} of partition {number} was taken after {highest}")
        known = self._acknowledged.setdefault(number, [])
        known.append((self.now(), max(offset, known[-1][1] if known else 0)))

    def unanswered(self, number: int, offset: int) -> None:
        """Nobody knows what has become of the commit."""
        self.counts["next: commits in doubt"] += 1
        self._uncertain.setdefault(number, set()).add(offset)

    def fetched(self, number: int, offset: int, asked_at: float) -> None:
        """Somebody was told the offset; 0 for none."""
        highest = self._highest_before(number, asked_at)
        if offset < highest and offset not in self._uncertain.get(number, ()):
            self.find(f"offset {offset} of partition {number} was told when {highest} had been acknowledged")

    def _highest_before(self, number: int, at: float) -> int:
        known = self._acknowledged.get(number, [])
        return max((offset for told_at, offset in known if told_at <= at), default=0)

    # In the end.

    def judge_rest(self, holders: Iterable[Holder], counts: Mapping[Uuid, int], group_epoch: int) -> None:
        """The members are the whole group, which is at rest; `counts` are the partitions of its topics."""
        members = list(holders)
        owners = Counter(partition for member in members for partition in member.owned)
        wanted = {Owned(topic_id, number) for topic_id, count in counts.items() for number in range(count)}
        for partition in wanted - owners.keys():
            self.find(f"{partition.number} of topic {partition.topic_id} is owned by nobody in a group at rest")
        for partition in owners.keys() - wanted:
            self.find(f"{partition.number} of topic {partition.topic_id}, which is not there, is owned in the end")
        for partition, count in owners.items():
            if count > 1:
                self.find(f"{partition.number} of topic {partition.topic_id} is owned by {count} in the end")
        for member in members:
            if member.epoch != group_epoch:
                self.find(f"{member.name} is at epoch {member.epoch} of a group at rest that is at {group_epoch}")
