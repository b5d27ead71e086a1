"""`barnabas broker`: one broker as a process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

import click

from barnabas.cli.output import announce

if TYPE_CHECKING:
    import asyncio

    from barnabas.config.broker_config import BrokerConfig
    from barnabas.kernel.logs import Logs
    from barnabas.kernel.real_collector import CollectorPolicy
    from barnabas.kernel.real_host import RealHost
    from barnabas.kernel.real_service import ServiceManager
    from barnabas.kernel.real_traces import RealTraces
    from barnabas.server.broker import Broker
    from barnabas.testing.real_process_faults import ProcessFaults

# Several of the largest requests and responses that are usual.
_KEPT_MEMORY_BYTES = 32 * 1024 * 1024
_PROGRESS_EVERY_SECONDS = 1.0


@click.command(name="broker")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A config that goes before the file's."
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), help="Port of the Prometheus endpoint; 0 takes a free one."
)
@click.option("--json", "as_json", is_flag=True, help="Print that it is ready, or why it ended, as a line of JSON.")
@click.option("--progress", "says_progress", is_flag=True, hidden=True)
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.option("--faults", "faults_from", type=int, hidden=True)
def command(
    file: str,
    overrides: tuple[str, ...],
    metrics_port: int | None,
    as_json: bool,
    says_progress: bool,
    stop_with_parent: bool,
    faults_from: int | None,
) -> None:
    """Run one broker. FILE is a server.properties, as Kafka's brokers read it in ZooKeeper mode.

    Prints one line when it is ready. On SIGTERM or Ctrl-C it moves its leaders away and stops in order.
    """
    import socket

    from barnabas.kernel.real_tls import import_loops_without_tls

    import_loops_without_tls()
    from barnabas.kernel.real_collector import rest_while_importing

    rest_while_importing()
    from barnabas.config.broker_config import BrokerConfigError
    from barnabas.kernel.real_host import raise_open_files_limit, run
    from barnabas.server.config import METRICS_PORT, read_server_config
    from barnabas.server.zookeeper_access import LOGIN_CONFIG, login_config_of_kafka

    if metrics_port is not None:
        overrides = (*overrides, f"{METRICS_PORT.name}={metrics_port}")
    try:
        with open(file, "rb") as properties:
            text = properties.read()
        config = read_server_config(text, file, overrides)
        login = login_config_of_kafka(os.environ.get("KAFKA_OPTS", ""))
        if login is not None and config.values[LOGIN_CONFIG.name] is None:
            config = read_server_config(text, file, (*overrides, f"{LOGIN_CONFIG.name}={login}"))
    except (BrokerConfigError, OSError) as error:
        _say_error(error, as_json)
        sys.exit(1)
    _say_notices(config)
    raise_open_files_limit()
    # The name is what this broker tells others of itself where advertised.listeners has none.
    name = socket.gethostname()
    if faults_from is None:
        sys.exit(run(lambda host: _serve(host, config, as_json, says_progress, stop_with_parent), name=name))
    from barnabas.testing.real_process_faults import ProcessFaults

    try:
        faults = ProcessFaults(faults_from)
    except OSError as error:
        _say_error(error, as_json)
        sys.exit(1)
    sys.exit(faults.run(lambda host: _serve(host, config, as_json, says_progress, stop_with_parent, faults), name))


async def _serve(
    host: RealHost,
    config: BrokerConfig,
    as_json: bool,
    says_progress: bool,
    stop_with_parent: bool,
    faults: ProcessFaults | None = None,
) -> int:
    """Serves until a signal or a failure; the exit status."""
    import asyncio

    from barnabas.cli.broker_logs import broker_logs
    from barnabas.kernel.real_collector import CollectorPolicy
    from barnabas.kernel.real_host import stop_on_signals
    from barnabas.kernel.real_process_metrics import process_text, register_process_metrics
    from barnabas.kernel.real_program import stop_at_end_of_input
    from barnabas.kernel.real_service import ServiceManager
    from barnabas.kernel.real_turn_watch import TurnWatch
    from barnabas.server.broker import Broker
    from barnabas.server.turn_names import broker_turn_names

    stop = stop_on_signals(host.loop)
    if stop_with_parent:
        stop_at_end_of_input(host.loop, stop)
    try:
        logs = broker_logs(config, host.clock)
        traces = _traces(config, host, logs)
    except (OSError, ValueError, RuntimeError) as error:
        _say_error(error, as_json)
        return 1
    broker = Broker(
        config,
        host,
        logs,
        on_alarm=lambda text: click.echo(f"barnabas broker: {text}", err=True),
        process=process_text,
        traces=traces,
    )
    if faults is not None:
        faults.of_broker(broker)
    if traces is not None:
        traces.register(broker.metrics)
        traces.start()
    register_process_metrics(broker.metrics)
    watch = TurnWatch(host.loop, broker.long_turns.count, broker_turn_names())
    collector = CollectorPolicy(host.loop)
    collector.start()
    watch.start()
    service = ServiceManager(host.loop)
    listens = says_progress or service.is_there
    telling = asyncio.create_task(_say_progress(broker, service, says_progress)) if listens else None
    try:
        return await _serve_until_told(broker, host, stop, collector, service, as_json)
    finally:
        service.close()
        collector.stop()
        watch.stop()
        if telling is not None:
            telling.cancel()
        if traces is not None:
            traces.close()


def _traces(config: BrokerConfig, host: RealHost, logs: Logs) -> RealTraces | None:
    """Where spans go; None where nothing is traced. Raises TracesMissingError."""
    from barnabas import __version__
    from barnabas.config.settings import take
    from barnabas.server.config import TracesSettings

    endpoint = take(TracesSettings, config.values).endpoint
    if not endpoint:
        return None
    from barnabas.kernel.real_traces import otlp_traces

    resource = {
        "service.name": "barnabas",
        "service.version": __version__,
        "service.instance.id": f"broker-{config.broker_id}" if config.broker_id >= 0 else host.name,
        "host.name": host.name,
    }
    return otlp_traces(endpoint, resource, logs.logger("barnabas.traces"))


async def _serve_until_told(
    broker: Broker,
    host: RealHost,
    stop: asyncio.Event,
    collector: CollectorPolicy,
    service: ServiceManager,
    as_json: bool,
) -> int:
    from barnabas.kernel.real_host import keep_freed_memory
    from barnabas.server.errors import BrokerStartError

    try:
        if not await _start(broker, host, stop):
            return 0
    except (BrokerStartError, OSError) as error:
        _say_error(error, as_json)
        return 1
    collector.set_aside()
    _say_ready(broker, as_json)
    service.ready(f"broker {broker.broker_id} of cluster {broker.cluster_id}")
    keep_freed_memory(_KEPT_MEMORY_BYTES)
    broker.failure.add_done_callback(lambda _: stop.set())
    await stop.wait()
    service.stopping("moving leaders away")
    await broker.stop()
    if broker.failure.done():
        _say_error(broker.failure.result(), as_json)
        return 1
    return 0


async def _start(broker: Broker, host: RealHost, stop: asyncio.Event) -> bool:
    """True when the broker is ready; False when it was told to stop before that, and has."""
    import asyncio

    async def start() -> None:
        await broker.start()
        await broker.ready()

    starting = host.loop.create_task(start())
    stopped = host.loop.create_task(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.stop()
        return False
    if starting.exception() is not None:
        await broker.stop()
    starting.result()
    return True


async def _say_progress(broker: Broker, service: ServiceManager, in_lines: bool) -> None:
    """Says what the start is at whenever it has gone on, once a second at most, until the broker serves: to the service
    manager, and `in_lines` for `barnabas up`.
    """
    import asyncio

    from barnabas.server.lifecycle import BrokerState
    from barnabas.server.start_watch import STARTING

    done_before = -1
    while broker.state in {BrokerState.NOT_RUNNING, BrokerState.STARTING, BrokerState.RECOVERY}:
        done, text = broker.start_progress
        if done != done_before:
            service.starting(text or broker.not_ready)
            if in_lines:
                announce(json.dumps({STARTING: text}))
        done_before = done
        await asyncio.sleep(_PROGRESS_EVERY_SECONDS)


def _say_notices(config: BrokerConfig) -> None:
    """Has a person see what the broker does not take of its configuration, where its log goes to a file."""
    from barnabas.config.broker_config import NoticeKind
    from barnabas.server.config import LOGS_DIRECTORY

    if config.values[LOGS_DIRECTORY.name] is not None:
        for notice in config.notices:
            if notice.kind is not NoticeKind.NOT_YET:
                click.echo(f"barnabas broker: {notice.text}", err=True)


def _say_error(error: Exception | str, as_json: bool) -> None:
    """Says why the broker ends; who reads JSON hears of it even where standard error goes to a disk that is full."""
    from barnabas.kernel.system_errors import reason

    text = reason(error) if isinstance(error, OSError) else str(error)
    with contextlib.suppress(OSError):
        if as_json:
            click.echo(json.dumps({"error": text}, separators=(",", ":")))
            sys.stdout.flush()
    with contextlib.suppress(OSError):
        click.echo(f"barnabas broker: {text}", err=True)


def _say_ready(broker: Broker, as_json: bool) -> None:
    endpoints = {endpoint.listener_name: endpoint for endpoint in broker.endpoints}
    if as_json:
        said = {
            "broker_id": broker.broker_id,
            "cluster_id": broker.cluster_id,
            "listeners": {
                name: f"[{endpoint.host}]:{endpoint.port}"
                if ":" in endpoint.host
                else f"{endpoint.host}:{endpoint.port}"
                for name, endpoint in endpoints.items()
            },
            "metrics_port": broker.metrics_port,
            "alarms": broker.alarms,
            "process_id": os.getpid(),
        }
        announce(json.dumps(said, separators=(",", ":")))
    else:
        places = ", ".join(endpoint.connection_string for endpoint in endpoints.values())
        announce(f"barnabas broker: ready as broker {broker.broker_id} on {places}")
