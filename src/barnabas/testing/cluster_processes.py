"""A cluster of processes: what `barnabas up` runs, watched by its supervisor, with faults that signals make."""

from __future__ import annotations

import os
from typing import Final

from barnabas.kernel.host import Host
from barnabas.kernel.real_host import RealHost
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.supervisor import ClusterStartError, Supervisor
from barnabas.testing.cluster_nodes import COORDINATOR, Place
from barnabas.testing.real_node import Node, NodeError, turn
from barnabas.testing.request_faults import RequestFault
from barnabas.wire.api_keys import ApiKey

START_SECONDS_MAX: Final = 120.0
_STOP_SECONDS_MAX: Final = 60.0


class ProcessCluster:
    """The cluster of one plan; `start` it once. As `cluster_nodes.NodeCluster`, as far as signals reach."""

    def __init__(self, plan: ClusterPlan, operator: Node) -> None:
        """`operator` is a node whose loop looks after the processes."""
        self._plan = plan
        self._operator = operator
        self._supervisor: Supervisor | None = None
        self._addresses: list[str] = []
        self._paused: set[Place] = set()

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
        supervisor = self._operator.call(lambda: Supervisor(real, self._plan))
        try:
            self._operator.run(supervisor.start(), START_SECONDS_MAX)
        except ClusterStartError as error:
            raise NodeError(str(error)) from error
        self._supervisor = supervisor
        self._addresses = supervisor.bootstrap_servers.split(",")

    def stop(self) -> None:
        """Stops all in order."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            self._operator.call(self._resume_all, supervisor)
            self._operator.run(supervisor.stop(), _STOP_SECONDS_MAX)

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
        down = {broker_id for broker_id in self._plan.broker_ids if not self.is_running(broker_id)}
        return [broker_id for broker_id in self._plan.broker_ids if broker_id not in down | self._paused]

    def stop_broker(self, broker_id: int) -> None:
        self._check_running(broker_id)
        self.resume(broker_id)
        self._operator.run(self._running().stop_broker(broker_id), _STOP_SECONDS_MAX)

    def kill_broker(self, broker_id: int) -> None:
        """kill -9."""
        self._check_running(broker_id)
        self._operator.run(self._running().kill_broker(broker_id), _STOP_SECONDS_MAX)
        self._paused.discard(broker_id)

    def start_broker(self, broker_id: int) -> None:
        if self.is_running(broker_id):
            raise NodeError(f"broker-{broker_id} runs already")
        try:
            self._operator.run(self._running().start_broker(broker_id), START_SECONDS_MAX)
        except ClusterStartError as error:
            raise NodeError(str(error)) from error

    def pause(self, place: Place) -> None:
        """SIGSTOP; returns when the process stands: on a busy machine it runs on for milliseconds."""
        process_id = self.processes[_name(place)]
        self._operator.call(self._running().suspend, _name(place))
        self._paused.add(place)
        self._operator.run(_until_stands(process_id), _STOP_SECONDS_MAX)

    def resume(self, place: Place) -> None:
        """SIGCONT."""
        self._operator.call(self._running().resume, _name(place))
        self._paused.discard(place)

    def clear_faults(self) -> None:
        self._operator.call(self._resume_all, self._running())

    # What needs the inside of a broker.

    def is_known(self) -> bool:
        """Taken for granted: nothing that a process says of itself tells of its session."""
        return True

    def expire_session(self, _broker_id: int) -> None:
        raise _not_here("expire_session")

    def partition(self, _places: tuple[Place, ...], _others: tuple[Place, ...]) -> None:
        raise _not_here("partition")

    def heal(self) -> None:
        """There is nothing to heal."""

    def slow_disk(self, _place: Place, _seconds: float) -> None:
        raise _not_here("slow_disk")

    def add_fault(self, _broker_id: int | None, _fault: RequestFault) -> None:
        raise _not_here("a fault of requests")

    def faults_left(self, _api_key: ApiKey) -> int:
        return 0

    # Inside.

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise NodeError("the cluster does not run")
        return self._supervisor

    def _check_running(self, broker_id: int) -> None:
        if not self.is_running(broker_id):
            raise NodeError(f"broker-{broker_id} does not run")

    def _resume_all(self, supervisor: Supervisor) -> None:
        for place in self._paused:
            supervisor.resume(_name(place))
        self._paused.clear()


async def _until_stands(process_id: int) -> None:
    while not _stands(process_id):
        await turn()


def _stands(process_id: int) -> bool:
    """Looks only: neither the stop nor an exit is taken from who waits for it."""
    looked = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process_id, looked) is not None


def _name(place: Place) -> str:
    return COORDINATOR if isinstance(place, str) else f"broker-{place}"


def _not_here(what: str) -> NodeError:
    return NodeError(f"{what} works in a cluster in this process only: leave processes=True away")
