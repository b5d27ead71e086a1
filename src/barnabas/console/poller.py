"""Asks the cluster, once for everybody who looks: what a page costs a broker does not depend on who has it open.

Each question has an interval, is asked more seldom while nobody looks, and never so often that its answers take more
than a hundredth of the time. What is not answered keeps its last answer, which then says how old it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.admin import Admin
from barnabas.client.broker_views import BrokerViews, Software, software_at
from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo
from barnabas.client.cluster_health import (
    IMBALANCE_PERCENT,
    Observed,
    Problem,
    diagnose,
    imbalance_percent,
    min_isr_of_behind,
    observed,
)
from barnabas.client.errors import NoBrokerError
from barnabas.client.log_directories import LogDirectory, log_directories
from barnabas.client.reassignments import PartitionReassignment
from barnabas.console.alerts import AlertBoard
from barnabas.console.earlier_changes import earlier_changes
from barnabas.console.figures import Figures
from barnabas.console.groups import GROUPS_PER_BROKER_MAX, GroupsAndEnds, groups_and_ends
from barnabas.console.history import EarlierChanges, History, Samples
from barnabas.console.pipelines import LetterStarts, PipelineFile, ReadFiles, letter_starts, pipeline_of
from barnabas.console.question import Question
from barnabas.console.transactions import Transactions, transactions
from barnabas.kernel.host import OffloadKind
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.wire.messages import DescribeControllerResponse

WATCHED_SECONDS: Final = 60.0
"""How long after a page was asked for somebody is taken to look."""
TRANSITIONS_MAX: Final = 100
JUDGED_SECONDS: Final = 2.0
"""How often is looked whether the conditions of alerts hold."""
CLUSTER: Final = "cluster"
"""The name of the whole cluster among the samples of what is written."""
SMALL_PARTITIONS: Final = 2_000
"""Of so many partitions it is looked at once what is wrong; of more off the loop, and pages have the former finding."""
_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What one broker says of itself; both are None where it does not answer."""

    node: BrokerNode
    software: Software | None
    directories: tuple[LogDirectory, ...] | None
    took_seconds: float


@dataclass(frozen=True, slots=True)
class ControllerView:
    """Who the controller is, and what it says of itself; None where it is not ours."""

    node: BrokerNode
    found: DescribeControllerResponse | None


class Poller:
    """The questions and their answers; `run` asks until it is cancelled."""

    def __init__(self, client: Client, *, pace: float = 1.0, read_files: ReadFiles | None = None) -> None:
        """With a higher `pace` everything is asked so many times as often; `read_files` reads those of pipelines."""
        self.client = client
        self.history = History()
        self.lags = Samples()
        self.writes = Samples()
        self.reads = Samples()
        """Records per second, by the name of a pipeline."""
        self.queue = Samples()
        self.alerts = AlertBoard()
        self.transitions: deque[Any] = deque(maxlen=5 * TRANSITIONS_MAX)
        """The controller's last transitions, the oldest first, beyond what it remembers itself."""
        self._pace = pace
        self.has_files = read_files is not None
        self._read_files = read_files or (lambda: ())
        self._admin = Admin(client)
        self._files = Admin(client)
        """For what takes a broker longer, so that nothing waits behind it."""
        self._views = BrokerViews(client)
        self._lane = client.connections.new_lane()
        self._transactions_lane = client.connections.new_lane()
        self._letters_lane = client.connections.new_lane()
        self._watched_until = client.host.loop.time() + WATCHED_SECONDS
        self._groups_looked_at: dict[str, float] = {}
        """Until when each, who was looked at last behind the others."""
        self._ends_before: GroupsAndEnds | None = None
        self._problems: tuple[tuple[int, ...], list[Problem]] | None = None
        self._diagnosing: asyncio.Task[None] | None = None
        self._figures: Figures | None = None
        self._sizes_known: dict[int, dict[TopicPartition, int]] = {}
        question = self._question
        self.cluster: Question[Cluster] = question("Cluster", "Metadata", self._ask_cluster, 2)
        self.brokers: Question[Mapping[int, BrokerView]] = question(
            "Brokers", "DescribeLogDirs, each broker", self._ask_brokers, 10, _cost_of_views
        )
        self.settings: Question[tuple[Mapping[str, int], int]] = question(
            "Settings", "DescribeConfigs", self._ask_settings, 10
        )
        self.controller: Question[ControllerView] = question(
            "Controller", "DescribeController, where it is Barnabas", self._ask_controller, 2
        )
        self.groups: Question[GroupsAndEnds] = question(
            "Groups and offsets",
            "ListGroups, DescribeGroups, OffsetFetch, ListOffsets, each broker",
            self._ask_groups,
            5,
            _cost_of,
        )
        self.reassignments: Question[Mapping[TopicPartition, PartitionReassignment]] = question(
            "Reassignments", "ListPartitionReassignments, the controller", self._ask_reassignments, 5
        )
        self.transactions: Question[Transactions] = question(
            "Transactions", "ListTransactions, DescribeTransactions, each broker", self._ask_transactions, 10, _cost_of
        )
        self.letters: Question[LetterStarts] = question(
            "Dead letters", "ListOffsets, leaders of topics NAME.dlq", self._ask_letters, 10
        )
        self.earlier: Question[EarlierChanges | None] = question(
            "Earlier changes",
            "DescribeLeadershipChanges, each broker that is Barnabas, until one has told",
            self._ask_earlier,
            10,
        )
        self.pipelines: Question[Sequence[PipelineFile]] = question(
            "Files of pipelines", "nothing: files of this machine", self._ask_pipelines, 5, lambda _: 0.0
        )
        self.questions: tuple[Question[Any], ...] = (
            self.cluster,
            self.controller,
            self.groups,
            self.reassignments,
            self.brokers,
            self.settings,
            self.transactions,
            self.letters,
            self.earlier,
            *((self.pipelines,) if self.has_files else ()),
        )

    async def run(self) -> None:
        """Asks, until it is cancelled."""
        stop_using_all = self.client.metadata.use_all()
        try:
            # The others need to know who leads what.
            await self.cluster.ask_once()
            async with asyncio.TaskGroup() as group:
                for question in self.questions:
                    group.create_task(question.run(), name=f"console asks: {question.name}")
                group.create_task(self._judge(), name="console judges")
        finally:
            stop_using_all()

    async def close(self) -> None:
        """Ends the connections."""
        if self._diagnosing is not None:
            self._diagnosing.cancel()
            await asyncio.gather(self._diagnosing, return_exceptions=True)
        for user in (self._admin, self._files, self._views):
            await user.close()
        for lane in (self._lane, self._transactions_lane, self._letters_lane):
            await self.client.connections.close_lane(lane)

    def watch(self) -> None:
        """Somebody looks."""
        self._watched_until = self.client.host.loop.time() + WATCHED_SECONDS

    def look_at_groups(self, names: Iterable[str]) -> None:
        """Somebody looks at these, and has their offsets soon, however many groups there are."""
        until = self.client.host.loop.time() + WATCHED_SECONDS
        for name in names:
            self._groups_looked_at.pop(name, None)
            self._groups_looked_at[name] = until
        for name in list(self._groups_looked_at)[:-GROUPS_PER_BROKER_MAX]:
            del self._groups_looked_at[name]

    def problems(self) -> list[Problem]:
        """What is wrong with the cluster as it was seen last, the worst first; see `cluster health`."""
        cluster = self.cluster.value
        if cluster is None:
            return []
        # Looking at very many partitions takes a while; whoever looks sees the same.
        answers = (self.cluster.answers, self.brokers.answers, self.settings.answers, self.reassignments.answers)
        if self._problems is None or self._problems[0] != answers:
            if self._problems is None or self.figures(cluster).partitions <= SMALL_PARTITIONS:
                self._problems = answers, diagnose(self._observed(cluster))
            elif self._diagnosing is None:
                self._diagnosing = self.client.host.loop.create_task(
                    self._diagnose(answers, self._observed(cluster)), name="console looks what is wrong"
                )
        return self._problems[1]

    def figures(self, cluster: Cluster) -> Figures:
        """What is counted over all partitions of an image: once, and in a thread where it was asked for."""
        if self._figures is None or self._figures.cluster is not cluster:
            self._figures = Figures.of(cluster)
        return self._figures

    def missing(self, partition: TopicPartition, info: PartitionInfo) -> list[int]:
        """Replicas that are not in sync, and should be: not those that a reassignment is making."""
        moving = (self.reassignments.value or {}).get(partition)
        adding = () if moving is None else moving.adding_replicas
        return [each for each in info.replicas if each not in info.isr and each not in adding]

    def being_made(self, cluster: Cluster) -> dict[TopicPartition, list[int]]:
        """Where reassignments are making replicas that are not in sync yet."""
        found: dict[TopicPartition, list[int]] = {}
        for partition, moving in (self.reassignments.value or {}).items():
            info = cluster.partition(partition)
            late = [] if info is None else [each for each in moving.adding_replicas if each not in info.isr]
            if info is not None and (replicas := [each for each in late if each in info.replicas]):
                found[partition] = replicas
        return found

    def size_bytes(self, partition: TopicPartition, node_id: int) -> int | None:
        """The size of a replica on a broker; None where that has not told."""
        view = (self.brokers.value or {}).get(node_id)
        if view is None or view.directories is None:
            return None
        return self._sizes(view).get(partition)

    async def _diagnose(self, answers: tuple[int, ...], observed: Observed) -> None:
        try:
            self._problems = answers, await self.client.host.offload(OffloadKind.CPU, diagnose, observed)
        finally:
            self._diagnosing = None

    async def _judge(self) -> None:
        """Alerts depend on how long something was so, whether or not somebody looked."""
        while True:
            try:
                self.alerts.see(self, self.client.host.clock.time_ms())
            except Exception:
                # A mistake of ours keeps nothing else from being shown.
                self.client.logger.exception("Judging failed")
            await asyncio.sleep(JUDGED_SECONDS / self._pace)

    # Inside: what is asked.

    def _question(
        self, name: str, api: str, ask: Any, every_seconds: float, cost: Callable[[Any], float] | None = None
    ) -> Question[Any]:
        return Question(
            self.client.host,
            name,
            api,
            ask,
            every_seconds=every_seconds,
            pace=self._pace,
            timeout_seconds=_TIMEOUT_SECONDS,
            is_watched=self._is_watched,
            logger=self.client.logger,
            cost=cost,
        )

    def _is_watched(self) -> bool:
        return self.client.host.loop.time() < self._watched_until

    async def _ask_cluster(self) -> Cluster:
        metadata = self.client.metadata
        try:
            # Where the last attempt failed already, its reason is known, and is told soon.
            async with asyncio.timeout(_TIMEOUT_SECONDS * (0.9 if metadata.last_error is None else 0.2)):
                await metadata.update()
        except TimeoutError:
            raise NoBrokerError(str(metadata.last_error or "no broker answers")) from None
        cluster = metadata.cluster
        if self._figures is None or self._figures.cluster is not cluster:
            self._figures = await self.client.host.offload(OffloadKind.CPU, Figures.of, cluster)
        if self._problems is None and self._figures.partitions > SMALL_PARTITIONS:
            await self._diagnose((), self._observed(cluster))
        for _ in self.history.steps(cluster, self.client.host.clock.time_ms()):
            await asyncio.sleep(0)
        return cluster

    async def _ask_brokers(self) -> Mapping[int, BrokerView]:
        loop = self.client.host.loop

        async def ask(node: BrokerNode) -> BrokerView:
            began = loop.time()
            software, directories = await asyncio.gather(
                software_at(self._views, node), log_directories(self._files, node.node_id, 4_000)
            )
            return BrokerView(node, software, directories, loop.time() - began)

        nodes = self._nodes()
        views = {view.node.node_id: view for view in await asyncio.gather(*map(ask, nodes))}
        self._sizes_known = {}
        return views

    async def _ask_settings(self) -> tuple[Mapping[str, int], int]:
        self._nodes()
        cluster = self.client.cluster
        min_isr = await min_isr_of_behind(self._admin, cluster.topics)
        return min_isr, await imbalance_percent(self._admin, cluster.controller_id)

    async def _ask_controller(self) -> ControllerView:
        self._nodes()
        node, found = await self._views.describe_controller(TRANSITIONS_MAX, _TIMEOUT_SECONDS * 900)
        if found is not None:
            self._take_transitions(found.transitions)
            self.queue.add("events", self.client.host.clock.time_ms(), found.queued_events)
        return ControllerView(node, found)

    async def _ask_groups(self) -> GroupsAndEnds:
        self._nodes()
        partitions = (
            TopicPartition(name, number)
            for name, topic in sorted(self.client.cluster.topics.items())
            for number in topic.partitions
        )
        now = self.client.host.loop.time()
        self._groups_looked_at = {name: until for name, until in self._groups_looked_at.items() if until > now}
        found = await groups_and_ends(self.client, self._lane, partitions, self._groups_looked_at.keys())
        self._take_lags(found)
        self._take_reads(found)
        self._take_writes(found)
        return found

    async def _ask_reassignments(self) -> Mapping[TopicPartition, PartitionReassignment]:
        self._nodes()
        return await self._admin.list_partition_reassignments(None, _TIMEOUT_SECONDS * 900)

    async def _ask_transactions(self) -> Transactions:
        self._nodes()
        return await transactions(self.client, self._transactions_lane)

    async def _ask_letters(self) -> LetterStarts:
        self._nodes()
        return await letter_starts(self.client, self._letters_lane)

    async def _ask_earlier(self) -> EarlierChanges | None:
        nodes = self._nodes()
        if self.history.earlier is None and self.history.began_ms is not None:
            found = await earlier_changes(self._views, nodes, self.client.host.clock)
            # One that knows nothing of before may be followed by one that does.
            if found is not None and found.since_ms < self.history.began_ms:
                for _ in self.history.put_before(found):
                    await asyncio.sleep(0)
        return self.history.earlier

    async def _ask_pipelines(self) -> Sequence[PipelineFile]:
        return await self.client.host.offload(OffloadKind.DISK, self._read_files, order="pipelines")

    def _nodes(self) -> list[BrokerNode]:
        nodes = list(self.client.cluster.brokers.values())
        if not nodes:
            raise NoBrokerError("no broker is known yet")
        return nodes

    # Inside: what is made of it.

    def _observed(self, cluster: Cluster) -> Observed:
        min_isr, percent = self.settings.value or ({}, IMBALANCE_PERCENT)
        adding = {partition: move.adding_replicas for partition, move in (self.reassignments.value or {}).items()}
        return observed(cluster, cluster.topics, (self.brokers.value or {}).values(), min_isr, percent, adding)

    def _sizes(self, view: BrokerView) -> dict[TopicPartition, int]:
        found = self._sizes_known.get(view.node.node_id)
        if found is None:
            found = self._sizes_known[view.node.node_id] = {
                log.partition: log.size_bytes
                for directory in view.directories or ()
                for log in directory.logs
                if not log.is_future
            }
        return found

    def _take_transitions(self, transitions: list[Any]) -> None:
        """Adds those that are newer than the last one that is known."""
        known = {_identity(each) for each in self.transitions}
        self.transitions.extend(each for each in transitions if _identity(each) not in known)

    def _take_lags(self, found: GroupsAndEnds) -> None:
        for group_id, group in found.groups.items():
            lag = group.lag_of_all(found.ends)
            if lag is not None:
                self.lags.add(group_id, found.time_ms, lag)
        if not found.failed:
            self.lags.keep({*found.groups, *found.others})

    def _take_reads(self, found: GroupsAndEnds) -> None:
        """Records per second that pipelines have read since the answer before, by what their groups have committed."""
        before = self._ends_before
        names: set[str] = set()
        for group_id, group in found.groups.items():
            name = pipeline_of(group_id)
            if name is None:
                continue
            names.add(name)
            was = None if before is None else before.groups.get(group_id)
            if before is None or was is None or found.time_ms <= before.time_ms:
                continue
            both = [each for each in group.committed if each in was.committed]
            read = sum(max(0, group.committed[each] - was.committed[each]) for each in both)
            self.reads.add(name, found.time_ms, read * 1_000 / (found.time_ms - before.time_ms))
        if not found.failed:
            self.reads.keep(names)

    def _take_writes(self, found: GroupsAndEnds) -> None:
        """Records per second, of the cluster and of each topic, since the answer before; of partitions in both."""
        before, self._ends_before = self._ends_before, found
        if before is None or found.time_ms <= before.time_ms:
            return
        seconds = (found.time_ms - before.time_ms) / 1_000
        grown: dict[str, int] = {}
        for partition, end in found.ends.items():
            if partition in before.ends:
                growth = max(0, end - before.ends[partition])
                grown[partition.topic] = grown.get(partition.topic, 0) + growth
        # First, so that it has a place however many topics there are.
        self.writes.add(CLUSTER, found.time_ms, sum(grown.values()) / seconds)
        for topic, count in grown.items():
            self.writes.add(f"topic {topic}", found.time_ms, count / seconds)
        self.writes.keep({CLUSTER, *(f"topic {name}" for name in self.client.cluster.topics)})


def _identity(transition: Any) -> tuple[Any, ...]:
    return (
        transition.time_ms,
        transition.topic,
        transition.partition,
        transition.broker_id,
        transition.before,
        transition.after,
    )


def _cost_of(found: GroupsAndEnds | Transactions) -> float:
    return found.took_seconds


def _cost_of_views(views: Mapping[int, BrokerView]) -> float:
    """The longest that a broker which answered worked for it, at most."""
    return max((view.took_seconds for view in views.values() if view.directories is not None), default=0.0)
