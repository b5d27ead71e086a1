"""A `LogManager` with everything around it, for tests; on any host."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.log.manager.log_manager import LogManager
from barnabas.log.partition.appending import AppendError, AppendResult
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.reading import LogReader
from barnabas.wire.batch_formats import batch_at, read_records
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record, walk_batches
from barnabas.wire.topics import TopicPartition
from tests.support.writes import WRITES
from tests.unit.log.verified import verified

FLIGHTS = TopicPartition("flights", 0)


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class LogBroker:
    """The parts of a broker that its logs need."""

    def __init__(
        self, host: Host, directories: Sequence[str], settings: LogSettings, config: LogConfig, lines: Lines
    ) -> None:
        self.host = host
        self.config = config
        self.lines = lines.lines
        logs = Logs(host.name, host.clock, lines, level="DEBUG")
        self.timers = Timers(host.loop)
        self.scheduler = Scheduler(host.loop, self.timers, logs.logger("kafka.utils.KafkaScheduler"))
        self.metrics = MetricsRegistry(host.loop.time)
        self.offline: list[str] = []
        self.manager = LogManager(
            host,
            settings,
            directories=directories,
            timers=self.timers,
            scheduler=self.scheduler,
            tick=Tick(host.loop),
            metrics=self.metrics,
            logs=logs,
            default_config=config,
            on_directory_offline=lambda directory: self.offline.append(directory.path),
        )

    async def start(self) -> None:
        self.manager.open_directories()
        await self.manager.load(lambda _: self.config)
        self.manager.start()

    def log(self, partition: TopicPartition = FLIGHTS, **options: Any) -> PartitionLog:
        """The log, made where it is missing."""
        return self.manager.get_or_create_log(
            partition, **({"is_new": True, "topic_id": None, "config": self.config} | options)
        )

    async def written(self, log: PartitionLog) -> None:
        """Returns when all appends count as written; raises what keeps them from that."""
        done = self.host.loop.create_future()
        self.manager.write_queue.when_written(log, done.set_result)
        error = await done
        if error is not None:
            raise error

    async def records(self, log: PartitionLog, offset: int | None = None, **options: Any) -> list[Record]:
        """Everything from `offset` on that the reader may see."""
        return [record for data in await self.batches(log, offset, **options) for record in read_records(data)]

    async def batches(
        self,
        log: PartitionLog,
        offset: int | None = None,
        isolation: ReadIsolation = ReadIsolation.LOG_END,
        bytes_max: int = 1 << 20,
    ) -> list[bytes]:
        """The bytes of every read from `offset` on, each of whole batches."""
        reader: LogReader = self.manager.reader
        found: list[bytes] = []
        at = log.log_start_offset if offset is None else offset
        while (plan := log.read(at, bytes_max, isolation, has_minimum=True).plan) is not None:
            data = await reader.read(plan)
            found.append(bytes(data))
            spans = walk_batches(data).spans
            if not spans:
                break
            at = batch_at(data, spans[-1]).last_offset + 1  # perhaps of a marker
        return found

    async def stop(self, broker_epoch: int = -1) -> None:
        await self.manager.close(broker_epoch)
        await self.scheduler.stop(1000)
        self.timers.close()

    async def crash(self) -> None:
        """Ends without writing anything more; the page cache stays."""
        self.manager.abandon()
        await self.scheduler.stop(0)
        self.timers.close()


def log_settings(**fields: Any) -> LogSettings:
    """With `directory_writes` as the environment asks for it, where the test does not say it."""
    return LogSettings(**({"directory_writes": WRITES} | fields))


@asynccontextmanager
async def log_broker(
    host: Host,
    *directories: str,
    settings: LogSettings | None = None,
    config: LogConfig | None = None,
    is_clean: bool = True,
) -> AsyncIterator[LogBroker]:
    """A started manager; stopped in order at the end, or abandoned where `is_clean` is False."""
    broker = LogBroker(
        *(host, directories, settings or log_settings(directory_patience_ms=0)),
        *(config or LogConfig(), Lines()),
    )
    await broker.start()
    try:
        yield broker
    finally:
        if is_clean:
            await broker.stop()
        else:
            await broker.crash()


def records(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **fields: Any) -> bytearray:
    """A batch as a producer sends it."""
    builder = RecordBatchBuilder(**fields)
    for number, value in enumerate(values):
        builder.append(timestamp_ms + number, b"key", value)
    return builder.build()


def send(log: PartitionLog, sequence: int, *values: bytes, producer_id: int = 7, **fields: Any) -> AppendResult:
    """As an idempotent producer."""
    data = records(
        *(values or (b"value",)), producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **fields
    )
    with verified(log.producers, producer_id) if fields.get("is_transactional") else contextlib.nullcontext():
        return log.append_as_leader(data, 0)


def refusal(append: Callable[[], object]) -> AppendError:
    with pytest.raises(AppendError) as caught:
        append()
    return caught.value
