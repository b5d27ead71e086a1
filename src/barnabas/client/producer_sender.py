"""The Produce requests to one broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.client.client import Doubt
from barnabas.client.errors import RecordTooLargeError
from barnabas.client.versions import VERSIONS
from barnabas.kernel.spoken import spoken_ms
from barnabas.link.errors import InFlightLimitError, UnsupportedVersionError
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceRequest

if TYPE_CHECKING:
    from barnabas.client.batches import PartitionQueue, ProducerBatch
    from barnabas.client.client import Client
    from barnabas.client.connections import Lane
    from barnabas.client.settings import ProducerSettings
    from barnabas.kernel.timers import Timer
    from barnabas.link.outgoing import Outgoing

_OUT_OF_SEQUENCE: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_FENCED: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
# Refused before anything was written. After any other answer that is no success, the batch may be in the log: a leader
# that loses its office while it waits for the replicas answers as one that never held it.
_SURELY_NOT_WRITTEN: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS})

Taken = list[tuple["PartitionQueue", "ProducerBatch"]]


class BatchOwner(Protocol):
    """What a sender needs of the producer whose batches it sends."""

    retries: int

    @property
    def settings(self) -> ProducerSettings: ...

    @property
    def transactional_id(self) -> str | None:
        """Whose transactions the batches belong to; None where there are none."""
        ...

    @property
    def is_flushing(self) -> bool:
        """Whether what is not full is to be sent too."""
        ...

    def queues_led_by(self, node_id: int) -> list[PartitionQueue]:
        """The queues of the partitions that the broker leads."""
        ...

    def dispatch(self) -> None:
        """Wakes the senders of the brokers that lead what is to be sent."""
        ...

    def expire(self, queue: PartitionQueue) -> None:
        """Gives up what has waited too long in the queue."""
        ...

    def released(self, size_bytes: int) -> None:
        """A batch of so many bytes is done with."""
        ...


class NodeSender:
    """Sends what is ready for the partitions that one broker leads, one batch of each per request."""

    def __init__(self, producer: BatchOwner, client: Client, lane: Lane, node_id: int) -> None:
        self._producer = producer
        self._client = client
        self._lane = lane
        self._node_id = node_id
        self._in_flight = 0
        self._wake = asyncio.Event()
        self._timer: Timer | None = None
        self._doubt: Doubt | None = None
        self._turn = 0
        self._held_until = 0.0
        """The broker reads nothing before, since a quota was exceeded (KIP-219): what was sent would only time out."""
        self._task = client.host.loop.create_task(self._run(), name=f"sender to broker {node_id}")

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def close(self) -> None:
        """Sends no more."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._timer is not None:
            self._timer.cancel()
        if self._doubt is not None:
            self._doubt.end()

    async def _run(self) -> None:
        backoff = self._client.backoff()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._in_flight < self._producer.settings.in_flight_max and self._has_ready():
                    outgoing = self._client.connections.to_node(self._lane, self._client.node(self._node_id))
                    await outgoing.ready(self._client.settings.request_timeout_ms)
                    self._send(outgoing, self._take())
                backoff.reset()
            except Exception as error:  # noqa: BLE001 - whatever is wrong with this broker, another may lead soon
                self._client.logger.info("Nothing can be sent to broker %d: %s", self._node_id, error)
                self._client.metadata.request_update()
                await self._client.timers.sleep(backoff.next_ms())
                self._producer.dispatch()

    def _has_ready(self) -> bool:
        """Whether there is something to send now; else sees to it that this is looked at again in time."""
        now = self._client.host.loop.time()
        soonest: float | None = None
        for queue in self._producer.queues_led_by(self._node_id):
            when = queue.ready_at(now, is_flushing=self._producer.is_flushing)
            if when is not None and when < self._held_until:
                when = self._held_until
            if when is not None and when <= now:
                return True
            if when is not None and (soonest is None or when < soonest):
                soonest = when
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if soonest is not None:
            self._timer = self._client.timers.call_at(soonest, self._wake.set)
        return False

    def _take(self) -> Taken:
        """A batch of each partition that has one ready, as many as a request may carry; another one first each time."""
        now = self._client.host.loop.time()
        queues = self._producer.queues_led_by(self._node_id)
        taken: Taken = []
        room = self._producer.settings.request_bytes_max
        self._turn += 1
        for place in range(len(queues)):
            queue = queues[(place + self._turn) % len(queues)]
            when = queue.ready_at(now, is_flushing=self._producer.is_flushing)
            if when is None or when > now:
                continue
            if taken and queue.next_bytes > room:
                continue  # brokers close connections for requests that are too large
            batch = queue.take()
            taken.append((queue, batch))
            room -= len(batch.data or b"")
            if room < self._producer.settings.batch_bytes:
                break
        return taken

    def _send(self, outgoing: Outgoing, taken: Taken) -> None:
        if not taken:
            return
        settings = self._producer.settings
        try:
            version = outgoing.version_of(ApiKey.PRODUCE, *VERSIONS[ApiKey.PRODUCE])
        except UnsupportedVersionError as error:
            for queue, batch in taken:
                self._give_up(queue, batch, error)
            return
        topics: dict[str, list[Any]] = {}
        for queue, batch in taken:
            data = ProduceRequest.PartitionProduceData(index=queue.partition.partition, records=batch.data)
            topics.setdefault(queue.partition.topic, []).append(data)
        request = ProduceRequest(
            transactional_id=self._producer.transactional_id,
            acks=settings.acks,
            timeout_ms=self._client.settings.request_timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
            ],
        )
        if settings.acks == 0:
            if outgoing.post(request, version):
                for queue, batch in taken:
                    self._written(queue, batch, -1, -1)
            else:
                self._again_all(taken)
            return
        now = self._client.host.loop.time()
        left_ms = max(batch.expires_at - now for _, batch in taken) * 1_000
        self._in_flight += 1
        if self._doubt is None:
            self._doubt = Doubt(self._client)
        try:
            outgoing.start(
                request,
                version,
                max(1.0, min(self._client.settings.request_timeout_ms, left_ms)),
                lambda response: self._answered(taken, response),
                lambda error: self._failed(taken, error),
            )
        except (ConnectionError, InFlightLimitError) as error:
            self._failed(taken, error)

    # What became of a request.

    def _failed(self, taken: Taken, error: Exception) -> None:
        """There is no answer, and there will be none."""
        self._landed()
        self._client.logger.info("A Produce request to broker %d has failed: %s", self._node_id, error)
        self._client.metadata.request_update()
        self._again_all(taken)
        self._expire_those_of(taken)
        self._producer.dispatch()

    def _again_all(self, taken: Taken) -> None:
        for queue, batch in taken:
            self._again(queue, batch, is_uncertain=True)

    def _landed(self) -> None:
        self._in_flight -= 1
        if self._doubt is None:
            return
        if self._in_flight:
            self._doubt.restart()
        else:
            self._doubt.end()
            self._doubt = None

    def _answered(self, taken: Taken, response: Any) -> None:
        self._landed()
        if response.throttle_time_ms > 0:
            until = self._client.host.loop.time() + response.throttle_time_ms / 1_000
            self._held_until = max(self._held_until, until)
            self._client.logger.info(
                "Broker %d takes nothing for %s: a quota is exceeded",
                self._node_id,
                spoken_ms(response.throttle_time_ms),
            )
        answers = {
            (topic.name, answer.index): answer for topic in response.responses for answer in topic.partition_responses
        }
        for queue, batch in taken:
            answer = answers.get(queue.partition)
            if answer is None:
                self._give_up(
                    queue, batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for {queue.partition}")
                )
            else:
                self._take_answer(queue, batch, answer)
        self._expire_those_of(taken)
        self._producer.dispatch()
        self._wake.set()

    def _expire_those_of(self, taken: Taken) -> None:
        """What comes back too old is not sent again."""
        for queue, _ in taken:
            self._producer.expire(queue)

    def _take_answer(self, queue: PartitionQueue, batch: ProducerBatch, answer: Any) -> None:
        code = ErrorCode.for_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._written(queue, batch, answer.base_offset, answer.log_append_time_ms)
            return
        detail = f"{queue.partition}: {answer.error_message or code.message}"
        self._client.logger.info("A batch of %s was refused: %s", queue.partition, code.name)
        retry_at = self._retry_at()
        if code in _OUT_OF_SEQUENCE or code in _FENCED:
            self._producer.retries += 1
            queue.out_of_sequence(batch, retry_at, is_fenced=code in _FENCED)
        elif code in _TOO_LARGE and queue.split(batch):
            self._producer.retries += 1
        elif code.retriable:
            leader = answer.current_leader
            if leader is not None and leader.leader_id >= 0:
                self._client.metadata.learn_leader(queue.partition, leader.leader_id, leader.leader_epoch)
            self._client.metadata.request_update()
            self._again(queue, batch, is_uncertain=code not in _SURELY_NOT_WRITTEN)
        elif code in _TOO_LARGE and batch.record_count == 1:
            self._give_up(queue, batch, RecordTooLargeError(detail))
        else:
            self._give_up(queue, batch, KafkaError(code, detail))

    def _retry_at(self) -> float:
        pause_ms = self._client.settings.retry_backoff_ms * self._client.host.random.uniform(0.8, 1.2)
        return self._client.host.loop.time() + pause_ms / 1_000

    def _again(self, queue: PartitionQueue, batch: ProducerBatch, *, is_uncertain: bool) -> None:
        self._producer.retries += 1
        queue.send_again(batch, self._retry_at(), is_uncertain=is_uncertain)

    def _written(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        queue.written(batch, base_offset, append_time_ms)
        self._producer.released(batch.size_bytes)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        queue.give_up(batch, error)
        self._producer.released(batch.size_bytes)
