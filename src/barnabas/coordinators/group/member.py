"""One member of a group: what it can do, what it was given, and which of its requests is parked."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from barnabas.coordinators.group.effects import Reply
from barnabas.wire.messages import DescribeGroupsResponse, GroupMetadataValue

Protocols = tuple[tuple[str, bytes], ...]
"""Name and metadata of each protocol that a member offers, the best first."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, as DescribeGroups shows it."""

    client_id: str
    host: str


@dataclass(slots=True)
class Member:
    """A member, changed only by its group. Time-outs are in ms, deadlines in seconds of the loop's clock."""

    member_id: str
    group_instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_reply: Reply | None = None
    """The parked JoinGroup. Set by `Members` only, which counts them."""
    sync_reply: Reply | None = None
    """The parked SyncGroup."""
    is_new: bool = False
    """True until the first rebalance that it takes part in ends; till then it may expire while its join is parked."""
    deadline: float | None = None
    """When the session ends; None while nothing is expected of the member."""
    timer_deadline: float | None = None
    """When the session's timer rings, if it runs. Never later than `deadline`: a heartbeat moves only the latter."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_reply is not None

    @property
    def is_awaiting_sync(self) -> bool:
        return self.sync_reply is not None

    def metadata(self, protocol: str) -> bytes:
        """What the member says for the protocol; ValueError for one that it does not offer."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise ValueError(f"member {self.member_id} does not offer the protocol {protocol}")

    def replaced_by(
        self, member_id: str, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> Member:
        """What the member would be under another id and with what it says when it comes back; nothing of it is parked,
        and nothing expected. This one stays as it is.
        """
        return Member(
            member_id=member_id,
            group_instance_id=self.group_instance_id,
            client=self.client,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            protocols=protocols,
            assignment=self.assignment,
        )

    def vote(self, candidates: Container[str]) -> str:
        """The best of its protocols that is among the candidates; ValueError where none is."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise ValueError(f"member {self.member_id} offers none of the candidate protocols")

    def described(self, protocol: str | None) -> DescribeGroupsResponse.DescribedGroupMember:
        """As DescribeGroups shows it; metadata and assignment only with the protocol of a stable group."""
        return DescribeGroupsResponse.DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client.client_id,
            client_host=self.client.host,
            member_metadata=b"" if protocol is None else self.metadata(protocol),
            member_assignment=b"" if protocol is None else self.assignment,
        )

    def recorded(self, protocol: str | None, assignment: bytes) -> GroupMetadataValue.MemberMetadata:
        """As the group's record holds it; ValueError without a protocol."""
        if protocol is None:
            raise ValueError(f"member {self.member_id} cannot be recorded: its group has no protocol")
        return GroupMetadataValue.MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client.client_id,
            client_host=self.client.host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )


def names(protocols: Sequence[tuple[str, bytes]]) -> list[str]:
    """The names of protocols, in order."""
    return [name for name, _ in protocols]
