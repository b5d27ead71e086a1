"""Clusters of brokers of both kinds, Barnabas and Apache Kafka 3.9.1, on one coordinator of either kind.

Ids say the kind: 1 and 2 are ours, 11 and 12 Apache Kafka's.
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import MetadataRequest
from tests.support import raw_zookeeper as raw
from tests.support.apache_kafka import SMALL_HEAP_OPTIONS, ApacheKafkaBroker, run_tool
from tests.support.broker_process import ZOOKEEPER_TICK_MS, BrokerProcess
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.ports import free_port
from tests.support.raw_zookeeper import Operation, RawSession
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, metadata
from tests.support.zookeeper import ZooKeeperServer

PATIENCE_SECONDS: Final = 90.0
SESSION_TIMEOUT_MS: Final = 3_000
LAG_TIME_MAX_MS: Final = 2_000
METADATA_VERSION: Final = 12
_JMX_OPTIONS: Final = (
    "-Dcom.sun.management.jmxremote.port={0}",
    "-Dcom.sun.management.jmxremote.rmi.port={0}",
    "-Dcom.sun.management.jmxremote.host=127.0.0.1",
    "-Djava.rmi.server.hostname=127.0.0.1",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
)
OVERRIDES: Final[Mapping[str, object]] = {
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "default.replication.factor": 3,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": LAG_TIME_MAX_MS,
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": 200,
    "controller.socket.timeout.ms": 5_000,
}
_LOG_LINE: Final = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,.]+\] (?P<level>[A-Z]+) ")
_HARMLESS_LEVELS: Final = frozenset({"TRACE", "DEBUG", "INFO"})
EXPECTED_COMPLAINTS: Final = (
    # A broker is gone, or not there yet.
    r"Connection to node \d+ \(.*\) could not be established",
    r"Controller \d+'s connection to broker .* was unsuccessful",
    r"Error in response for fetch request .*java\.(io\.IOException: Connection to|net\.)",
    r"Controller \d+ epoch \d+ fails to send request .*Reconnecting to broker",
    r"Controller \d+ fails to send a request to broker .*java\.lang\.InterruptedException",
    r"No connection to 127\.0\.0\.1:\d+: ",
    r"Fetching from broker \d+ at .* failed: (no connection to|the connection with|no answer)",
    r"Controller \d+ fails to send [A-Z_]+ to broker \d+: (no connection to|the connection with)",
    r"Broker \d+ is registered already, by session",
    # A broker was suspended for longer than its session.
    r"Session 0x[0-9a-f]+ is over \(expired\)",
    r"Unable to reconnect to ZooKeeper service, session 0x[0-9a-f]+ has expired",
    r"Client session timed out, have not heard from server in",
    r"Session 0x[0-9a-f]+ for server .*, Closing socket connection\. Attempting reconnect",
    # A follower hears of a new leader epoch after the leader, and of a new topic before it; a new leader's high
    # watermark is that of its last fetch, which may be behind that of another follower.
    r"Partition \S+ marked as failed",
    r"failed: its leader is in a newer epoch than \d+, of which the controller will tell",
    r"Received (UNKNOWN_TOPIC_ID|UNKNOWN_TOPIC_OR_PARTITION) from the leader for partition",
    r"Non-monotonic update of high watermark",
    # A new controller first takes away the leaders that died with the one before it, and elects then.
    r"cannot become follower since the new leader -1 is unavailable",
    r"Cannot become follower of partition .*: the leader -1 is not alive",
    # Apache Kafka starts on a directory in which Barnabas left deleted logs, whose last indexes it never wrote.
    r"Could not find offset index file corresponding to log file \S+-delete/",
    # A loaded machine; the tests' summary counts these.
    r"One turn of the loop took \d+ ms",
    # What Barnabas says at its start.
    r"Known but not supported yet, and without effect: ",
)
"""What brokers of either kind say as a warning or an error when nothing is wrong with the other kind."""


class Kind(enum.Enum):
    """Whose broker it is."""

    BARNABAS = "barnabas"
    APACHE_KAFKA = "apache-kafka"

    @property
    def other(self) -> Kind:
        return Kind.APACHE_KAFKA if self is Kind.BARNABAS else Kind.BARNABAS


IDS: Final[Mapping[Kind, tuple[int, int]]] = {Kind.BARNABAS: (1, 2), Kind.APACHE_KAFKA: (11, 12)}
ALL_IDS: Final = (*IDS[Kind.BARNABAS], *IDS[Kind.APACHE_KAFKA])


def kind_of(broker_id: int) -> Kind:
    return Kind.BARNABAS if broker_id in IDS[Kind.BARNABAS] else Kind.APACHE_KAFKA


class MixedCluster:
    """Two brokers of either kind. Every broker can be killed, stopped, suspended and started again."""

    def __init__(
        self,
        directory: Path,
        *,
        coordinator: str,
        overrides: Mapping[str, object] | None = None,
        overrides_of_second: Mapping[str, object] | None = None,
    ) -> None:
        """`coordinator` is "embedded" or "zookeeper"; `overrides_of_second` are of the second broker of each kind."""
        self.coordinator: EmbeddedCoordinator | ZooKeeperServer = (
            EmbeddedCoordinator(directory / "coordinator", options=("--tick-time", str(ZOOKEEPER_TICK_MS)))
            if coordinator == "embedded"
            else ZooKeeperServer(directory / "coordinator")
        )
        # Prometheus' or JMX, by the kind that runs.
        self._metrics_ports = {broker_id: free_port() for broker_id in ALL_IDS}
        self.brokers: dict[int, BrokerProcess | ApacheKafkaBroker] = {}
        self._data_directories: dict[int, Path] = {}
        self._overrides: dict[int, Mapping[str, object]] = {}
        self._log_files: list[tuple[int, Path]] = []
        for kind, ids in IDS.items():
            of_second = {**(overrides or {}), **(overrides_of_second or {})}
            for broker_id, own in zip(ids, (overrides or {}, of_second), strict=True):
                self._overrides[broker_id] = {**OVERRIDES, **own}
                broker = self._broker(directory / str(broker_id), broker_id, kind, self._overrides[broker_id])
                self.brokers[broker_id] = broker
                self._data_directories[broker_id] = (
                    broker.log_directory if isinstance(broker, ApacheKafkaBroker) else broker.directory / "data"
                )

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def start(self) -> None:
        """Starts everything; returns when every broker knows all the others."""
        self.coordinator.start()
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.wait_until_ready()
        wait_until(self._all_know_all, "all brokers know each other", PATIENCE_SECONDS, self.log_tails)

    def stop(self) -> None:
        """Ends everything, the coordinator last."""
        for broker in self.brokers.values():
            broker.kill()
        self.coordinator.kill()

    def port(self, broker_id: int) -> int:
        return self.brokers[broker_id].port

    def running(self) -> list[int]:
        return [broker_id for broker_id, broker in self.brokers.items() if broker.process.is_running]

    def data_directory(self, broker_id: int) -> Path:
        """Its one `log.dirs`."""
        return self._data_directories[broker_id]

    @contextlib.contextmanager
    def exchanged(self, broker_id: int) -> Iterator[None]:
        """Inside the block, a broker of the other kind goes on with the id, the port and the log directory of this one.

        Both are stopped and started in order: by SIGTERM, and until they serve.
        """
        first = self.brokers[broker_id]
        overrides = {**self._overrides[broker_id], "log.dirs": self.data_directory(broker_id)}
        second = self._broker(
            first.directory.with_name(f"{broker_id}-exchanged"),
            broker_id,
            kind_of(broker_id).other,
            overrides,
            first.port,
        )
        for before, after in ((first, second), (second, first)):
            before.stop()
            self.brokers[broker_id] = after
            after.start()
            if after is second:
                yield

    # ---- the controller

    def controller(self) -> int:
        """The broker in /controller; waits while there is none, or one that is gone."""

        def found() -> int | None:
            value = self.znode("/controller")
            holder = -1 if value is None else int(value["brokerid"])
            return holder if holder in self.running() else None

        return wait_until(found, "there is a controller", PATIENCE_SECONDS, self.log_tails)

    def move_controller(self, broker_id: int) -> None:
        """Has this broker be the controller: deletes /controller while all others sleep. Returns when all name it."""
        if self.controller() != broker_id:
            epoch = self.controller_epoch()
            with contextlib.ExitStack() as sleep:
                for each in self.running():
                    if each != broker_id:
                        sleep.enter_context(self.suspended(each))
                self.delete_controller()
                wait_until(
                    lambda: self.controller_epoch() > epoch, "the controller moves", PATIENCE_SECONDS, self.log_tails
                )
        self.wait_until_controlled_by(broker_id)

    @contextlib.contextmanager
    def suspended(self, broker_id: int) -> Iterator[None]:
        """The broker sleeps inside the block."""
        process = self.brokers[broker_id].process
        process.suspend()
        try:
            yield
        finally:
            if process.is_running:
                process.resume()

    def wait_until_controlled_by(self, broker_id: int) -> None:
        """Waits until every running broker names this controller."""
        wait_until(
            lambda: all(metadata(self.port(each)).controller_id == broker_id for each in self.running()),
            f"all brokers name controller {broker_id}",
            PATIENCE_SECONDS,
            self.log_tails,
        )

    def delete_controller(self) -> None:
        with self._session() as session:
            session.call(raw.delete("/controller"))

    def controller_epoch(self) -> int:
        return int(self.znode("/controller_epoch") or 0)

    # ---- znodes

    def znode(self, path: str) -> Any:
        """The znode's JSON, or None when there is no such znode."""
        with self._session() as session:
            reply = session.call(raw.read(Operation.GET_DATA, path))
        return None if reply.error else json.loads(reply.body[0])

    def broker_epoch(self, broker_id: int) -> int:
        """The transaction that registered the broker; -1 while it is not."""
        with self._session() as session:
            reply = session.call(raw.read(Operation.EXISTS, f"/brokers/ids/{broker_id}"))
        return -1 if reply.error else int(reply.body.czxid)

    def children(self, path: str) -> list[str]:
        """Sorted; none when there is no such znode."""
        with self._session() as session:
            reply = session.call(raw.read(Operation.GET_CHILDREN, path))
        return [] if reply.error else sorted(reply.body)

    def partition_state(self, topic: str, partition: int) -> Any:
        """leader, leader_epoch, isr, controller_epoch; None before it has one."""
        return self.znode(f"/brokers/topics/{topic}/partitions/{partition}/state")

    # ---- metadata

    def view(self, broker_id: int, topics: Sequence[str] | None = None) -> Any:
        """All that a client is told by this broker, in one order: (controller, cluster, brokers, topics).

        Of all topics where none are named.
        """
        asked = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        answer = call(self.port(broker_id), ApiKey.METADATA, METADATA_VERSION, request, 30.0)
        brokers = sorted((each.node_id, each.host, each.port, each.rack) for each in answer.brokers)
        return answer.controller_id, answer.cluster_id, brokers, sorted(map(_topic_view, answer.topics))

    def wait_until_agreed(self, topics: Sequence[str] | None = None) -> Any:
        """Waits until all running brokers tell clients the same, and returns it."""

        def agreed() -> Any:
            views = [self.view(each, topics) for each in self.running()]
            return views[0] if all(view == views[0] for view in views) else None

        def evidence() -> str:
            return "\n".join(f"{each}: {self.view(each, topics)}" for each in self.running())

        return wait_until(agreed, "all brokers tell the same", PATIENCE_SECONDS, evidence)

    def wait_until_whole(self, topic: str) -> Any:
        """Waits until all replicas of the topic are in sync and all running brokers agree; returns the view."""

        def whole() -> Any:
            views = [self.view(each, [topic]) for each in self.running()]
            (name, _id, error, _internal, partitions) = views[0][3][0]
            complete = error == 0 and all(
                sorted(isr) == sorted(replicas) and not offline and leader >= 0
                for _index, _error, leader, _epoch, replicas, isr, offline in partitions
            )
            return views[0] if complete and name and all(view == views[0] for view in views) else None

        def evidence() -> str:
            views = "\n".join(f"{each}: {self.view(each, [topic])}" for each in self.running())
            return f"{views}\n{self.log_tails()}"

        return wait_until(whole, f"{topic} has all replicas in sync", PATIENCE_SECONDS, evidence)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Waits until the partition has a leader that runs, in the znode and in the metadata of all running brokers."""

        def found() -> int | None:
            state = self.partition_state(topic, partition)
            if state is None or state["leader"] not in self.running():
                return None
            for each in self.running():
                for index, _error, leader, epoch, *_rest in self.view(each, [topic])[3][0][4]:
                    if index == partition and (leader, epoch) != (state["leader"], state["leader_epoch"]):
                        return None
            return int(state["leader"])

        return wait_until(found, f"{topic}-{partition} has a leader", PATIENCE_SECONDS, self.log_tails)

    # ---- metrics

    def fetch_session_count(self, broker_id: int) -> int:
        """How many incremental fetch sessions (KIP-227) the broker keeps, of followers and of clients."""
        if kind_of(broker_id) is Kind.BARNABAS:
            url = f"http://127.0.0.1:{self._metrics_ports[broker_id]}/metrics"
            with urllib.request.urlopen(url, timeout=60) as answer:
                found = re.search(
                    r"^kafka_server_fetchsessioncache_numincrementalfetchsessions (\S+)$",
                    answer.read().decode(),
                    re.MULTILINE,
                )
            assert found is not None
            return int(float(found[1]))
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{self._metrics_ports[broker_id]}/jmxrmi"
        bean = "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions"
        rows = run_tool("org.apache.kafka.tools.JmxTool", ["--jmx-url", url, "--object-name", bean, "--one-time"])
        return int(rows.split()[-1].split(",")[1])

    # ---- logs

    def unexpected_complaints(self, *provoked: str) -> list[str]:
        """What any broker wrote to its log as a warning or an error, and is not in EXPECTED_COMPLAINTS nor `provoked`
        (patterns).
        """
        patterns = (*EXPECTED_COMPLAINTS, *provoked)
        expected = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.DOTALL)
        return [
            f"{broker_id}: {complaint[:2_000]}"
            for broker_id, path in self._log_files
            for complaint in _complaints(path)
            if not expected.search(complaint)
        ]

    def log_tails(self) -> str:
        return "\n".join(
            broker.process.log_tail() if isinstance(broker, ApacheKafkaBroker) else broker.log_tail()
            for broker in self.brokers.values()
        )

    def _broker(
        self,
        directory: Path,
        broker_id: int,
        kind: Kind,
        overrides: Mapping[str, object],
        port: int | None = None,
    ) -> BrokerProcess | ApacheKafkaBroker:
        address, metrics_port = self.coordinator.address, self._metrics_ports[broker_id]
        if kind is Kind.BARNABAS:
            metrics = {"barnabas.metrics.port": metrics_port}
            ours = BrokerProcess(directory, broker_id, address, overrides={**overrides, **metrics}, port=port)
            self._log_files.append((broker_id, ours.log_path))
            return ours
        java_options = (*SMALL_HEAP_OPTIONS, *(option.format(metrics_port) for option in _JMX_OPTIONS))
        theirs = ApacheKafkaBroker(
            directory, address, broker_id, overrides=overrides, java_options=java_options, port=port
        )
        self._log_files.append((broker_id, theirs.directory / "server.log"))
        return theirs

    def _all_know_all(self) -> bool:
        return all(
            sorted(each.node_id for each in metadata(self.port(own)).brokers) == sorted(ALL_IDS) for own in ALL_IDS
        )

    @contextlib.contextmanager
    def _session(self) -> Iterator[RawSession]:
        session = RawSession(self.coordinator.port)
        try:
            session.connect()
            yield session
            session.close()
        finally:
            session.drop()


def _complaints(path: Path) -> Iterator[str]:
    """Warnings and errors in a log, each with the lines that belong to it; none where there is no such file."""
    complaint: list[str] = []
    for line in [*(path.read_text("utf-8", "replace").splitlines() if path.exists() else ()), None]:
        start = None if line is None else _LOG_LINE.match(line)
        if complaint and (line is None or start is not None):
            yield "\n".join(complaint)
            complaint.clear()
        if line is not None and (complaint or (start is not None and start["level"] not in _HARMLESS_LEVELS)):
            complaint.append(line)


def _topic_view(topic: Any) -> Any:
    partitions = sorted(
        (
            each.partition_index,
            each.error_code,
            each.leader_id,
            each.leader_epoch,
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
            tuple(each.offline_replicas),
        )
        for each in topic.partitions
    )
    return topic.name, bytes(topic.topic_id).hex(), topic.error_code, topic.is_internal, partitions


@contextlib.contextmanager
def mixed_cluster(
    directory: Path,
    *,
    coordinator: str,
    overrides: Mapping[str, object] | None = None,
    overrides_of_second: Mapping[str, object] | None = None,
) -> Iterator[MixedCluster]:
    """A running cluster; its processes are ended with the block."""
    cluster = MixedCluster(
        directory, coordinator=coordinator, overrides=overrides, overrides_of_second=overrides_of_second
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
