"""`barnabas txn`: transactions, who writes them, and those that hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.command_config import seen_by_command
from barnabas.cli.completed_names import complete_brokers, complete_topics, complete_transactional_ids
from barnabas.cli.connection import CommandError, ExitStatus, bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, Mark, Marked, counted, print_json, print_table, say, shown
from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.transaction_admin import PartitionProducer, TransactionAdmin, TransactionDescription
    from barnabas.wire.topics import TopicPartition

STATES: Final = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
    *("PrepareEpochFence", "Dead"),
)
"""As brokers spell them."""
OLDER_THAN: Final = "15m"
"""The longest time-out that brokers give a transaction unless transaction.max.timeout.ms says otherwise."""
_COLUMNS: Final = (
    Column("Transactional id", "transactional_id"),
    Column("State", "state"),
    Column("Producer", "producer_id", is_number=True),
    Column("Coordinator", "coordinator", is_number=True),
)
_PRODUCER_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Producer", "producer_id", is_number=True),
    Column("Epoch", "producer_epoch", is_number=True),
    Column("Sequence", "last_sequence", is_number=True),
    Column("Last record", "last_timestamp_ms"),
    Column("Coordinator epoch", "coordinator_epoch", is_number=True),
    Column("Open since offset", "transaction_offset", is_number=True),
)
_HANGING_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Offset", "transaction_offset", is_number=True),
    Column("Producer", "producer_id", is_number=True),
    Column("Epoch", "producer_epoch", is_number=True),
    Column("Last record", "last_timestamp_ms"),
    Column("Transactional id", "transactional_id"),
)


@fact
class Hanging:
    """An open transaction whose end nobody will write; the id is None where no coordinator knows the producer."""

    partition: TopicPartition
    producer: PartitionProducer
    transactional_id: str | None


@click.group(name="txn")
def command() -> None:
    """Show transactions, find those that hang, and abort them.

    A transaction hangs where a partition waits for its end and no coordinator will write it: consumers of committed
    records stop there.
    """


@command.command(name="list")
@click.option(
    "--state",
    "states",
    type=click.Choice(list(STATES), case_sensitive=False),
    multiple=True,
    help="Only those in this state.",
)
@click.option("--producer-id", "producer_ids", type=click.IntRange(min=0), multiple=True, help="Only of this producer.")
@click.option("--longer-than", "began_ago", metavar="DURATION", help="Only what began longer ago: 10m.")
@bootstrap_option
@json_option
def list_transactions(
    states: tuple[str, ...], producer_ids: tuple[int, ...], began_ago: str | None, bootstrap: str, as_json: bool
) -> None:
    """Show the transactional ids that brokers know, and the state of each."""
    began_ms_ago = _duration(began_ago, "--longer-than")

    async def body(client: Client) -> None:
        from barnabas.client.transaction_admin import TransactionAdmin

        async with TransactionAdmin(client) as admin:
            try:
                found = await admin.list_transactions(states, producer_ids, began_ms_ago)
            except ValueError as error:
                raise CommandError(f"{error} at these brokers") from None
        rows = [(each.transactional_id, each.state, each.producer_id, each.coordinator_id) for each in found]
        if as_json:
            names = [column.name for column in _COLUMNS]
            print_json({"transactions": [dict(zip(names, row, strict=True)) for row in rows]})
        elif rows:
            print_table(_COLUMNS, rows)
        else:
            say(f"There is no such transaction{seen_by_command()}.")

    run_with_client(bootstrap, body)


@command.command(name="describe")
@click.argument(
    "ids", metavar="TRANSACTIONAL-ID...", nargs=-1, required=True, shell_complete=complete_transactional_ids
)
@bootstrap_option
@json_option
def describe(ids: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show transactions: since when each is open, its time-out, and the partitions that wait for its end."""

    if "" in ids:
        raise click.BadParameter("a transactional id is not empty", param_hint="TRANSACTIONAL-ID")

    async def body(client: Client) -> None:
        from barnabas.client.transaction_admin import TransactionAdmin

        async with TransactionAdmin(client) as admin:
            # Where nothing keeps transactions there are none; the question would make the topic, if brokers can.
            found = await admin.describe_transactions(ids) if await _may_have_transactions(client) else {}
        described = [found[each] for each in dict.fromkeys(ids) if each in found]
        if as_json:
            print_json({"transactions": [_document(each) for each in described]})
        else:
            for number, each in enumerate(described):
                if number:
                    click.echo()
                _print_fields(each, client.host.clock.time_ms())
        missing = [each for each in dict.fromkeys(ids) if each not in found]
        if missing:
            what = "there is no transactional id" if len(missing) == 1 else "there are no transactional ids"
            raise CommandError(
                f"{what} {', '.join(missing)}; `barnabas txn list` shows which there are", ExitStatus.MISSING
            )

    run_with_client(bootstrap, body)


@command.command(name="producers")
@click.argument("topics", metavar="TOPIC[:0,2-4]...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    shell_complete=complete_brokers,
    help="Ask this broker instead of the leaders.",
)
@bootstrap_option
@json_option
def producers(topics: tuple[str, ...], broker_id: int | None, bootstrap: str, as_json: bool) -> None:
    """Show the producers that partitions remember, idempotent and transactional ones, and their open transactions."""
    selection = _selection(topics)

    async def body(client: Client) -> None:
        from barnabas.cli.partition_selection import find_partitions
        from barnabas.client.admin import Admin
        from barnabas.client.transaction_admin import TransactionAdmin

        async with Admin(client) as admin, TransactionAdmin(client) as transactions:
            partitions, _ = await find_partitions(admin, selection, must_be_led=broker_id is None)
            _check_broker(client, broker_id)
            found = await transactions.describe_producers(partitions, broker_id)
        rows = [(partition, each) for partition in partitions for each in found.get(partition, ())]
        if as_json:
            print_json({"producers": [_producer(*row) for row in rows]})
        elif rows:
            print_table(_PRODUCER_COLUMNS, [_producer_row(*row) for row in rows])
        else:
            say("These partitions remember no producer.")

    run_with_client(bootstrap, body)


@command.command(name="find-hanging")
@click.argument("topics", metavar="[TOPIC[:0,2-4]]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    shell_complete=complete_brokers,
    help="Look at the replicas on this broker.",
)
@click.option(
    "--older-than",
    metavar="DURATION",
    default=OLDER_THAN,
    show_default=True,
    help="Only transactions that wrote nothing for so long: the longest time-out that producers may have.",
)
@bootstrap_option
@json_option
def find_hanging(
    topics: tuple[str, ...], broker_id: int | None, older_than: str, bootstrap: str, as_json: bool
) -> None:
    """Find transactions that hang, in all partitions or some; `txn abort` ends them."""
    older_than_ms = _duration(older_than, "--older-than") or 0
    selection = _selection(topics)

    async def body(client: Client) -> None:
        from barnabas.client.transaction_admin import TransactionAdmin

        _check_broker(client, broker_id)
        partitions = await _searched(client, selection, broker_id)
        async with TransactionAdmin(client) as admin:
            by_partition = await admin.describe_producers(partitions, broker_id)
            before_ms = client.host.clock.time_ms() - older_than_ms
            candidates = [
                (partition, each)
                for partition in partitions
                for each in by_partition.get(partition, ())
                if each.transaction_offset is not None and each.last_timestamp_ms <= before_ms
            ]
            found = await _hanging(admin, candidates, broker_id)
        if as_json:
            rows = [{**_producer(h.partition, h.producer), "transactional_id": h.transactional_id} for h in found]
            print_json({"hanging": rows})
        elif found:
            print_table(_HANGING_COLUMNS, [_hanging_row(each) for each in found])
            partition, offset = found[0].partition, found[0].producer.transaction_offset
            say(
                f"{counted(len(found), 'transaction')} found. Abort each, as by: barnabas txn abort "
                f"{shown(partition.topic)}:{partition.partition} --start-offset {offset}"
            )
        else:
            say(f"No transaction hangs in {counted(len(partitions), 'partition')}{seen_by_command()}.")

    run_with_client(bootstrap, body)


@command.command(name="abort")
@click.argument("place", metavar="TOPIC:PARTITION", shell_complete=complete_topics)
@click.option("--start-offset", type=click.IntRange(min=0), required=True, help="Where the transaction begins.")
@click.option("--force", is_flag=True, help="Abort it though its coordinator knows it, and will end it.")
@bootstrap_option
@json_option
def abort(place: str, start_offset: int, force: bool, bootstrap: str, as_json: bool) -> None:
    """Abort a transaction that hangs, in one partition: its records there will never be read as committed.

    A transaction that its coordinator knows is refused: its own time-out ends it in all partitions alike.
    """
    selection = _selection((place,))
    (numbers,) = selection.values()
    if numbers is None or len(numbers) != 1:
        raise click.BadParameter("name one partition, as TOPIC:0", param_hint="TOPIC:PARTITION")

    async def body(client: Client) -> None:
        from barnabas.cli.partition_selection import find_partitions
        from barnabas.client.admin import Admin
        from barnabas.client.transaction_admin import TransactionAdmin

        async with Admin(client) as admin, TransactionAdmin(client) as transactions:
            ((partition,), _) = await find_partitions(admin, selection, must_be_led=True)
            known = (await transactions.describe_producers([partition]))[partition]
            producer = next((each for each in known if each.transaction_offset == start_offset), None)
            if producer is None:
                raise CommandError(
                    f"no open transaction of {partition} begins at offset {start_offset}; `barnabas txn producers "
                    f"{place}` shows where they begin",
                    ExitStatus.MISSING,
                )
            if not force and not await _hanging(transactions, [(partition, producer)]):
                raise CommandError(
                    f"the transaction at offset {start_offset} of {partition} does not hang: its coordinator knows it "
                    "and ends it when its producer does, or after its time-out; --force aborts it in this partition "
                    "only"
                )
            await transactions.abort_in_partition(partition, producer)
        if as_json:
            print_json({"aborted": _producer(partition, producer)})
        else:
            click.echo(
                f"Aborted in {shown(str(partition))}: the transaction of producer {producer.producer_id} that begins "
                f"at offset {start_offset}."
            )

    run_with_client(bootstrap, body)


# Inside.


async def _may_have_transactions(client: Client) -> bool:
    """Whether the topic that keeps them is there, or not for this login to see."""
    from barnabas.client.admin import Admin
    from barnabas.wire.errors import ErrorCode, KafkaError
    from barnabas.wire.topics import TRANSACTION_TOPIC

    async with Admin(client) as admin:
        try:
            await admin.describe_topics([TRANSACTION_TOPIC])
        except KafkaError as error:
            return error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return True


async def _searched(
    client: Client, selection: dict[str, tuple[int, ...] | None], broker_id: int | None
) -> list[TopicPartition]:
    """The partitions to be looked at: those named, else all that have a leader, or a replica on the broker."""
    from barnabas.cli.partition_selection import find_partitions
    from barnabas.client.admin import Admin
    from barnabas.wire.topics import TopicPartition

    async with Admin(client) as admin:
        if selection:
            return (await find_partitions(admin, selection, must_be_led=broker_id is None))[0]
        topics = await admin.describe_topics()
    found, left_out = [], 0
    for name, topic in sorted(topics.items()):
        for number, partition in topic.partitions.items():
            if broker_id is not None and broker_id not in partition.replicas:
                continue
            if broker_id is None and partition.leader_id < 0:
                left_out += 1
                continue
            found.append(TopicPartition(name, number))
    if left_out:
        say(f"Left out: {counted(left_out, 'partition')} without a leader.")
    return found


async def _hanging(
    admin: TransactionAdmin,
    candidates: Sequence[tuple[TopicPartition, PartitionProducer]],
    broker_id: int | None = None,
) -> list[Hanging]:
    """Those whose coordinator does not know that the partition waits for an end (KIP-664). What ends meanwhile is not
    among them.
    """
    if not candidates:
        return []
    wanted = {producer.producer_id for _, producer in candidates}
    listed = await admin.list_transactions(producer_ids=sorted(wanted))
    ids = {each.producer_id: each.transactional_id for each in listed}
    described = await admin.describe_transactions(ids.values())
    found = []
    for partition, producer in candidates:
        transactional_id = ids.get(producer.producer_id)
        known = None if transactional_id is None else described.get(transactional_id)
        if known is None or partition not in known.partitions:
            found.append(Hanging(partition, producer, transactional_id))
    if not found:
        return []
    # The end that a coordinator has just written is not among what it has to write any more.
    now = await admin.describe_producers(list(dict.fromkeys(each.partition for each in found)), broker_id)
    still = {
        (partition, each.producer_id, each.transaction_offset) for partition, known in now.items() for each in known
    }
    return [
        each for each in found if (each.partition, each.producer.producer_id, each.producer.transaction_offset) in still
    ]


def _selection(topics: Sequence[str]) -> dict[str, tuple[int, ...] | None]:
    from barnabas.cli.partition_selection import parse_selection

    try:
        return parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None


def _duration(text: str | None, option: str) -> int | None:
    from barnabas.cli.starts import parse_duration_ms

    try:
        return None if text is None else parse_duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _check_broker(client: Client, broker_id: int | None) -> None:
    from barnabas.cli.missing import missing_broker

    if broker_id is not None and broker_id not in client.cluster.brokers:
        raise missing_broker(broker_id, client.cluster.brokers)


def _document(each: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "coordinator": each.coordinator_id,
        "timeout_ms": each.timeout_ms,
        "started_at_ms": each.started_at_ms,
        "partitions": [{"topic": part.topic, "partition": part.partition} for part in each.partitions],
    }


def _print_fields(each: TransactionDescription, now_ms: int) -> None:
    from barnabas.cli.controller_show import age
    from barnabas.cli.output import print_fields
    from barnabas.cli.record_formats import shown_time
    from barnabas.kernel.spoken import spoken_ms

    since = None
    if each.started_at_ms is not None:
        since = f"{shown_time(each.started_at_ms)}, {age(now_ms - each.started_at_ms)} ago"
    print_fields(
        [
            ("Transactional id", each.transactional_id),
            ("State", each.state),
            ("Producer", f"{each.producer_id}, epoch {each.producer_epoch}"),
            ("Coordinator", f"broker {each.coordinator_id}"),
            ("Time-out", spoken_ms(each.timeout_ms)),
            ("Open since", since),
            ("Partitions", [str(part) for part in each.partitions]),
        ]
    )


def _producer(partition: TopicPartition, each: PartitionProducer) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "last_sequence": each.last_sequence,
        "last_timestamp_ms": each.last_timestamp_ms,
        "coordinator_epoch": each.coordinator_epoch,
        "transaction_offset": each.transaction_offset,
    }


def _producer_row(partition: TopicPartition, each: PartitionProducer) -> list[object]:
    from barnabas.cli.record_formats import shown_time

    offset = each.transaction_offset
    return [
        *(partition.topic, partition.partition, each.producer_id, each.producer_epoch, each.last_sequence),
        None if each.last_timestamp_ms < 0 else shown_time(each.last_timestamp_ms),
        each.coordinator_epoch,
        None if offset is None else Marked(offset, Mark.WARNING),
    ]


def _hanging_row(each: Hanging) -> list[object]:
    from barnabas.cli.record_formats import shown_time

    producer = each.producer
    return [
        *(each.partition.topic, each.partition.partition, producer.transaction_offset),
        *(producer.producer_id, producer.producer_epoch, shown_time(producer.last_timestamp_ms)),
        each.transactional_id,
    ]
