"""The processes of `barnabas up`: a coordinator and brokers, started, watched, restarted on request, and stopped.

    async with Supervisor(host, ClusterPlan(brokers=3, data_directory="data")) as cluster:
        print(cluster.bootstrap_servers)
        await cluster.restart_broker(2)

Each process has a process group of its own and a pipe whose end stops it, so that none outlives the supervisor, however
that ends. It runs on a real machine only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from barnabas.kernel.real_host import RealHost
from barnabas.kernel.real_program import RealProgram, start_program
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
from barnabas.link.limits import LinkLimits
from barnabas.link.outgoing import Outgoing
from barnabas.log.files import read_file, write_all
from barnabas.server.cluster_plan import ClusterPlan, properties_text
from barnabas.wire.messages import MetadataRequest
from barnabas.wire.primitives import ProtocolError

READY_SECONDS_MAX: Final = 60.0
BROKERS_STOP_SECONDS_MAX: Final = 30.0
COORDINATOR_STOP_SECONDS_MAX: Final = 10.0
COMMAND: Final = (sys.executable, "-P", "-m", "barnabas.cli")
_PROBE_EVERY_MS: Final = 10.0
_METADATA_VERSION: Final = 9
_TAIL_BYTES: Final = 4_000
_COORDINATOR: Final = "coordinator"


class ClusterStartError(Exception):
    """A process did not come up; the message has what it said."""


@dataclass(slots=True)
class _Member:
    """One process of the cluster and what is known of it."""

    name: str
    output_path: str
    program: RealProgram | None = None
    address: str = ""
    metrics_port: int | None = None
    is_wanted: bool = False
    """False once it was asked to stop: its end is then no news."""


class Supervisor:
    """The cluster of one plan."""

    def __init__(
        self,
        host: RealHost,
        plan: ClusterPlan,
        *,
        on_unexpected_end: Callable[[str, int], object] = lambda _name, _status: None,
    ) -> None:
        """`on_unexpected_end` is told the name and the exit status of a process that ended unasked."""
        self._host = host
        self._plan = plan = plan.at(os.getcwd())
        self._on_unexpected_end = on_unexpected_end
        self._coordinator = _Member(_COORDINATOR, f"{plan.coordinator_directory}/output.log")
        self._brokers = {
            broker_id: _Member(f"broker-{broker_id}", f"{plan.broker_directory(broker_id)}/output.log")
            for broker_id in plan.broker_ids
        }
        self._watching: set[asyncio.Task[None]] = set()
        # The children must find the same modules, wherever this process got its path from.
        self._environment = {"PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)}

    # What there is.

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as clients want them."""
        return ",".join(member.address for member in self._brokers.values())

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of those that run, by name: `coordinator`, `broker-1`, ..."""
        members = (self._coordinator, *self._brokers.values())
        return {
            member.name: member.program.process_id
            for member in members
            if member.program is not None and member.program.is_running
        }

    def description(self) -> dict[str, Any]:
        """Everything a program needs to use the cluster; the line that `barnabas up --json` prints."""
        processes = self.processes
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "coordinator": {"address": self._coordinator.address, "process_id": processes.get(_COORDINATOR)},
            "brokers": [
                {
                    "id": broker_id,
                    "address": member.address,
                    "process_id": processes.get(member.name),
                    "metrics_port": member.metrics_port,
                    "log": f"{self._plan.logs_directory(broker_id)}/server.log",
                }
                for broker_id, member in self._brokers.items()
            ],
            "process_id": os.getpid(),
            "data": self._plan.data_directory,
        }

    # All of them.

    async def start(self) -> None:
        """Starts everything and returns when a client can produce and a group can form.

        Raises ClusterStartError when it did not come to that; what was started is stopped.
        """
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._start_coordinator()
                async with asyncio.TaskGroup() as starting:
                    for broker_id in self._brokers:
                        starting.create_task(self._start_broker(broker_id))
                await self._until_formed()
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise ClusterStartError(f"The cluster was not ready within {READY_SECONDS_MAX:.0f} s") from None
            if isinstance(error, ExceptionGroup):
                raise _first(error) from None
            raise

    async def stop(self) -> None:
        """Stops the brokers one after another, so that leaders move to those left, and the coordinator last.

        Bounded; what does not stop in time is killed.
        """
        loop = self._host.loop
        deadline = loop.time() + BROKERS_STOP_SECONDS_MAX
        for member in self._brokers.values():
            await self._stop(member, max(0.1, deadline - loop.time()))
        await self._stop(self._coordinator, COORDINATOR_STOP_SECONDS_MAX)
        if self._watching:
            await asyncio.wait(self._watching)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    # One of them.

    async def start_broker(self, broker_id: int) -> None:
        """Starts a broker that does not run, on the port that it had, and returns when it serves.

        Raises ClusterStartError; a broker that does not serve in time is stopped.
        """
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._start_broker(broker_id)
        except TimeoutError:
            await self.stop_broker(broker_id)
            raise ClusterStartError(f"broker-{broker_id} did not serve within {READY_SECONDS_MAX:.0f} s") from None

    async def stop_broker(self, broker_id: int) -> int:
        """Stops a broker in order; returns its exit status."""
        return await self._stop(self._brokers[broker_id], BROKERS_STOP_SECONDS_MAX)

    async def kill_broker(self, broker_id: int) -> None:
        """kill -9; returns when the process is gone."""
        member = self._brokers[broker_id]
        member.is_wanted = False
        if member.program is not None:
            member.program.kill()
            await member.program.wait()

    async def restart_broker(self, broker_id: int, *, kill: bool = False) -> None:
        """Stops a broker in order, or by kill -9, and starts it again; returns when it serves."""
        if kill:
            await self.kill_broker(broker_id)
        else:
            await self.stop_broker(broker_id)
        await self.start_broker(broker_id)

    # Inside.

    async def _start_coordinator(self) -> None:
        port = self._coordinator.address.rpartition(":")[2] or str(self._plan.coordinator_port)
        arguments = ["--data", f"{self._plan.coordinator_directory}/data", "--host", self._plan.host, "--port", port]
        said = await self._start(self._coordinator, ["coordinator", *arguments, "--stop-with-parent", "--json"])
        self._coordinator.address = str(said["address"])

    async def _start_broker(self, broker_id: int) -> None:
        member = self._brokers[broker_id]
        port = int(member.address.rpartition(":")[2] or self._plan.port_of(broker_id))
        path = self._plan.properties_path(broker_id)
        properties = self._plan.properties(broker_id, self._coordinator.address, port)
        self._write(path, properties_text(properties))
        said = await self._start(member, ["broker", path, "--stop-with-parent", "--json"])
        member.address = str(next(iter(said["listeners"].values())))
        member.metrics_port = said["metrics_port"]
        if not port:
            # On record, and for the next start.
            port = int(member.address.rpartition(":")[2])
            self._write(path, properties_text(self._plan.properties(broker_id, self._coordinator.address, port)))

    async def _start(self, member: _Member, arguments: list[str]) -> dict[str, Any]:
        """Starts a process and returns what it says when it is ready."""
        if member.program is not None and member.program.is_running:
            raise ClusterStartError(f"{member.name} runs already (process {member.program.process_id})")
        files = self._host.files
        files.make_directories(os.path.dirname(member.output_path))
        output = files.open(member.output_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            program = await start_program(
                self._host.loop, [*COMMAND, *arguments], errors_to=output, environment=self._environment
            )
        finally:
            files.close(output)
        member.program = program
        member.is_wanted = True
        line = await program.read_line()
        if line is None:
            member.is_wanted = False
            status = await program.wait()
            raise ClusterStartError(f"{member.name} ended with status {status}: {self._tail(member)}")
        said: dict[str, Any] = json.loads(line)
        watching = self._host.loop.create_task(self._watch(member, program))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return said

    async def _watch(self, member: _Member, program: RealProgram) -> None:
        while await program.read_line() is not None:
            continue
        status = await program.wait()
        if member.is_wanted and member.program is program:
            self._on_unexpected_end(member.name, status)

    async def _stop(self, member: _Member, limit_seconds: float) -> int:
        member.is_wanted = False
        return 0 if member.program is None else await member.program.stop(limit_seconds)

    async def _until_formed(self) -> None:
        """Waits until every broker knows all brokers and a controller: then topics of any replication can be made."""
        timers = Timers(self._host.loop)
        logger = logging.getLogger("barnabas.supervisor")
        context = LinkContext.of(self._host.loop, timers, LinkLimits(), logger)
        try:
            async with asyncio.TaskGroup() as asking:
                for member in self._brokers.values():
                    asking.create_task(self._until_it_knows_all(context, member.address))
        finally:
            timers.close()

    async def _until_it_knows_all(self, context: LinkContext, address: str) -> None:
        name, _, port = address.rpartition(":")
        outgoing = Outgoing(context, self._host.random, name.strip("[]"), int(port), client_id="barnabas-up")
        try:
            while True:
                try:
                    response = await outgoing.send(MetadataRequest(topics=[]), _METADATA_VERSION, 5_000)
                    if response.controller_id >= 0 and len(response.brokers) >= self._plan.brokers:
                        return
                except (OSError, ProtocolError):
                    # It may be busy with starting; whether it ended is seen elsewhere.
                    pass
                await context.timers.sleep(_PROBE_EVERY_MS)
        finally:
            outgoing.close()
            await outgoing.wait_closed()

    def _write(self, path: str, text: str) -> None:
        files = self._host.files
        files.make_directories(os.path.dirname(path))
        descriptor = files.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(files, descriptor, text.encode(), 0)
        finally:
            files.close(descriptor)
        files.rename(f"{path}.tmp", path)

    def _tail(self, member: _Member) -> str:
        """The end of what a process wrote to its standard error."""
        try:
            return read_file(self._host.files, member.output_path)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        except OSError as error:
            return str(error)


def _first(group: ExceptionGroup[Any]) -> Exception:
    """One of the reasons, where several processes fail for the same."""
    error: Exception = group.exceptions[0]
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
