"""The members of a group: who they are, who leads, who is expected, and which protocol all of them understand."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain

from barnabas.coordinators.group.effects import Reply
from barnabas.coordinators.group.member import Member, Protocols


class Members:
    """Members in the order in which they came, with the indexes that a rebalance asks.

    A leader is one of the members, and there is one while there are members.
    """

    __slots__ = ("_awaiting_join", "_by_id", "_protocol_counts", "_static_ids", "leader_id", "pending", "pending_sync")

    def __init__(self) -> None:
        self.leader_id: str | None = None
        self.pending: dict[str, None] = {}
        """Member ids that were given out (KIP-394) and whose clients have not come back with them."""
        self.pending_sync: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment."""
        self._by_id: OrderedDict[str, Member] = OrderedDict()
        """A plain dict looks for its first key past all that were taken out before, again for each leader that goes."""
        self._static_ids: dict[str, str] = {}
        self._protocol_counts: Counter[str] = Counter()
        self._awaiting_join = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        """Over a copy: the members may change meanwhile."""
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    @property
    def ids(self) -> Iterable[str]:
        return self._by_id.keys()

    @property
    def awaiting_join(self) -> int:
        """How many members have a parked JoinGroup."""
        return self._awaiting_join

    @property
    def static_count(self) -> int:
        return len(self._static_ids)

    @property
    def have_all_joined(self) -> bool:
        return len(self._by_id) == self._awaiting_join and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of any member; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def static_member_id(self, group_instance_id: str) -> str | None:
        """The present member id of a static member."""
        return self._static_ids.get(group_instance_id)

    def static_member(self, group_instance_id: str) -> Member | None:
        member_id = self._static_ids.get(group_instance_id)
        return None if member_id is None else self._by_id[member_id]

    def add(self, member: Member) -> None:
        """Takes a new member in; the first one leads. ValueError for a static member that is there already."""
        if member.member_id in self._by_id:
            raise ValueError(f"{member.member_id} is a member already")
        if member.group_instance_id is not None:
            if member.group_instance_id in self._static_ids:
                raise ValueError(f"there is a static member {member.group_instance_id} already")
            self._static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._by_id[member.member_id] = member
        self._count_protocols(member.protocols, 1)
        self._awaiting_join += member.is_awaiting_join
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> Member | None:
        """Takes out a member, or an id that is only pending; the leadership passes to the member that came first.

        The caller answers what is parked of the member returned.
        """
        member = self._by_id.pop(member_id, None)
        if member is not None:
            self._count_protocols(member.protocols, -1)
            self._awaiting_join -= member.is_awaiting_join
            if member.group_instance_id is not None:
                del self._static_ids[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._by_id), None)
        self.pending.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        return member

    def rename_static(self, group_instance_id: str, new_member_id: str) -> Member:
        """Gives a static member a new id, and the leadership with it where it leads."""
        old_member_id = self._static_ids[group_instance_id]
        member = self._by_id.pop(old_member_id)
        member.member_id = new_member_id
        self._by_id[new_member_id] = member
        self._static_ids[group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync:
            del self.pending_sync[old_member_id]
            self.pending_sync[new_member_id] = None
        return member

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Takes over what a member says when it joins again."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: Member, reply: Reply) -> Reply | None:
        """Parks a JoinGroup; returns the one that it displaces."""
        displaced = member.join_reply
        member.join_reply = reply
        self._awaiting_join += displaced is None
        return displaced

    def take_join(self, member: Member) -> Reply | None:
        """Takes the parked JoinGroup out to be answered."""
        reply = member.join_reply
        if reply is not None:
            member.join_reply = None
            self._awaiting_join -= 1
        return reply

    def ensure_joined_leader(self) -> bool:
        """Passes the leadership on where the leader has not joined again; False where no member has, or none is."""
        if self.leader_id is None:
            return False
        if self._by_id[self.leader_id].is_awaiting_join:
            return True
        for member in self._by_id.values():
            if member.is_awaiting_join:
                self.leader_id = member.member_id
                return True
        return False

    def all_support_one_of(self, protocols: Iterable[str]) -> bool:
        """Whether one of the protocols is offered by every member."""
        return any(self._protocol_counts[name] == len(self._by_id) for name in protocols)

    def choose_protocol(self) -> str:
        """Among the protocols that all members offer, the one that most of them like best; ValueError where none is."""
        return self._choose_protocol(self._protocol_counts, self._by_id.values())

    def choose_protocol_with(self, replacing: Member, replaced: Member) -> str:
        """As `choose_protocol` would with one member in the place of another."""
        counts = self._protocol_counts.copy()
        counts.subtract(name for name, _ in replaced.protocols)
        counts.update(name for name, _ in replacing.protocols)
        others = (member for member in self._by_id.values() if member is not replaced)
        return self._choose_protocol(counts, chain(others, (replacing,)))

    def _choose_protocol(self, counts: Counter[str], voters: Iterable[Member]) -> str:
        candidates = {name for name, count in counts.items() if count == len(self._by_id)}
        votes = Counter(member.vote(candidates) for member in voters)
        if not votes:
            raise ValueError("a group without members has no protocol to choose")
        return votes.most_common(1)[0][0]

    def _count_protocols(self, protocols: Protocols, step: int) -> None:
        for name, _ in protocols:
            self._protocol_counts[name] += step
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]
