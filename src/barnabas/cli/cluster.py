"""`barnabas cluster`: what a cluster consists of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.connection import CommandError, bootstrap_option, json_option, run_with_client
from barnabas.cli.log_directories import DIRECTORY_COLUMNS, directory_row
from barnabas.cli.output import Column, Mark, Marked, counted, print_fields, print_json, print_table, size
from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.client.admin import Admin
    from barnabas.client.broker_views import BrokerViews, Software
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode, TopicInfo
    from barnabas.client.cluster_health import Observed, Problem
    from barnabas.client.log_directories import LogDirectory

_PROBLEM_COLUMNS = (Column("", "severity"), Column("What", "what"), Column("What to do", "advice"))
_BROKER_COLUMNS = (
    Column("Broker", "id", is_number=True),
    Column("Host", "host"),
    Column("Port", "port", is_number=True),
    Column("Rack", "rack"),
    Column("Leads", "leads", is_number=True),
    Column("Replicas", "replicas", is_number=True),
    Column("Behind", "behind", is_number=True),
    Column("Logs", "size_bytes", is_number=True),
    Column("Software", "software"),
)


_SHOWN_SOFTWARE = {"barnabas": "Barnabas", "other": "Apache Kafka or other"}


@fact
class DescribedBroker:
    """A broker; `software` and `directories` are None where it did not answer itself."""

    node: BrokerNode
    leads: int
    replicas: int
    behind: int
    """Replicas that are not in sync."""
    software: Software | None
    directories: tuple[LogDirectory, ...] | None

    @property
    def size_bytes(self) -> int | None:
        """The size of all its logs."""
        return None if self.directories is None else sum(directory.size_bytes for directory in self.directories)


@click.group(name="cluster")
def command() -> None:
    """Show what a cluster consists of, and what is wrong with it."""


@command.command(name="describe")
@bootstrap_option
@json_option
def describe(bootstrap: str, as_json: bool) -> None:
    """Show the brokers: where they are, what they lead, and what their logs take."""

    async def body(client: Client) -> None:
        import asyncio

        from barnabas.client.admin import Admin
        from barnabas.client.broker_views import BrokerViews

        async with Admin(client) as admin, BrokerViews(client) as views:
            topics = await admin.describe_topics()
            nodes = [client.cluster.brokers[node_id] for node_id in sorted(client.cluster.brokers)]
            brokers = await asyncio.gather(*(_describe_one(admin, views, node, topics) for node in nodes))
        controller = client.cluster.controller_id if client.cluster.controller_id >= 0 else None
        if as_json:
            print_json(described(client.cluster.cluster_id, controller, topics, brokers))
        else:
            _print(client.cluster.cluster_id, controller, topics, brokers)

    run_with_client(bootstrap, body)


@command.command(name="health")
@bootstrap_option
@json_option
def health(bootstrap: str, as_json: bool) -> None:
    """Show what is wrong, the worst first, and what to do; the exit status is 1 where something is.

    Looked for are: no controller, partitions without a leader, with fewer replicas in sync than min.insync.replicas or
    with any that are behind (those that a reassignment is making are not), brokers that are gone or do not answer, log
    directories that cannot be used, and brokers for whose preferred partitions others lead more than
    leader.imbalance.per.broker.percentage permits.
    """

    async def body(client: Client) -> None:
        from barnabas.client import cluster_health

        observed = await observe(client)
        problems = cluster_health.diagnose(observed)
        if as_json:
            print_json({"problems": [cluster_health.document(problem) for problem in problems]})
        elif problems:
            _print_problems(problems)
        else:
            partitions = sum(len(topic.partitions) for topic in observed.topics.values())
            click.echo(f"All is well: {counted(len(observed.alive), 'broker')}, {counted(partitions, 'partition')}.")
        if problems:
            raise CommandError(counted(len(problems), "problem"))

    run_with_client(bootstrap, body)


async def observe(client: Client) -> Observed:
    """What the brokers tell of their cluster's health."""
    import asyncio

    from barnabas.client import cluster_health
    from barnabas.client.admin import Admin
    from barnabas.client.broker_views import BrokerViews

    async with Admin(client) as admin, BrokerViews(client) as views:
        topics = await admin.describe_topics()
        nodes = [client.cluster.brokers[node_id] for node_id in sorted(client.cluster.brokers)]
        brokers, min_isr, imbalance_percent, adding = await asyncio.gather(
            asyncio.gather(*(_describe_one(admin, views, node, topics) for node in nodes)),
            cluster_health.min_isr_of_behind(admin, topics),
            cluster_health.imbalance_percent(admin, client.cluster.controller_id),
            cluster_health.adding_replicas(admin, topics, client.cluster.controller_id),
        )
    return cluster_health.observed(client.cluster, topics, brokers, min_isr, imbalance_percent, adding)


def described(
    cluster_id: str | None, controller: int | None, topics: Mapping[str, TopicInfo], brokers: list[DescribedBroker]
) -> dict[str, Any]:
    """The cluster as `cluster describe --json` has it."""
    return {
        "cluster_id": cluster_id,
        "controller": controller,
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "brokers": [
            {
                "id": broker.node.node_id,
                "host": broker.node.host,
                "port": broker.node.port,
                "rack": broker.node.rack,
                "leads": broker.leads,
                "replicas": broker.replicas,
                "behind": broker.behind,
                "software": None if broker.software is None else broker.software.value,
                "size_bytes": broker.size_bytes,
                "log_directories": None
                if broker.directories is None
                else [
                    {
                        "path": directory.path,
                        "error": directory.error,
                        "logs": len(directory.logs),
                        "size_bytes": directory.size_bytes,
                        "usable_bytes": directory.usable_bytes,
                        "total_bytes": directory.total_bytes,
                    }
                    for directory in broker.directories
                ],
            }
            for broker in brokers
        ],
    }


# Inside.


async def _describe_one(
    admin: Admin, views: BrokerViews, node: BrokerNode, topics: Mapping[str, TopicInfo]
) -> DescribedBroker:
    import asyncio

    from barnabas.client.broker_views import software_at
    from barnabas.client.log_directories import log_directories

    counts: Counter[str] = Counter()
    for topic in topics.values():
        for partition in topic.partitions.values():
            counts["leads"] += partition.leader_id == node.node_id
            counts["replicas"] += node.node_id in partition.replicas
            counts["behind"] += node.node_id in partition.replicas and node.node_id not in partition.isr
    software, directories = await asyncio.gather(software_at(views, node), log_directories(admin, node.node_id))
    return DescribedBroker(node, counts["leads"], counts["replicas"], counts["behind"], software, directories)


def _print(
    cluster_id: str | None, controller: int | None, topics: Mapping[str, TopicInfo], brokers: list[DescribedBroker]
) -> None:
    partitions = [partition for topic in topics.values() for partition in topic.partitions.values()]
    leaderless = sum(partition.leader_id < 0 for partition in partitions)
    behind = sum(len(partition.isr) < len(partition.replicas) for partition in partitions)
    print_fields(
        [
            ("Cluster", cluster_id),
            ("Controller", Marked("none now", Mark.BAD) if controller is None else f"broker {controller}"),
            ("Brokers", len(brokers)),
            ("Topics", f"{len(topics)}, {counted(len(partitions), 'partition')}"),
            ("Under-replicated", Marked(behind, Mark.WARNING) if behind else behind),
            ("No leader", Marked(leaderless, Mark.BAD) if leaderless else leaderless),
        ]
    )
    print_table(
        _BROKER_COLUMNS,
        [
            [
                broker.node.node_id,
                broker.node.host,
                broker.node.port,
                broker.node.rack,
                broker.leads,
                broker.replicas,
                Marked(broker.behind, Mark.WARNING) if broker.behind else broker.behind,
                None if broker.size_bytes is None else size(broker.size_bytes),
                Marked("does not answer", Mark.BAD)
                if broker.software is None
                else _SHOWN_SOFTWARE[broker.software.value],
            ]
            for broker in brokers
        ],
    )
    directories = [(broker, directory) for broker in brokers for directory in broker.directories or ()]
    if directories:
        click.echo()
        print_table(
            DIRECTORY_COLUMNS, [directory_row(broker.node.node_id, directory) for broker, directory in directories]
        )


def _print_problems(problems: list[Problem]) -> None:
    marks = {"critical": Mark.BAD, "warning": Mark.WARNING}
    print_table(
        _PROBLEM_COLUMNS,
        [(Marked(each.severity.value, marks[each.severity.value]), each.what, each.advice) for each in problems],
    )


def _shown_software(software: Software | None) -> object:
    return Marked("does not answer", Mark.BAD) if software is None else _SHOWN_SOFTWARE[software.value]
