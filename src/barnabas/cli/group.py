"""`barnabas group`: which groups there are, and how far each has read."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.command_config import seen_by_command
from barnabas.cli.completed_names import complete_groups
from barnabas.cli.connection import bootstrap_option, json_option, run_with_client
from barnabas.cli.group_states import find_group, is_told_no_members
from barnabas.cli.later_commands import LaterCommands
from barnabas.cli.missing import missing_groups
from barnabas.cli.output import Column, Mark, Marked, counted, print_fields, print_json, print_table, say, shown
from barnabas.kernel.facts import fact
from barnabas.wire.sentinels import LATEST_TIMESTAMP

if TYPE_CHECKING:
    from barnabas.client.admin import Admin, GroupDescription, GroupListing, GroupMemberDescription
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.records import OffsetAndMetadata
    from barnabas.wire.topics import TopicPartition

_PATTERN_CHARACTERS = "*?["
_END_OFFSETS_TIMEOUT_MS = 10_000

_LIST_COLUMNS = (
    Column("Group", "group_id"),
    Column("State", "state"),
    Column("Protocol", "protocol_type"),
    Column("Type", "type"),
    Column("Coordinator", "coordinator", is_number=True),
)
_PARTITION_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Offset", "offset", is_number=True),
    Column("End", "end_offset", is_number=True),
    Column("Lag", "lag", is_number=True),
    Column("Member", "member_id", is_cut=True),
    Column("Host", "host"),
    Column("Client", "client_id"),
)
_MEMBER_COLUMNS = (
    Column("Member", "member_id"),
    Column("Instance", "group_instance_id"),
    Column("Host", "host"),
    Column("Client", "client_id"),
    Column("Partitions", "partitions", is_number=True),
)


@fact
class PartitionProgress:
    """How far a group has read one partition, and which member reads it now."""

    partition: TopicPartition
    offset: int | None
    """The next record to read; None where nothing was committed."""
    end_offset: int | None
    """Behind the last record that consumers see; None where no leader tells."""
    member: GroupMemberDescription | None

    @property
    def lag(self) -> int | None:
        """Records that are still to be read; None where an end of it is not known."""
        return None if self.offset is None or self.end_offset is None else max(0, self.end_offset - self.offset)


@fact
class DescribedGroup:
    """A group, its members and their progress."""

    group: GroupDescription
    coordinator: BrokerNode | None
    progress: tuple[PartitionProgress, ...]

    @property
    def lag(self) -> int | None:
        """The sum over the partitions for which it is known; None where it is known for none."""
        known = [progress.lag for progress in self.progress if progress.lag is not None]
        return sum(known) if known else None


@click.group(
    name="group",
    cls=LaterCommands,
    later={
        "delete": "barnabas.cli.group_delete:delete",
        "delete-offsets": "barnabas.cli.group_delete:delete_offsets",
        "reset": "barnabas.cli.group_reset:command",
    },
)
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command(name="list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only groups in this state; repeatable.")
@bootstrap_option
@json_option
def list_groups(states: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List the groups of all brokers, with the broker that coordinates each."""

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            groups = await admin.list_groups(states)
        if as_json:
            print_json({"groups": [listed(group) for group in groups]})
        elif groups:
            print_table(_LIST_COLUMNS, [list(listed(group).values()) for group in groups])
        else:
            say(f"There are no {'such ' if states else ''}groups{seen_by_command()}.")

    run_with_client(bootstrap, body)


@command.command(name="describe")
@click.argument("names", metavar="[GROUP|PATTERN]...", nargs=-1, shell_complete=complete_groups)
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show how far groups have read: offset, end and lag of each partition, and which member reads it.

    A pattern is one of the shell's, such as 'readers-*' in quotes. Without a name, describes all groups.
    """

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            wanted, missing = await _find(admin, names)
            found = [await _describe_one(client, admin, group_id) for group_id in wanted]
        groups = [group for group in found if group is not None]
        missing += [group_id for group_id, group in zip(wanted, found, strict=True) if group is None]
        if as_json:
            print_json({"groups": [described(group) for group in groups]})
        else:
            for number, group in enumerate(groups):
                if number:
                    click.echo()
                _print_group(group)
            if not names and not groups:
                say(f"There are no groups{seen_by_command()}.")
        if missing and names:
            raise missing_groups(missing)

    run_with_client(bootstrap, body)


# What programs get.


def listed(group: GroupListing) -> dict[str, Any]:
    """A group as `group list --json` has it; null for what the brokers are too old to tell."""
    return {
        "group_id": group.group_id,
        "state": group.state or None,
        "protocol_type": group.protocol_type or None,
        "type": group.type or None,
        "coordinator": group.coordinator_id,
    }


def described(found: DescribedGroup) -> dict[str, Any]:
    """A group as `group describe --json` has it."""
    group, node = found.group, found.coordinator
    return {
        "group_id": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type or None,
        "protocol": group.protocol or None,
        "coordinator": None if node is None else {"id": node.node_id, "host": node.host, "port": node.port},
        "lag": found.lag,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "host": host_of(member),
                "client_id": member.client_id,
                "partitions": len(member.assignment),
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": progress.partition.topic,
                "partition": progress.partition.partition,
                "offset": progress.offset,
                "end_offset": progress.end_offset,
                "lag": progress.lag,
                "member_id": None if progress.member is None else progress.member.member_id,
                "host": None if progress.member is None else host_of(progress.member),
                "client_id": None if progress.member is None else progress.member.client_id,
            }
            for progress in found.progress
        ],
    }


def host_of(member: GroupMemberDescription) -> str:
    """The member's address; brokers write it as Java does, with a slash ahead."""
    return member.client_host.removeprefix("/")


def progress_of(
    members: Sequence[GroupMemberDescription],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
) -> tuple[PartitionProgress, ...]:
    """Every partition that is assigned or has a committed offset, in order."""
    readers = {partition: member for member in members for partition in member.assignment}
    return tuple(
        PartitionProgress(
            partition,
            committed[partition].offset if partition in committed else None,
            ends.get(partition),
            readers.get(partition),
        )
        for partition in sorted({*readers, *committed})
    )


# Inside.


async def _find(admin: Admin, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The groups that the names and patterns mean, each once, and the patterns that mean none."""
    patterns = [name for name in names if any(character in name for character in _PATTERN_CHARACTERS)]
    if names and not patterns:
        return list(dict.fromkeys(names)), []
    everything = [group.group_id for group in await admin.list_groups()]
    found: dict[str, None] = {}
    missing: list[str] = []
    for name in names or ["*"]:
        # A group may be called like a pattern.
        matching = [name] if name not in patterns or name in everything else fnmatch.filter(everything, name)
        if names and not matching:
            missing.append(name)
        found |= dict.fromkeys(matching)
    return list(found) if names else everything, missing


async def _describe_one(client: Client, admin: Admin, group_id: str) -> DescribedGroup | None:
    """None for a group that does not exist."""
    found = await find_group(admin, group_id)
    if found is None:
        return None
    group, committed = found
    if is_told_no_members(group):
        say(f"Group {shown(group_id)} uses KIP-848's protocol: its members are not shown.")
    partitions = {*committed, *(partition for member in group.members for partition in member.assignment)}
    ends = await _end_offsets(client, admin, partitions)
    coordinator = client.cluster.brokers.get(group.coordinator_id)
    return DescribedGroup(group, coordinator, progress_of(group.members, committed, ends))


async def _end_offsets(
    client: Client, admin: Admin, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The end offsets of the partitions that have a leader; a group can be described although a partition has none, or
    its topic is gone.
    """
    from barnabas.client.errors import ClientTimeoutError

    if not partitions:
        return {}
    retry = client.retry("looking up offsets", _END_OFFSETS_TIMEOUT_MS)
    try:
        await client.metadata.asked_for({partition.topic for partition in partitions}, retry)
        led = [partition for partition in partitions if client.cluster.leader(partition) is not None]
        found = await admin.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP), retry.left_ms)
    except ClientTimeoutError as error:
        say(f"The end offsets of the partitions are unknown: {error}")
        return {}
    return {partition: offset.offset for partition, offset in found.items()}


def _print_group(found: DescribedGroup) -> None:
    group, node = found.group, found.coordinator
    lag = found.lag
    print_fields(
        [
            ("Group", group.group_id),
            ("State", group.state),
            ("Protocol", " ".join(filter(None, (group.protocol_type, group.protocol)))),
            ("Coordinator", None if node is None else f"broker {node.node_id} at {node.host}:{node.port}"),
            ("Members", len(group.members)),
            ("Lag", None if lag is None else counted(lag, "record")),
        ]
    )
    if found.progress:
        print_table(_PARTITION_COLUMNS, [_progress_row(progress) for progress in found.progress])
    else:
        click.echo("Nothing is committed, and no partition is assigned.")
    if group.members:
        click.echo()
        print_table(_MEMBER_COLUMNS, [_member_row(member) for member in group.members])


def _member_row(member: GroupMemberDescription) -> list[object]:
    count = len(member.assignment)
    assigned = count or Marked(count, Mark.WARNING)
    return [member.member_id, member.group_instance_id, host_of(member), member.client_id, assigned]


def _progress_row(progress: PartitionProgress) -> list[object]:
    member, lag = progress.member, progress.lag
    return [
        progress.partition.topic,
        progress.partition.partition,
        progress.offset,
        progress.end_offset,
        Marked(lag, Mark.WARNING) if lag else lag,
        None if member is None else member.member_id,
        None if member is None else host_of(member),
        None if member is None else member.client_id,
    ]
