"""`barnabas topic`: what topics there are, how their partitions do, and making and deleting them."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import CommandError, bootstrap_option, json_option, report, run_with_client
from barnabas.cli.later_commands import LaterCommands
from barnabas.cli.missing import missing_topics, say_no_topics
from barnabas.cli.output import Column, Mark, Marked, counted, print_fields, print_json, print_table, shown
from barnabas.cli.topic_ids import topic_id
from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client
    from barnabas.client.cluster import PartitionInfo, TopicInfo

INTERNAL_TOPICS = {
    "__consumer_offsets": "and has what every consumer group has committed",
    "__transaction_state": "and has the state of every transactional producer",
}
"""The topics that brokers keep for themselves, and what is lost with them."""
_FORCE_ADVICE = "if all of that may go, delete it with --force"
_PATTERN_CHARACTERS = "*?["
_BROKERS_DEFAULT = -1
_TOPIC_CONFIG_SOURCE = 1
_MIN_ISR_CONFIG = "min.insync.replicas"

_LIST_COLUMNS = (
    Column("Topic", "name"),
    Column("Partitions", "partitions", is_number=True),
    Column("Replicas", "replication_factor", is_number=True),
    Column("Under-replicated", "under_replicated", is_number=True),
    Column("No leader", "without_leader", is_number=True),
)
_PARTITION_COLUMNS = (
    Column("Partition", "partition", is_number=True),
    Column("Leader", "leader", is_number=True),
    Column("Epoch", "leader_epoch", is_number=True),
    Column("Replicas", "replicas"),
    Column("In sync", "isr"),
    Column("Offline", "offline_replicas"),
    Column("State", "state"),
)


class PartitionHealth(enum.Enum):
    """How a partition does; the value is the word in JSON."""

    OK = "ok"
    UNDER_REPLICATED = "under_replicated"
    UNDER_MIN_ISR = "under_min_isr"
    WITHOUT_LEADER = "without_leader"

    @classmethod
    def of(cls, info: PartitionInfo, min_isr: int = 1) -> PartitionHealth:
        """`min_isr` is the topic's min.insync.replicas, where it is known."""
        if info.leader_id < 0:
            return cls.WITHOUT_LEADER
        if len(info.isr) < min(min_isr, len(info.replicas)):
            return cls.UNDER_MIN_ISR
        return cls.UNDER_REPLICATED if len(info.isr) < len(info.replicas) else cls.OK


_SHOWN_HEALTH = {
    PartitionHealth.OK: Marked("ok", Mark.GOOD),
    PartitionHealth.UNDER_REPLICATED: Marked("under-replicated", Mark.WARNING),
    PartitionHealth.UNDER_MIN_ISR: Marked("too few in sync", Mark.BAD),
    PartitionHealth.WITHOUT_LEADER: Marked("no leader", Mark.BAD),
}


@fact
class DescribedTopic:
    """A topic with the configs of its own."""

    info: TopicInfo
    configs: Mapping[str, str | None]
    min_isr: int

    @property
    def replication_factor(self) -> int:
        return replication_factor(self.info)


@click.group(
    name="topic",
    cls=LaterCommands,
    later={word: f"barnabas.cli.topic_{word}:command" for word in ("alter", "copy", "export", "import", "stats")},
)
def command() -> None:
    """Create, list, describe, alter and delete topics."""


@command.command(name="list")
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@bootstrap_option
@json_option
def list_topics(exclude_internal: bool, bootstrap: str, as_json: bool) -> None:
    """List the topics, with what is wrong with their partitions."""

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            found = await admin.describe_topics()
        topics = [found[name] for name in sorted(found) if not (exclude_internal and found[name].is_internal)]
        if as_json:
            print_json({"topics": [listed(topic) for topic in topics]})
        elif topics:
            print_table(_LIST_COLUMNS, [_listed_row(topic) for topic in topics])
        else:
            say_no_topics()

    run_with_client(bootstrap, body)


@command.command(name="create")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--partitions", type=click.IntRange(min=1), help="How many.  [default: the brokers' num.partitions]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32_767),
    help="Copies of each partition.  [default: the brokers' default.replication.factor]",
)
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="A config of the topic; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists already as it is.")
@bootstrap_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create topics, and wait until every broker knows their leaders."""
    settings = _read_configs(configs)
    counts = partitions or _BROKERS_DEFAULT, replication_factor or _BROKERS_DEFAULT

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin, NewTopic
        from barnabas.client.broker_views import BrokerViews
        from barnabas.wire.errors import ErrorCode, KafkaError

        made: dict[str, bool] = {}
        failures: list[Exception] = []
        async with Admin(client) as admin, BrokerViews(client) as views:
            for name in dict.fromkeys(names):
                try:
                    await admin.create_topics([NewTopic(name, *counts, settings)])
                    made[name] = True
                except KafkaError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        failures.append(error)
                    elif if_not_exists:
                        made[name] = False
                    else:
                        advice = "choose another name, or add --if-not-exists to leave it as it is"
                        failures.append(CommandError(f"there is already a topic {name}; {advice}"))
            await views.wait_until_led(made)
            found = await admin.describe_topics(made) if made else {}
        topics = [found[name] for name in made]
        if as_json:
            print_json({"topics": [{**listed(topic), "is_new": made[topic.name]} for topic in topics]})
        else:
            for topic in topics:
                click.echo(_created_line(topic, is_new=made[topic.name]))
        raise_failures(failures)

    run_with_client(bootstrap, body)


@command.command(name="describe")
@click.argument("names", metavar="[NAME|PATTERN]...", nargs=-1, shell_complete=complete_topics)
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show partitions with leaders and replicas, and the configs that a topic has of its own.

    A pattern is one of the shell's, such as 'flights-*' in quotes. Without a name, describes all topics.
    """

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            found, missing = await _find(admin, names)
            topics = [await _describe_one(admin, topic) for topic in found]
        if as_json:
            print_json({"topics": [described(topic) for topic in topics]})
        else:
            for number, topic in enumerate(topics):
                if number:
                    click.echo()
                _print_topic(topic)
        if missing:
            raise missing_topics(missing)

    run_with_client(bootstrap, body)


@command.command(name="delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@click.option("--force", is_flag=True, help="Delete internal topics too.")
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], if_exists: bool, force: bool, bootstrap: str, as_json: bool) -> None:
    """Delete topics with all their records, and wait until no broker knows them any more.

    Internal topics are the brokers' own, and need --force: __consumer_offsets has what every consumer group has
    committed.
    """

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin
        from barnabas.client.broker_views import BrokerViews
        from barnabas.wire.errors import ErrorCode, KafkaError

        gone: list[str] = []
        missing: list[str] = []
        failures: list[Exception] = []
        async with Admin(client) as admin, BrokerViews(client) as views:
            for name in dict.fromkeys(names):
                if name in INTERNAL_TOPICS and not force:
                    failures.append(CommandError(f"{name} is internal, {INTERNAL_TOPICS[name]}; {_FORCE_ADVICE}"))
                    continue
                try:
                    await admin.delete_topics([name])
                    gone.append(name)
                except KafkaError as error:
                    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        missing.append(name)
                    else:
                        failures.append(error)
            await views.wait_until_gone(gone)
        if as_json:
            print_json({"deleted": gone, "missing": missing})
        else:
            for name in gone:
                click.echo(f"Deleted topic {shown(name)}.")
        raise_failures(failures)
        if missing and not if_exists:
            raise missing_topics(missing)

    run_with_client(bootstrap, body)


# What programs get.


def listed(topic: TopicInfo) -> dict[str, Any]:
    """A topic as `topic list --json` has it."""
    healths = [PartitionHealth.of(info) for info in topic.partitions.values()]
    return {
        "name": topic.name,
        "id": topic_id(topic),
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": replication_factor(topic),
        "under_replicated": sum(health is not PartitionHealth.OK for health in healths),
        "without_leader": sum(health is PartitionHealth.WITHOUT_LEADER for health in healths),
    }


def described(topic: DescribedTopic) -> dict[str, Any]:
    """A topic as `topic describe --json` has it."""
    return {
        "name": topic.info.name,
        "id": topic_id(topic.info),
        "is_internal": topic.info.is_internal,
        "replication_factor": topic.replication_factor,
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": number,
                "leader": leader_of(info),
                "leader_epoch": epoch_of(info),
                "replicas": list(info.replicas),
                "isr": list(info.isr),
                "offline_replicas": list(info.offline_replicas),
                "state": PartitionHealth.of(info, topic.min_isr).value,
            }
            for number, info in topic.info.partitions.items()
        ],
    }


def replication_factor(topic: TopicInfo) -> int:
    """The replication factor of the first partition, as in Kafka's tools; 0 where nothing is known."""
    return next((len(info.replicas) for info in topic.partitions.values()), 0)


def leader_of(info: PartitionInfo) -> int | None:
    """The broker that leads; None where nobody does."""
    return info.leader_id if info.leader_id >= 0 else None


def epoch_of(info: PartitionInfo) -> int | None:
    """The leader epoch; None where the broker is too old to tell."""
    return info.leader_epoch if info.leader_epoch >= 0 else None


def raise_failures(failures: Sequence[Exception]) -> None:
    """Tells of all failures but the last, which is raised, and so ends the command."""
    for failure in failures[:-1]:
        report(failure)
    if failures:
        raise failures[-1]


# Inside.


def _read_configs(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{pair!r} must have the form KEY=VALUE", param_hint="--config")
        found[key.strip()] = value
    return found


async def _find(admin: Admin, names: Sequence[str]) -> tuple[list[TopicInfo], list[str]]:
    """The topics that the names and patterns mean, each once, and the names that mean none."""
    from barnabas.wire.errors import ErrorCode, KafkaError

    patterns = [name for name in names if any(character in name for character in _PATTERN_CHARACTERS)]
    found: dict[str, TopicInfo] = {}
    missing: list[str] = []
    if patterns or not names:
        everything = await admin.describe_topics()
        for pattern in patterns or ["*"]:
            matching = fnmatch.filter(sorted(everything), pattern)
            found |= {name: everything[name] for name in matching}
            if not matching and names:
                missing.append(pattern)
    for name in names:
        if name in patterns or name in found:
            continue
        try:
            found |= await admin.describe_topics([name])
        except KafkaError as error:
            if error.code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
                raise
            missing.append(name)
    return list(found.values()), missing


async def _describe_one(admin: Admin, topic: TopicInfo) -> DescribedTopic:
    from barnabas.client.admin import ResourceType

    configs = await admin.describe_configs(ResourceType.TOPIC, topic.name)
    own = {
        entry.name: entry.value
        for entry in sorted(configs.values(), key=lambda entry: entry.name)
        if entry.source == _TOPIC_CONFIG_SOURCE
    }
    needed = configs.get(_MIN_ISR_CONFIG)
    min_isr = int(needed.value) if needed is not None and (needed.value or "").isdigit() else 1  # type: ignore[arg-type]
    return DescribedTopic(topic, own, min_isr)


def _listed_row(topic: TopicInfo) -> list[object]:
    row = listed(topic)
    name = Marked(topic.name, Mark.FAINT) if topic.is_internal else topic.name
    behind, leaderless = row["under_replicated"], row["without_leader"]
    return [
        name,
        row["partitions"],
        row["replication_factor"],
        Marked(behind, Mark.WARNING) if behind else behind,
        Marked(leaderless, Mark.BAD) if leaderless else leaderless,
    ]


def _created_line(topic: TopicInfo, *, is_new: bool) -> str:
    what = "Created topic" if is_new else "There is already topic"
    partitions = counted(len(topic.partitions), "partition")
    return f"{what} {shown(topic.name)}: {partitions}, {counted(replication_factor(topic), 'replica')} each."


def _print_topic(topic: DescribedTopic) -> None:
    info = topic.info
    partitions = counted(len(info.partitions), "partition")
    print_fields(
        [
            ("Topic", info.name),
            ("Id", topic_id(info)),
            ("Size", f"{partitions}, {counted(topic.replication_factor, 'replica')} each"),
            ("Configs", [f"{name}={'(secret)' if value is None else value}" for name, value in topic.configs.items()]),
        ]
    )
    print_table(
        _PARTITION_COLUMNS,
        [
            [
                number,
                leader_of(partition),
                epoch_of(partition),
                partition.replicas,
                partition.isr,
                partition.offline_replicas,
                _SHOWN_HEALTH[PartitionHealth.of(partition, topic.min_isr)],
            ]
            for number, partition in info.partitions.items()
        ],
    )
