"""Whether a group is there, and whether it has members, which some commands need it not to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.missing import missing_groups, nearest_hint
from barnabas.cli.output import counted, printable

if TYPE_CHECKING:
    from barnabas.client.admin import Admin, GroupDescription
    from barnabas.client.records import OffsetAndMetadata
    from barnabas.wire.topics import TopicPartition

DEAD: Final = "Dead"
"""What brokers say of a group that is not there."""
_WITHOUT_MEMBERS: Final = frozenset({DEAD, "Empty"})
_MEMBERS_SHOWN_MAX: Final = 5


async def find_group(
    admin: Admin, group_id: str
) -> tuple[GroupDescription, dict[TopicPartition, OffsetAndMetadata]] | None:
    """A group and what it has committed; None where it does not exist. Of one of KIP-848's protocol brokers tell no
    members here, and its state comes from the list of groups.
    """
    group = await admin.describe_group(group_id)
    committed = await admin.list_group_offsets(group_id)
    if group.state == DEAD:
        listing = next((listing for listing in await admin.list_groups() if listing.group_id == group_id), None)
        if listing is not None:
            return replace(group, state=listing.state, protocol_type=listing.protocol_type), committed
        if not committed:
            return None
    return group, committed


async def require_group(
    admin: Admin, group_id: str
) -> tuple[GroupDescription, Mapping[TopicPartition, OffsetAndMetadata]]:
    """Like `find_group`; raises CommandError where it does not exist, with the name that is near."""
    found = await find_group(admin, group_id)
    if found is None:
        hint = nearest_hint(group_id, [group.group_id for group in await admin.list_groups()])
        error = missing_groups([group_id])
        raise CommandError(f"there is no group {group_id}{hint}", error.status) if hint else error
    return found


def is_told_no_members(group: GroupDescription) -> bool:
    """Whether it is of KIP-848's protocol, as far as brokers tell: it has a state, and nothing else."""
    return not group.members and has_members(group) and not group.protocol


def has_members(group: GroupDescription) -> bool:
    """Whether somebody reads in it now."""
    return group.state not in _WITHOUT_MEMBERS


def in_use(group: GroupDescription, wish: str) -> CommandError:
    """The group has members, and what is wished needs it to have none; says which."""
    names = [
        f"{member.client_id or member.member_id} at {member.client_host.removeprefix('/')}"
        for member in group.members[:_MEMBERS_SHOWN_MAX]
    ]
    more = len(group.members) - len(names)
    if more > 0:
        names.append(f"{more} more")
    who = f"{counted(len(group.members), 'member')}: {', '.join(names)}" if names else f"members (it is {group.state})"
    return CommandError(f"group {printable(group.group_id)} has {who}; stop them, and {wish} then")
