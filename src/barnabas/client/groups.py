"""Groups as brokers tell of them; users import this from `barnabas.client.admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from barnabas.wire.topics import TopicPartition


@fact
class GroupListing:
    """A group that some broker coordinates."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    """`classic`, or `consumer` (KIP-848); empty where brokers tell none."""
    coordinator_id: int


@fact
class GroupMemberDescription:
    """A member and what it is assigned."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@fact
class GroupDescription:
    """A group and its members."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberDescription, ...]
    coordinator_id: int
