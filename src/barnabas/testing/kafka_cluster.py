"""A whole cluster for tests: real brokers with their coordinator on real sockets, ready in a fraction of a second.

    with KafkaCluster() as cluster:
        topic = cluster.create_topic()
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})

It is what `barnabas up` runs, in threads of this process, or, with `processes=True`, in processes. Any client works,
also in the same process, with asyncio or without. Faults are calls: `cluster.kill(1)`, `cluster.pause(2)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Self, TypeVar

from barnabas.kernel.host import Host
from barnabas.server.cluster_plan import REPLICAS_MAX, ClusterPlan
from barnabas.testing.cluster_admin import ClusterAdmin
from barnabas.testing.cluster_nodes import COORDINATOR, NodeCluster, Place, check_configs
from barnabas.testing.cluster_processes import ProcessCluster
from barnabas.testing.real_node import Node, NodeError, in_thread
from barnabas.testing.real_ports import OwnDirectory
from barnabas.testing.request_faults import SECONDS_MAX, RequestFault, api_named, error_named
from barnabas.wire.errors import ErrorCode, KafkaError

Result = TypeVar("Result")
DEFAULT_CONFIG: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.cleaner.enable": "false",
}
"""Broker configs that differ from those of `barnabas up`; `config` goes before them."""
CALL_SECONDS_MAX: Final = 60.0
_USABLE_SECONDS_MAX: Final = 60.0


class KafkaCluster:
    """Brokers 1 to `brokers` and a coordinator of their own; started and stopped once, or used as a context, with
    `async with` too.

    Its methods block for as long as they say, 60 s at most, and are for one thread at a time; in asyncio code call
    those that wait by `asyncio.to_thread`, where others of the loop must go on. They raise NodeError where a broker is
    not in the state that they need, and KafkaError where the cluster refuses.
    """

    def __init__(
        self,
        brokers: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        processes: bool = False,
        directory: str | None = None,
        session_timeout_ms: int = 6_000,
        durable: bool = False,
        log_handler: logging.Handler | None = None,
    ) -> None:
        """`config` has broker configs for all brokers, by Kafka's names. Raises ValueError for what cannot be set.

        Data go to `directory`, and stay there, or by default to a temporary one, which goes with the cluster. Nothing
        is synced unless `durable`: what was acknowledged survives `kill`, not a loss of power. A broker that is killed
        or paused is taken for dead after `session_timeout_ms`, or at once after `expire_session`. Lines of the brokers'
        logs go to `log_handler`.

        With `processes` the coordinator and each broker are a process of their own, with the same faults: `kill` is
        kill -9, `pause` SIGSTOP, files are synced, a session lasts 4 s at least, and logs are in the directory. That
        starts in a second or so.
        """
        if type(brokers) is not int:
            raise ValueError(f"brokers={brokers!r} must be a whole number: how many brokers there are")
        settings = {name: _text(value) for name, value in (config or {}).items()}
        self._own_directory: OwnDirectory | None = None
        self._plan = ClusterPlan(
            brokers=brokers,
            data_directory=directory or "barnabas-data",
            port=0,
            session_timeout_ms=session_timeout_ms,
            overrides={**DEFAULT_CONFIG, **settings},
        )
        check_configs(self._plan)
        self._has_directory = directory is not None
        self._durable = durable
        self._log_handler = log_handler
        self._in_processes = processes
        self._nodes: NodeCluster | ProcessCluster | None = None
        self._operator: Node | None = None
        self._admin: ClusterAdmin | None = None
        self._topics_made = 0

    # The cluster.

    def start(self) -> Self:
        """Starts everything, and returns when a client can produce and a group can form. Raises NodeError, and then
        has stopped again.
        """
        if self._operator is not None:
            raise NodeError("the cluster was started before: make another one")
        try:
            self._start()
        except BaseException:
            with contextlib.suppress(NodeError):
                self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops everything in order and leaves no thread, socket or file of it. Raises NodeError, in the end, where a
        broker had ended by itself.
        """
        nodes, self._nodes = self._nodes, None
        admin, self._admin = self._admin, None
        operator = self._operator
        try:
            if operator is not None and operator.is_running and admin is not None:
                operator.run(admin.close(), CALL_SECONDS_MAX)
            if nodes is not None:
                nodes.stop()
        finally:
            if operator is not None:
                operator.stop()
            if self._own_directory is not None:
                self._own_directory.remove()
                self._own_directory = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await in_thread(self.start)

    async def __aexit__(self, *_error: object) -> None:
        await in_thread(self.stop)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, with commas between them, as clients take it."""
        return ",".join(self._running().addresses)

    def address(self, broker_id: int) -> str:
        """`host:port` of one broker, which it keeps when it is stopped and started."""
        return self._running().addresses[self._broker(broker_id) - 1]

    @property
    def directory(self) -> str:
        """Where the data are."""
        return self._plan.data_directory

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers: 1, 2, ..."""
        return tuple(self._plan.broker_ids)

    @property
    def process_ids(self) -> dict[str, int]:
        """With `processes`, the ids of those that run: `coordinator`, `broker-1`, ...; empty in this process."""
        nodes = self._running()
        return nodes.processes if isinstance(nodes, ProcessCluster) else {}

    def is_running(self, broker_id: int) -> bool:
        """Whether a broker was started and neither stopped nor killed since; also while it is paused."""
        return self._running().is_running(self._broker(broker_id))

    # Topics.

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic, and returns its name when all brokers that answer know it; None takes a name that is new.

        `replication_factor` is that of the brokers by default: as many as there are, three at most. Raises KafkaError,
        such as TOPIC_ALREADY_EXISTS.
        """
        replicas = replication_factor or min(self._plan.brokers, REPLICAS_MAX)
        settings = {key: _text(value) for key, value in (config or {}).items()}
        while name is None:
            made = self.free_name()
            try:
                return self.create_topic(made, partitions=partitions, replication_factor=replicas, config=settings)
            except KafkaError as error:
                # In a directory that another cluster had there may be topics with such names.
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        topic, known_to = name, self._running().answering()
        self._ask(lambda admin: admin.create_topic(topic, partitions, replicas, settings, known_to))
        return topic

    def free_name(self, beginning: str = "topic") -> str:
        """A name for a topic that this cluster has not given before: what is given, and a number."""
        self._topics_made += 1
        return f"{beginning}-{self._topics_made}"

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and returns when it is gone and another may have its name."""
        self._ask(lambda admin: admin.delete_topic(name))

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads the partition; -1 for none."""
        return self._ask(lambda admin: admin.partition(topic, partition)).leader_id

    def replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ids of the brokers that have the partition, the preferred leader first."""
        return self._ask(lambda admin: admin.partition(topic, partition)).replicas

    def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ids of the brokers that are in sync (ISR)."""
        return self._ask(lambda admin: admin.partition(topic, partition)).isr

    def controller(self) -> int:
        """The id of the controller; -1 for none."""
        return self._ask(lambda admin: admin.controller())

    # Faults of brokers. A place is a broker's id, or "coordinator".

    def kill(self, broker_id: int) -> None:
        """Ends a broker at once, as `kill -9` ends its process: connections are reset, nothing is flushed, no leader
        moves away, and its session is left to expire. Returns when nothing of it runs.
        """
        self._running().kill_broker(self._broker(broker_id))

    def stop_broker(self, broker_id: int) -> None:
        """Stops a broker in order: its leaders move away before."""
        self._running().stop_broker(self._broker(broker_id))

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that is down, with the data and the port that it had; returns when the controller knows it.
        After a kill that is when its former session has ended. Raises NodeError where the controller cannot reach it.
        """
        self._running().start_broker(self._broker(broker_id))

    def restart(self, broker_id: int) -> None:
        """Stops a broker in order, and starts it again."""
        self.stop_broker(broker_id)
        self.start_broker(broker_id)

    def pause(self, place: Place) -> None:
        """Stops a broker, or the coordinator, where it is, as SIGSTOP does: it answers nobody, and its connections
        stay.
        """
        self._running().pause(self._known(place))

    def resume(self, place: Place) -> None:
        """Lets go on what was paused, as SIGCONT does."""
        self._running().resume(self._known(place))

    def expire_session(self, broker_id: int) -> None:
        """Ends a broker's session with the coordinator, as if it had been silent for too long: the controller takes it
        for dead; a broker that runs registers again. Also for one that was killed, to have others lead at once.
        """
        self._running().expire_session(self._broker(broker_id))

    def partition(self, place: Place | Iterable[Place], *others: Place) -> None:
        """From now on nothing passes between these places and the others, all that are not named if none is:
        `partition(1, 2)`, `partition(1, "coordinator")`, `partition([1, 2])`. Connections stay, and hear nothing;
        clients reach all brokers as before.
        """
        places = [place] if isinstance(place, int | str) else list(place)
        everybody: list[Place] = [*self.broker_ids, COORDINATOR]
        rest = [each for each in everybody if each not in places]
        self._running().partition(tuple(map(self._known, places)), tuple(map(self._known, others or rest)))

    def heal(self) -> None:
        """Ends all partitions; what was sent meanwhile arrives."""
        self._running().heal()

    def slow_disk(self, place: Place, seconds: float) -> None:
        """Has each write, sync, and read that is not cached, of a broker or the coordinator, take so much longer, 60 s
        at most; 0 ends it.
        """
        self._running().slow_disk(self._known(place), seconds)

    def move_leader(self, topic: str, partition: int = 0, *, to: int) -> None:
        """Has another broker lead the partition, and returns when it does. Where it has no replica, the partition moves
        to it first, from the last of the replicas.
        """
        self._ask(lambda admin: admin.move_leader(topic, partition, self._broker(to)))

    def wait_for_leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> int:
        """Waits until a broker, and not that one, leads the partition; its id."""
        return self._ask(lambda admin: admin.until_leader(topic, partition, other_than))

    # Faults of requests, of clients only: what brokers ask each other goes on, and what the methods above ask.

    def fail_requests(
        self, api: str, error: str | int, *, count: int = 1, broker: int | None = None, client_id: str | None = None
    ) -> None:
        """Has the next `count` requests of an API answered with an error, and not carried out:
        `fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER")`.

        APIs and errors have Kafka's names. By default each broker strikes so many, and any client; `broker` and
        `client_id` narrow it. Faults of one API follow each other in the order of the calls.
        """
        self._add(RequestFault(api_named(api), count, error=error_named(error), client_id=client_id), broker)

    def delay_requests(
        self, api: str, seconds: float, *, count: int = 1, broker: int | None = None, client_id: str | None = None
    ) -> None:
        """Has the answers to the next `count` requests of an API come so much later, 300 s at most; with them what
        follows on their connections. Otherwise as `fail_requests`.
        """
        if not 0 < seconds <= SECONDS_MAX:
            raise ValueError(f"requests can be delayed by up to {SECONDS_MAX:g} s, not {seconds:g}")
        self._add(RequestFault(api_named(api), count, seconds=seconds, client_id=client_id), broker)

    def lose_answers(
        self, api: str, *, count: int = 1, broker: int | None = None, client_id: str | None = None
    ) -> None:
        """Has the next `count` requests of an API carried out, and their connections end instead of the answers: what
        makes a producer send twice. Otherwise as `fail_requests`.
        """
        self._add(RequestFault(api_named(api), count, is_lost=True, client_id=client_id), broker)

    def requests_to_fail(self, api: str) -> int:
        """How many requests of an API are still to be struck, of all brokers that run."""
        return self._running().faults_left(api_named(api))

    def clear_faults(self) -> None:
        """Ends everything of the above but the ends of brokers, which `start_broker` starts again."""
        self._running().clear_faults()

    def mend(self) -> None:
        """Ends all faults, and starts the brokers that are down, whose former sessions are ended; returns when the
        controller knows every broker by its present session.
        """
        self.clear_faults()
        for broker_id in self.broker_ids:
            if not self.is_running(broker_id):
                # Its former session may have to end first.
                with contextlib.suppress(NodeError):
                    self.expire_session(broker_id)
                self.start_broker(broker_id)
        is_known = self._running().is_known
        self._ask(lambda admin: admin.until(is_known))

    # Inside.

    def _known(self, place: Place) -> Place:
        if place not in (*self.broker_ids, COORDINATOR):
            raise ValueError(f"there is no {place!r}: there are brokers 1 to {self._plan.brokers} and {COORDINATOR!r}")
        return place

    def _broker(self, broker_id: int) -> int:
        if broker_id not in self.broker_ids:
            raise ValueError(f"there is no broker {broker_id!r}: there are 1 to {self._plan.brokers}")
        return broker_id

    def _add(self, fault: RequestFault, broker: int | None) -> None:
        count: Any = fault.left
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"count must be a whole number and at least 1, not {count!r}")
        self._running().add_fault(None if broker is None else self._broker(broker), fault)

    def _start(self) -> None:
        if not self._has_directory:
            self._own_directory = OwnDirectory()
            self._plan = _moved(self._plan, self._own_directory.path)
        operator = self._operator = Node("operator", _stay)
        nodes = self._nodes = (
            ProcessCluster(self._plan, operator)
            if self._in_processes
            else NodeCluster(self._plan, operator, durable=self._durable, log_handler=self._log_handler)
        )
        nodes.start()
        host: Host = operator.until_started(CALL_SECONDS_MAX)
        addresses = nodes.addresses
        admin = self._admin = operator.call(lambda: ClusterAdmin(host, addresses))
        if not operator.run(admin.until_usable(), _USABLE_SECONDS_MAX):
            raise NodeError(
                "groups cannot form: offsets.topic.replication.factor must not be more than there are brokers"
            )

    def _running(self) -> NodeCluster | ProcessCluster:
        if self._nodes is None:
            raise NodeError("the cluster does not run: start it, or use it in a with block")
        return self._nodes

    def _ask(self, ask: Callable[[ClusterAdmin], Coroutine[Any, Any, Result]]) -> Result:
        self._running()
        if self._admin is None or self._operator is None:
            raise NodeError("the cluster does not run: start it, or use it in a with block")
        return self._operator.run(ask(self._admin), CALL_SECONDS_MAX)


def _moved(plan: ClusterPlan, directory: str) -> ClusterPlan:
    return dataclasses.replace(plan, data_directory=directory)


async def _stay(host: Host, serves: Callable[[object], None]) -> None:
    """A node that does nothing but be there for calls."""
    serves(host)
    await host.loop.create_future()


def _text(value: object) -> str:
    """A config's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
