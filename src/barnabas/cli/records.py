"""`barnabas records delete`: records go before their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import CommandError, bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say

if TYPE_CHECKING:
    from barnabas.cli.partition_selection import Bounds
    from barnabas.cli.starts import Start
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client
    from barnabas.wire.topics import TopicPartition

_NAMES_SHOWN_MAX = 20
_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Start", "start_offset", is_number=True),
    Column("New start", "new_start_offset", is_number=True),
    Column("End", "end_offset", is_number=True),
    Column("Deleted", "deleted", is_number=True),
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition, where it begins and ends, and where it shall begin."""

    partition: TopicPartition
    start: int
    end: int
    new_start: int

    def row(self) -> dict[str, Any]:
        """As `records delete --json` has it."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "start_offset": self.start,
            "new_start_offset": self.new_start,
            "end_offset": self.end,
            "deleted": self.new_start - self.start,
        }


@click.group(name="records")
def command() -> None:
    """Delete records of topics."""


@command.command(name="delete")
@click.argument("topics", metavar="[TOPIC[:0,2-4]]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--before",
    "place",
    metavar="PLACE",
    help="What is ahead of this goes: an offset, latest (everything), -N (all but the last N), a time such as "
    "2026-11-21T09:00:00Z, or 2h (ago).",
)
@click.option(
    "--from-file",
    "file",
    metavar="FILE",
    shell_complete=complete_files,
    help="An offset for each partition, -1 for its end: the JSON of kafka-delete-records, or lines of "
    "TOPIC,PARTITION,OFFSET; - is standard input.",
)
@click.option("--force", is_flag=True, help="Delete records of internal topics too.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@bootstrap_option
@json_option
def delete(
    topics: tuple[str, ...],
    place: str | None,
    file: str | None,
    force: bool,
    execute: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show which records would go, and with --execute delete them: all that are ahead of an offset or a time.

    They cannot be read any more at once, and nothing brings them back. Brokers free the space when whole segments are
    gone. Topics that are only compacted refuse it. An offset ahead of a log's start deletes nothing; one beyond its end
    is refused.
    """
    from barnabas.cli.offset_files import HIGH_WATERMARK, read_offsets
    from barnabas.cli.partition_selection import parse_selection
    from barnabas.cli.starts import parse_start

    if (place is None) is (file is None) or (file is None) is not bool(topics):
        raise click.UsageError("name topics and --before, or --from-file alone")
    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None
    try:
        start = None if place is None else parse_start(place)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--before") from None

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        offsets = None if file is None else read_offsets(file, least=HIGH_WATERMARK)
        async with Admin(client) as admin:
            cuts = await _cuts(client, admin, selection, start, offsets, force=force)
            if execute:
                await _delete(admin, cuts)
        rows = [cut.row() for cut in cuts]
        if as_json:
            print_json({"is_executed": execute, "partitions": rows})
        else:
            print_table(_COLUMNS, [list(row.values()) for row in rows])
        count = sum(row["deleted"] for row in rows)
        if execute:
            say(f"Deleted {counted(count, 'offset')}.")
        elif not count:
            say("Nothing is ahead of that: there is nothing to delete.")
        else:
            say(f"Nothing was deleted: add --execute to delete {counted(count, 'offset')} for good.")

    run_with_client(bootstrap, body)


# Inside.


async def _cuts(
    client: Client,
    admin: Admin,
    selection: Mapping[str, Sequence[int] | None],
    place: Start | None,
    offsets: Mapping[TopicPartition, int] | None,
    *,
    force: bool,
) -> list[Cut]:
    """What becomes of each partition. Raises CommandError for what does not exist, and for internal topics."""
    from barnabas.cli.partition_selection import find_bounds, find_offsets, find_partitions, numbers_by_topic
    from barnabas.cli.starts import AtOffset

    partitions, internal = await find_partitions(
        admin, selection if offsets is None else numbers_by_topic(offsets), must_be_led=True
    )
    if internal and not force:
        name = min(internal)
        raise CommandError(f"{printable(name)} is internal; if the brokers' own records may go, add --force")
    bounds = await find_bounds(admin, partitions)
    if isinstance(place, AtOffset):
        wanted = {each: _cut_at(each, bounds[each], place.offset) for each in partitions}
    elif place is not None:
        wanted = await find_offsets(admin, bounds, place, client.host.clock.time_ms())
    else:
        wanted = {each: _cut_at(each, bounds[each], (offsets or {})[each]) for each in partitions}
    return [Cut(each, bounds[each].start, bounds[each].end, wanted[each]) for each in partitions]


def _cut_at(partition: TopicPartition, bounds: Bounds, offset: int) -> int:
    """Where a partition shall begin. Raises CommandError for an offset beyond its end, which may be a slip of the pen,
    and would delete everything.
    """
    from barnabas.cli.offset_files import HIGH_WATERMARK
    from barnabas.cli.partition_selection import within

    if offset == HIGH_WATERMARK:
        return bounds.end
    if offset > bounds.end:
        raise CommandError(
            f"{printable(str(partition))} ends at {bounds.end}, and {offset} is beyond it: give an offset up to "
            f"{bounds.end}, or latest (-1 in a file) to delete all that it has"
        )
    return within(partition, bounds, offset)


async def _delete(admin: Admin, cuts: Sequence[Cut]) -> None:
    """Deletes in one partition after another; where one fails, says which are done."""
    doomed = [cut for cut in cuts if cut.new_start > cut.start]
    for place, cut in enumerate(doomed):
        try:
            await _delete_in_one(admin, cut)
        except Exception:
            if len(doomed) > 1:
                say(_told_what_is_done(doomed[:place], doomed[place:]))
            raise


def _told_what_is_done(done: Sequence[Cut], left: Sequence[Cut]) -> str:
    before = f"Deleted before the error: {_named(done)}." if done else "Nothing was deleted before the error."
    return f"{before} Not done: {_named(left)}. The same command again does the rest."


def _named(cuts: Sequence[Cut]) -> str:
    names = [printable(str(cut.partition)) for cut in cuts[:_NAMES_SHOWN_MAX]]
    more = len(cuts) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


async def _delete_in_one(admin: Admin, cut: Cut) -> None:
    from barnabas.wire.errors import ErrorCode, KafkaError

    try:
        await admin.delete_records({cut.partition: cut.new_start})
    except KafkaError as error:
        if error.code is not ErrorCode.POLICY_VIOLATION:
            raise
        raise CommandError(
            f"{error.detail or 'records'}: a topic that is only compacted keeps its records; set cleanup.policy to "
            "delete first, or write tombstones (POLICY_VIOLATION)"
        ) from error
