"""A cluster of nodes in this process: the coordinator and brokers of `barnabas up`, each on a loop of its own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.kernel.host import Host
from barnabas.server.broker import Broker
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.config import read_server_config
from barnabas.server.entry import broker_main, coordinator_main
from barnabas.server.property_files import properties_text
from barnabas.testing.real_node import Node, NodeError
from barnabas.testing.real_ports import KeptPort
from barnabas.testing.request_faults import RequestFault, RequestFaults
from barnabas.testing.session_faults import epochs_seen_by, expire_session, present_epoch
from barnabas.wire.api_keys import ApiKey

START_SECONDS_MAX: Final = 60.0
COORDINATOR: Final = "coordinator"
Place = int | str
"""A broker's id, or `coordinator`."""
_SESSION_TIMEOUT_MS_MIN: Final = 100


def check_configs(plan: ClusterPlan) -> None:
    """Raises BrokerConfigError, a ValueError, where no broker can start with what the plan overrides."""
    for broker_id in plan.broker_ids:
        read_server_config(properties_text(plan.properties(broker_id, f"{plan.host}:1", 0)), "config")


@dataclass(slots=True)
class _Member:
    """A broker; `node` is its present run, or its last one."""

    node: Node
    port: int
    broker: Broker | None = None
    faults: RequestFaults | None = None
    kept_port: KeptPort | None = None
    """While it is down."""


class NodeCluster:
    """The cluster of one plan; `start` it once. All methods are for one thread at a time, outside the cluster."""

    def __init__(
        self, plan: ClusterPlan, operator: Node, *, durable: bool, log_handler: logging.Handler | None
    ) -> None:
        """`operator` is the node that asks the cluster on its owner's behalf; faults of requests spare it."""
        self._plan = plan
        self._operator = operator
        self._durable = durable
        self._log_handler = log_handler
        self._coordinator: Node | None = None
        self._coordinator_port = 0
        self._members: dict[int, _Member] = {}
        self._cuts: set[frozenset[Place]] = set()

    # All of them.

    def start(self) -> None:
        """Returns when every broker serves. Raises NodeError; `stop` takes down what was started."""
        plan = self._plan
        config = CoordinatorConfig(
            f"{plan.coordinator_directory}/data", plan.host, 0, min_session_timeout_ms=_SESSION_TIMEOUT_MS_MIN
        )

        async def coordinate(host: Host, serves: Callable[[object], None]) -> None:
            await coordinator_main(config, on_started=serves)(host)

        node = self._coordinator = Node(COORDINATOR, coordinate, durable=self._durable)
        coordinator: EmbeddedCoordinator = node.until_started(START_SECONDS_MAX)
        self._coordinator_port = coordinator.port
        for broker_id in plan.broker_ids:
            self._members[broker_id] = _Member(self._broker_node(broker_id, 0), 0)
        for member in self._members.values():
            self._await(member)

    def stop(self) -> None:
        """Stops brokers, then the coordinator, in order. Raises NodeError for those that had ended by themselves, or
        did not stop.
        """
        # Who stops in order asks the others.
        for node in self._nodes().values():
            node.resume()
            node.files.slow_down(0)
        self.heal()
        errors = []
        for node in self._nodes().values():  # the coordinator is the last
            ended = None if node.is_running else node.error
            try:
                node.stop()
            except NodeError as error:
                ended = error
            if ended is not None:
                errors.append(f"{node.name} ended by itself: {ended}")
        for member in self._members.values():
            if member.kept_port is not None:
                member.kept_port.close()
        if errors:
            raise NodeError("; ".join(errors))

    @property
    def addresses(self) -> list[str]:
        """Of all brokers, by their ids."""
        return [f"{self._plan.host}:{member.port}" for member in self._members.values()]

    def is_running(self, broker_id: int) -> bool:
        return self._members[broker_id].node.is_running

    def answering(self) -> list[int]:
        """The brokers that hear of changes, and can be asked: those that are not down, paused or cut off."""
        cut_off = frozenset().union(*self._cuts)
        return [
            broker_id
            for broker_id, member in self._members.items()
            if member.node.is_running and not member.node.is_paused and broker_id not in cut_off
        ]

    # One broker.

    def stop_broker(self, broker_id: int) -> None:
        """In order: its leaders move away before."""
        self._end(broker_id, lambda node: node.stop())

    def kill_broker(self, broker_id: int) -> None:
        """As kill -9."""
        self._end(broker_id, lambda node: node.kill())

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that is down, on the port that it had; returns when it serves."""
        member = self._members[broker_id]
        if member.node.is_running:
            raise NodeError(f"{member.node.name} runs already")
        if member.kept_port is not None:
            member.kept_port.close()
            member.kept_port = None
        member.node = self._broker_node(broker_id, member.port)
        self._await(member)
        self._apply_cuts([broker_id])

    def pause(self, place: Place) -> None:
        self._node(place).pause()

    def resume(self, place: Place) -> None:
        self._node(place).resume()

    def slow_disk(self, place: Place, seconds: float) -> None:
        self._node(place).files.slow_down(seconds)

    def expire_session(self, broker_id: int) -> None:
        """Ends the broker's session in the coordinator, and its connection. Raises NodeError where it has none."""
        coordinator = self._coordinator
        if coordinator is None:
            raise NodeError("the cluster does not run")
        embedded: EmbeddedCoordinator = coordinator.until_started(START_SECONDS_MAX)
        if not coordinator.call(expire_session, embedded, broker_id):
            raise NodeError(f"broker {broker_id} has no session")

    def is_known(self) -> bool:
        """Whether the controller knows every broker that runs, by its present session."""
        running = {broker_id: member for broker_id, member in self._members.items() if member.node.is_running}
        seen: Mapping[int, int] = {}
        for member in running.values():
            seen = seen or member.node.call(epochs_seen_by, member.broker)
        node = self._node(COORDINATOR)
        coordinator: EmbeddedCoordinator = node.until_started(START_SECONDS_MAX)
        present = node.call(lambda: {broker_id: present_epoch(coordinator, broker_id) for broker_id in running})
        return all(epoch is not None and epoch == seen.get(broker_id) for broker_id, epoch in present.items())

    # Several.

    def partition(self, places: tuple[Place, ...], others: tuple[Place, ...]) -> None:
        """Nothing passes between each of these and each of the others. Raises NodeError where one of them is paused."""
        cuts = {frozenset((place, other)) for place in places for other in others if place != other}
        cut = frozenset().union(*cuts)
        for place, node in self._nodes().items():
            if place in cut and node.is_running and node.is_paused:
                raise NodeError(f"{node.name} is paused: resume it first")
        self._cuts |= cuts
        self._apply_cuts(cut)

    def heal(self) -> None:
        """Ends all partitions."""
        self._cuts.clear()
        for node in self._nodes().values():
            if node.is_paused:
                node.tell(node.links.heal)
            elif node.is_running:
                node.call(node.links.heal)

    def _apply_cuts(self, places: Iterable[Place]) -> None:
        nodes = self._nodes()
        for place in places:
            if (cut := self._ports_cut(place)) and nodes[place].is_running:
                nodes[place].call(nodes[place].links.cut, cut)

    def _ports_cut(self, place: Place) -> list[int]:
        """Of those from which a place is cut off."""
        ports: dict[Place, int] = {broker_id: member.port for broker_id, member in self._members.items()}
        ports[COORDINATOR] = self._coordinator_port
        return [port for other, port in ports.items() if frozenset((place, other)) in self._cuts]

    # Requests.

    def add_fault(self, broker_id: int | None, fault: RequestFault) -> None:
        """Gives a broker the fault, or each that runs, with a count of its own."""
        for member in self._members.values() if broker_id is None else [self._members[broker_id]]:
            if broker_id is None and not member.node.is_running:
                continue
            if member.faults is None:
                raise NodeError(f"{member.node.name} has not started")
            member.node.call(member.faults.add, dataclasses.replace(fault))

    def faults_left(self, api_key: ApiKey) -> int:
        """How many requests of the API are still to be struck."""
        return sum(
            member.node.call(member.faults.left, api_key)
            for member in self._members.values()
            if member.node.is_running and member.faults is not None
        )

    def clear_faults(self) -> None:
        """Ends all faults of requests and disks, and lets go on what is paused; partitions are healed."""
        for node in self._nodes().values():
            node.resume()
            node.files.slow_down(0)
        self.heal()
        for member in self._members.values():
            if member.node.is_running and member.faults is not None:
                member.node.call(member.faults.clear)

    # Inside.

    def _nodes(self) -> dict[Place, Node]:
        found: dict[Place, Node] = {broker_id: member.node for broker_id, member in self._members.items()}
        if self._coordinator is not None:
            found[COORDINATOR] = self._coordinator
        return found

    def _node(self, place: Place) -> Node:
        node = self._nodes()[place]
        if not node.is_running:
            raise NodeError(f"{node.name} does not run: start it first")
        return node

    def _broker_node(self, broker_id: int, port: int) -> Node:
        plan = self._plan
        text = properties_text(plan.properties(broker_id, f"{plan.host}:{self._coordinator_port}", port))
        # Without the coordinator it could not start.
        cut = [each for each in self._ports_cut(broker_id) if each != self._coordinator_port]

        async def serve(host: Host, serves: Callable[[object], None]) -> None:
            await broker_main(text, handler=self._log_handler, on_started=serves)(host)

        return Node(f"broker-{broker_id}", serve, durable=self._durable, ports_cut=cut)

    def _await(self, member: _Member) -> None:
        node = member.node
        broker: Broker = node.until_started(START_SECONDS_MAX)
        member.broker = broker
        member.port = broker.endpoints[0].port
        member.faults = RequestFaults(broker, node.links, self._is_of_cluster)
        node.run(broker.ready(), START_SECONDS_MAX)

    def _is_of_cluster(self, local_port: int, port: int) -> bool:
        nodes = (self._operator, *(member.node for member in self._members.values()))
        return any(node.links.has_connection(local_port, port) for node in nodes)

    def _end(self, broker_id: int, how: Callable[[Node], None]) -> None:
        member = self._members[broker_id]
        if not member.node.is_running:
            raise NodeError(f"{member.node.name} does not run")
        try:
            how(member.node)
        finally:
            if not self.is_running(broker_id):
                member.kept_port = KeptPort(self._plan.host, member.port)
