"""The processes of `barnabas up`: a coordinator and brokers, started, watched, started again, and stopped.

    async with Supervisor(host, ClusterPlan(brokers=3, data_directory="data")) as cluster:
        print(cluster.bootstrap_servers)
        await cluster.restart_broker(2)

Each process has a process group of its own and a pipe whose end stops it, so that none outlives the supervisor, however
that ends. It runs on a real machine only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

from barnabas.client.access import Access
from barnabas.kernel.real_host import RealHost
from barnabas.kernel.real_program import RealProgram, is_process, start_program
from barnabas.kernel.system_errors import reason
from barnabas.kernel.timers import Timers
from barnabas.log.directories.files import read_file, write_all
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.cluster_probe import ClusterProbe
from barnabas.server.cluster_security import ClusterSecurityError
from barnabas.server.property_files import properties_text
from barnabas.server.restarts import RestartPauses
from barnabas.server.secured_cluster import SecuredCluster
from barnabas.server.start_watch import SILENCE_SECONDS_MAX, NoProgressError, last_line
from barnabas.server.supervisor_events import ProcessEnded, ProcessRestarted, Remark, SupervisorEvent
from barnabas.wire.primitives import ProtocolError

USABLE_SECONDS_MAX: Final = 60.0
"""From the last broker that serves until all of them know each other."""
BROKERS_STOP_SECONDS_MAX: Final = 30.0
COORDINATOR_STOP_SECONDS_MAX: Final = 10.0
COMMAND: Final = (sys.executable, "-P", "-m", "barnabas.cli")
CONSOLE_SECONDS_MAX: Final = 10.0
"""How long the start waits for the console, without which the cluster goes on."""
GROUPS_SECONDS_MAX: Final = 10.0
"""How long the start waits for a coordinator of groups; in a cluster that had more brokers there may be none."""
_TAIL_BYTES: Final = 4_000
OUTPUT_BYTES_MAX: Final = 1024 * 1024
"""What is kept of a process's standard error, at most, at its start and while it runs; half of that is left then."""
OUTPUT_CHECK_SECONDS: Final = 10.0
ORPHANS_SECONDS_MAX: Final = BROKERS_STOP_SECONDS_MAX + COORDINATOR_STOP_SECONDS_MAX
"""How long the start waits for the processes of a supervisor that was killed, which stop by themselves."""
LOCK_NAME: Final = "lock"
"""In the data directory; locked as long as a supervisor, or one of its processes, uses that."""
_LOOKING_MS: Final = 50
_COORDINATOR: Final = "coordinator"
_CONSOLE: Final = "console"


class ClusterStartError(Exception):
    """A process did not start; the message has its last words."""


@dataclass(slots=True)
class _Member:
    """One process of the cluster and what is known of it."""

    name: str
    output_path: str
    log: str
    """The file that says most of it."""
    start: Callable[[], Coroutine[Any, Any, None]]
    program: RealProgram | None = None
    address: str = ""
    metrics_port: int | None = None
    is_wanted: bool = False
    """False once it was asked to stop: its end is expected then."""
    output_begins_at: int = 0
    """Where the output of the present process begins, in bytes; before it is that of earlier ones."""
    error: str = ""
    """Why it ended, in its own words."""
    pauses: RestartPauses = field(default_factory=RestartPauses)
    restarting: asyncio.Task[None] | None = None
    """Waits for the next attempt, or makes it."""
    attempt: asyncio.Future[Exception | None] | None = None
    """The restart under way: done when the process serves or has ended, with the error if there was one."""


class Supervisor:
    """The cluster of one plan."""

    def __init__(
        self,
        host: RealHost,
        plan: ClusterPlan,
        *,
        on_event: Callable[[SupervisorEvent], object] = lambda _event: None,
        restarts: bool = False,
        gives: Callable[[str], tuple[list[str], list[int]]] = lambda _name: ([], []),
    ) -> None:
        """`on_event` is told what happens unasked. With `restarts`, a process that ended so is started again, after a
        pause that grows while its lives are short. `gives` has further arguments of a process, by its name, and the
        descriptors that stay open in it.
        """
        self._host = host
        self._plan = plan = plan.at(os.getcwd())
        self._on_event = on_event
        self._restarts = restarts
        self._gives = gives
        output = f"{plan.coordinator_directory}/output.log"
        self._coordinator = _Member(_COORDINATOR, output, output, self._start_coordinator)
        self._brokers = {broker_id: self._broker(broker_id) for broker_id in plan.broker_ids}
        output = f"{plan.console_directory}/output.log"
        self._console = None if plan.console_port is None else _Member(_CONSOLE, output, output, self._start_console)
        self._lock: int | None = None
        self._secured = SecuredCluster(host, plan, self._tell_of_cluster) if plan.secure else None
        self._timers = Timers(host.loop)
        self._bounding: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._watching: set[asyncio.Task[None]] = set()
        # The children must find the same modules, wherever this process got its path from.
        self._environment = {"PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)}
        # A login at another ZooKeeper, for Kafka's tools in the same shell: this coordinator would refuse it.
        self._environment["KAFKA_OPTS"] = ""

    # What there is.

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as clients want them."""
        return ",".join(member.address for member in self._brokers.values())

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of those that run, by name: `coordinator`, `broker-1`, ..., `console`."""
        return {
            member.name: member.program.process_id
            for member in self._members()
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
                    "log": member.log,
                }
                for broker_id, member in self._brokers.items()
            ],
            "console": None
            if self._console is None
            else {
                "url": self._console.address or None,
                "process_id": processes.get(_CONSOLE),
                "log": self._console.log,
            },
            "process_id": os.getpid(),
            "data": self._plan.data_directory,
            "security": None if self._secured is None else self._secured.description(),
        }

    # All of them.

    async def start(self) -> None:
        """Starts everything and returns when a client can produce and a group can form.

        A process is waited for as long as it makes progress, such as a recovery of its logs (`start_watch`). Raises
        ClusterStartError when it did not come to that; what was started is stopped.
        """
        try:
            await self._lock_directory()
            # Before all of them serve: logs may take hours to recover.
            self._bounding = self._host.loop.create_task(self._bound_outputs(), name="bound outputs")
            if refusal := self._plan.refusal(self._host.files.exists):
                raise ClusterStartError(refusal)
            if self._secured is not None:
                await self._secured.prepare()
            await self._start_coordinator()
            if self._secured is not None:
                await self._secured.write_users(self._coordinator.address)
            async with asyncio.TaskGroup() as starting:
                for broker_id in self._brokers:
                    starting.create_task(self._start_broker(broker_id))
            async with asyncio.timeout(USABLE_SECONDS_MAX):
                await self._until_usable()
            if self._secured is not None:
                await self._secured.write_client_files(self.bootstrap_servers)
                self._renewing = self._host.loop.create_task(self._secured.renew_daily(self._timers), name="renewals")
            if self._console is not None:
                await self._try_console(self._console)
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise ClusterStartError(
                    f"The brokers serve, but do not all know each other within {USABLE_SECONDS_MAX:.0f} s"
                ) from None
            if isinstance(error, ExceptionGroup):
                error = _first(error)
            if isinstance(error, ClusterSecurityError):
                raise ClusterStartError(str(error)) from None
            if isinstance(error, OSError):
                raise ClusterStartError(
                    f"{reason(error)}. Data goes to {self._plan.data_directory}, or to where --data says"
                ) from None
            raise error from None

    async def stop(self) -> None:
        """Stops the brokers one after another, so that leaders move to those left, and the coordinator last.

        Bounded; what does not stop in time is killed. Nothing is started again from now on.
        """
        self._restarts = False
        for task in (self._bounding, self._renewing):
            if task is not None:
                task.cancel()
        for member in self._members():
            await self._leave(member)
        if self._console is not None:
            await self._stop(self._console, CONSOLE_SECONDS_MAX)
        loop = self._host.loop
        deadline = loop.time() + BROKERS_STOP_SECONDS_MAX
        for member in self._brokers.values():
            await self._stop(member, max(0.1, deadline - loop.time()))
        await self._stop(self._coordinator, COORDINATOR_STOP_SECONDS_MAX)
        if self._watching:
            await asyncio.wait(self._watching)
        self._timers.close()
        if self._lock is not None:
            self._host.files.close(self._lock)
            self._lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    # One of them.

    async def start_broker(self, broker_id: int) -> None:
        """Starts a broker that does not run, on the port that it had, and returns when it serves; where it is being
        started again anyway, waits for that.

        Raises ClusterStartError and OSError; a broker that makes no progress is stopped.
        """
        member = self._brokers[broker_id]
        if member.attempt is not None:
            failure = await asyncio.shield(member.attempt)
            if failure is not None:
                raise failure
            return
        await self._leave(member)
        try:
            await member.start()
        except (ClusterStartError, OSError):
            raise
        except BaseException:
            # Nobody would watch what is left of it.
            await self._stop(member, BROKERS_STOP_SECONDS_MAX)
            raise

    async def stop_broker(self, broker_id: int) -> int:
        """Stops a broker in order; returns its exit status."""
        await self._leave(self._brokers[broker_id])
        return await self._stop(self._brokers[broker_id], BROKERS_STOP_SECONDS_MAX)

    async def kill_broker(self, broker_id: int) -> None:
        """kill -9; returns when the process is gone."""
        member = self._brokers[broker_id]
        member.is_wanted = False
        await self._leave(member)
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

    def suspend(self, name: str) -> None:
        """SIGSTOP to a process, by its name in `processes`: nothing of it runs until `resume`. Raises KeyError where
        it does not run.
        """
        self._program(name).suspend()

    def resume(self, name: str) -> None:
        """SIGCONT after `suspend`."""
        self._program(name).resume()

    # Inside.

    def _members(self) -> tuple[_Member, ...]:
        return self._coordinator, *self._brokers.values(), *(() if self._console is None else (self._console,))

    def _program(self, name: str) -> RealProgram:
        for member in self._members():
            if member.name == name and member.program is not None and member.program.is_running:
                return member.program
        raise KeyError(f"{name} does not run")

    async def _lock_directory(self) -> None:
        """Two supervisors of one directory would write into each other's files, and take the other's words for those
        of their own processes. The processes keep the lock too: those of a supervisor that was killed are waited for.

        Raises ClusterStartError and OSError.
        """
        files, directory, loop = self._host.files, self._plan.data_directory, self._host.loop
        files.make_directories(directory)
        self._lock = lock = files.open(f"{directory}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT)
        ends_at = loop.time() + ORPHANS_SECONDS_MAX
        is_told = False
        while not files.lock(lock):
            if is_process(files.pread(lock, 20, 0)) or loop.time() >= ends_at:
                raise ClusterStartError(
                    f"{directory} is in use by another barnabas up; stop that one, or give this one a directory of its "
                    "own (--data)"
                )
            if not is_told:
                self._tell_of_cluster(
                    "processes of an earlier barnabas up, which was killed, are stopping; waiting for them"
                )
            is_told = True
            await self._timers.sleep(_LOOKING_MS)
        files.truncate(lock, 0)
        write_all(files, lock, b"%d\n" % os.getpid(), 0)

    def _tell_of_cluster(self, text: str) -> None:
        self._on_event(Remark("the cluster", text))

    def _broker(self, broker_id: int) -> _Member:
        plan = self._plan
        output, log = f"{plan.broker_directory(broker_id)}/output.log", f"{plan.logs_directory(broker_id)}/server.log"
        return _Member(f"broker-{broker_id}", output, log, lambda: self._start_broker(broker_id))

    async def _start_coordinator(self) -> None:
        port = self._coordinator.address.rpartition(":")[2] or str(self._plan.coordinator_port)
        arguments = ["--data", f"{self._plan.coordinator_directory}/data", "--host", self._plan.host, "--port", port]
        if self._plan.security is not None:
            arguments += self._plan.security.coordinator_arguments()
        said = await self._start(self._coordinator, ["coordinator", *arguments, "--stop-with-parent", "--json"])
        self._coordinator.address = str(said["address"])

    async def _start_broker(self, broker_id: int) -> None:
        member = self._brokers[broker_id]
        port = int(member.address.rpartition(":")[2] or self._plan.port_of(broker_id))
        path = self._plan.properties_path(broker_id)
        self._write_properties(broker_id, port)
        said = await self._start(member, ["broker", path, "--stop-with-parent", "--json", "--progress"])
        member.address = str(next(iter(said["listeners"].values())))
        member.metrics_port = said["metrics_port"]
        for alarm in said["alarms"]:
            self._on_event(Remark(member.name, alarm))
        if not port:
            # On record, and for the next start.
            self._write_properties(broker_id, int(member.address.rpartition(":")[2]))

    def _write_properties(self, broker_id: int, port: int) -> None:
        properties = self._plan.properties(broker_id, self._coordinator.address, port)
        if self._secured is not None:
            properties |= self._secured.broker_properties()
        self._write(self._plan.properties_path(broker_id), properties_text(properties))

    async def _start_console(self) -> None:
        """A process of its own, so that what it does keeps no broker waiting. It has the port that it had."""
        member = self._console
        assert member is not None
        port = urlsplit(member.address).port or self._plan.console_port
        arguments = ["--port", str(port), "--bootstrap-server", self.bootstrap_servers, *self._plan.console_options]
        if self._plan.security is not None:
            arguments += self._plan.security.console_arguments()
        said = await self._start(member, ["console", *arguments, "--stop-with-parent", "--json"])
        member.address = str(said["url"])

    async def _try_console(self, member: _Member) -> None:
        """Starts it; where that fails it is tried again later, and the cluster is there all the same."""
        try:
            async with asyncio.timeout(CONSOLE_SECONDS_MAX):
                await member.start()
        except (ClusterStartError, OSError) as error:
            await self._stop(member, CONSOLE_SECONDS_MAX)
            why = f"it does not start within {CONSOLE_SECONDS_MAX:g} s" if isinstance(error, TimeoutError) else ""
            self._ended(member, None, why or (reason(error) if isinstance(error, OSError) else str(error)), 0.0)

    async def _start(self, member: _Member, arguments: list[str]) -> dict[str, Any]:
        """Starts a process and returns what it says when it is ready."""
        if member.program is not None and member.program.is_running:
            raise ClusterStartError(f"{member.name} runs already (process {member.program.process_id})")
        files = self._host.files
        files.make_directories(os.path.dirname(member.output_path))
        # Behind what the process before it has said of its end.
        output = files.open(member.output_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if files.size(output) > OUTPUT_BYTES_MAX:
                files.truncate(output, 0)
            member.output_begins_at = files.size(output)
            further, descriptors = self._gives(member.name)
            program = await start_program(
                self._host.loop,
                [*COMMAND, *arguments, *further],
                errors_to=output,
                keeps=descriptors if self._lock is None else (*descriptors, self._lock),
                environment=self._environment,
            )
        finally:
            files.close(output)
        member.program = program
        member.is_wanted = True
        member.error = ""
        try:
            said = await last_line(
                self._host.loop,
                program.read_line,
                on_progress=lambda text: self._on_event(Remark(member.name, f"it starts: {text}")),
                # A controller that is not there is not there for another process either.
                on_silence=None if member.attempt is None else lambda: self._remark_on_silence(member),
                silence_seconds=SILENCE_SECONDS_MAX,
            )
        except NoProgressError as error:
            await self._stop(member, BROKERS_STOP_SECONDS_MAX)
            raise ClusterStartError(f"{member.name} was stopped: {error}; {member.log} says what it was at") from None
        if said is None or "error" in said:
            member.is_wanted = False
            member.error = "" if said is None else said["error"]
            status = await program.wait()
            raise ClusterStartError(f"{member.name} ended with status {status}: {self._last_words(member, status)}")
        watching = self._host.loop.create_task(self._watch(member, program))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return said

    async def _watch(self, member: _Member, program: RealProgram) -> None:
        began = self._host.loop.time()
        while (line := await program.read_line()) is not None:
            with contextlib.suppress(ValueError, KeyError):
                member.error = json.loads(line)["error"]
        status = await program.wait()
        if member.is_wanted and member.program is program:
            member.is_wanted = False
            self._ended(member, status, self._last_words(member, status), self._host.loop.time() - began)

    def _ended(self, member: _Member, status: int | None, why: str, lived_seconds: float) -> None:
        """Tells of an end that nobody asked for, and has the process started again."""
        pause = member.pauses.after_life_of(lived_seconds) if self._restarts else None
        if pause is not None:
            member.restarting = self._host.loop.create_task(self._restart(member, pause), name=f"restart {member.name}")
        self._on_event(ProcessEnded(member.name, status, why, member.log, pause))

    async def _restart(self, member: _Member, pause_seconds: float) -> None:
        """One attempt after a pause; when it fails, the next one is prepared."""
        await self._timers.sleep(pause_seconds * 1000)
        member.attempt = attempt = self._host.loop.create_future()
        failure: Exception | None = ClusterStartError(f"{member.name} was stopped while it was started again")
        try:
            await member.start()
            failure = None
        except (ClusterStartError, OSError) as error:
            failure = error
            self._ended(member, None, reason(error) if isinstance(error, OSError) else str(error), 0.0)
            return
        finally:
            member.attempt = None
            attempt.set_result(failure)
        if member.program is not None:
            self._on_event(ProcessRestarted(member.name, member.program.process_id))

    def _remark_on_silence(self, member: _Member) -> None:
        text = f"it makes no progress for {SILENCE_SECONDS_MAX:g} s; {member.log} says what it is at"
        self._on_event(Remark(member.name, text))

    async def _leave(self, member: _Member) -> None:
        """Makes no further attempt to start it again; one that is under way is given up, its process is left for the
        caller to stop."""
        restarting, member.restarting = member.restarting, None
        if restarting is not None:
            restarting.cancel()
            await asyncio.gather(restarting, return_exceptions=True)

    async def _stop(self, member: _Member, limit_seconds: float) -> int:
        member.is_wanted = False
        return 0 if member.program is None else await member.program.stop(limit_seconds)

    async def _until_usable(self) -> None:
        """Waits until topics of any replication can be made, and groups can form."""
        access = Access() if self._secured is None else self._secured.access()
        probe = ClusterProbe(self._host, [member.address for member in self._brokers.values()], access)
        await probe.until_formed()
        if await probe.until_groups_can_form(GROUPS_SECONDS_MAX):
            return
        text = (
            "__consumer_offsets has partitions without a leader, or that are being read: groups cannot form before"
            " its brokers are back, or have read them"
        )
        with contextlib.suppress(OSError, ProtocolError):
            if not await probe.has_offsets_topic():
                text = (
                    "__consumer_offsets could not be made, so groups cannot form: offsets.topic.replication.factor must"
                    f" not be more than there are brokers ({self._plan.brokers}); the brokers' logs say more"
                )
        self._tell_of_cluster(text)

    async def _bound_outputs(self) -> None:
        while True:
            await self._timers.sleep(OUTPUT_CHECK_SECONDS * 1000)
            for member in self._members():
                # Where the disk is at fault the processes themselves say so.
                with contextlib.suppress(OSError):
                    self._bound_output(member)

    def _bound_output(self, member: _Member) -> None:
        """Leaves the newer half of an output that has grown too long. What its process says at this very moment may be
        lost; it appends, so what it says next comes behind.
        """
        files = self._host.files
        if not files.exists(member.output_path):
            return
        output = files.open(member.output_path, os.O_RDWR | os.O_APPEND)
        try:
            size = files.size(output)
            if size > OUTPUT_BYTES_MAX:
                newer = files.pread(output, OUTPUT_BYTES_MAX // 2, size - OUTPUT_BYTES_MAX // 2)
                files.truncate(output, 0)
                files.write(output, newer[newer.find(b"\n") + 1 :])
                member.output_begins_at = 0
        finally:
            files.close(output)

    def _write(self, path: str, text: str) -> None:
        files = self._host.files
        files.make_directories(os.path.dirname(path))
        # A secured broker's has its password.
        descriptor = files.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if self._secured else 0o644)
        try:
            write_all(files, descriptor, text.encode(), 0)
        finally:
            files.close(descriptor)
        files.rename(f"{path}.tmp", path)

    def _last_words(self, member: _Member, status: int) -> str:
        """Why a process ended: as it said, or the end of its standard error. One that was killed had no time for it."""
        if member.error or status == -signal.SIGKILL:
            return member.error
        try:
            said = read_file(self._host.files, member.output_path)[member.output_begins_at :]
            return said[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        except OSError as error:
            return reason(error)


def _first(group: ExceptionGroup[Any]) -> Exception:
    """One of the reasons, where several processes fail for the same."""
    error: Exception = group.exceptions[0]
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
