"""`barnabas group reset`: has a group read on from elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.completed_names import complete_groups, complete_topics
from barnabas.cli.connection import CommandError, bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say, shown

if TYPE_CHECKING:
    from barnabas.cli.partition_selection import Bounds
    from barnabas.cli.starts import Start
    from barnabas.client.admin import Admin, GroupDescription
    from barnabas.client.client import Client
    from barnabas.client.records import OffsetAndMetadata
    from barnabas.wire.topics import TopicPartition

_COMMITTED_AT_A_TIME = 1_000
_CONSUMERS = frozenset({"consumer", ""})
"""What brokers call consumer groups; those without a protocol have only committed offsets."""
_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Current", "offset", is_number=True),
    Column("New", "new_offset", is_number=True),
    Column("End", "end_offset", is_number=True),
    Column("Lag", "lag", is_number=True),
    Column("New lag", "new_lag", is_number=True),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """Where to: one of a place, a number of records forwards, offsets from a file, and where the group is now."""

    place: Start | None = None
    shift: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A partition, its committed offset (None: nothing), the new one, and its end."""

    partition: TopicPartition
    offset: int | None
    new_offset: int
    end_offset: int

    def row(self) -> dict[str, Any]:
        """As `group reset --json` has it."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "offset": self.offset,
            "new_offset": self.new_offset,
            "end_offset": self.end_offset,
            "lag": None if self.offset is None else max(0, self.end_offset - self.offset),
            "new_lag": max(0, self.end_offset - self.new_offset),
        }


@click.command(name="reset")
@click.argument("group_id", metavar="[GROUP]", required=False, shell_complete=complete_groups)
@click.option(
    "--to",
    "place",
    metavar="PLACE",
    help="earliest, latest, an offset, -N (N before the end), a time such as 2026-11-21T09:00:00Z, or 2h (ago).",
)
@click.option("--shift", type=int, metavar="N", help="N records forwards; backwards where N is negative.")
@click.option(
    "--from-file",
    "file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Offsets of single partitions: lines of TOPIC,PARTITION,OFFSET, or what --json has printed; - is standard "
    "input.",
)
@click.option("--to-current", is_flag=True, help="Where it is now, or the end of partitions without an offset of it.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,2-4]",
    shell_complete=complete_topics,
    help="Only this topic, or some partitions of it; repeatable.  [default: all that the group has offsets of]",
)
@click.option(
    "--all-groups",
    is_flag=True,
    help="All consumer groups; with --topic those that have offsets of it. Groups with members are left out.",
)
@click.option("--create", is_flag=True, help="The group may be new: it begins there then.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@bootstrap_option
@json_option
def command(
    group_id: str | None,
    place: str | None,
    shift: int | None,
    file: str | None,
    to_current: bool,
    topics: tuple[str, ...],
    all_groups: bool,
    create: bool,
    execute: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show where a group would read on from, and with --execute have it do so.

    The group must have no members then: they would go on where they are, and commit that. Offsets outside a log are
    moved to its nearer end. What --json prints can be given back with --from-file.
    """
    from barnabas.cli.offset_files import read_offsets
    from barnabas.cli.partition_selection import parse_selection
    from barnabas.cli.starts import parse_start

    if sum(wish is not None for wish in (place, shift, file)) + to_current != 1:
        raise click.UsageError("say where to, in one way: --to, --shift, --to-current or --from-file")
    if all_groups is (group_id is not None):
        raise click.UsageError("name a group, or say --all-groups")
    if all_groups and (file is not None or create):
        raise click.UsageError("--from-file and --create are for one group")
    if file is not None and topics:
        raise click.UsageError("--from-file names its partitions itself: leave --topic out")
    if create and not (topics or file):
        raise click.UsageError("a new group has no offsets yet: name topics with --topic")
    if group_id == "":
        raise click.BadParameter("a group needs a name", param_hint="GROUP")
    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None
    try:
        start = None if place is None else parse_start(place)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--to") from None

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        goal = Goal(start, shift, None if file is None else read_offsets(file), is_current=to_current)
        async with Admin(client) as admin:
            if group_id is None:
                await _reset_all(client, admin, selection, goal, is_executed=execute, as_json=as_json)
                return
            group, committed = await _group(admin, group_id, may_be_new=create)
            moves = await _moves(client, admin, group_id, committed, selection, goal)
            if execute:
                await _execute(admin, group, moves)
        _print(group, moves, is_executed=execute, as_json=as_json)

    run_with_client(bootstrap, body)


# Inside.


async def _group(
    admin: Admin, group_id: str, *, may_be_new: bool
) -> tuple[GroupDescription, Mapping[TopicPartition, OffsetAndMetadata]]:
    from barnabas.cli.group_states import find_group, require_group

    if may_be_new and await find_group(admin, group_id) is None:
        return await admin.describe_group(group_id), {}
    return await require_group(admin, group_id)


async def _reset_all(
    client: Client,
    admin: Admin,
    selection: Mapping[str, Sequence[int] | None],
    goal: Goal,
    *,
    is_executed: bool,
    as_json: bool,
) -> None:
    """Resets every consumer group that has offsets of what is selected, and no members; says which are left out."""
    from barnabas.cli.group_states import find_group, has_members
    from barnabas.cli.partition_selection import find_partitions

    wanted = frozenset((await find_partitions(admin, selection))[0]) if selection else None
    found: list[tuple[GroupDescription, list[Move]]] = []
    in_use: list[str] = []
    for listing in await admin.list_groups():
        group = await find_group(admin, listing.group_id) if listing.protocol_type in _CONSUMERS else None
        if group is None:
            continue
        description, committed = group
        of_it = {each: offset for each, offset in committed.items() if wanted is None or each in wanted}
        there = await _still_there(admin, of_it)
        if not there:
            continue
        if has_members(description):
            in_use.append(description.group_id)
            continue
        some = {each.topic: [other.partition for other in there if other.topic == each.topic] for each in there}
        found.append((description, await _moves(client, admin, description.group_id, of_it, some, goal)))
    if not found and not in_use:
        raise CommandError("no consumer group has offsets of that; `barnabas group list` shows which there are")
    for place, (group_description, moves) in enumerate(found):
        if not is_executed:
            break
        try:
            await _execute(admin, group_description, moves)
        except Exception:
            done = ", ".join(shown(each.group_id) for each, _ in found[:place])
            say(f"Reset before the error: {done or 'no group'}. The same command again does the rest.")
            raise
    _print_all(found, is_executed=is_executed, as_json=as_json)
    if in_use:
        names = ", ".join(map(printable, in_use))
        raise CommandError(f"left out, as they have members: {names}; stop these, and reset them then")


async def _moves(
    client: Client,
    admin: Admin,
    group_id: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    selection: Mapping[str, Sequence[int] | None],
    goal: Goal,
) -> list[Move]:
    """What becomes of each partition that is meant."""
    from barnabas.cli.partition_selection import find_bounds, find_offsets, find_partitions, numbers_by_topic, within

    partitions: Collection[TopicPartition]
    if goal.offsets is not None:
        partitions, _ = await find_partitions(admin, numbers_by_topic(goal.offsets), must_be_led=True)
    elif selection:
        partitions, _ = await find_partitions(admin, selection, must_be_led=True)
    else:
        partitions = await _still_there(admin, committed)
        if not partitions:
            raise CommandError(f"group {group_id} has committed nothing; name topics with --topic")
    bounds = await find_bounds(admin, partitions)
    if goal.place is not None:
        offsets = await find_offsets(admin, bounds, goal.place, client.host.clock.time_ms())
    elif goal.offsets is not None:
        offsets = {partition: within(partition, bounds[partition], goal.offsets[partition]) for partition in partitions}
    elif goal.is_current:
        offsets = {
            partition: within(partition, each, committed[partition].offset) if partition in committed else each.end
            for partition, each in bounds.items()
        }
    else:
        offsets = _shifted(bounds, committed, goal.shift or 0)
    return [
        Move(
            partition,
            committed[partition].offset if partition in committed else None,
            offset,
            bounds[partition].end,
        )
        for partition, offset in sorted(offsets.items())
    ]


def _shifted(
    bounds: Mapping[TopicPartition, Bounds], committed: Mapping[TopicPartition, OffsetAndMetadata], shift: int
) -> dict[TopicPartition, int]:
    from barnabas.cli.partition_selection import within

    without = [partition for partition in bounds if partition not in committed]
    if without:
        raise CommandError(
            f"nothing is committed for {printable(str(without[0]))}, from where --shift could go; say --to where"
        )
    return {
        partition: within(partition, each, committed[partition].offset + shift) for partition, each in bounds.items()
    }


async def _still_there(admin: Admin, committed: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions whose topics still exist; says which do not."""
    from barnabas.cli.partition_selection import check_led

    known = await admin.describe_topics()
    gone = sorted({each.topic for each in committed if each.topic not in known})
    if gone:
        say(f"Left out, as these topics are gone: {', '.join(map(printable, gone))}.")
    there = sorted(each for each in committed if each.topic in known and each.partition in known[each.topic].partitions)
    check_led(there, known)
    return there


async def _execute(admin: Admin, group: GroupDescription, moves: Sequence[Move]) -> None:
    """Commits the new offsets. Raises CommandError where the group has members."""
    from barnabas.cli.group_states import has_members, in_use
    from barnabas.client.errors import CommitFailedError
    from barnabas.client.records import OffsetAndMetadata

    if has_members(group):
        raise in_use(group, "reset it")
    for first in range(0, len(moves), _COMMITTED_AT_A_TIME):
        some = moves[first : first + _COMMITTED_AT_A_TIME]
        try:
            await admin.alter_group_offsets(
                group.group_id, {move.partition: OffsetAndMetadata(move.new_offset) for move in some}
            )
        except CommitFailedError as error:
            raise CommandError(
                f"a member has come into group {printable(group.group_id)} meanwhile; {first} of {len(moves)} offsets "
                "are reset: stop it, and reset the group again"
            ) from error


def _print(group: GroupDescription, moves: Sequence[Move], *, is_executed: bool, as_json: bool) -> None:
    from barnabas.cli.group_states import has_members, in_use

    rows = [move.row() for move in moves]
    if as_json:
        print_json({"group_id": group.group_id, "is_executed": is_executed, "partitions": rows})
    else:
        print_table(_COLUMNS, [list(row.values()) for row in rows])
    if is_executed:
        say(f"Reset group {shown(group.group_id)}: {counted(len(moves), 'partition')}.")
    elif has_members(group):
        say(f"Nothing was changed, and nothing can be now: {in_use(group, 'add --execute')}.")
    else:
        say("Nothing was changed: add --execute to do it.")


def _print_all(found: Sequence[tuple[GroupDescription, Sequence[Move]]], *, is_executed: bool, as_json: bool) -> None:
    if as_json:
        groups = [{"group_id": group.group_id, "partitions": [move.row() for move in moves]} for group, moves in found]
        print_json({"is_executed": is_executed, "groups": groups})
    elif found:
        columns = (Column("Group", "group_id"), *_COLUMNS)
        print_table(columns, [[group.group_id, *move.row().values()] for group, moves in found for move in moves])
    if is_executed:
        say(f"Reset {counted(len(found), 'group')}.")
    else:
        say("Nothing was changed: add --execute to do it.")
