"""`barnabas controller show`: who the controller is, and of one of ours, what it does."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.connection import CommandError, ExitStatus, bootstrap_option, json_option, run_with_client
from barnabas.cli.output import Column, Mark, Marked, counted, print_fields, print_json, print_table

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.wire.messages import DescribeControllerResponse

TIMEOUT_MS: Final = 10_000
_THE_PARTITION: Final = -1

_COUNT_COLUMNS = (Column("Gauge", "name"), Column("Value", "value", is_number=True))
_TIMING_COLUMNS = (
    Column("What it did", "name"),
    Column("Times", "count", is_number=True),
    Column("Mean ms", "mean_ms", is_number=True),
    Column("Longest ms", "maximum_ms", is_number=True),
)
_TRANSITION_COLUMNS = (
    Column("Time (UTC)", "time_ms"),
    Column("Partition", "partition"),
    Column("Replica", "broker_id", is_number=True),
    Column("From", "before"),
    Column("To", "after"),
    Column("Leader", "leader", is_number=True),
    Column("Epoch", "leader_epoch", is_number=True),
    Column("In sync", "isr"),
)
_ALARMING: Final = frozenset({"OfflinePartitionsCount", "UncleanLeaderElectionsPerSec"})


@click.command(name="show", short_help="Show which broker is the controller and what it is doing.")
@click.option(
    "--transitions",
    "transitions_max",
    default=10,
    show_default=True,
    type=click.IntRange(0, 100),
    help="How many of the latest state changes of partitions to show, and as many of replicas.",
)
@bootstrap_option
@json_option
def command(transitions_max: int, bootstrap: str, as_json: bool) -> None:
    """Show the controller: its term, its queue, its gauges, and its last state changes.

    Any broker of the cluster will do as the bootstrap server. The protocol tells only the id of a controller that is
    not Barnabas.
    """

    async def body(client: Client) -> None:
        from barnabas.client.broker_views import BrokerViews
        from barnabas.client.errors import ClientTimeoutError

        async with BrokerViews(client) as views:
            try:
                node, found = await views.describe_controller(transitions_max, TIMEOUT_MS)
            except ClientTimeoutError as error:
                if client.cluster.controller_id >= 0:
                    raise
                advice = "an election may be under way; check that the coordinator and the brokers are running"
                raise CommandError(f"the cluster has no controller now; {advice}", ExitStatus.FAILED) from error
        if as_json:
            print_json(foreign(node) if found is None else described(node, found))
        elif found is None:
            _print_foreign(node)
        else:
            _print(node, found, client.host.clock.time_ms())

    run_with_client(bootstrap, body)


def described(node: BrokerNode, found: DescribeControllerResponse) -> dict[str, Any]:
    """The controller as `controller show --json` has it."""
    return {
        **_who(node),
        "software": "barnabas",
        "software_version": found.software_version,
        "epoch": found.controller_epoch,
        "elected_at_ms": found.elected_at_ms,
        "state": found.state.lower(),
        "queued_events": found.queued_events,
        "oldest_event_age_ms": found.oldest_event_age_ms,
        "gauges": {count.name: count.value for count in found.counts},
        "timings": [
            {
                "name": timing.name,
                "count": timing.count,
                "mean_ms": round(timing.mean_ms, 3),
                "maximum_ms": timing.maximum_ms,
            }
            for timing in found.timings
        ],
        "queued_requests": {str(channel.broker_id): channel.queued_requests for channel in found.channels},
        "transitions": [
            {
                "time_ms": transition.time_ms,
                "topic": transition.topic,
                "partition": transition.partition,
                "replica": None if transition.broker_id == _THE_PARTITION else transition.broker_id,
                "from": transition.before.lower(),
                "to": transition.after.lower(),
                "leader": transition.leader if transition.leader >= 0 else None,
                "leader_epoch": transition.leader_epoch if transition.leader_epoch >= 0 else None,
                "isr": list(transition.isr),
                "fault": transition.fault,
            }
            for transition in found.transitions
        ],
    }


def foreign(node: BrokerNode) -> dict[str, Any]:
    """A controller that is not ours as `controller show --json` has it: what is not known is not there."""
    return {**_who(node), "software": "other"}


def shown_time(time_ms: int, now_ms: int) -> str:
    """`09:30:00.125`, with the date ahead where it is not today's, in UTC."""
    text = _date_and_time(time_ms)
    return text.removeprefix(_date_and_time(now_ms)[: len("2026-11-21 ")])


def _date_and_time(time_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(time_ms // 1_000, dt.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1_000:03}"


def age(age_ms: int) -> str:
    """How long ago, in the two largest units: `3 h 5 min`, `12 s`."""
    seconds = max(0, age_ms) // 1_000
    units = [(seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    while len(units) > 1 and units[0][0] == 0:
        units.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in units[:2])


# Inside.


def _who(node: BrokerNode) -> dict[str, Any]:
    return {"id": node.node_id, "host": node.host, "port": node.port}


def _print_foreign(node: BrokerNode) -> None:
    print_fields([("Controller", f"broker {node.node_id} at {node.host}:{node.port}")])
    click.echo("It is Apache Kafka or another broker, not Barnabas: the protocol says no more about it.")


def _print(node: BrokerNode, found: DescribeControllerResponse, now_ms: int) -> None:
    elected = found.elected_at_ms
    waiting = counted(found.queued_events, "event")
    if found.queued_events:
        waiting += f", the oldest for {found.oldest_event_age_ms} ms"
    queued = [f"{channel.queued_requests} to broker {channel.broker_id}" for channel in found.channels]
    print_fields(
        [
            ("Controller", f"broker {node.node_id} at {node.host}:{node.port}"),
            ("Software", f"Barnabas {found.software_version}"),
            ("Epoch", found.controller_epoch),
            ("Since", f"{_date_and_time(elected)} UTC, {age(now_ms - elected)} ago"),
            ("Doing", "nothing" if found.state == "IDLE" else found.state.lower().replace("_", " ")),
            ("Waiting", waiting),
            ("To be sent", ", ".join(queued)),
        ]
    )
    click.echo()
    print_table(
        _COUNT_COLUMNS,
        [
            [count.name, Marked(count.value, Mark.BAD) if count.value and count.name in _ALARMING else count.value]
            for count in found.counts
        ],
    )
    if found.timings:
        click.echo()
        print_table(
            _TIMING_COLUMNS,
            [[timing.name, timing.count, f"{timing.mean_ms:.1f}", timing.maximum_ms] for timing in found.timings],
        )
    if found.transitions:
        click.echo()
        print_table(_TRANSITION_COLUMNS, [_transition_row(transition, now_ms) for transition in found.transitions])
        for transition in found.transitions:
            if transition.fault is not None:
                print_fields([(f"{transition.topic}-{transition.partition} failed", transition.fault)])


def _transition_row(transition: DescribeControllerResponse.Transition, now_ms: int) -> list[object]:
    after = transition.after.lower()
    return [
        shown_time(transition.time_ms, now_ms),
        f"{transition.topic}-{transition.partition}",
        None if transition.broker_id == _THE_PARTITION else transition.broker_id,
        transition.before.lower(),
        after if transition.fault is None else Marked(f"not {after}", Mark.BAD),
        transition.leader if transition.leader >= 0 else None,
        transition.leader_epoch if transition.leader_epoch >= 0 else None,
        transition.isr,
    ]
