"""`--metrics`: a run's progress for Prometheus, by the endpoint that brokers have, on a thread and loop of its own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from barnabas.cli.connection import CommandError

if TYPE_CHECKING:
    import asyncio

    from barnabas.kernel.real_host import RealHost
    from barnabas.pipelines.definition import Pipeline
    from barnabas.pipelines.progress import ProgressSink
    from barnabas.pipelines.progress_metrics import ProgressMetrics

ADDRESS_DEFAULT: Final = "127.0.0.1"
THREAD_NAME: Final = "pipeline-metrics"
_PORT_MAX: Final = 65_535
_START_SECONDS_MAX: Final = 30.0
_STOP_SECONDS_MAX: Final = 5.0
_LOGGER: Final = logging.getLogger("barnabas.cli.pipeline_metrics")
_LOGGER.addHandler(logging.NullHandler())

metrics_option = click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve the run's progress to Prometheus, at http://HOST:PORT/metrics; HOST is 127.0.0.1 if left out.",
)


def place_of(text: str) -> tuple[str, int]:
    """Address and port of `--metrics`. Raises click.UsageError."""
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= _PORT_MAX) or (not address and ":" in text):
        raise click.UsageError(f'--metrics "{text}" must be a port, or an address and a port: 9404, 0.0.0.0:9404')
    return address.removeprefix("[").removesuffix("]") or ADDRESS_DEFAULT, int(port)


@contextlib.contextmanager
def serving_metrics(place: str | None, pipeline: Pipeline, progress: ProgressSink) -> Iterator[ProgressSink]:
    """What a run tells its progress to, which is served at `place` for the time of the block; just `progress` without
    one. Raises CommandError where nobody can listen there, or does not in time.
    """
    if place is None:
        yield progress
        return
    from barnabas.pipelines.progress_metrics import ProgressMetrics
    from barnabas.pipelines.state_directory import StateDirectory

    address, port = place_of(place)
    metrics = ProgressMetrics(pipeline.name, progress, StateDirectory(pipeline.state_directory).last_progress())
    server = _Server(address, port, metrics)
    thread = threading.Thread(target=server.run, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        bound = server.bound.result(_START_SECONDS_MAX)
    except (OSError, UnicodeError) as error:
        server.stop()
        raise CommandError(f"--metrics {place} cannot be served: {_reason(server, address, error)}") from error
    progress.said(f"metrics at http://{f'[{address}]' if ':' in address else address}:{bound}/metrics")
    try:
        yield metrics
    finally:
        server.stop()
        thread.join(_STOP_SECONDS_MAX)


def _reason(server: _Server, address: str, error: Exception) -> str:
    if not server.bound.done():
        seconds = int(_START_SECONDS_MAX)
        return (
            f"nobody listens there after {seconds} s. {address} may be a name that is not found: name an address. Or "
            "this machine has too much to do: run it again"
        )
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{told or type(error).__name__}; name another"


class _Server:
    """Listens until it is told to stop, by another thread."""

    def __init__(self, address: str, port: int, metrics: ProgressMetrics) -> None:
        self._address, self._port, self._metrics = address, port, metrics
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        self.bound: concurrent.futures.Future[int] = concurrent.futures.Future()
        """The port, or why there is none."""

    def run(self) -> None:
        """Serves, on this thread; whatever keeps it from that is what `bound` raises."""
        from barnabas.kernel.real_host import run

        try:
            run(self._serve, name=THREAD_NAME)
        except BaseException as error:
            if self.bound.done():
                raise
            self.bound.set_exception(error)

    async def _serve(self, host: RealHost) -> None:
        import asyncio

        from barnabas.kernel.metrics import MetricsRegistry
        from barnabas.kernel.steps import StepRunner
        from barnabas.server.metrics_endpoint import MetricsEndpoint

        nothing_else = MetricsRegistry(host.loop.time)
        endpoint = MetricsEndpoint(host, nothing_else, StepRunner(host.loop), _LOGGER, self._metrics.text)
        self._loop, self._stop = host.loop, asyncio.Event()
        port = await endpoint.start(self._address, self._port)
        self.bound.set_result(port)
        try:
            if not self._is_stopped:
                await self._stop.wait()
        finally:
            await endpoint.stop()

    def stop(self) -> None:
        """Has it end, now or as soon as it begins."""
        self._is_stopped = True
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)
