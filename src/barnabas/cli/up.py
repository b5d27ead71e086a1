"""`barnabas up`: a coordinator and brokers on this machine, until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from barnabas.cli.output import announce

if TYPE_CHECKING:
    from barnabas.kernel.real_host import RealHost
    from barnabas.server.cluster_plan import ClusterPlan
    from barnabas.server.supervisor import Supervisor


@click.command(name="up")
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, 100), help="How many brokers.")
@click.option(
    "--data",
    "data_directory",
    default="barnabas-data",
    show_default=True,
    metavar="DIR",
    help="Where everything is kept.",
)
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Of the first broker; 0 takes free ones.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the brokers listen on.")
@click.option(
    "--coordinator-port", default=0, type=click.IntRange(0, 65_535), help="Of the coordinator.  [default: a free one]"
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Prometheus endpoint of the first broker.")
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A config for all brokers.")
@click.option("--json", "as_json", is_flag=True, help="Say what runs as one line of JSON.")
@click.option("--stop-with-parent", is_flag=True, hidden=True)
def command(overrides: tuple[str, ...], as_json: bool, stop_with_parent: bool, **settings: object) -> None:
    """Run a coordinator and brokers on this machine.

    Prints bootstrap servers and process ids when clients can produce and groups can form, and stops everything in order
    on SIGTERM or Ctrl-C.
    """
    from barnabas.kernel.real_host import run
    from barnabas.server.cluster_plan import ClusterPlan

    configs: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--override {override!r} must have the form KEY=VALUE")
        configs[key.strip()] = value
    try:
        plan = ClusterPlan(**settings, overrides=configs)  # type: ignore[arg-type]  # click has checked the types
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(run(lambda host: _up(host, plan, as_json, stop_with_parent), name="up"))


async def _up(host: RealHost, plan: ClusterPlan, as_json: bool, stop_with_parent: bool) -> int:
    """Runs the cluster until a signal; the exit status."""
    from barnabas.kernel.real_host import stop_on_signals
    from barnabas.kernel.real_program import stop_at_end_of_input
    from barnabas.server.supervisor import ClusterStartError, Supervisor

    def report(name: str, status: int) -> None:
        click.echo(f"barnabas up: {name} ended with status {status}; its log says why. The others go on", err=True)

    stop = stop_on_signals(host.loop)
    if stop_with_parent:
        stop_at_end_of_input(host.loop, stop)
    cluster = Supervisor(host, plan, on_unexpected_end=report)
    began = host.loop.time()
    starting = host.loop.create_task(cluster.start())
    stopped = host.loop.create_task(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    try:
        starting.result()
    except (ClusterStartError, OSError) as error:
        stopped.cancel()
        click.echo(f"barnabas up: {error}", err=True)
        return 1
    if as_json:
        announce(json.dumps(cluster.description(), separators=(",", ":")))
    else:
        announce(_described(cluster, plan, host.loop.time() - began))
    await stopped
    await cluster.stop()
    return 0


def _described(cluster: Supervisor, plan: ClusterPlan, took_seconds: float) -> str:
    found = cluster.description()
    count = f"{plan.brokers} broker{'s' if plan.brokers > 1 else ''}"
    lines = [
        f"barnabas up: {count} ready after {took_seconds:.2f} s",
        f"  bootstrap servers  {found['bootstrap_servers']}",
        f"  coordinator        {found['coordinator']['address']}, process {found['coordinator']['process_id']}",
    ]
    for broker in found["brokers"]:
        metrics = f", metrics on port {broker['metrics_port']}" if broker["metrics_port"] is not None else ""
        lines.append(f"  broker {broker['id']:<11} {broker['address']}, process {broker['process_id']}{metrics}")
    lines += [f"  data and logs      {found['data']}", "Ctrl-C stops everything."]
    return "\n".join(lines)
