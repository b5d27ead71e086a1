"""The cluster of `barnabas up` for tests and benchmarks that block: its supervisor runs in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from barnabas.kernel.real_host import RealHost, run
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.supervisor import Supervisor
from barnabas.server.supervisor_events import ProcessEnded
from tests.support import long_turns

CALL_SECONDS = 90.0
# A broker that is killed is missed after so long.
SESSION_TIMEOUT_MS = 4_000

Result = TypeVar("Result")


class RunningCluster(Protocol):
    """Brokers 1 to n, of whichever kind."""

    @property
    def bootstrap_servers(self) -> str: ...
    def start_broker(self, broker_id: int) -> None: ...
    def kill_broker(self, broker_id: int) -> None: ...


class SupervisedCluster:
    """A coordinator and brokers 1 to n, each a process; every call returns when it is done, or raises."""

    def __init__(self, supervisor: Supervisor, loop: asyncio.AbstractEventLoop) -> None:
        self._supervisor = supervisor
        self._loop = loop

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as clients want them."""
        return self._supervisor.bootstrap_servers

    @property
    def processes(self) -> Mapping[str, int]:
        """Process ids of those that run, by name: `coordinator`, `broker-1`, ..."""
        return self._supervisor.processes

    def start_broker(self, broker_id: int) -> None:
        """On the port that it had; returns when it serves."""
        self._call(self._supervisor.start_broker(broker_id))

    def stop_broker(self, broker_id: int) -> int:
        """In order; returns the exit status."""
        return self._call(self._supervisor.stop_broker(broker_id))

    def kill_broker(self, broker_id: int) -> None:
        """kill -9."""
        self._call(self._supervisor.kill_broker(broker_id))

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)


@contextlib.contextmanager
def supervised_cluster(
    directory: Path, brokers: int = 3, *, overrides: Mapping[str, str] | None = None
) -> Iterator[SupervisedCluster]:
    """A running cluster on free ports; its processes are stopped with the block.

    `overrides` are configs of all brokers. Raises ClusterStartError when it does not come up, and RuntimeError at the
    end when a process had ended that nobody had asked to.
    """
    for broker_id in range(1, brokers + 1):
        long_turns.follow(f"broker-{broker_id}", directory / f"broker-{broker_id}" / "logs" / "server.log")
    plan = ClusterPlan(
        brokers=brokers,
        data_directory=str(directory),
        port=0,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        overrides=overrides or {},
    )
    ended: list[str] = []
    running: Future[tuple[SupervisedCluster, Callable[[], object]]] = Future()

    async def supervise(host: RealHost) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        supervisor = Supervisor(
            host, plan, on_event=lambda event: ended.append(str(event)) if isinstance(event, ProcessEnded) else None
        )
        async with supervisor:
            running.set_result((SupervisedCluster(supervisor, loop), lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    def work() -> None:
        try:
            run(supervise, name="supervisor")
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            if running.done():
                ended.append(f"the supervisor with {error!r}")
            else:
                running.set_exception(error)

    thread = threading.Thread(target=work, name="supervisor", daemon=True)
    thread.start()
    cluster, stop = running.result(CALL_SECONDS)
    try:
        yield cluster
    finally:
        with contextlib.suppress(RuntimeError):  # its loop is closed already
            stop()
        thread.join(CALL_SECONDS)
    if ended:
        raise RuntimeError(f"ended by themselves: {', '.join(ended)}")
