"""`barnabas elect`: preferred leaders, or leaders where no replica is in sync."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import CommandError, ask_cluster, bootstrap_option, exiting, json_option, run_with_client
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client
    from barnabas.client.cluster import PartitionInfo
    from barnabas.wire.errors import KafkaError
    from barnabas.wire.topics import TopicPartition

_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Before", "leader_before", is_number=True),
    Column("Leader", "leader", is_number=True),
    Column("Outcome", "outcome"),
)
_NAMED_MAX: Final = 10
_LOOKS_MAX: Final = 20
_LOOK_PAUSE_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """A partition, who led it, who leads it now, and why no other was elected; None for nobody."""

    partition: TopicPartition
    before: int | None
    leader: int | None
    error: KafkaError | None

    @property
    def word(self) -> str:
        """`ELECTED`, or the name of the error."""
        return "ELECTED" if self.error is None else self.error.code.name

    def row(self) -> dict[str, Any]:
        """As `elect --json` has it, but for the message."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "leader_before": self.before,
            "leader": self.leader,
            "outcome": self.word,
        }


@click.command(name="elect")
@click.argument("kind", metavar="preferred|unclean", type=click.Choice(["preferred", "unclean"]))
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,2-4]",
    shell_complete=complete_topics,
    help="A topic, or some of its partitions; repeatable.",
)
@click.option(
    "--partition",
    "numbers",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="A partition of the one --topic; repeatable.",
)
@click.option("--all", "is_all", is_flag=True, help="All partitions of all topics.")
@click.option("--yes", is_flag=True, help="Elect uncleanly without asking.")
@bootstrap_option
@json_option
def command(
    kind: str,
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    is_all: bool,
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Have leaders elected, and show which.

    preferred: the first replica of each partition leads again, if it is alive and in sync. Brokers do this by
    themselves every few minutes, where auto.leader.rebalance.enable is true.

    unclean: partitions without a leader get any replica that is alive, whatever unclean.leader.election.enable says.
    Records that this replica lacks are lost for good, acknowledged ones too. First start the brokers that were in sync.
    """
    from barnabas.cli.partition_selection import parse_selection

    if bool(topics) is is_all:
        raise click.UsageError("name --topic, or --all")
    if numbers and (len(topics) != 1 or ":" in topics[0]):
        raise click.UsageError("--partition goes with one --topic, which names no partitions itself")
    names = [f"{topics[0]}:{','.join(map(str, numbers))}"] if numbers else topics
    try:
        selection = parse_selection(names)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None

    is_unclean = kind == "unclean"
    with exiting():
        before = ask_cluster(bootstrap, lambda client: _found(client, None if is_all else selection))
        if is_unclean:
            before = {partition: known for partition, known in before.items() if _leader(known) is None}
            if before and not yes:
                _confirm(list(before))

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            outcomes = await _elect(client, admin, before, is_unclean=is_unclean) if before else []
        _print(kind, outcomes, as_json=as_json)

    run_with_client(bootstrap, body)


# Inside.


async def _found(
    client: Client, selection: Mapping[str, Sequence[int] | None] | None
) -> dict[TopicPartition, PartitionInfo]:
    """The partitions as they are, or all with None. Raises CommandError for what does not exist."""
    from barnabas.cli.partition_selection import find_partitions
    from barnabas.client.admin import Admin
    from barnabas.wire.topics import TopicPartition

    async with Admin(client) as admin:
        if selection is None:
            found = await admin.describe_topics(None)
            partitions = [TopicPartition(name, number) for name in sorted(found) for number in found[name].partitions]
        else:
            partitions, _ = await find_partitions(admin, selection)
            found = await admin.describe_topics(list(selection))
        return {each: found[each.topic].partitions[each.partition] for each in partitions}


def _confirm(partitions: Sequence[TopicPartition]) -> None:
    """Has somebody say yes. Raises CommandError where nobody does."""
    some = ", ".join(str(each) for each in partitions[:_NAMED_MAX]) + (", ..." if partitions[_NAMED_MAX:] else "")
    say(printable(f"Without a leader: {some}."))
    say("Records that the new leaders lack are lost for good, also those that were acknowledged.")
    if not is_anybody_there():
        raise CommandError("nothing was elected: nobody is there to ask; add --yes to elect without asking")
    if not click.confirm(f"Elect leaders of {counted(len(partitions), 'partition')}?", err=True):
        raise CommandError("nothing was elected")


async def _elect(
    client: Client, admin: Admin, before: Mapping[TopicPartition, PartitionInfo], *, is_unclean: bool
) -> list[Outcome]:
    """What came of each partition."""
    from barnabas.wire.topics import ElectionType

    election_type = ElectionType.UNCLEAN if is_unclean else ElectionType.PREFERRED
    errors = await admin.elect_leaders(election_type, list(before))
    won = [partition for partition in before if partition in errors and errors[partition] is None]
    if is_unclean:
        leaders = await _leaders(client, admin, won)
    else:
        leaders = {partition: before[partition].replicas[0] for partition in won}
    return [
        Outcome(
            partition,
            _leader(known),
            leaders.get(partition) if errors[partition] is None else _leader(known),
            errors[partition],
        )
        for partition, known in before.items()
        if partition in errors
    ]


async def _leaders(client: Client, admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Who leads; without those of which the brokers have not heard for some seconds."""
    topics = list(dict.fromkeys(partition.topic for partition in partitions))
    leaders: dict[TopicPartition, int] = {}
    for look in range(_LOOKS_MAX):
        if look:
            await client.timers.sleep(_LOOK_PAUSE_MS)
        found = await admin.describe_topics(topics)
        for partition in partitions:
            known = found[partition.topic].partitions.get(partition.partition)
            leader = None if known is None else _leader(known)
            if leader is not None:
                leaders[partition] = leader
        if len(leaders) == len(partitions):
            break
    return leaders


def _print(kind: str, outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """Raises CommandError where some were not elected that needed to be."""
    from barnabas.wire.errors import ErrorCode

    needless = [each for each in outcomes if each.word == ErrorCode.ELECTION_NOT_NEEDED.name]
    told = [each for each in outcomes if each not in needless]
    if as_json:
        rows = [each.row() | {"message": None if each.error is None else each.error.message} for each in outcomes]
        print_json({"election_type": kind, "partitions": rows})
    elif told:
        print_table(_COLUMNS, [list(each.row().values()) for each in told])
    if needless or not outcomes:
        whole = "All partitions have" if not outcomes else f"{counted(len(needless), 'partition')} had"
        say(f"{whole} {'a leader' if kind == 'unclean' else 'the preferred leader'} already.")
    failed = [each for each in told if each.error is not None]
    if failed:
        error = failed[0].error
        raise CommandError(
            f"{len(failed)} of {counted(len(told), 'election')} failed, of {failed[0].partition} because: "
            f"{'' if error is None else error}"
        )


def _leader(known: PartitionInfo) -> int | None:
    """None where there is none."""
    return known.leader_id if known.leader_id >= 0 else None


def is_anybody_there() -> bool:
    """Whether a question would be answered: standard input is a terminal, and not a file, or closed (`<&-`)."""
    return sys.stdin is not None and sys.stdin.isatty()
