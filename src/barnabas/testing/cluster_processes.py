"""A cluster of processes: what `barnabas up` runs, watched by its supervisor, with faults by signals and by orders."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Final

from barnabas.kernel.host import Host
from barnabas.kernel.real_host import RealHost
from barnabas.kernel.system_errors import reason
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.supervisor import ClusterStartError, Supervisor
from barnabas.server.supervisor_events import ProcessEnded, SupervisorEvent
from barnabas.testing.cluster_nodes import COORDINATOR, Place
from barnabas.testing.real_connections import ConnectionTable
from barnabas.testing.real_control import Control
from barnabas.testing.real_disk import check_slowness
from barnabas.testing.real_node import Node, NodeError, turn
from barnabas.testing.real_ports import KeptPort
from barnabas.testing.request_faults import RequestFault
from barnabas.wire.api_keys import ApiKey

START_SECONDS_MAX: Final = 120.0
_STOP_SECONDS_MAX: Final = 60.0
_OPERATOR: Final = 0
"""The test itself, among the owners of connections; others are the brokers by their ids, and the coordinator."""
_CONNECTIONS: Final = "connections"
"""The file, in the data directory, of what connections there are."""


class ProcessCluster:
    """The cluster of one plan; `start` it once. As `cluster_nodes.NodeCluster`, on processes."""

    def __init__(self, plan: ClusterPlan, operator: Node) -> None:
        """`operator` is a node whose loop looks after the processes, and asks the cluster on its owner's behalf."""
        self._plan = plan
        self._operator = operator
        self._supervisor: Supervisor | None = None
        self._table: ConnectionTable | None = None
        self._controls: dict[str, Control] = {}
        self._addresses: list[str] = []
        self._paused: set[Place] = set()
        self._cuts: set[frozenset[Place]] = set()
        self._ended: dict[str, str] = {}
        """Why processes have ended by themselves, by their names."""
        self._kept_ports: dict[int, KeptPort] = {}
        """Of brokers that are down."""

    def start(self) -> None:
        """Returns when every broker serves, and groups can form. Raises NodeError."""
        host: Host = self._operator.until_started(START_SECONDS_MAX)
        real = RealHost(
            name=host.name,
            loop=host.loop,
            clock=host.clock,
            random=host.random,
            entropy=host.entropy,
            files=host.files,
            offload=host.offload,  # type: ignore[arg-type]  # a node's
            spawn=host.spawn,  # type: ignore[arg-type]
        )
        try:
            host.files.make_directories(self._plan.data_directory)
            self._table = ConnectionTable(self._connections_path, self._plan.brokers + 2, is_new=True)
        except OSError as error:
            raise NodeError(f"the directory {self._plan.data_directory} cannot be used: {reason(error)}") from error
        self._operator.call(self._operator.links.share, self._table, _OPERATOR)
        supervisor = self._operator.call(
            lambda: Supervisor(real, self._plan, on_event=self._hear, gives=self._faults_for)
        )
        self._start(supervisor.start())
        self._supervisor = supervisor
        self._addresses = supervisor.bootstrap_servers.split(",")

    def stop(self) -> None:
        """Stops all in order. Raises NodeError for those that had ended by themselves."""
        supervisor, self._supervisor = self._supervisor, None
        ended = [f"{name} ended by itself: {why}" for name, why in self._ended.items()]
        try:
            if supervisor is not None:
                # Who stops in order asks the others.
                self._operator.call(self._resume_all, supervisor)
                for name in supervisor.processes:
                    with contextlib.suppress(NodeError):
                        self._clear(name)
                self._operator.run(supervisor.stop(), _STOP_SECONDS_MAX)
        finally:
            for control in self._controls.values():
                control.close()
            while self._kept_ports:
                self._kept_ports.popitem()[1].close()
            if self._table is not None:
                self._operator.call(self._operator.links.share, None, _OPERATOR)
                self._table.close()
                with contextlib.suppress(OSError):
                    self._operator.files.unlink(self._connections_path)
        if ended:
            raise NodeError("; ".join(ended))

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of those that run, by name."""
        return self._operator.call(lambda: self._running().processes)

    def is_running(self, broker_id: int) -> bool:
        return f"broker-{broker_id}" in self.processes

    def answering(self) -> list[int]:
        """The brokers that hear of changes, and can be asked: those that are not down, paused or cut off."""
        running, cut_off = self.processes, frozenset().union(*self._cuts)
        return [
            broker_id
            for broker_id in self._plan.broker_ids
            if _name(broker_id) in running and broker_id not in cut_off | self._paused
        ]

    # One of them.

    def stop_broker(self, broker_id: int) -> None:
        self._check_running(broker_id)
        self.resume(broker_id)
        self._operator.run(self._running().stop_broker(broker_id), _STOP_SECONDS_MAX)
        self._operator.call(self._is_gone, broker_id)

    def kill_broker(self, broker_id: int) -> None:
        """kill -9."""
        self._check_running(broker_id)
        self._operator.run(self._running().kill_broker(broker_id), _STOP_SECONDS_MAX)
        self._operator.call(self._is_gone, broker_id)
        self._paused.discard(broker_id)

    def start_broker(self, broker_id: int) -> None:
        if self.is_running(broker_id):
            raise NodeError(f"broker-{broker_id} runs already")
        self._paused.discard(broker_id)
        self._ended.pop(_name(broker_id), None)
        kept_port = self._kept_ports.pop(broker_id, None)
        if kept_port is not None:
            kept_port.close()
        try:
            self._start(self._running().start_broker(broker_id))
        except NodeError:
            if not self.is_running(broker_id):
                self._operator.call(self._is_gone, broker_id)
            raise
        self._apply_cuts([broker_id])

    def pause(self, place: Place) -> None:
        """SIGSTOP; returns when the process stands: on a busy machine it runs on for milliseconds."""
        process_id = self.processes.get(_name(place))
        if process_id is None:
            raise NodeError(f"{_name(place)} does not run: start it first")
        self._operator.call(self._running().suspend, _name(place))
        self._paused.add(place)
        self._operator.run(_until_stands(process_id), _STOP_SECONDS_MAX)

    def resume(self, place: Place) -> None:
        """SIGCONT."""
        if _name(place) in self.processes:
            self._operator.call(self._running().resume, _name(place))
        self._paused.discard(place)

    def slow_disk(self, place: Place, seconds: float) -> None:
        check_slowness(seconds)
        self._ask(place, "slow down", seconds=seconds)

    def expire_session(self, broker_id: int) -> None:
        """Ends the broker's session in the coordinator, and its connection. Raises NodeError where it has none."""
        if not self._ask(COORDINATOR, "expire", broker_id=broker_id):
            raise NodeError(f"broker {broker_id} has no session")

    def is_known(self) -> bool:
        """Whether the controller knows every broker that runs, by its present session. On any thread."""
        names = self._running().processes
        running = [broker_id for broker_id in self._plan.broker_ids if _name(broker_id) in names]
        seen: dict[int, int] = {}
        for broker_id in running:
            seen = seen or dict(self._control(broker_id).ask("epochs seen"))
        coordinator = self._control(COORDINATOR)
        present = {broker_id: coordinator.ask("epoch", broker_id=broker_id) for broker_id in running}
        return all(epoch is not None and epoch == seen.get(broker_id) for broker_id, epoch in present.items())

    # Several.

    def partition(self, places: tuple[Place, ...], others: tuple[Place, ...]) -> None:
        """Nothing passes between each of these and each of the others. Raises NodeError where one of them is paused."""
        cuts = {frozenset((place, other)) for place in places for other in others if place != other}
        cut = frozenset().union(*cuts)
        running = cut.intersection(self._places_running())
        for place in running & self._paused:
            raise NodeError(f"{_name(place)} is paused: resume it first")
        self._cuts |= cuts
        self._apply_cuts(running)

    def heal(self) -> None:
        """Ends all partitions."""
        self._cuts.clear()
        for place in self._places_running():
            if place in self._paused:
                self._controls[_name(place)].tell("heal")
            else:
                self._ask(place, "heal")

    # Requests.

    def add_fault(self, broker_id: int | None, fault: RequestFault) -> None:
        """Gives a broker the fault, or each that runs, with a count of its own."""
        given = dataclasses.asdict(fault)
        for place in self._brokers_running() if broker_id is None else [broker_id]:
            self._ask(place, "add", **given)

    def faults_left(self, api_key: ApiKey) -> int:
        """How many requests of the API are still to be struck."""
        return sum(self._ask(broker_id, "left", api_key=api_key) for broker_id in self._brokers_running())

    def clear_faults(self) -> None:
        """Ends all faults of requests and disks, and lets go on what is paused; partitions are healed."""
        self._operator.call(self._resume_all, self._running())
        self._cuts.clear()
        for place in self._places_running():
            self._clear(_name(place))

    # Inside.

    @property
    def _connections_path(self) -> str:
        return f"{self._plan.data_directory}/{_CONNECTIONS}"

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise NodeError("the cluster does not run")
        return self._supervisor

    def _check_running(self, broker_id: int) -> None:
        if not self.is_running(broker_id):
            raise NodeError(f"broker-{broker_id} does not run")

    def _brokers_running(self) -> list[int]:
        running = self.processes
        return [broker_id for broker_id in self._plan.broker_ids if _name(broker_id) in running]

    def _places_running(self) -> list[Place]:
        return [*self._brokers_running(), *([COORDINATOR] if COORDINATOR in self.processes else [])]

    def _start(self, work: Any) -> None:
        """Runs what starts processes to its end. Raises NodeError."""
        try:
            self._operator.run(work, START_SECONDS_MAX)
        except ClusterStartError as error:
            raise NodeError(str(error)) from error
        finally:
            for control in self._controls.values():
                control.was_given()

    def _faults_for(self, name: str) -> tuple[list[str], list[int]]:
        """What a process is given that is to have faults by order; called before each of its starts."""
        if name in self._controls:
            self._controls[name].close()
        place = _place(name)
        self._forget(place)
        greeting = {
            "connections": os.path.abspath(self._connections_path),
            "owners": self._plan.brokers + 2,
            "owner": self._owner(place),
            # From the coordinator later: without that it could not start.
            "cut": [port for other, port in self._ports_cut(place).items() if other != COORDINATOR],
        }
        control = self._controls[name] = Control(name, greeting)
        return ["--faults", str(control.descriptor)], [control.descriptor]

    def _owner(self, place: Place) -> int:
        return self._plan.brokers + 1 if isinstance(place, str) else place

    def _forget(self, place: Place) -> None:
        """Its process is gone, and others may have the ports that its connections had."""
        if self._table is not None:
            self._table.forget(self._owner(place))

    def _is_gone(self, broker_id: int) -> None:
        self._forget(broker_id)
        host, _, port = self._addresses[broker_id - 1].rpartition(":")
        with contextlib.suppress(OSError):  # somebody has it already
            self._kept_ports[broker_id] = KeptPort(host, int(port))

    def _hear(self, event: SupervisorEvent) -> None:
        if isinstance(event, ProcessEnded):
            self._ended[event.name] = event.reason or f"exit status {event.status}"
            if isinstance(place := _place(event.name), int) and self._addresses:
                self._is_gone(place)

    def _control(self, place: Place) -> Control:
        name = _name(place)
        if name not in self._running().processes:
            raise NodeError(f"{name} does not run: start it first")
        if place in self._paused:
            raise NodeError(f"{name} is paused: resume it first")
        return self._controls[name]

    def _ask(self, place: Place, order: str, **arguments: Any) -> Any:
        return self._control(place).ask(order, **arguments)

    def _clear(self, name: str) -> None:
        control = self._controls[name]
        control.ask("slow down", seconds=0)
        control.ask("heal")
        if name != COORDINATOR:
            control.ask("clear")

    def _apply_cuts(self, places: Iterable[Place]) -> None:
        for place in places:
            if cut := self._ports_cut(place):
                self._ask(place, "cut", ports=[*cut.values()])

    def _ports_cut(self, place: Place) -> dict[Place, int]:
        """Of those from which a place is cut off."""
        if not self._cuts:
            return {}
        addresses: dict[Place, str] = dict(zip(self._plan.broker_ids, self._addresses, strict=True))
        addresses[COORDINATOR] = self._running().description()["coordinator"]["address"]
        return {
            other: int(address.rpartition(":")[2])
            for other, address in addresses.items()
            if frozenset((place, other)) in self._cuts
        }

    def _resume_all(self, supervisor: Supervisor) -> None:
        for place in self._paused:
            with contextlib.suppress(KeyError):  # it was killed meanwhile
                supervisor.resume(_name(place))
        self._paused.clear()


async def _until_stands(process_id: int) -> None:
    while not _stands(process_id):
        await turn()


def _stands(process_id: int) -> bool:
    """Looks only: neither the stop nor an exit is taken from who waits for it."""
    looked = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, process_id, looked) is not None
    except ChildProcessError:  # its exit was taken already
        return True


def _name(place: Place) -> str:
    return COORDINATOR if isinstance(place, str) else f"broker-{place}"


def _place(name: str) -> Place:
    return COORDINATOR if name == COORDINATOR else int(name.rpartition("-")[2])
