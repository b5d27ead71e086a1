"""What a Fetch request is answered: which of the partitions go into the response, their records, read and converted,
and what an old client is told instead.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.api.context import RequestContext, Responder
from barnabas.api.current_leader import CurrentLeaders
from barnabas.api.fetch_fast_path import Chosen, Collected
from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.steps import Steps, at_once, emptied
from barnabas.serving.fetch_partition import FetchPartition, PartitionRead
from barnabas.serving.fetch_reads import READ_PER_STEP, FetchParameters, Reads, drop_unreadable
from barnabas.serving.fetch_sessions import FEW_PARTITIONS, FetchScope
from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchResponse
from barnabas.wire.primitives import Buffer
from barnabas.wire.record_conversion import down_convert
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.records import LOG_OVERHEAD_BYTES

if TYPE_CHECKING:
    from barnabas.log.segments.reading import LogReader
    from barnabas.log.segments.segment import ReadPlan
    from barnabas.serving.leader_throttle import LeaderThrottle
    from barnabas.serving.remote_fetch import RemoteFetch, RemoteReader

_LEADER_SINCE: Final = 16
_ZSTD_SINCE: Final = 10
_STORAGE_ERROR_SINCE: Final = 6
# The highest version that gets the magic: messages before 0.10, and before record batches.
_MAGIC_0_UNTIL: Final = 1
_MAGIC_1_UNTIL: Final = 3
_READ_HERE_BYTES_MAX: Final = 16 * 1024 * 1024
_ERRORS_OF_CLIENTS: Final = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""What the client is too old for."""
_ERRORS_BEFORE_READING: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, *_ERRORS_OF_CLIENTS}
)
"""Of partitions that are not looked at for what they are, or for what the client can: they have an empty list of
aborted transactions in Kafka, whatever the isolation level; all others without records have none.
"""


class FetchAnswers:
    """Reads at once what is in the page cache, the rest off the loop."""

    def __init__(
        self,
        host: Host,
        reader: LogReader,
        replicas: Replicas,
        metadata: MetadataSource,
        topic_metrics: BrokerTopicMetrics,
        logger: logging.Logger,
        throttle: LeaderThrottle | None = None,
        remote: RemoteReader | None = None,
    ) -> None:
        self._remote = remote
        self._host = host
        self._throttle = throttle
        self._reader = reader
        self._replicas = replicas
        self._metadata = metadata
        self._topic_metrics = topic_metrics
        self._logger = logger

    def respond_later(self, responder: Responder, parameters: FetchParameters, scope: FetchScope, reads: Reads) -> None:
        try:
            collected = self.collect(responder.context.api_version, parameters, scope, reads)
        except Exception as error:  # noqa: BLE001 - logged there
            self.fail_later(responder, error)
            return
        self.answer_later(responder, parameters, scope, collected)

    def answer_later(
        self, responder: Responder, parameters: FetchParameters, scope: FetchScope, collected: Collected
    ) -> None:
        """Answers a request that has waited."""
        try:
            response = self.respond(responder.context, parameters, scope, collected)
        except Exception as error:  # noqa: BLE001 - logged there
            self.fail_later(responder, error)
            return
        if isinstance(response, FetchResponse):
            responder.respond(response)
        else:
            responder.finish(response)

    def fail_later(self, responder: Responder, error: Exception) -> None:
        """Nobody else answers the request, and all later responses of the connection wait for this one."""
        self._logger.error("Answering a fetch that has waited failed", exc_info=error)
        responder.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def count_given(self, item: FetchPartition, size_bytes: int, *, is_from_follower: bool) -> None:
        """Counts what is given of a partition."""
        if is_from_follower:
            self._topic_metrics.replication_bytes_out.count += size_bytes
            throttle = self._throttle
            if throttle is not None and throttle.topics:
                throttle.given(item.topic_partition, size_bytes)
        else:
            self._topic_metrics.of(item.topic_partition.topic).bytes_out.count += size_bytes

    def collect(self, api_version: int, parameters: FetchParameters, scope: FetchScope, reads: Reads) -> Collected:
        """Chooses what goes into the response, and reads of it what is cached. `scope` says then whether there is an
        error of the session instead."""
        quota = parameters.quota
        if quota is not None:
            quota.begin()
            size_bytes = 0
            for _, read in reads:
                size_bytes += read.size_bytes
            throttle_ms = quota.throttle_ms(size_bytes)
            if throttle_ms:
                scope.give_nothing()
                return Collected([], [], True, throttle_ms)
        return self._collect(api_version, parameters, reads, scope.select(reads))

    def _collect(
        self, api_version: int, parameters: FetchParameters, reads: Reads, positions: Iterable[int]
    ) -> Collected:
        if api_version >= _ZSTD_SINCE:
            chosen = [Chosen(*reads[position], reads[position][1].code) for position in positions]
        else:
            chosen = [
                _chosen(item, read, self._code_for_old(api_version, parameters, item, read))
                for item, read in map(reads.__getitem__, positions)
            ]
        records: list[Buffer | None] = []
        is_complete = True
        read_bytes = 0
        for position, (item, read, code) in enumerate(chosen):
            data: Buffer | None = b""
            if read.plan is not None and code == ErrorCode.NONE:
                read_bytes += read.size_bytes
                try:
                    # Copying very much takes long, too, and is done off the loop.
                    data = self._reader.read_cached(read.plan) if read_bytes <= _READ_HERE_BYTES_MAX else None
                except OSError as error:
                    chosen[position] = Chosen(item, read, self._unreadable(read.plan, error))
                is_complete = is_complete and data is not None
            elif read.remote is not None and code == ErrorCode.NONE:
                data, is_complete = None, False
            records.append(data)
        return Collected(chosen, records, is_complete)

    def _code_for_old(
        self, version: int, parameters: FetchParameters, item: FetchPartition, read: PartitionRead
    ) -> ErrorCode:
        """What a client of a version below 10 is told of the partition: it may not know a code or a format. What it
        cannot have goes before every other error, as in Kafka."""
        partition = self._replicas.find_partition(item.topic_partition)
        if partition is not None and partition.log is not None:
            config = partition.log.config
            if config.compression_type == "zstd":
                return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            is_converted = version <= _MAGIC_1_UNTIL and not parameters.is_from_follower
            if is_converted and not config.message_downconversion_enable:
                return ErrorCode.UNSUPPORTED_VERSION
        if read.code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_SINCE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return read.code

    def respond(
        self, context: RequestContext, parameters: FetchParameters, scope: FetchScope, collected: Collected
    ) -> FetchResponse | Awaitable[FetchResponse]:
        """The response, if all its records are at hand; otherwise a coroutine that brings them first."""
        if scope.error:
            return FetchResponse(error_code=scope.error, session_id=scope.session_id)
        chosen, records, is_complete, throttle_ms = collected
        if throttle_ms:
            context.connection.throttle(throttle_ms)
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=scope.session_id)
        if is_complete and context.api_version > _MAGIC_1_UNTIL:
            return at_once(self._response(context, parameters, scope.session_id, chosen, records))
        for position, (_, read, _) in enumerate(chosen):
            if records[position] is not None or read.plan is None:
                continue
            if read.plan.is_readable:
                # The file must not be closed before the coroutine has its turn.
                read.plan.segment.pin()
            else:
                records[position] = b""  # closed or truncated between two steps; the client comes back
        # What a client asks for beside it would be read beside it, however much that is.
        context.connection.hold()
        return self._fill_and_respond(context, parameters, scope.session_id, chosen, records)

    def respond_in_steps(
        self, context: RequestContext, parameters: FetchParameters, scope: FetchScope, reads: Reads
    ) -> Steps[FetchResponse | Awaitable[FetchResponse]]:
        """As `collect` and `respond`, of very many partitions that were read in steps."""
        version, quota = context.api_version, parameters.quota
        if quota is not None:
            size_bytes = 0
            for start in range(0, len(reads), READ_PER_STEP):
                size_bytes += sum(read.size_bytes for _, read in reads[start : start + READ_PER_STEP])
                yield
            throttle_ms = quota.throttle_ms(size_bytes)
            if throttle_ms:
                scope.give_nothing()
                return self.respond(context, parameters, scope, Collected([], [], True, throttle_ms))
        positions = yield from scope.select_in_steps(reads)
        if scope.error:
            return FetchResponse(error_code=scope.error, session_id=scope.session_id)
        chosen: list[Chosen] = []
        records: list[Buffer | None] = []
        is_complete = True
        for start in range(0, len(positions), READ_PER_STEP):
            drop_unreadable(reads, positions[start : start + READ_PER_STEP])
            some = self._collect(version, parameters, reads, positions[start : start + READ_PER_STEP])
            chosen += some.chosen
            records += some.records
            is_complete = is_complete and some.is_complete
            yield
        if is_complete and version > _MAGIC_1_UNTIL:
            response = yield from self._response(context, parameters, scope.session_id, chosen, records)
            yield from emptied(chosen)
            return response
        return self.respond(context, parameters, scope, Collected(chosen, records, is_complete))

    async def _fill_and_respond(
        self,
        context: RequestContext,
        parameters: FetchParameters,
        session_id: int,
        chosen: list[Chosen],
        records: list[Buffer | None],
    ) -> FetchResponse:
        """Reads what is not cached, one plan after another, and converts for old clients; then lets the connection's
        next request come."""
        try:
            for position, (item, read, code) in enumerate(chosen):
                data = records[position]
                if data is None and read.plan is not None:
                    data, code = await self._read_cold(read.plan, code)
                elif data is None and read.remote is not None:
                    read, data = await self._read_remote(read, read.remote)
                    code = read.code
                if context.api_version <= _MAGIC_1_UNTIL and data:
                    data, code = await self._convert(context.api_version, item, read, data)
                records[position] = data
                chosen[position] = _chosen(item, read, code)
                if position % READ_PER_STEP == READ_PER_STEP - 1:
                    await context.turn()
            response = self._response(context, parameters, session_id, chosen, records)
            return await context.in_steps(response) if len(chosen) > FEW_PARTITIONS else at_once(response)
        finally:
            context.connection.go_on()

    async def _read_cold(self, plan: ReadPlan, code: ErrorCode) -> tuple[Buffer, ErrorCode]:
        try:
            return await self._reader.read(plan), code
        except OffloadFullError:
            return b"", code  # the client comes back
        except OSError as error:
            return b"", self._unreadable(plan, error)
        finally:
            plan.segment.unpin()

    async def _read_remote(self, read: PartitionRead, fetch: RemoteFetch) -> tuple[PartitionRead, Buffer]:
        """What there is in remote storage, or an error."""
        if self._remote is None:
            return PartitionRead(ErrorCode.OFFSET_OUT_OF_RANGE, partition=read.partition), b""
        try:
            found = await self._remote.read(fetch)
        except KafkaError as error:
            return PartitionRead(error.code, partition=read.partition), b""
        except Exception:
            self._logger.exception("Reading %r from remote storage failed", fetch.log)
            return PartitionRead(ErrorCode.UNKNOWN_SERVER_ERROR, partition=read.partition), b""
        return read._replace(aborted=found.aborted), found.data

    def _unreadable(self, plan: ReadPlan, error: OSError) -> ErrorCode:
        self._logger.warning("Reading %s failed: %s", plan, error)
        return ErrorCode.KAFKA_STORAGE_ERROR

    async def _convert(
        self, version: int, item: FetchPartition, read: PartitionRead, data: Buffer
    ) -> tuple[Buffer, ErrorCode]:
        """The records in a format that the client knows."""
        magic = 0 if version <= _MAGIC_0_UNTIL else 1
        if read.plan is not None and read.plan.is_first_batch_incomplete:
            # Offset and size are the same in every format, and tell the client that it asks for too little.
            return bytes(data[:LOG_OVERHEAD_BYTES]), ErrorCode.NONE
        try:
            # However few bytes they are: a compressed batch may hold very many records.
            converted = await self._host.offload(OffloadKind.CPU, down_convert, data, magic, item.fetch_offset)
        except RecordsError as error:
            return b"", error.error
        except OffloadFullError:
            return b"", ErrorCode.NONE  # the client comes back
        self._topic_metrics.of(item.topic_partition.topic).fetch_conversions.count += converted.converted_count
        return converted.data, ErrorCode.NONE

    def _response(
        self,
        context: RequestContext,
        parameters: FetchParameters,
        session_id: int,
        chosen: Sequence[Chosen],
        records: Sequence[Buffer | None],
    ) -> Steps[FetchResponse]:
        response = FetchResponse(session_id=session_id)
        topics = response.responses
        last: FetchResponse.FetchableTopicResponse | None = None
        left = READ_PER_STEP
        for (item, read, code), data in zip(chosen, records, strict=True):
            left -= 1
            if not left:
                yield
                left = READ_PER_STEP
            topic = item.topic_partition.topic
            if last is None or last.topic != topic or last.topic_id != item.topic_id:
                last = FetchResponse.FetchableTopicResponse(topic=topic, topic_id=item.topic_id, partitions=[])
                topics.append(last)
            last.partitions.append(_partition_data(item, read, code, data or b""))
            if data:
                self.count_given(item, len(data), is_from_follower=parameters.is_from_follower)
        if context.api_version >= _LEADER_SINCE:
            yield from self._add_leaders(context, response, chosen)
        return response

    def _add_leaders(self, context: RequestContext, response: FetchResponse, chosen: Sequence[Chosen]) -> Steps[None]:
        """Names the leaders to a reader that has come to the wrong broker, or in a former epoch."""
        data = (partition for topic in response.responses for partition in topic.partitions)
        leaders = CurrentLeaders(response, self._replicas, self._metadata, context.listener_name)
        left = READ_PER_STEP
        for (item, _, code), partition in zip(chosen, data, strict=True):
            left -= 1
            if not left:
                yield
                left = READ_PER_STEP
            if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                leaders.name_in(partition, item.topic_partition)


def _partition_data(
    item: FetchPartition, read: PartitionRead, code: ErrorCode, records: Buffer
) -> FetchResponse.PartitionData:
    data = FetchResponse.PartitionData(
        partition_index=item.topic_partition.partition,
        error_code=code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None,
        records=records,
    )
    if code in _ERRORS_BEFORE_READING:
        data.aborted_transactions = []
    elif read.aborted is not None:
        data.aborted_transactions = [
            FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in read.aborted
        ]
    data.preferred_read_replica = read.preferred_replica
    if read.diverging is not None:
        data.diverging_epoch = FetchResponse.EpochEndOffset(
            epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
        )
    return data


def _chosen(item: FetchPartition, read: PartitionRead, code: ErrorCode) -> Chosen:
    """Of a partition whose records the client cannot have, it is not told anything else either."""
    return Chosen(item, PartitionRead(code) if code in _ERRORS_OF_CLIENTS else read, code)
