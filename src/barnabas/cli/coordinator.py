"""`barnabas coordinator`: the embedded coordinator as a process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.output import announce

if TYPE_CHECKING:
    import asyncio

    from barnabas.cli.coordinator_security import SecuredBy
    from barnabas.coordination.embedded.config import CoordinatorConfig
    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.kernel.real_collector import CollectorPolicy
    from barnabas.kernel.real_host import RealHost
    from barnabas.kernel.real_service import ServiceManager
    from barnabas.testing.real_process_faults import ProcessFaults


@click.command(name="coordinator")
@click.option(
    "--data",
    "data_directory",
    required=True,
    metavar="DIR",
    shell_complete=complete_files,
    help="Data directory; created if missing.",
)
@click.option("--port", default=2181, show_default=True, type=click.IntRange(0, 65_535), help="0 takes a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--tick-time", "tick_time_ms", default=2000, show_default=True, help="ZooKeeper's tickTime, in ms.")
@click.option("--min-session-timeout", "min_session_timeout_ms", type=int, help="In ms.  [default: 2 ticks]")
@click.option("--max-session-timeout", "max_session_timeout_ms", type=int, help="In ms.  [default: 20 ticks]")
@click.option(
    "--max-client-connections",
    "connections_per_address_max",
    default=0,
    show_default=True,
    help="Most connections from one address; 0 is no limit.",
)
@click.option("--snapshot-transactions", default=100_000, show_default=True, help="Transactions between two snapshots.")
@click.option("--snapshots-retained", default=3, show_default=True, help="Snapshots to keep, with their logs.")
@click.option(
    "--container-check-interval",
    "container_check_interval_ms",
    default=60_000,
    show_default=True,
    help="Interval between checks for empty containers, in ms.",
)
@click.option(
    "--login-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help='Who may log in by SASL: section Server of a file for Java\'s logins, with user_NAME="PASSWORD".',
)
@click.option(
    "--tls-config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Properties with ssl.keystore.*, ssl.truststore.*, ssl.client.auth: the port speaks TLS alone.",
)
@click.option("--verbose", is_flag=True, help="Log what happens, not only what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print that it is ready, or why it ended, as a line of JSON.")
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.option("--faults", "faults_from", type=int, hidden=True)
def command(
    login_file: str | None,
    tls_config: str | None,
    verbose: bool,
    as_json: bool,
    stop_with_parent: bool,
    faults_from: int | None,
    **settings: object,
) -> None:
    """Run the embedded coordinator, a ZooKeeper-compatible server.

    Prints one line when it is ready. On SIGTERM or Ctrl-C it stops in order.
    """
    from barnabas.kernel.real_tls import import_loops_without_tls

    import_loops_without_tls()
    from barnabas.coordination.embedded.config import CoordinatorConfig
    from barnabas.kernel.real_collector import rest_while_importing
    from barnabas.kernel.real_host import raise_open_files_limit, run

    secured: SecuredBy | None = None
    try:
        if login_file is not None:
            from barnabas.cli.coordinator_security import passwords_of

            settings["passwords"] = passwords_of(login_file)
        if tls_config is not None:
            from barnabas.cli.coordinator_security import secured_by

            secured = secured_by(tls_config)
            settings["tls"] = secured.context
        config = CoordinatorConfig(**settings)  # type: ignore[arg-type]  # click has checked the types
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    rest_while_importing()
    raise_open_files_limit()
    files = None if tls_config is None or secured is None else (tls_config, secured)
    if faults_from is None:
        sys.exit(run(lambda host: _serve(host, config, files, as_json, stop_with_parent), name="coordinator"))
    from barnabas.testing.real_process_faults import ProcessFaults

    try:
        faults = ProcessFaults(faults_from)
    except OSError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(faults.run(lambda host: _serve(host, config, files, as_json, stop_with_parent, faults), "coordinator"))


async def _serve(
    host: RealHost,
    config: CoordinatorConfig,
    files: tuple[str, SecuredBy] | None,
    as_json: bool,
    stop_with_parent: bool,
    faults: ProcessFaults | None = None,
) -> int:
    """Serves until a signal or a failure; the exit status. `files` are what the port is secured by."""
    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.coordination.embedded.turn_names import coordinator_turn_names
    from barnabas.kernel.real_collector import CollectorPolicy
    from barnabas.kernel.real_host import stop_on_signals
    from barnabas.kernel.real_program import stop_at_end_of_input
    from barnabas.kernel.real_service import ServiceManager
    from barnabas.kernel.real_turn_watch import TurnWatch

    coordinator = EmbeddedCoordinator(host, config)
    if faults is not None:
        faults.of_coordinator(coordinator, host.loop)
    stop = stop_on_signals(host.loop)
    if stop_with_parent:
        stop_at_end_of_input(host.loop, stop)
    watch = TurnWatch(host.loop, coordinator.long_turns.count, coordinator_turn_names())
    collector = CollectorPolicy(host.loop)
    collector.start()
    watch.start()
    service = ServiceManager(host.loop)
    following = None
    if files is not None:
        from barnabas.cli.coordinator_security import follow_files

        following = host.loop.create_task(
            follow_files(host, *files, coordinator.exchange_tls, coordinator.logger), name="keys and certificates"
        )
    try:
        return await _serve_until_told(coordinator, stop, collector, service, as_json)
    finally:
        if following is not None:
            following.cancel()
        service.close()
        collector.stop()
        watch.stop()


async def _serve_until_told(
    coordinator: EmbeddedCoordinator,
    stop: asyncio.Event,
    collector: CollectorPolicy,
    service: ServiceManager,
    as_json: bool,
) -> int:
    from barnabas.coordination.errors import CoordinationError

    config = coordinator.config
    try:
        await coordinator.start()
    except (CoordinationError, OSError) as error:
        _say_error(config, error, as_json)
        return 1
    collector.set_aside()
    if as_json:
        said = {"address": f"{config.host}:{coordinator.port}", "process_id": os.getpid()}
        announce(json.dumps(said, separators=(",", ":")))
    else:
        announce(f"barnabas coordinator: ready on {config.host}:{coordinator.port}, data in {config.data_directory}")
    service.ready(f"{config.host}:{coordinator.port}")
    coordinator.failure.add_done_callback(lambda _: stop.set())
    await stop.wait()
    service.stopping("")
    if coordinator.failure.done():
        _say_error(config, coordinator.failure.result(), as_json)
        return 1
    await coordinator.stop()
    return 0


def _say_error(config: CoordinatorConfig, error: Exception, as_json: bool) -> None:
    """Says why it ends; who reads JSON hears of it even where standard error goes to a disk that is full."""
    text = words_of(config, error)
    with contextlib.suppress(OSError):
        if as_json:
            click.echo(json.dumps({"error": text}, separators=(",", ":")))
            sys.stdout.flush()
    with contextlib.suppress(OSError):
        click.echo(f"barnabas coordinator: {text}", err=True)


def words_of(config: CoordinatorConfig, error: Exception) -> str:
    """What is wrong, and what to choose instead."""
    import errno
    import socket

    from barnabas.kernel.system_errors import reason

    if not isinstance(error, OSError):
        return str(error)
    listening = f"cannot listen on {config.host}:{config.port}: {reason(error)}. Choose another"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{listening} one (--host)"
    # Of a file it says which.
    if error.errno == errno.EADDRINUSE or (isinstance(error, PermissionError) and error.filename is None):
        return f"{listening} port (--port; barnabas up: --coordinator-port)"
    return f"the data directory {config.data_directory} cannot be used: {reason(error)}"
