"""The sender of markers: tells the leaders of a transaction's partitions how it has ended (KIP-98).

Each broker has one request under way, of so many partitions; what comes meanwhile goes with the next one. A partition
is told again, by whoever leads it then, until its leader says that the marker is replicated.

Invariant: `on_written` is called when every partition of the transaction has the marker, or is deleted; and never for a
transaction whose shard has resigned, because another coordinator ends it under a later epoch.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from barnabas.coordinators.ports import MarkerChannel, PartitionLeaders
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.kernel.host import Host
from barnabas.kernel.steps import STEP_ELEMENTS, StepRunner, Steps
from barnabas.kernel.timers import Timer, Timers
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from barnabas.wire.topics import TopicPartition

PARTITIONS_PER_REQUEST: Final = 1_000
_RETRY_MS: Final = 50
_RETRY_MS_MAX: Final = 1_000
_ABSENT_MS: Final = 5_000
"""So long a partition is unknown before it counts as deleted. Kafka does not wait, and a broker that was not told of a
new partition yet would leave the transaction open there for ever."""

_NUMBER: Final = operator.attrgetter("partition")

_WRITTEN: Final = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
"""The last two: the partition cannot have records of a transaction."""
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_EXPECTED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""After these the marker is sent again, as after all others, which Kafka takes as fatal and forgets it."""


class Ending:
    """One transaction whose outcome is committed, and the partitions that do not have the marker yet."""

    __slots__ = (
        "_again",
        "_first",
        "absent_since",
        "coordinator_epoch",
        "is_commit",
        "is_over",
        "is_wanted",
        "left",
        "on_written",
        "producer",
        "transactional_id",
    )

    def __init__(
        self,
        transactional_id: str,
        producer: Producer,
        coordinator_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        is_commit: bool,
        is_wanted: Callable[[], bool],
        on_written: Callable[[], object],
    ) -> None:
        """`is_wanted` says whether the shard that has the id is active yet. The `partitions` must not change."""
        self.transactional_id = transactional_id
        self.producer = producer
        self.coordinator_epoch = coordinator_epoch
        self.is_commit = is_commit
        self.is_wanted = is_wanted
        self.on_written = on_written
        self.left = len(partitions)
        """Partitions without the marker: each is unrouted, in a broker's queue, or in a request that is under way."""
        self._first: Collection[TopicPartition] = partitions
        self._again: list[TopicPartition] = []
        self.absent_since: dict[TopicPartition, float] = {}
        self.is_over = False
        """Written everywhere, or given up."""

    def send_again(self, partition: TopicPartition) -> None:
        """The partition is in no broker's queue any more."""
        self._again.append(partition)

    def take_unrouted(self) -> Collection[TopicPartition]:
        """The partitions that are in no broker's queue, which the caller puts there: at first all of them."""
        first, self._first = self._first, ()
        if first:
            return first
        again, self._again = self._again, []
        return again


class _Destination:
    """What one broker is to be told."""

    __slots__ = ("queue", "sending")

    def __init__(self) -> None:
        self.queue: dict[Ending, list[TopicPartition]] = {}
        self.sending: asyncio.Task[None] | None = None


class MarkerSender:
    """Sends the markers of all shards of one broker. What it holds is bounded by the transactions of the shards."""

    def __init__(
        self,
        leaders: PartitionLeaders,
        channel: MarkerChannel,
        *,
        host: Host,
        timers: Timers,
        steps: StepRunner,
        logger: logging.Logger,
    ) -> None:
        """`logger` is `kafka.coordinator.transaction.TransactionMarkerChannelManager`."""
        self._leaders = leaders
        self._channel = channel
        self._loop = host.loop
        self._timers = timers
        self._steps = steps
        self._logger = logger
        self._destinations: dict[int, _Destination] = {}
        self._to_route: deque[Ending] = deque()
        self._routing: asyncio.Task[None] | None = None
        self._waiting: dict[Ending, None] = {}
        """Those with partitions that have no leader now, or whose leader did not write the marker."""
        self._retry_timer: Timer | None = None
        self._retry_ms = _RETRY_MS
        self._is_stopped = False

    @property
    def waiting(self) -> int:
        """Transactions that wait for a leader of one of their partitions."""
        return len(self._waiting)

    def send(self, ending: Ending) -> None:
        """Begins to tell the leaders of its partitions; `on_written` is called in a later turn."""
        self._to_route.append(ending)
        self._begin_to_route()

    async def stop(self) -> None:
        """Sends nothing more, and calls nobody."""
        self._is_stopped = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        tasks = [self._routing, *(destination.sending for destination in self._destinations.values())]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

    # To which broker.

    def _begin_to_route(self) -> None:
        if self._routing is None and not self._is_stopped:
            self._routing = self._loop.create_task(self._route_all(), name="route-markers")

    async def _route_all(self) -> None:
        try:
            while self._to_route:
                await self._steps.run(self._route())
        finally:
            self._routing = None

    def _route(self) -> Steps[None]:
        left = STEP_ELEMENTS
        while self._to_route:
            ending = self._to_route.popleft()
            unrouted = ending.take_unrouted()
            if self._is_to_be_sent(ending):
                for partition in (yield from _in_order(unrouted)):
                    self._route_partition(ending, partition)
                    left -= 1
                    if not left:
                        yield
                        left = STEP_ELEMENTS
                self._end_if_written(ending)
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS

    def _route_partition(self, ending: Ending, partition: TopicPartition) -> None:
        leader = self._leaders.leader(partition)
        if leader is None:
            since = ending.absent_since.setdefault(partition, self._loop.time())
            if (self._loop.time() - since) * 1000 >= _ABSENT_MS:
                self._logger.info("%s of %s is deleted, and needs no marker", partition, ending.transactional_id)
                ending.left -= 1
            else:
                self._send_later(ending, partition)
            return
        ending.absent_since.pop(partition, None)
        if leader < 0:
            self._send_later(ending, partition)
            return
        destination = self._destinations.get(leader)
        if destination is None:
            destination = self._destinations[leader] = _Destination()
            destination.sending = self._loop.create_task(
                self._send_to(leader, destination), name=f"send-markers-to-{leader}"
            )
        destination.queue.setdefault(ending, []).append(partition)

    def _send_later(self, ending: Ending, partition: TopicPartition) -> None:
        ending.send_again(partition)
        self._waiting[ending] = None
        if self._retry_timer is None and not self._is_stopped:
            self._retry_timer = self._timers.call_after(self._retry_ms, self._retry)
            self._retry_ms = min(self._retry_ms * 2, _RETRY_MS_MAX)

    def _retry(self) -> None:
        self._retry_timer = None
        waiting, self._waiting = self._waiting, {}
        self._to_route.extend(waiting)
        self._begin_to_route()

    # One broker.

    async def _send_to(self, broker_id: int, destination: _Destination) -> None:
        try:
            while destination.queue:
                asked = await self._steps.run(self._next_markers(destination))
                if asked:
                    await self._send_markers(broker_id, asked)
        finally:
            self._destinations.pop(broker_id, None)

    async def _send_markers(self, broker_id: int, asked: dict[Ending, list[TopicPartition]]) -> None:
        request = await self._steps.run(_request(asked))
        response = WriteTxnMarkersResponse()
        try:
            response = await self._channel.send(broker_id, request)
        except (OSError, KafkaError) as error:  # TimeoutError and ConnectionError among them
            self._logger.info("Broker %d did not take markers, trying again: %s", broker_id, error)
        except Exception:
            self._logger.exception("Broker %d cannot be sent markers; trying again", broker_id)
        await self._steps.run(self._take(asked, response))

    def _next_markers(self, destination: _Destination) -> Steps[dict[Ending, list[TopicPartition]]]:
        """Takes so many partitions out of the queue; those of shards that have resigned are dropped."""
        asked: dict[Ending, list[TopicPartition]] = {}
        room = PARTITIONS_PER_REQUEST
        left = STEP_ELEMENTS
        while destination.queue and room:
            ending, partitions = next(iter(destination.queue.items()))
            if self._is_to_be_sent(ending):
                asked[ending] = taken = partitions[-room:]
                del partitions[-room:]
                room -= len(taken)
            else:
                partitions = []
            if not partitions:
                del destination.queue[ending]
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        return asked

    def _take(self, asked: dict[Ending, list[TopicPartition]], response: WriteTxnMarkersResponse) -> Steps[None]:
        """What was not answered is sent again."""
        codes: dict[tuple[int, TopicPartition], int] = {}
        left = STEP_ELEMENTS
        for marker in response.markers:
            for topic in marker.topics:
                for told in topic.partitions:
                    codes[marker.producer_id, TopicPartition(topic.name, told.partition_index)] = told.error_code
                    left -= 1
                    if not left:
                        yield
                        left = STEP_ELEMENTS
        for ending, partitions in asked.items():
            for partition in partitions:
                code = codes.get((ending.producer.producer_id, partition))
                self._take_code(ending, partition, ErrorCode.NETWORK_EXCEPTION if code is None else code)
                left -= 1
                if not left:
                    yield
                    left = STEP_ELEMENTS
            self._end_if_written(ending)

    def _take_code(self, ending: Ending, partition: TopicPartition, number: int) -> None:
        code = ErrorCode.for_code(number)
        if not self._is_to_be_sent(ending):
            return
        if code in _WRITTEN:
            ending.left -= 1
        elif code in _FENCED:
            self._logger.warning(
                "%s was refused the marker of %s in epoch %d of its coordinator: %s; it is given up",
                partition,
                ending.transactional_id,
                ending.coordinator_epoch,
                code.name,
            )
            ending.is_over = True
        else:
            if code not in _EXPECTED and code is not ErrorCode.NETWORK_EXCEPTION:
                self._logger.error(
                    "%s answers the marker of %s with %s; trying again", partition, ending.transactional_id, code.name
                )
            self._send_later(ending, partition)

    def _is_to_be_sent(self, ending: Ending) -> bool:
        return not ending.is_over and ending.is_wanted()

    def _end_if_written(self, ending: Ending) -> None:
        if not ending.left and self._is_to_be_sent(ending):
            ending.is_over = True
            if not self._waiting and self._retry_timer is None:
                self._retry_ms = _RETRY_MS
            ending.on_written()


def _in_order(partitions: Iterable[TopicPartition]) -> Steps[list[TopicPartition]]:
    """By topic and number: the order of a set differs from process to process, and with it a simulated run would."""
    by_topic: dict[str, list[TopicPartition]] = {}
    left = STEP_ELEMENTS
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
        left -= 1
        if not left:
            yield
            left = STEP_ELEMENTS
    ordered: list[TopicPartition] = []
    for topic in sorted(by_topic):
        of_topic = by_topic[topic]
        of_topic.sort(key=_NUMBER)
        ordered += of_topic
        left -= len(of_topic)
        if left <= 0:
            yield
            left = STEP_ELEMENTS
    return ordered


def _request(asked: dict[Ending, list[TopicPartition]]) -> Steps[WriteTxnMarkersRequest]:
    markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = []
    left = STEP_ELEMENTS
    for ending, partitions in asked.items():
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        markers.append(
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=ending.producer.producer_id,
                producer_epoch=ending.producer.epoch,
                transaction_result=ending.is_commit,
                coordinator_epoch=ending.coordinator_epoch,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
                    for name, numbers in by_topic.items()
                ],
            )
        )
    return WriteTxnMarkersRequest(markers=markers)
