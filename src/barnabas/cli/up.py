"""`barnabas up`: a coordinator and brokers on this machine, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.console import DEFAULT_HTTP_PORT
from barnabas.cli.output import announce

if TYPE_CHECKING:
    from barnabas.kernel.real_host import RealHost
    from barnabas.server.cluster_plan import ClusterPlan
    from barnabas.server.supervisor import Supervisor
    from barnabas.server.supervisor_events import SupervisorEvent


@click.command(name="up")
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, 100), help="How many brokers.")
@click.option(
    "--data",
    "data_directory",
    default="barnabas-data",
    show_default=True,
    metavar="DIR",
    shell_complete=complete_files,
    help="Directory for all data and logs.",
)
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port of the first broker; 0 takes free ones.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the brokers listen on.")
@click.option(
    "--coordinator-port",
    default=0,
    type=click.IntRange(0, 65_535),
    help="Port of the coordinator.  [default: a free one]",
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Prometheus endpoint of the first broker.")
@click.option("--console", "with_console", is_flag=True, help="Show the cluster in a browser too; see `console`.")
@click.option(
    "--console-port",
    default=DEFAULT_HTTP_PORT,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Where the console listens, on loopback; 0 takes a free port.",
)
@click.option("--console-allow-changes", is_flag=True, help="The console may change the cluster; see `console`.")
@click.option(
    "--console-pipeline",
    "pipeline_files",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="A pipeline that runs on this machine, whose graph and batches the console shows; may be repeated.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Make the cluster closed: certificates, users and ACLs of its own, TLS and logins everywhere.",
)
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A config for all brokers.")
@click.option("--no-restart", is_flag=True, help="Do not restart a process that ends by itself.")
@click.option("--json", "as_json", is_flag=True, help="Print what runs as one line of JSON.")
@click.option("--stop-with-parent", is_flag=True, hidden=True)
def command(
    secure: bool,
    overrides: tuple[str, ...],
    with_console: bool,
    console_port: int,
    console_allow_changes: bool,
    pipeline_files: tuple[str, ...],
    no_restart: bool,
    as_json: bool,
    stop_with_parent: bool,
    **settings: object,
) -> None:
    """Run a coordinator and brokers on this machine.

    Prints bootstrap servers and process ids when clients can produce and groups can form. On SIGTERM or Ctrl-C it stops
    everything in order. Reports a process that ends by itself, with its reason, and starts it again: after 1 second,
    and after twice as long each time, up to a minute, while it does not stay.
    """
    from barnabas.kernel.real_host import run
    from barnabas.server.cluster_plan import ClusterPlan

    configs: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--override {override!r} must have the form KEY=VALUE")
        configs[key.strip()] = value
    console_options = ["--allow-changes"] if console_allow_changes else []
    for file in pipeline_files:
        console_options += ["--pipeline", file]
    console: dict[str, Any] = {
        "console_port": console_port if with_console else None,
        "console_options": tuple(console_options),
    }
    if secure:
        import socket

        console |= {"secure": True, "names": (socket.gethostname(),)}
    try:
        plan = ClusterPlan(**settings, **console, overrides=configs).at(os.getcwd())  # type: ignore[arg-type]  # click
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _check_overrides(plan)
    if secure:
        _keep_private(plan)
    sys.exit(run(lambda host: _up(host, plan, not no_restart, as_json, stop_with_parent), name="up"))


def _keep_private(plan: ClusterPlan) -> None:
    """Lets nobody else of this machine see what the cluster writes: records and logs, and not only secrets. Ends the
    command where the directory is not for that, and leaves it as it is then.
    """
    os.umask(0o077)  # of the processes that are started too
    try:
        why = plan.refusal(os.path.exists) or _make_private(plan)
    except OSError as error:
        why = f"{error.filename or plan.data_directory}: {error.strerror}"
    if why is not None:
        click.echo(f"barnabas up: {why}", err=True)
        sys.exit(1)


def _make_private(plan: ClusterPlan) -> str | None:
    """Why the data directory cannot be the user's alone; None where it is, now. Raises OSError."""
    directory, security = plan.data_directory, plan.security_directory
    os.makedirs(directory, exist_ok=True)
    found = os.stat(directory)
    if found.st_uid != os.geteuid():
        return f"{directory} is another user's, who could read all of it"
    is_secured = os.path.lexists(security)
    if found.st_mode & 0o077 and not is_secured and os.listdir(directory):
        return (
            f"{directory} has other files, and others may come in: give --secure a directory of its own, or close this"
            f" one (chmod 700 {shlex.quote(directory)})"
        )
    os.chmod(directory, 0o700)
    if os.stat(directory).st_mode & 0o077:
        return (
            f"others may come into {directory} whatever its rights are set to: give a directory on another file system"
        )
    if is_secured:
        # From now on nobody else lays anything there; before, others may have been able to.
        if not stat.S_ISDIR(os.lstat(security).st_mode) or os.lstat(security).st_uid != os.geteuid():
            return f"{security} is no directory of this user's own: remove it"
        os.chmod(security, 0o700)
        for name in os.listdir(security):
            if os.lstat(f"{security}/{name}").st_uid != os.geteuid():
                return f"{security}/{name} is another user's: remove it"
    return None


def _check_overrides(plan: ClusterPlan) -> None:
    """Says what the brokers would find in their overrides; ends the command where no broker can start with them."""
    from barnabas.config.broker_config import BrokerConfigError
    from barnabas.server.config import read_server_config

    own = plan.properties(1, "127.0.0.1:2181", plan.port or 9092)
    given = [f"{key}={value}" for key, value in own.items()]
    try:
        config = read_server_config("", "--override", given)
    except BrokerConfigError as error:
        click.echo(f"barnabas up: {error}", err=True)
        sys.exit(1)
    for notice in config.notices:
        click.echo(f"barnabas up: {notice.text}", err=True)


async def _up(host: RealHost, plan: ClusterPlan, restarts: bool, as_json: bool, stop_with_parent: bool) -> int:
    """Runs the cluster until a signal; the exit status."""
    from barnabas.kernel.real_host import stop_on_signals
    from barnabas.kernel.real_program import stop_at_end_of_input
    from barnabas.kernel.real_service import ServiceManager
    from barnabas.server.supervisor import ClusterStartError, Supervisor

    def report(event: SupervisorEvent) -> None:
        # Where standard error goes to a disk that is full, the processes are looked after all the same.
        with contextlib.suppress(OSError):
            click.echo(f"barnabas up: {_said(event, restarts)}", err=True)

    stop = stop_on_signals(host.loop)
    if stop_with_parent:
        stop_at_end_of_input(host.loop, stop)
    # Before any process is started: none of them speaks for the cluster.
    service = ServiceManager(host.loop)
    cluster = Supervisor(host, plan, on_event=report, restarts=restarts)
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
    service.ready(f"{plan.brokers} brokers at {cluster.description()['bootstrap_servers']}")
    await stopped
    service.stopping("stopping the brokers one after another")
    await cluster.stop()
    service.close()
    return 0


def _said(event: SupervisorEvent, restarts: bool) -> str:
    """What a person reads of an event."""
    from barnabas.server.supervisor_events import ProcessEnded, ProcessRestarted

    if isinstance(event, ProcessRestarted):
        return f"{event.name} runs again, process {event.process_id}"
    if not isinstance(event, ProcessEnded):
        return f"{event.name}: {event.text}"
    if event.status is None:
        what = f"{event.name} could not be started again"
    else:
        what = f"{event.name} ended with status {event.status}{_signal_name(event.status)}"
    why = f": {event.reason}" if event.reason else ""
    if event.pause_seconds is not None:
        next_step = f"Starting it again in {event.pause_seconds:g} s"
    else:
        next_step = "It stays down. The others go on" if restarts else "It stays down (--no-restart). The others go on"
    return f"{what}{why}\n  Its log is {event.log}. {next_step}"


def _signal_name(status: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(-status).name})" if status < 0 else ""
    except ValueError:
        return ""


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
    if found["console"] is not None:
        lines.append(f"  console            {found['console']['url'] or 'does not run, see above'}")
    lines += [
        f"  data and logs      {found['data']}",
        *_for_clients(found["security"], plan),
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def _for_clients(security: dict[str, Any] | None, plan: ClusterPlan) -> list[str]:
    """What those need who come in at a cluster that is secured; where the secrets are, and not which."""
    if security is None:
        return []
    client = security["users"]["client"]
    lines = [
        "Clients come in as the user client (or as admin, who may do everything):",
        f"  commands           export BARNABAS_PROFILES={shlex.quote(security['profiles'])} BARNABAS_PROFILE=client",
        f"  Java               --command-config {shlex.quote(client['properties'])}",
        f"  librdkafka         kcat -F {shlex.quote(client['librdkafka'])}",
    ]
    for what, is_there in (("console", plan.console_port is not None), ("metrics", plan.metrics_port is not None)):
        if is_there:
            entry = security[what]
            lines.append(f"  {what:<18} user {entry['user']}, password in {entry['password_file']}")
    return lines
