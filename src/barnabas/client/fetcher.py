"""Reads ahead: one Fetch request per broker on its way, and what it brought until somebody takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.client.errors import PartitionReadError
from barnabas.client.fetch_session import SESSION_ERRORS, FetchSession, FetchTarget
from barnabas.client.fetched import FetchedRecords
from barnabas.client.isolation import IsolationLevel
from barnabas.client.versions import VERSIONS
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import NO_BROKER
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.connections import Lane
    from barnabas.client.positions import PartitionState, Positions
    from barnabas.client.records import ConsumerRecord, RecordColumn
    from barnabas.client.settings import ConsumerSettings

# The leader is another one, or not known to be one yet: fresh metadata tell.
_LEADER_CHANGED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
PREFERRED_REPLICA_SECONDS: Final = 300.0
ERRORS_MAX: Final = 1000

Taken = TypeVar("Taken")


class Fetcher:
    """Fetches what `positions` has to fetch. A partition whose records wait to be taken is not asked for again, so at
    most `partition_bytes_max` of each wait, or one batch where that is larger.
    """

    def __init__(
        self,
        client: Client,
        lane: Lane,
        settings: ConsumerSettings,
        positions: Positions,
        on_news: Callable[[], object],
    ) -> None:
        """`on_news()` is called when there is something to take, or a position needs attention."""
        self._client = client
        self._lane = lane
        self._settings = settings
        self._positions = positions
        self._on_news = on_news
        self._sessions: dict[int, FetchSession] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}
        self._fetched: dict[TopicPartition, FetchedRecords] = {}
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}
        self.out_of_range: dict[TopicPartition, int] = {}
        """Partitions whose position is not in their log, and that position; the owner of the positions decides."""
        self.errors: list[Exception] = []
        """What cannot be mended by repeating, to be raised to the user."""

    def fetch(self) -> None:
        """Sends a request to each broker that has none on its way and something to be asked for."""
        by_node: dict[int, list[PartitionState]] = {}
        now = self._client.host.loop.time()
        cluster = self._client.cluster
        for state in self._positions:
            if not state.is_fetchable or state.partition in self._fetched or state.retry_at > now:
                continue
            leader = cluster.leader(state.partition)
            if leader is None:
                self._client.metadata.request_update()
                continue
            by_node.setdefault(self._replica(state.partition, leader[0].node_id, now), []).append(state)
        for node_id, states in by_node.items():
            node = cluster.brokers.get(node_id)
            if node is not None and node_id not in self._fetching:
                work = self._fetch(node, states)
                self._fetching[node_id] = self._client.host.loop.create_task(work, name=f"fetch from broker {node_id}")

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records of partitions that are assigned and not paused; moves their positions.

        Raises PartitionReadError for a partition that cannot be read on, when there is nothing else to give first.
        """
        return self._take(count, FetchedRecords.take, len)

    def take_columns(self, count: int) -> list[RecordColumn]:
        """As `take`: keys and values of up to `count` records."""
        return self._take(count, FetchedRecords.take_columns, _records_in)

    def _take(
        self,
        count: int,
        give: Callable[[FetchedRecords, int], list[Taken]],
        records_in: Callable[[list[Taken]], int],
    ) -> list[Taken]:
        taken: list[Taken] = []
        left = count
        for partition, fetched in list(self._fetched.items()):
            state = self._positions.get(partition)
            if state is None or state.generation != fetched.generation:
                del self._fetched[partition]
                continue
            if not state.is_fetchable:
                fetched.detach()
                continue
            if left <= 0:
                break
            if state.processed is None:
                state.came_back()  # its position was found during this poll, and nothing was read from there yet
            try:
                given = give(fetched, left)
            except ValueError as error:
                if taken:
                    break  # these are the user's first
                del self._fetched[partition]
                raise PartitionReadError(
                    partition,
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{partition} cannot be read at offset {fetched.next_offset}: {error}; seek past it to go on",
                ) from error
            taken += given
            left -= records_in(given)
            if fetched.next_offset > fetched.fetch_offset:
                state.consumed(fetched.next_offset, fetched.offset_epoch)
            if fetched.is_at_end:
                del self._fetched[partition]
        return taken

    def detach(self, partition: TopicPartition) -> None:
        """What was read of this partition may wait long: it keeps no more in memory than its own bytes."""
        fetched = self._fetched.get(partition)
        if fetched is not None:
            fetched.detach()

    def forget(self, partitions: tuple[TopicPartition, ...]) -> None:
        """These partitions are not read any more."""
        for partition in partitions:
            self._fetched.pop(partition, None)
            self._preferred.pop(partition, None)
            self.out_of_range.pop(partition, None)

    async def close(self) -> None:
        """Fetches no more."""
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        if fetching:
            await asyncio.wait(fetching)

    # One request.

    def _replica(self, partition: TopicPartition, leader_id: int, now: float) -> int:
        """Whom to read from: the leader, or for some time the replica that it has named (KIP-392)."""
        preferred = self._preferred.get(partition)
        if preferred is None:
            return leader_id
        node_id, until = preferred
        if now < until and node_id in self._client.cluster.brokers:
            return node_id
        del self._preferred[partition]
        return leader_id

    async def _fetch(self, node: BrokerNode, states: list[PartitionState]) -> None:
        session = self._sessions.setdefault(node.node_id, FetchSession())
        try:
            asked = {state.partition: (state, state.generation, state.position.offset) for state in states}
            wanted = {state.partition: self._target(state) for state in states}
            response = await self._ask(node, session, wanted)
            if session.accept(response):
                self._take_response(node, asked, response, {w.topic_id: p.topic for p, w in wanted.items()})
            elif response.error_code not in SESSION_ERRORS:
                raise KafkaError(response.error_code, f"Fetch to broker {node.node_id}")
            if response.throttle_time_ms > 0:
                self._on_news()  # what it brought need not wait
                # The broker reads nothing before (KIP-219): what was asked would only time out.
                await self._client.timers.sleep(response.throttle_time_ms)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this broker, another may lead soon
            session.failed()
            self._client.logger.info("A fetch from broker %d has failed: %s", node.node_id, error)
            self._client.metadata.request_update()
            self._pause(states)
            for state in states:
                self._preferred.pop(state.partition, None)
        finally:
            del self._fetching[node.node_id]
        self._on_news()

    def _target(self, state: PartitionState) -> FetchTarget:
        topic = self._client.cluster.topics.get(state.partition.topic)
        topic_id = ZERO_UUID if topic is None else topic.topic_id
        position = state.position
        return FetchTarget(topic_id, position.offset, position.leader_epoch, self._settings.partition_bytes_max)

    async def _ask(self, node: BrokerNode, session: FetchSession, wanted: dict[TopicPartition, FetchTarget]) -> Any:
        settings = self._settings

        def build(version: int) -> FetchRequest:
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=settings.fetch_wait_ms,
                min_bytes=settings.fetch_bytes_min,
                max_bytes=settings.fetch_bytes_max,
                isolation_level=int(settings.isolation),
                rack_id=settings.rack_id,
            )
            session.fill(request, wanted, version)
            return request

        highest = session.highest_version(wanted, VERSIONS[ApiKey.FETCH][1])
        timeout_ms = self._client.settings.request_timeout_ms + settings.fetch_wait_ms
        return await self._client.ask_by_version(node, self._lane, ApiKey.FETCH, build, timeout_ms, highest=highest)

    # Its answer.

    def _take_response(
        self,
        node: BrokerNode,
        asked: dict[TopicPartition, tuple[PartitionState, int, int]],
        response: Any,
        topic_names: dict[bytes, str],
    ) -> None:
        moved: list[TopicPartition] = []
        for topic in response.responses:
            name = topic.topic or topic_names.get(bytes(topic.topic_id), "")
            for answer in topic.partitions:
                partition = TopicPartition(name, answer.partition_index)
                if partition not in asked:
                    continue
                state, generation, offset = asked[partition]
                if self._positions.get(partition) is not state or (state.generation, state.position.offset) != (
                    generation,
                    offset,
                ):
                    continue  # sought, reset or given away meanwhile, and maybe given back
                self._take_partition(node, state, answer)
                moved.append(partition)
        self._positions.rotate(moved)

    def _take_partition(self, node: BrokerNode, state: PartitionState, answer: Any) -> None:
        code = ErrorCode.for_code(answer.error_code)
        if code is ErrorCode.NONE:
            self._take_records(state, answer)
        elif code in _LEADER_CHANGED:
            leader = answer.current_leader
            if leader is not None and leader.leader_id != NO_BROKER:
                self._client.metadata.learn_leader(state.partition, leader.leader_id, leader.leader_epoch)
            self._preferred.pop(state.partition, None)
            self._client.metadata.request_update()
            self._pause([state])
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            state.revalidate()
            self._client.metadata.request_update()
            self._pause([state])
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._preferred.pop(state.partition, None) is None:
                self.out_of_range[state.partition] = state.position.offset
            else:
                # A follower may lag behind: then the leader decides. It may name the same one again.
                self._pause([state])
        else:
            self._pause([state])
            if len(self.errors) < ERRORS_MAX:
                reading = f"reading {state.partition} from broker {node.node_id}"
                self.errors.append(PartitionReadError(state.partition, code, reading))

    def _take_records(self, state: PartitionState, answer: Any) -> None:
        state.high_watermark = answer.high_watermark
        if answer.preferred_read_replica != NO_BROKER:
            if answer.preferred_read_replica in self._client.cluster.brokers:
                until = self._client.host.loop.time() + PREFERRED_REPLICA_SECONDS
                self._preferred[state.partition] = (answer.preferred_read_replica, until)
            else:
                # The leader knows of a broker that has come, or not that it has gone, and gives nothing itself.
                self._client.metadata.request_update()
                self._pause([state])
        if answer.records is None or not len(answer.records):
            return
        is_committed = self._settings.isolation is IsolationLevel.READ_COMMITTED
        self._fetched[state.partition] = FetchedRecords(
            state.partition,
            state.generation,
            state.position.offset,
            answer.records,
            (answer.aborted_transactions or []) if is_committed else None,
            checks_crcs=self._settings.checks_crcs,
        )
        if not state.is_fetchable:
            self.detach(state.partition)

    def _pause(self, states: list[PartitionState]) -> None:
        pause_ms = self._client.settings.retry_backoff_ms * self._client.host.random.uniform(0.8, 1.2)
        until = self._client.host.loop.time() + pause_ms / 1_000
        for state in states:
            state.retry_at = until
        self._client.timers.call_after(pause_ms + 1, self._on_news)


def _records_in(columns: list[RecordColumn]) -> int:
    return sum(map(len, columns))
