"""The short way of Produce requests: from the frame to the append, and from the append to a response that is sent with
this tick, or that waits for the replicas.

A tick writes before it sends. So the response to acks 1 takes its place at once, in the order of the connection's
requests, and is only changed if the write of the tick fails.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal

from barnabas.api.produce_frames import FLEXIBLE_SINCE, ResponseForm, find_compact_records, find_records
from barnabas.network.connection import ServerConnection, Slot
from barnabas.replication.produce import ACKS_ALL
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.api.request_metrics import RequestMetrics
    from barnabas.kernel.metrics import Meter
    from barnabas.log.partition_log import PartitionLog
    from barnabas.log.write_queue import WriteQueue
    from barnabas.replication.acknowledgements import Acknowledgements
    from barnabas.replication.partition import Partition
    from barnabas.replication.topic_metrics import TopicMetrics

_header_at: Final = struct.Struct(">ii").unpack_from
_HEADER_BYTES: Final = 8


class AppendTarget:
    """A partition that is produced to, in one version of the request; shared by all connections."""

    __slots__ = (
        "_acknowledgements",
        "_given",
        "_now",
        "_requests",
        "_write_queue",
        "bytes_in",
        "form",
        "messages_in",
        "metrics",
        "partition",
        "request_metrics",
    )

    def __init__(
        self,
        partition: Partition,
        api_version: int,
        acknowledgements: Acknowledgements,
        write_queue: WriteQueue,
        metrics: TopicMetrics,
        request_metrics: RequestMetrics,
        now: Callable[[], float],
    ) -> None:
        self.partition = partition
        self.form = ResponseForm(partition.topic_partition, api_version)
        self.metrics = metrics
        self.bytes_in = metrics.bytes_in
        self.messages_in = metrics.messages_in
        self.request_metrics = request_metrics
        self._requests: Meter = request_metrics.meter(api_version)
        self._acknowledgements = acknowledgements
        self._write_queue = write_queue
        self._now = now
        # Responses that have taken their places before the write that makes them true.
        self._given: list[bytearray] = []

    def give(self, log: PartitionLog, response: bytearray) -> None:
        """The response leaves with this tick."""
        given = self._given
        given.append(response)
        if len(given) == 1:
            self._write_queue.when_written(log, self._written)

    def when_written(self, log: PartitionLog, connection: ServerConnection) -> None:
        """There is no response; but the connection ends if the write fails."""
        self._count()
        if self._write_queue.needs_wait(log):
            self._acknowledgements.when_written(self.partition, log, _Silence(connection))

    def park_until_written(self, log: PartitionLog, slot: Slot, response: bytearray) -> None:
        """The response leaves when the records are synced."""
        self._acknowledgements.when_written(self.partition, log, self._parked(slot, response))

    def park(self, log: PartitionLog, slot: Slot, response: bytearray, required_offset: int, timeout_ms: int) -> None:
        """The response leaves when the replicas have the records."""
        parked = self._parked(slot, response)
        self._acknowledgements.when_replicated(self.partition, log, required_offset, timeout_ms, parked)

    def _parked(self, slot: Slot, response: bytearray) -> _Parked:
        self._requests.count += 1
        self.metrics.produce_requests.count += 1
        return _Parked(slot, self.form, response, self.request_metrics, self._now)

    def _count(self, requests: int = 1) -> None:
        self._requests.count += requests
        self.request_metrics.answered_at_once += requests
        self.metrics.produce_requests.count += requests

    def _written(self, error: KafkaError | None) -> None:
        given, self._given = self._given, []
        self._count(len(given))
        if error is not None:
            for response in given:
                self.form.set_error(response, error.code)
                self.request_metrics.count_error(error.code)


class ShortWay:
    """For the requests that begin like one that came before; kept by its connection."""

    __slots__ = (
        "_acks",
        "_api_version",
        "_find_records",
        "_key_and_version",
        "_prefix",
        "_size_at",
        "_target",
        "_timeout_ms",
    )

    def __init__(
        self,
        target: AppendTarget,
        key_and_version: int,
        prefix: bytes,
        acks: int,
        timeout_ms: int,
    ) -> None:
        """`prefix` is the frame from the client id up to the size of the records."""
        self._target = target
        self._key_and_version = key_and_version
        self._api_version = key_and_version & 0xFFFF
        self._prefix: Buffer = prefix
        self._size_at = _HEADER_BYTES + len(prefix)
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._find_records = find_records if self._api_version < FLEXIBLE_SINCE else find_compact_records

    @property
    def partition(self) -> Partition:
        """The partition that they append to."""
        return self._target.partition

    def take(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | Literal[False] | None:
        """Handles the frame `buffer[start:end]` if it is of this form; False if not, or if there is something to say
        about it that only the general way can. Nothing was appended then.
        """
        key_and_version, correlation_id = _header_at(buffer, start)
        size_at = start + self._size_at
        if key_and_version != self._key_and_version or buffer[start + _HEADER_BYTES : size_at] != self._prefix:
            return False
        records_start = self._find_records(buffer, size_at, end)
        target = self._target
        partition = target.partition
        log = partition.log
        if records_start is None or log is None:
            return False
        records_end = end if self._api_version < FLEXIBLE_SINCE else end - 3
        acks = self._acks
        try:
            result = partition.append(
                memoryview(buffer)[records_start:records_end], required_acks=acks, produce_version=self._api_version
            )
        except KafkaError:
            # The general way comes to the same refusal, and says it with all that belongs to it.
            return False
        (
            first_offset, last_offset, _, log_append_time_ms, log_start_offset, record_count, size_bytes,
            _, converted_count, _,
        ) = result  # fmt: skip
        target.bytes_in.count += size_bytes
        target.messages_in.count += record_count
        if converted_count:
            target.metrics.produce_conversions.count += converted_count
        if not acks:
            target.when_written(log, connection)
            return None
        response = target.form.frame(correlation_id, first_offset, log_append_time_ms, log_start_offset)
        if acks == ACKS_ALL:
            code = partition.is_replicated(last_offset + 1)
            if code is None:
                target.park(log, connection.park(), response, last_offset + 1, self._timeout_ms)
                return None
            if code:
                target.form.set_error(response, code)
                target.request_metrics.count_error(code)
        if log.must_sync or log.written.is_syncing:
            # That is not within this tick.
            target.park_until_written(log, connection.park(is_queued=True), response)
            return None
        target.give(log, response)
        return [response]


class _Parked:
    """A response that waits for the replicas."""

    __slots__ = ("_form", "_metrics", "_now", "_received", "_response", "_slot")

    def __init__(
        self, slot: Slot, form: ResponseForm, response: bytearray, metrics: RequestMetrics, now: Callable[[], float]
    ) -> None:
        self._slot = slot
        self._form = form
        self._response = response
        self._metrics = metrics
        self._now = now
        self._received = now()

    def give(self, code: ErrorCode) -> None:
        if code:
            self._form.set_error(self._response, code)
            self._metrics.count_error(code)
        self._metrics.answered_later(int((self._now() - self._received) * 1000), is_queued=self._slot.is_queued)
        self._slot.complete([self._response])


class _Silence:
    """A producer that wants no answer."""

    __slots__ = ("_connection",)

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def give(self, code: ErrorCode) -> None:
        if code:
            self._connection.fail(f"a produce request with acks 0 failed ({code.name})")
