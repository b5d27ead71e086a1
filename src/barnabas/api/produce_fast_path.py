"""The fast path of Produce requests: from the frame to the pipeline, and from there to a response that is sent with
this tick, or that waits for the replicas.

It only decodes faster. Nearly all requests have the usual shape (`wire.compiler_usual`): one partition, one batch, no
transaction. A producer's next one is the same bytes from the client id up to the size of the records, as long as it is
for the same partition: so what was read of one is kept, and the next is known by comparing those bytes. What becomes of
it is the matter of `produce_pipeline`, as for all other requests. Small ones are collected, to be appended together
before this tick writes.

A tick writes before it sends. So the response to acks 1 takes its place at once, in the order of the connection's
requests, and is only changed if the write of the tick fails.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from barnabas.api.produce_pipeline import ProduceKind, ProducePipeline
from barnabas.log.partition.appending import AppendedBatch
from barnabas.network.connection import ServerConnection, Slot
from barnabas.network.request_costs import BYTES_PER_RECORD, BYTES_PER_REQUEST
from barnabas.serving.produce import ProduceOutcome
from barnabas.wire.byte_work import TakesLongError
from barnabas.wire.compiler_usual import usual_reader
from barnabas.wire.compression_types import CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import read_request_header
from barnabas.wire.primitives import Buffer, ProtocolError
from barnabas.wire.record_batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_LOW_AT,
    BATCH_HEADER_BYTES,
    MAGIC_AT,
    RECORD_COUNT_AT,
)
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.api.produce_responses import ProduceResponses
    from barnabas.api.request_metrics import RequestMetrics
    from barnabas.log.partition.write_queue import WriteQueue
    from barnabas.serving.acknowledgements import Answer
    from barnabas.serving.ports import Replicas

_header_at: Final = struct.Struct(">ii").unpack_from
_HEADER_BYTES: Final = 8
_OLDEST_VERSION: Final = 3
"""Before it, a request has message sets."""
_ZSTD_SINCE_VERSION: Final = 7
_INT32: Final = struct.Struct(">i")
_size_at: Final = _INT32.unpack_from
_SIZE_MAX: Final = (1 << 31) - 1
_COMPACT: Final = struct.Struct(">H")
_COMPACT_SIZE_MAX: Final = (1 << 14) - 2
"""Bytes of records whose size stands in a varint of two bytes, as that of a few records does."""
_BATCH_SIZE_AT: Final = 8
_TRANSACTIONAL_OR_CONTROL: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
"""The bits of the attributes that are left to the codec's requests."""
_LEFT_TO_THE_CODEC: Final = _TRANSACTIONAL_OR_CONTROL | ATTRIBUTE_COMPRESSION
_COLLECTED_BYTES_MAX: Final = 4096
"""Of the records of one request: larger ones are appended from where they were received."""
_FEW_RECORDS_BYTES_MAX: Final = 256
"""What has no more bytes has so few records that they need not be counted: most requests of small records."""
_COPIED_ALONE_BYTES_MAX: Final = 1024
"""Of the records of a request that comes alone: to make and to index a view of so few costs more than to copy them."""
_COLLECTION_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of all records that are collected."""
_COLLECTED_MAX: Final = 1024
"""Requests; so many are appended in about 10 ms."""
_COLLECTED_RECORDS_MAX: Final = 1024
"""Of one request that is compressed."""
_COLLECTED_LZ4_BYTES_MAX: Final = 512
"""Of the records of one request in LZ4, which makes 255 bytes of one."""
_PATHS_MAX: Final = 20_000
_PREFIX_BYTES_MAX: Final = 1024
_NO_RESPONSE: Final = bytearray()
_FAILED: Final = "handling a produce request failed"

_ReadHead = Callable[[Buffer, int], tuple[int, int, bytes, int, int, int, int]]
"""(buffer, start of the frame) -> key and version, correlation id, prefix, size of the records; and of their batch the
length, the magic and the low byte of the attributes."""
_Request = tuple["ServerConnection", int, "bytearray | memoryview"]
"""Connection, correlation id, records."""


class ProduceFastPaths:
    """Those of a broker: one for each principal at a place and beginning of requests, shared by all connections."""

    def __init__(
        self,
        pipeline: ProducePipeline,
        responses: ProduceResponses,
        replicas: Replicas,
        write_queue: WriteQueue,
        now: Callable[[], float],
    ) -> None:
        """`now` is the loop's time."""
        self.pipeline = pipeline
        self.responses = responses
        self.collection = Collection(write_queue)
        self.now = now
        self._replicas = replicas
        self._request_metrics: RequestMetrics | None = None
        self._paths: dict[tuple[str, str, int, bytes], ProduceFastPath] = {}

    def count_by(self, metrics: RequestMetrics) -> None:
        """Where requests are counted. Called first."""
        self._request_metrics = metrics

    def find(
        self,
        connection: ServerConnection,
        buffer: bytearray | memoryview,
        start: int,
        position: int,
        end: int,
        key_and_version: int,
    ) -> ProduceFastPath | None:
        """`FastPathHandler.fast_path`: none for a partition that this broker has not, so that nobody makes many."""
        version = key_and_version & 0xFFFF
        if version < _OLDEST_VERSION or self._request_metrics is None:
            return None
        found = usual_reader("ProduceRequest", version).read(buffer, position, end)
        if found is None:
            return None
        acks, timeout_ms, topic, index, records_at, _, _ = found
        topic_partition = TopicPartition(topic, index)
        if self._replicas.find_partition(topic_partition) is None or records_at - start > _PREFIX_BYTES_MAX:
            return None
        place = self.pipeline.access.place_of(connection.address)
        key = connection.principal, place, key_and_version, bytes(buffer[start + _HEADER_BYTES : records_at])
        path = self._paths.get(key)
        if path is None:
            try:
                _, _, _, client_id, _ = read_request_header(buffer, start, end)
            except ProtocolError:
                return None
            if len(self._paths) >= _PATHS_MAX:
                self._paths.clear()
            kind = ProduceKind(connection.principal, place, client_id, version, acks, timeout_ms, topic_partition)
            path = self._paths[key] = ProduceFastPath(self, kind, self._request_metrics, key_and_version, key[3])
        return path


class ProduceFastPath:
    """For the requests that begin like one that came before: from all connections with that client id and principal,
    from one place where it counts, to one partition.

    Invariant: what a connection has collected is all of one path, since the dispatcher finishes it before the
    connection gets another; so each connection's requests are handled and answered in their order.
    """

    cost_bytes: ClassVar = BYTES_PER_REQUEST // 3  # they are handled together

    __slots__ = (
        "_collected",
        "_collection",
        "_is_compact",
        "_key_and_version",
        "_known_bytes_max",
        "_known_bytes_min",
        "_prefix",
        "_read_head",
        "_read_records",
        "_records_at",
        "_size_at",
        "_tail",
        "_tail_bytes",
        "kind",
        "metrics",
        "now",
        "pipeline",
        "requests",
        "responses",
        "template",
    )

    def __init__(
        self, paths: ProduceFastPaths, kind: ProduceKind, metrics: RequestMetrics, key_and_version: int, prefix: bytes
    ) -> None:
        """`prefix` is the frame from the client id up to the size of the records."""
        self.kind = kind
        self.pipeline = paths.pipeline
        self.responses = paths.responses
        self.template = paths.responses.template(kind)
        self.metrics = metrics
        self.now = paths.now
        self.requests = metrics.meter(kind.api_version)
        self._collection = paths.collection
        self._key_and_version = key_and_version
        self._prefix: Buffer = prefix
        self._size_at = _HEADER_BYTES + len(prefix)
        self._read_records = usual_reader("ProduceRequest", kind.api_version).read_records
        self._collected: list[_Request] = []
        # Learnt of a frame before: where its records begin, how their size is written, and the bytes behind them. Of a
        # frame that has so many bytes, one look at its head then tells all that there is to know of its form, whatever
        # size its records have.
        self._known_bytes_min = 1
        self._known_bytes_max = 0
        self._read_head: _ReadHead
        self._is_compact = False
        self._records_at = 0
        self._tail: Buffer = b""
        self._tail_bytes = 0

    def take(self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        request = self._request(connection, buffer, start, end, _COLLECTED_BYTES_MAX)
        if request is None:
            return False
        records = request[2]
        if type(records) is memoryview:
            self.finish()
            return self._take_at_once(request, False)
        if len(records) > _FEW_RECORDS_BYTES_MAX:
            connection.spend(BYTES_PER_RECORD * _record_count(records, 0))
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
        request = self._request(connection, buffer, start, end, _COPIED_ALONE_BYTES_MAX)
        if request is None:
            return False
        return self._take_at_once(request, True)

    def finish(self, *, writes_at_once: bool = False) -> None:
        """Handles what was collected. `writes_at_once`: nothing else is collected for its partition in this tick."""
        requests, self._collected = self._collected, []
        if not requests:
            return
        quota = self.kind.quota
        if quota is not None:
            quota.begin()
        try:
            group = _Group(self, requests, [request[2] for request in requests])
            self.pipeline.append(self.kind, group, writes_at_once)
        except Exception:
            # Nobody can tell who was answered, and who was not would wait for ever: all of them ask again.
            for connection, _, _ in requests:
                connection.fail(_FAILED)
            raise
        finally:
            if quota is not None:
                quota.end()

    def _take_at_once(self, request: _Request, is_sole_ready: bool) -> bool:
        """Handles a request that is not collected; False, and nothing has changed, if that takes long. If it comes
        alone, it shares neither the write nor the send of this tick with others.
        """
        connection, quota = request[0], self.kind.quota
        connection.collected += 1
        if quota is not None:
            quota.begin()
        try:
            group = _Group(self, (request,), (request[2],))
            self.pipeline.append(self.kind, group, is_sole_ready, True)
        except TakesLongError:
            connection.collected -= 1
            return False
        except Exception:
            connection.fail(_FAILED)
            raise
        finally:
            if quota is not None:
                quota.end()
        return True

    def _request(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int, copied_bytes_max: int
    ) -> _Request | None:
        """The request in the frame, with a copy of its records up to `copied_bytes_max`, otherwise, or where checking
        few bytes may take long, with a view of them; None if it is of another form.
        """
        if self._known_bytes_min <= end - start <= self._known_bytes_max:
            key_and_version, correlation_id, prefix, size, length, magic, attributes = self._read_head(buffer, start)
            records_start = start + self._records_at
            records_end = end - self._tail_bytes
            size_bytes = records_end - records_start
            if (
                size == (_compact_size(size_bytes) if self._is_compact else size_bytes)
                and length == size_bytes - LOG_OVERHEAD_BYTES
                and magic == MAGIC_V2
                and not attributes & _LEFT_TO_THE_CODEC
                and key_and_version == self._key_and_version
                and prefix == self._prefix
                and (records_end == end or buffer[records_end:end] == self._tail)
            ):
                if size_bytes > copied_bytes_max:
                    return connection, correlation_id, memoryview(buffer)[records_start:records_end]
                records = buffer[records_start:records_end]
                return connection, correlation_id, records if type(records) is bytearray else bytearray(records)
        key_and_version, correlation_id = _header_at(buffer, start)
        if key_and_version != self._key_and_version:
            return None
        found = self._find_records(buffer, start, end)
        if found is None:
            return None
        records_start, records_end = found
        if not _is_soon_checked(buffer, records_start):
            copied_bytes_max = 0
        elif buffer[records_start + ATTRIBUTES_LOW_AT] & ATTRIBUTE_COMPRESSION == CompressionType.LZ4:
            copied_bytes_max = min(copied_bytes_max, _COLLECTED_LZ4_BYTES_MAX)
        if records_end - records_start > copied_bytes_max:
            return connection, correlation_id, memoryview(buffer)[records_start:records_end]
        return connection, correlation_id, bytearray(buffer[records_start:records_end])

    def _find_records(self, buffer: bytearray | memoryview, start: int, end: int) -> tuple[int, int] | None:
        """Where the records of a frame are whose head is not what was learnt; None if it is of another form, or they
        are not one batch of magic 2 that its version may carry, or of a transaction.
        """
        size_at = start + self._size_at
        if self._read_records is None or buffer[start + _HEADER_BYTES : size_at] != self._prefix:
            return None
        found = self._read_records(buffer, size_at, end)
        if found is None:
            return None
        records_start, records_end = found
        size_bytes = records_end - records_start
        if (
            size_bytes < BATCH_HEADER_BYTES
            or _size_at(buffer, records_start + _BATCH_SIZE_AT)[0] != size_bytes - LOG_OVERHEAD_BYTES
            or buffer[records_start + MAGIC_AT] != MAGIC_V2
        ):
            return None
        attributes = buffer[records_start + ATTRIBUTES_LOW_AT]
        if attributes & _TRANSACTIONAL_OR_CONTROL:
            return None
        if attributes & ATTRIBUTE_COMPRESSION == CompressionType.ZSTD and self.kind.api_version < _ZSTD_SINCE_VERSION:
            return None
        if not attributes & ATTRIBUTE_COMPRESSION:
            self._learn(buffer, start, records_start, records_end, end)
        return found

    def _learn(
        self, buffer: bytearray | memoryview, start: int, records_start: int, records_end: int, end: int
    ) -> None:
        """Takes over the form of a frame: of all sizes with a size field like its own."""
        size_at, size_bytes = start + self._size_at, records_end - records_start
        size = bytes(buffer[size_at:records_start])
        self._is_compact = len(size) == _COMPACT.size
        if size != (_COMPACT.pack(_compact_size(size_bytes)) if self._is_compact else _INT32.pack(size_bytes)):
            return
        self._read_head = _head_reader(len(self._prefix), is_compact=self._is_compact)
        self._records_at = records_start - start
        self._tail = bytes(buffer[records_end:end])
        self._tail_bytes = len(self._tail)
        around_bytes = self._records_at + self._tail_bytes
        self._known_bytes_min = around_bytes + BATCH_HEADER_BYTES
        self._known_bytes_max = around_bytes + (_COMPACT_SIZE_MAX if self._is_compact else _SIZE_MAX)

    # For groups.

    def failure(
        self, connection: ServerConnection, correlation_id: int, outcome: ProduceOutcome, throttle_time_ms: int
    ) -> list[Buffer]:
        """The response to a request whose records do not count; counts the error."""
        self.metrics.failed += 1
        self.metrics.count_error(outcome.code)
        return self.responses.frame(self.kind, connection.listener.name, correlation_id, outcome, throttle_time_ms)


class _Group:
    """Requests of one path that are handled together; the pipeline's group of them."""

    __slots__ = ("_given", "_path", "_requests", "batches")

    def __init__(
        self, path: ProduceFastPath, requests: Sequence[_Request], batches: Sequence[bytearray | memoryview]
    ) -> None:
        self._path = path
        self._requests = requests
        # The responses that have taken their places before the write that makes them true, each run of them with the
        # number of its first request and the throttle time.
        self._given: list[tuple[int, int, list[bytearray]]] | None = None
        self.batches = batches

    def _throttle_ms(self, first: int, count: int) -> int:
        """Of requests that are answered together: their bytes are counted together, once, and only now that they were
        handled. Those who have sent them are not read for so long."""
        quota = self._path.kind.quota
        if quota is None:
            return 0
        batches = self.batches
        found = quota.throttle_ms(len(batches[first]) if count == 1 else sum(map(len, batches[first : first + count])))
        if found:
            for connection, _, _ in self._requests[first : first + count]:
                connection.throttle(found)
        return found

    def refuse(self, number: int, outcome: ProduceOutcome) -> None:
        connection, correlation_id, _ = self._requests[number]
        path = self._path
        path.requests.count += 1
        path.metrics.answered_at_once += 1
        response = path.failure(connection, correlation_id, outcome, self._throttle_ms(number, 1))
        if path.kind.acks:
            connection.answer_collected(response)
            return
        connection.answer_collected(None)
        connection.fail(_refused(outcome.code))

    def give(self, first: int, results: Sequence[AppendedBatch], code: ErrorCode, is_final: bool) -> None:
        path, count, requests = self._path, len(results), self._requests
        path.requests.count += count
        path.metrics.answered_at_once += count
        kind, template = path.kind, path.template
        throttle_ms = 0 if kind.quota is None else self._throttle_ms(first, count)
        if count < len(requests):
            requests = requests[first : first + count]
        if is_final and not code and kind.acks:
            if count == 1:  # the loop would be a sixth of a microsecond
                connection, correlation_id, _ = requests[0]
                result = results[0]
                connection.answer_at_once(template(correlation_id, result[0], result[3], result[4], throttle_ms))
                return
            for (connection, correlation_id, _), result in zip(requests, results, strict=True):
                connection.answer_at_once(template(correlation_id, result[0], result[3], result[4], throttle_ms))
            return
        if not kind.acks:
            responses = [_NO_RESPONSE] * count
            for connection, _, _ in requests:
                connection.answer_collected(None)
        else:
            if code:
                responses = [
                    bytearray().join(path.failure(request[0], request[1], ProduceOutcome.of(result, code), throttle_ms))
                    for request, result in zip(requests, results, strict=True)
                ]
            else:
                responses = [
                    bytearray(template(request[1], result[0], result[3], result[4], throttle_ms))
                    for request, result in zip(requests, results, strict=True)
                ]
            if is_final:
                for request, response in zip(requests, responses, strict=True):
                    request[0].answer_at_once(response)
                return
            for request, response in zip(requests, responses, strict=True):
                request[0].answer_collected([response])
        if not is_final:
            if self._given is None:
                self._given = []
            self._given.append((first, throttle_ms, responses))

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:  # noqa: ARG002 - no replica is waited for here
        if not code:
            return
        path, outcome = self._path, ProduceOutcome(code)
        for first, throttle_ms, responses in self._given or ():
            for (connection, correlation_id, _), response in zip(self._requests[first:], responses, strict=False):
                frame = path.failure(connection, correlation_id, outcome, throttle_ms)
                if path.kind.acks:
                    # The connection has this very bytearray among what it is to send.
                    response[:] = b"".join(frame)
                else:
                    connection.fail(_refused(code))

    def park(self, number: int, result: AppendedBatch, code: ErrorCode, *, is_queued: bool) -> Answer:
        connection, correlation_id, _ = self._requests[number]
        path = self._path
        path.requests.count += 1
        slot = connection.park(is_queued=is_queued)
        connection.answer_collected(None)
        size_bytes = len(self.batches[number])
        return _Parked(path, connection, slot, correlation_id, ProduceOutcome.of(result, code), size_bytes)


class Collection:
    """The paths that have collected requests in this tick."""

    __slots__ = ("_finish_method", "_paths", "_write_queue", "size_bytes")

    def __init__(self, write_queue: WriteQueue) -> None:
        self._write_queue = write_queue
        self._paths: list[ProduceFastPath] = []
        self._finish_method = self.finish
        self.size_bytes = 0
        """Of the records; counted by the paths."""

    def add(self, path: ProduceFastPath) -> None:
        """The path is to be finished before this tick writes."""
        if not self._paths:
            self._write_queue.before_writing(self._finish_method)
        self._paths.append(path)

    def finish(self) -> None:
        """Finishes them all. Those that share no partition write what they bring at once, and answer then: there is
        nothing that a response would be held back for until the end of the tick.
        """
        paths, self._paths = self._paths, []
        self.size_bytes = 0
        writes_at_once = len(paths) == len({path.kind.topic_partition for path in paths})
        for path in paths:
            try:
                path.finish(writes_at_once=writes_at_once)
            except Exception as error:  # noqa: BLE001 - the requests of the other paths wait too
                context = {"message": f"producing to {path.kind.topic_partition} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


class _Parked:
    """A response that waits for a sync, or for the replicas."""

    __slots__ = ("_connection", "_correlation_id", "_outcome", "_path", "_received", "_size_bytes", "_slot")

    def __init__(
        self,
        path: ProduceFastPath,
        connection: ServerConnection,
        slot: Slot,
        correlation_id: int,
        outcome: ProduceOutcome,
        size_bytes: int,
    ) -> None:
        """Its records have so many bytes, which count when it is answered."""
        self._path = path
        self._connection = connection
        self._slot = slot
        self._correlation_id = correlation_id
        self._outcome = outcome
        self._size_bytes = size_bytes
        self._received = path.now()

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:
        path, outcome = self._path, self._outcome
        if code:
            outcome = outcome._replace(code=code) if is_written else ProduceOutcome(code)
        quota = path.kind.quota
        throttle_ms = 0 if quota is None else quota.throttle_ms(self._size_bytes)
        if throttle_ms:
            self._connection.throttle(throttle_ms)
        response: list[Buffer] | None
        if not path.kind.acks:
            response = None
            if code:
                path.metrics.failed += 1
                path.metrics.count_error(code)
                self._connection.fail(_refused(code))
        elif outcome.code:
            response = path.failure(self._connection, self._correlation_id, outcome, throttle_ms)
        else:
            _, first_offset, log_append_time_ms, log_start_offset, _, _ = outcome
            response = [
                path.template(self._correlation_id, first_offset, log_append_time_ms, log_start_offset, throttle_ms)
            ]
        slot = self._slot
        duration_ms = int((path.now() - self._received) * 1000)
        path.metrics.answered_later(duration_ms, is_queued=slot.is_queued, by=path.kind)
        slot.complete(response)


@lru_cache(maxsize=1024)
def _head_reader(prefix_bytes: int, *, is_compact: bool) -> _ReadHead:
    format_ = f">ii{prefix_bytes}s{'H' if is_compact else 'i'}{_BATCH_SIZE_AT}xi4xb5xB"
    return struct.Struct(format_).unpack_from


def _compact_size(size_bytes: int) -> int:
    """The two bytes of a varint which say that so many bytes of records follow, as one number."""
    size = size_bytes + 1
    return (size & 0x7F | 0x80) << 8 | size >> 7


def _refused(code: ErrorCode) -> str:
    return f"a produce request with acks 0 failed ({code.name})"


def _record_count(buffer: bytearray | memoryview, records_start: int) -> int:
    """What the batch says that it has."""
    return int.from_bytes(buffer[records_start + RECORD_COUNT_AT : records_start + BATCH_HEADER_BYTES])


def _is_soon_checked(buffer: bytearray | memoryview, records_start: int) -> bool:
    """Whether a batch of few bytes has few records, which are not much larger than it is when they are decompressed.
    Gzip makes a thousand bytes of one, and zstd ten thousand.
    """
    codec = buffer[records_start + ATTRIBUTES_LOW_AT] & ATTRIBUTE_COMPRESSION
    if not codec:
        return True
    record_count = _record_count(buffer, records_start)
    return record_count <= _COLLECTED_RECORDS_MAX and codec in (CompressionType.SNAPPY, CompressionType.LZ4)
