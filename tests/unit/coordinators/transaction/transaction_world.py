"""A transaction coordinator over a log in memory, in virtual time, and brokers that take its markers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any, cast

from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.markers import MarkerSender
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.coordinators.transaction.records import Transaction, read_key, read_value
from barnabas.coordinators.transaction.settings import TransactionSettings
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import StepRunner
from barnabas.kernel.timers import Timers
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AllocateProducerIdsResponse, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.topics import TRANSACTION_TOPIC, TopicPartition
from tests.unit.coordinators.group.group_world import LoopClock
from tests.unit.coordinators.memory_log import MemoryLog
from tests.unit.kernel.virtual_loop import VirtualLoop

SHARD = TopicPartition(TRANSACTION_TOPIC, 0)
TIMEOUT_MS = 60_000


class ReplicatedLog(MemoryLog):
    """One partition of which it is known what is committed; a new leader may lack the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.committed_end = 0
        self.on_append: Callable[[], object] = lambda: None

    def start_append(self, *args: Any, on_done: Callable[[ErrorCode], None], **others: Any) -> int:
        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.committed_end = max(self.committed_end, end_offset)
                self.high_watermarks[SHARD] = self.committed_end
            on_done(code)

        base_offset, end_offset = -1, 0
        is_held, self.holds_back = self.holds_back, True
        try:
            base_offset = super().start_append(*args, on_done=done, **others)
            end_offset = self.end_offsets[SHARD]
        finally:
            self.holds_back = is_held
        self.on_append()
        if not is_held:
            self.held.pop()(ErrorCode.NONE)
        return base_offset

    def commit(self) -> None:
        """All that is written is committed."""
        self.committed_end = self.end_offsets.get(SHARD, 0)
        self.release()
        self.release_late()

    def lose_behind(self, offset: int) -> None:
        """Another replica leads, which has nothing behind this offset; what was committed is all that is."""
        assert offset >= self.committed_end
        kept, end_offset = [], 0
        for batch in self.batches.get(SHARD, []):
            end = end_offset + RecordBatch(batch).header.record_count  # several ids may expire in one
            if end > offset:
                break
            kept.append(batch)
            end_offset = end
        self.batches[SHARD] = kept
        self.end_offsets[SHARD] = end_offset
        self.held, self.late = [], []

    def latest(self, *, is_committed: bool = False) -> dict[str, Transaction | None]:
        """The last record of each id, in order."""
        found: dict[str, Transaction | None] = {}
        for record in read_records(b"".join(self.batches.get(SHARD, []))):
            if is_committed and record.offset >= self.committed_end:
                break
            name = read_key(record.key or b"")
            assert name is not None
            found.pop(name, None)
            found[name] = None if record.value is None else read_value(record.value)
        return found


class Brokers:
    """Those that lead the partitions of transactions: partition N is led by broker N % 3. Ports `PartitionLeaders` and
    `MarkerChannel`.
    """

    def __init__(self) -> None:
        self.fates: dict[int, str] = {}
        """By broker: "down", "leaderless", "refuses", "answers in vain", "leaves out", or well where there is none."""
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.deleted: set[TopicPartition] = set()
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.markers: dict[TopicPartition, list[tuple[Producer, bool, int]]] = {}
        """What is in each partition: the producer, whether it is a commit, and the epoch of the coordinator."""
        self.on_marker: Callable[[Producer, bool], object] = lambda _producer, _is_commit: None
        self.sending = 0
        self.hold: asyncio.Event | None = None

    def leader(self, partition: TopicPartition) -> int | None:
        if partition in self.deleted:
            return None
        broker_id = partition.partition % 3
        return -1 if self.fates.get(broker_id) == "leaderless" else broker_id

    async def send(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.requests.append((broker_id, request))
        if self.hold is not None:
            await self.hold.wait()
        await asyncio.sleep(0.002)
        fate = self.fates.get(broker_id)
        if fate == "down":
            raise ConnectionResetError
        markers = []
        for marker in request.markers:
            producer = Producer(marker.producer_id, marker.producer_epoch)
            topics = []
            for topic in marker.topics:
                told = []
                for number in topic.partition_indexes:
                    partition = TopicPartition(topic.name, number)
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if fate == "refuses" else self.codes.get(partition)
                    if code is None:
                        self.on_marker(producer, marker.transaction_result)
                        entry = (producer, marker.transaction_result, marker.coordinator_epoch)
                        self.markers.setdefault(partition, []).append(entry)
                    told.append(
                        WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                            partition_index=number, error_code=code or ErrorCode.NONE
                        )
                    )
                if fate == "leaves out":
                    told.pop()
                topics.append(WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic.name, partitions=told))
            markers.append(
                WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
            )
        if fate == "answers in vain":
            raise TimeoutError
        return WriteTxnMarkersResponse(markers=markers)


class Allocator:
    """A controller that hands out blocks of ten ids."""

    def __init__(self) -> None:
        self.next_block = 0
        self.is_there = True

    async def allocate(self) -> AllocateProducerIdsResponse:
        await asyncio.sleep(0.001)
        if not self.is_there:
            raise TimeoutError
        self.next_block += 10
        return AllocateProducerIdsResponse(producer_id_start=self.next_block, producer_id_len=10)


@dataclasses.dataclass
class HostOfLoop:
    loop: VirtualLoop
    clock: LoopClock


class TransactionWorld:
    """One partition of `__transaction_state`, and one broker after the other that leads it. Close it after use."""

    def __init__(self, **settings: Any) -> None:
        self.loop = VirtualLoop()
        self.clock = LoopClock(self.loop)
        self.log = ReplicatedLog()
        self.brokers = Brokers()
        self.allocator = Allocator()
        self.settings = dataclasses.replace(TransactionSettings(), **settings)
        self.host = cast("Host", HostOfLoop(self.loop, self.clock))
        self.timers = Timers(self.loop)
        self.lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        self.logs = Logs("broker-1", self.clock, handler)
        self.scheduler = Scheduler(self.loop, self.timers, self.logs.logger("scheduler"))
        self.steps = StepRunner(self.loop)
        self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """A broker that has just started, and leads nothing."""
        self.ids = ProducerIdManager(
            self.allocator, host=self.host, timers=self.timers, logger=self.logs.logger("producer-ids")
        )
        self.sender = MarkerSender(
            self.brokers,
            self.brokers,
            host=self.host,
            timers=self.timers,
            steps=self.steps,
            logger=self.logs.logger("markers"),
        )
        self.metrics = MetricsRegistry(self.loop.time)
        self.coordinator = TransactionCoordinator(
            self.settings,
            host=self.host,
            timers=self.timers,
            scheduler=self.scheduler,
            steps=self.steps,
            log=self.log,
            producer_ids=self.ids,
            markers=self.sender,
            metrics=self.metrics,
            logs=self.logs,
        )
        self.coordinator.start(1)

    def elect(self) -> None:
        """The broker leads the partition, and has loaded it after this."""
        self.epoch += 1
        self.log.leaders[SHARD] = self.epoch
        self.coordinator.on_elected(0, self.epoch)
        self.pass_ms(10)

    def resign(self) -> None:
        self.log.leaders.pop(SHARD, None)
        self.coordinator.on_resigned(0, self.epoch)

    def stop_broker(self) -> None:
        self.loop.run_until_complete(self.coordinator.stop())
        self.loop.run_until_complete(self.ids.stop())

    def close(self) -> None:
        self.stop_broker()
        self.loop.run_until_complete(self.scheduler.stop(1000))
        self.timers.close()
        self.loop.close()

    def pass_ms(self, duration_ms: float) -> None:
        self.loop.run_until_complete(self.timers.sleep(duration_ms))

    # Clients: each request returns a list that gets the answer.

    def init(
        self, name: str = "x", expected: Producer | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> list[tuple[ErrorCode, Producer]]:
        told: list[tuple[ErrorCode, Producer]] = []
        self.coordinator.init_producer_id(name, timeout_ms, expected, lambda *answer: told.append(answer))
        return told

    def begun(self, name: str = "x", timeout_ms: int = TIMEOUT_MS) -> Producer:
        """A producer that is initialized."""
        told = self.init(name, timeout_ms=timeout_ms)
        self.pass_ms(10)
        ((code, producer),) = told
        assert code is ErrorCode.NONE
        return producer

    def add(self, producer: Producer, *numbers: int, name: str = "x") -> list[ErrorCode]:
        told: list[ErrorCode] = []
        self.coordinator.add_partitions(
            name, producer, {TopicPartition("t", number) for number in numbers}, told.append
        )
        return told

    def end(self, producer: Producer, *, is_commit: bool = True, name: str = "x") -> list[ErrorCode]:
        told: list[ErrorCode] = []
        self.coordinator.end(name, producer, told.append, is_commit=is_commit)
        return told
