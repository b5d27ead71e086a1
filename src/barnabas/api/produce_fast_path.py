"""The fast path of Produce requests: from the frame to the append, and from the append to a response that is sent with
this tick, or that waits for the replicas.

A tick writes before it sends. So the response to acks 1 takes its place at once, in the order of the connection's
requests, and is only changed if the write of the tick fails.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from barnabas.api.produce_frames import (
    ATTRIBUTES_AT,
    FLEXIBLE_SINCE,
    MAGIC_END,
    RECORD_COUNT_AT,
    TRANSACTIONAL_OR_CONTROL,
    ResponseForm,
    find_compact_records,
    find_records,
)
from barnabas.log.partition.appending import AppendResult, UniformResult
from barnabas.network.connection import ServerConnection, Slot
from barnabas.network.request_costs import BYTES_PER_REQUEST
from barnabas.serving.produce import ProduceOutcome
from barnabas.wire.byte_work import TakesLongError
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import Buffer
from barnabas.wire.record_batch import ATTRIBUTE_COMPRESSION, BATCH_HEADER_BYTES
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import check_produce_version
from barnabas.wire.sentinels import ACKS_ALL, NO_TIMESTAMP
from barnabas.wire.uniform_batches import UNIFORM_MIN

if TYPE_CHECKING:
    from barnabas.api.request_metrics import RequestMetrics
    from barnabas.cluster.image import MetadataImage
    from barnabas.kernel.metrics import Meter
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.partition.write_queue import WriteQueue
    from barnabas.serving.acknowledgements import Acknowledgements
    from barnabas.serving.ports import MetadataSource
    from barnabas.serving.topic_metrics import TopicMetrics

_header_at: Final = struct.Struct(">ii").unpack_from
_HEADER_BYTES: Final = 8
_COLLECTED_BYTES_MAX: Final = 4096
"""Of the records of one request: larger ones are appended from where they were received."""
_COLLECTION_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of all records that are collected."""
_COLLECTED_MAX: Final = 1024
"""Requests; so many are appended in about 10 ms."""
_COLLECTED_RECORDS_MAX: Final = 1024
"""Of one request that is compressed."""
_COLLECTED_LZ4_BYTES_MAX: Final = 512
"""Of the records of one request in LZ4, which makes 255 bytes of one."""
_NOT_UNIFORM: Final = TRANSACTIONAL_OR_CONTROL | ATTRIBUTE_COMPRESSION
_FAILED: Final = "handling a produce request failed"

_Request = tuple["ServerConnection", int, "bytearray | memoryview"]
"""Connection, correlation id, records."""
_Appended = tuple[_Request, "AppendResult"]
_Given = tuple["ServerConnection", bytearray]
_Waiting = tuple[int, "ServerConnection", "Slot", bytearray]
Refusal = Callable[["ServerConnection", "Partition", int, int, Exception], tuple[ErrorCode, list[Buffer]]]
"""Connection, partition, API version, correlation id, what was raised: the code, and the response that says so."""
Failure = Callable[["ServerConnection", "Partition", int, int, "ProduceOutcome"], list[Buffer]]
"""Connection, partition, API version, correlation id, what became of the records: the response that says so."""


class AppendTarget:
    """A partition that is produced to, in one version of the request; shared by all connections."""

    __slots__ = (
        "_acknowledgements",
        "_api_version",
        "_failure",
        "_given",
        "_known_in",
        "_metadata",
        "_now",
        "_refusal",
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
        metadata: MetadataSource,
        refusal: Refusal,
        failure: Failure,
        now: Callable[[], float],
    ) -> None:
        self.partition = partition
        self._api_version = api_version
        self.form = ResponseForm(partition.topic_partition, api_version)
        self.metrics = metrics
        self.bytes_in = metrics.bytes_in
        self.messages_in = metrics.messages_in
        self.request_metrics = request_metrics
        self._requests: Meter = request_metrics.meter(api_version)
        self._acknowledgements = acknowledgements
        self._write_queue = write_queue
        self._metadata = metadata
        self._known_in: MetadataImage | None = None
        self._refusal = refusal
        self._failure = failure
        self._now = now
        # Responses that have taken their places before the write that makes them true.
        self._given: list[_Given] = []

    def check_known(self) -> None:
        """Raises KafkaError unless the controller has told of the partition, and not of its deletion since: of that it
        tells before the replicas go.
        """
        image = self._metadata.image
        if image is self._known_in:
            return
        if image.partition(self.partition.topic_partition) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._known_in = image

    def complete(self, log: PartitionLog, responses: list[_Given]) -> None:
        """The responses leave with this tick; they were given to their connections."""
        if self._given:
            self._given += responses
        else:
            self._given = responses
            self._write_queue.when_written(log, self._written)

    def refusal(
        self, connection: ServerConnection, api_version: int, correlation_id: int, error: Exception
    ) -> tuple[ErrorCode, list[Buffer]]:
        """The code and the response for a request whose records were not appended; counts both."""
        code, response = self._refusal(connection, self.partition, api_version, correlation_id, error)
        self._requests.count += 1
        self.request_metrics.answered_at_once += 1
        self.request_metrics.count_error(code)
        return code, response

    def failure(
        self, connection: ServerConnection, response: bytearray, code: ErrorCode, *, is_written: bool
    ) -> list[Buffer]:
        """The response to send instead of one that was made when the records were appended; counts its error. They stay
        where they are if they are written, and so the offsets are told, as in Kafka.
        """
        self.request_metrics.count_error(code)
        correlation_id, first_offset, log_append_time_ms, log_start_offset = self.form.numbers(response)
        outcome = ProduceOutcome(code)
        if is_written:
            outcome = ProduceOutcome(code, first_offset, log_append_time_ms, log_start_offset)
        return self._failure(connection, self.partition, self._api_version, correlation_id, outcome)

    def when_written(self, log: PartitionLog, connection: ServerConnection) -> None:
        """There is no response; but the connection ends if the write fails."""
        self.count_answers(1)
        if self._write_queue.needs_wait(log):
            self._acknowledgements.when_written(self.partition, log, _Silence(connection))

    def park_until_written(
        self, log: PartitionLog, connection: ServerConnection, slot: Slot, response: bytearray
    ) -> None:
        """The response leaves when the records are synced."""
        self._acknowledgements.when_written(self.partition, log, self._parked(connection, slot, response))

    def park_until_replicated(self, log: PartitionLog, waiting: Sequence[_Waiting], timeout_ms: int) -> None:
        """The responses leave when the replicas have the records, each those below its offset."""
        answers = [
            (required_offset, self._parked(sender, slot, done)) for required_offset, sender, slot, done in waiting
        ]
        self._acknowledgements.when_all_replicated(self.partition, log, answers, timeout_ms)

    def _parked(self, connection: ServerConnection, slot: Slot, response: bytearray) -> _Parked:
        self._requests.count += 1
        self.metrics.produce_requests.count += 1
        return _Parked(self, connection, slot, response, self._now)

    def is_written(self, log: PartitionLog | None) -> bool:
        """Whether all that was appended may be acknowledged now."""
        return log is not None and not (log.must_sync or self._write_queue.needs_wait(log))

    def count_records(self, records: int, size_bytes: int, converted: int) -> None:
        """Counts what was appended."""
        self.messages_in.count += records
        self.bytes_in.count += size_bytes
        self.metrics.produce_conversions.count += converted

    def count_answers(self, requests: int) -> None:
        """Counts requests that are answered, without error, in the turn of the loop that brought them."""
        self._requests.count += requests
        self.request_metrics.answered_at_once += requests
        self.metrics.produce_requests.count += requests

    def _written(self, error: KafkaError | None) -> None:
        given, self._given = self._given, []
        self.count_answers(len(given))
        if error is not None:
            for connection, response in given:
                # The connection has this very bytearray among what it is to send.
                response[:] = b"".join(self.failure(connection, response, error.code, is_written=False))


class ProduceWay:
    """For the requests that begin like one that came before: from all connections with that client id, to one
    partition. Small ones are collected, and appended together before this tick writes.

    Invariant: what a connection has collected is all of one way, since the dispatcher finishes it before the connection
    gets another; so each connection's requests are handled and answered in their order.
    """

    cost_bytes: ClassVar = BYTES_PER_REQUEST // 3  # they are handled together

    __slots__ = (
        "_acks",
        "_api_version",
        "_attributes_at",
        "_collected",
        "_collection",
        "_is_flexible",
        "_key_and_version",
        "_like",
        "_like_bytes",
        "_like_end",
        "_prefix",
        "_records_at",
        "_size_at",
        "_target",
        "_timeout_ms",
    )

    def __init__(
        self,
        target: AppendTarget,
        collection: Collection,
        key_and_version: int,
        prefix: bytes,
        acks: int,
        timeout_ms: int,
    ) -> None:
        """`prefix` is the frame from the client id up to the size of the records."""
        self._target = target
        self._collection = collection
        self._key_and_version = key_and_version
        self._api_version = key_and_version & 0xFFFF
        self._is_flexible = self._api_version >= FLEXIBLE_SINCE
        self._prefix: Buffer = prefix
        self._size_at = _HEADER_BYTES + len(prefix)
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._collected: list[_Request] = []
        # The frame before: its size, its bytes from the client id to the magic of its batch, and places in it. The next
        # is mostly of the same size, and then comparing these bytes tells all that there is to know of its form.
        self._like_bytes = 0
        self._like: Buffer = b""
        self._like_end = 0
        self._records_at = 0
        self._attributes_at = 0

    @property
    def partition(self) -> Partition:
        """The partition that they append to."""
        return self._target.partition

    def take(self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        request = self._request(connection, buffer, start, end, _COLLECTED_BYTES_MAX)
        if request is None:
            return False
        records = request[2]
        if type(records) is memoryview:
            self.finish()
            return self._take_at_once(request, is_sole_ready=False)
        connection.collected += 1
        collected = self._collected
        collection = self._collection
        if not collected:
            collection.add(self)
        collected.append(request)
        collection.size_bytes += len(records)
        if collection.size_bytes > _COLLECTION_BYTES_MAX:
            collection.finish()
        elif len(collected) >= _COLLECTED_MAX:
            self.finish()
        return True

    def take_alone(self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        request = self._request(connection, buffer, start, end, 0)
        if request is None:
            return False
        return self._take_at_once(request, is_sole_ready=True)

    def _take_at_once(self, request: _Request, *, is_sole_ready: bool) -> bool:
        """Handles a request that is not collected; False, and nothing has changed, if that takes long."""
        connection = request[0]
        connection.collected += 1
        try:
            self._handle_one(request, is_sole_ready=is_sole_ready)
        except TakesLongError:
            connection.collected -= 1
            return False
        except Exception:
            connection.fail(_FAILED)
            raise
        return True

    def _request(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int, copied_bytes_max: int
    ) -> _Request | None:
        """The request in the frame, with a copy of its records up to `copied_bytes_max`, otherwise, or where checking
        few bytes may take long, with a view of them; None if it is of another form.
        """
        key_and_version, correlation_id = _header_at(buffer, start)
        if key_and_version != self._key_and_version:
            return None
        records_end = end
        if self._is_flexible:
            records_end -= 3
        if (
            end - start == self._like_bytes
            and buffer[start + _HEADER_BYTES : start + self._like_end] == self._like
            and not buffer[start + self._attributes_at] & _NOT_UNIFORM
            and (records_end == end or not (buffer[end - 3] | buffer[end - 2] | buffer[end - 1]))
        ):
            records_start = start + self._records_at
        else:
            found = self._find_records(buffer, start, end)
            if found is None:
                return None
            records_start = found
            if not _is_soon_checked(buffer, found):
                copied_bytes_max = 0
            elif buffer[found + ATTRIBUTES_AT] & ATTRIBUTE_COMPRESSION == CompressionType.LZ4:
                copied_bytes_max = min(copied_bytes_max, _COLLECTED_LZ4_BYTES_MAX)
        partition = self._target.partition
        if partition.log is None or not partition.is_leader:
            return None
        if records_end - records_start > copied_bytes_max:
            return connection, correlation_id, memoryview(buffer)[records_start:records_end]
        records = buffer[records_start:records_end]
        return connection, correlation_id, records if type(records) is bytearray else bytearray(records)

    def _find_records(self, buffer: bytearray | memoryview, start: int, end: int) -> int | None:
        """Where the records of a frame are that is not quite like the one before; None if it is of another form."""
        size_at = start + self._size_at
        if buffer[start + _HEADER_BYTES : size_at] != self._prefix:
            return None
        find = find_compact_records if self._is_flexible else find_records
        records_start = find(buffer, size_at, end)
        if records_start is not None and not buffer[records_start + ATTRIBUTES_AT] & ATTRIBUTE_COMPRESSION:
            self._like_bytes = end - start
            self._records_at = records_start - start
            self._attributes_at = self._records_at + ATTRIBUTES_AT
            self._like_end = self._records_at + MAGIC_END
            self._like = bytes(buffer[start + _HEADER_BYTES : start + self._like_end])
        return records_start

    def finish(self) -> None:
        requests, self._collected = self._collected, []
        if not requests:
            return
        try:
            self._handle(requests)
        except Exception:
            # Nobody can tell who was answered, and who was not would wait for ever: all of them ask again.
            for connection, _, _ in requests:
                connection.fail(_FAILED)
            raise

    def _handle_one(self, request: _Request, *, is_sole_ready: bool) -> None:
        """`_handle` for one request; if it comes alone, it shares neither the write nor the send of this tick with
        others. Raises TakesLongError.
        """
        connection, correlation_id, records = request
        target, acks = self._target, self._acks
        log = target.partition.log
        try:
            target.check_known()
            outcome = target.partition.append(
                records,
                required_acks=acks,
                produce_version=self._api_version,
                writes_at_once=is_sole_ready,
                only_at_once=True,
            )
        except TakesLongError:
            raise
        except Exception as error:  # noqa: BLE001 - it is told
            self._refuse(request, error)
            return
        first_offset, _, _, log_append_time_ms, log_start_offset, record_count, size_bytes, _, converted, _ = outcome
        target.count_records(record_count, size_bytes, converted)
        if is_sole_ready and acks == 1 and target.is_written(log):
            response = target.form.frame(correlation_id, first_offset, log_append_time_ms, log_start_offset)
            target.count_answers(1)
            connection.answer_at_once(response)
        else:
            self._answer(log, [(request, outcome)])

    def _handle(self, requests: Sequence[_Request]) -> None:
        target = self._target
        log = target.partition.log
        outcomes: Sequence[AppendResult | Exception]
        batches = [records for _, _, records in requests]
        uniform = None
        try:
            target.check_known()
            if len(batches) >= UNIFORM_MIN:
                uniform = target.partition.append_uniform(
                    batches, required_acks=self._acks, produce_version=self._api_version
                )
            if uniform is None:
                outcomes = target.partition.append_all(
                    batches, required_acks=self._acks, produce_version=self._api_version
                )
        except Exception as error:  # noqa: BLE001 - every one of them is told
            outcomes = [error] * len(requests)
        if uniform is not None:
            self._answer_uniform(log, requests, uniform)
            return
        appended: list[_Appended] = []
        records_in = bytes_in = converted = 0
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._answer(log, appended)
                appended = []
                self._refuse(request, outcome)
                continue
            records_in += outcome[5]
            bytes_in += outcome[6]
            converted += outcome[8]
            appended.append((request, outcome))
        target.count_records(records_in, bytes_in, converted)
        self._answer(log, appended)

    def _answer_uniform(self, log: PartitionLog | None, requests: Sequence[_Request], uniform: UniformResult) -> None:
        """Answers requests whose records are in the log one behind the other, and in its file."""
        target = self._target
        target.count_records(uniform.record_count, uniform.size_bytes, 0)
        if self._acks != 1 or not target.is_written(log):
            self._answer(log, list(zip(requests, uniform.each(), strict=True)))
            return
        target.count_answers(len(requests))
        frame, log_start_offset = target.form.frame, uniform.log_start_offset
        for offset, (connection, correlation_id, _) in enumerate(requests, uniform.first_offset):
            connection.answer_at_once(frame(correlation_id, offset, NO_TIMESTAMP, log_start_offset))

    def _answer(self, log: PartitionLog | None, appended: Sequence[_Appended]) -> None:
        """Answers requests whose records are in the log, in their order."""
        if not appended or log is None:
            return
        target, acks = self._target, self._acks
        if not acks:
            for (connection, _, _), _ in appended:
                target.when_written(log, connection)
                connection.answer_collected(None)
            return
        partition = target.partition
        code_of_all: ErrorCode | None = ErrorCode.NONE
        if acks == ACKS_ALL:
            code_of_all = partition.is_replicated(max(outcome.last_offset for _, outcome in appended) + 1)
        # A sync is not within this tick.
        awaits_sync = log.must_sync or log.written.is_syncing
        make_response = target.form.frame
        given: list[_Given] = []
        waiting: list[_Waiting] = []
        for (connection, correlation_id, _), outcome in appended:
            first_offset, last_offset, _, log_append_time_ms, log_start_offset, _, _, _, _, _ = outcome
            response = make_response(correlation_id, first_offset, log_append_time_ms, log_start_offset)
            code = partition.is_replicated(last_offset + 1) if code_of_all is None else code_of_all
            if code is None:
                waiting.append((last_offset + 1, connection, connection.park(), response))
                connection.answer_collected(None)
                continue
            if code:
                target.form.set_error(response, code)
                target.request_metrics.count_error(code)
            if awaits_sync:
                target.park_until_written(log, connection, connection.park(is_queued=True), response)
                connection.answer_collected(None)
                continue
            given.append((connection, response))
            connection.answer_collected([response])
        if given:
            target.complete(log, given)
        if waiting:
            target.park_until_replicated(log, waiting, self._timeout_ms)

    def _refuse(self, request: _Request, error: Exception) -> None:
        connection, correlation_id, records = request
        try:
            if getattr(error, "code", None) != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check_produce_version(records, self._api_version)
        except RecordsError as found:
            error = KafkaError(found.error)  # told before what is wrong with the partition, as in Kafka
        code, response = self._target.refusal(connection, self._api_version, correlation_id, error)
        if self._acks:
            connection.answer_collected(response)
            return
        connection.answer_collected(None)
        connection.fail(f"a produce request with acks 0 failed ({code.name})")


class Collection:
    """The ways that have collected requests in this tick."""

    __slots__ = ("_finish_method", "_ways", "_write_queue", "size_bytes")

    def __init__(self, write_queue: WriteQueue) -> None:
        self._write_queue = write_queue
        self._ways: list[ProduceWay] = []
        self._finish_method = self.finish
        self.size_bytes = 0
        """Of the records; counted by the ways."""

    def add(self, way: ProduceWay) -> None:
        """The way is to be finished before this tick writes."""
        if not self._ways:
            self._write_queue.before_writing(self._finish_method)
        self._ways.append(way)

    def finish(self) -> None:
        """Finishes them all."""
        ways, self._ways = self._ways, []
        self.size_bytes = 0
        for way in ways:
            try:
                way.finish()
            except Exception as error:  # noqa: BLE001 - the requests of the other ways wait too
                context = {"message": f"producing to {way.partition!r} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


class _Parked:
    """A response that waits for a sync, or for the replicas."""

    __slots__ = ("_connection", "_now", "_received", "_response", "_slot", "_target")

    def __init__(
        self,
        target: AppendTarget,
        connection: ServerConnection,
        slot: Slot,
        response: bytearray,
        now: Callable[[], float],
    ) -> None:
        self._target = target
        self._connection = connection
        self._slot = slot
        self._response = response
        self._now = now
        self._received = now()

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:
        target = self._target
        response: list[Buffer] = [self._response]
        if code:
            response = target.failure(self._connection, self._response, code, is_written=is_written)
        duration_ms = int((self._now() - self._received) * 1000)
        target.request_metrics.answered_later(duration_ms, is_queued=self._slot.is_queued)
        self._slot.complete(response)


class _Silence:
    """A producer that wants no answer."""

    __slots__ = ("_connection",)

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:  # noqa: ARG002 - nobody asks where they are
        if code:
            self._connection.fail(f"a produce request with acks 0 failed ({code.name})")


def _is_soon_checked(buffer: bytearray | memoryview, records_start: int) -> bool:
    """Whether a batch of few bytes has few records, which are not much larger than it is when they are decompressed.
    Gzip makes a thousand bytes of one, and zstd ten thousand.
    """
    codec = buffer[records_start + ATTRIBUTES_AT] & ATTRIBUTE_COMPRESSION
    if not codec:
        return True
    record_count = int.from_bytes(buffer[records_start + RECORD_COUNT_AT : records_start + BATCH_HEADER_BYTES])
    return record_count <= _COLLECTED_RECORDS_MAX and codec in (CompressionType.SNAPPY, CompressionType.LZ4)
