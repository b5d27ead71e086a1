"""Fetch, 0 to 17: records for clients and followers, with or without session, at once or when there are enough.

Left out: naming a replica nearer to the client (KIP-392; a client that asks a follower gets records all the same),
quotas, snapshots (KRaft). A client before version 4 gets its records converted, where
`message.downconversion.enable` allows it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.api.context import RequestContext, Responder
from barnabas.api.current_leader import CurrentLeader, current_leader
from barnabas.api.fetch_frames import form_of
from barnabas.api.fetch_short_way import Asked, Chosen, Collected, FetchWay, SharedFetches
from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.log.read_plans import ReadIsolation
from barnabas.replication.fetch import Fetches
from barnabas.replication.fetch_reads import NO_FOLLOWER, FetchParameters, PartitionRead, Reads
from barnabas.replication.fetch_sessions import (
    FetchPartition,
    FetchScope,
    FetchSessionCache,
    NamedPartition,
    SessionKey,
    SessionRequest,
)
from barnabas.replication.follower_replica import UNKNOWN_BROKER_EPOCH
from barnabas.replication.ports import MetadataSource, Replicas
from barnabas.replication.topic_metrics import BrokerTopicMetrics
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.primitives import ZERO_UUID, Buffer
from barnabas.wire.record_conversion import down_convert
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.records import LOG_OVERHEAD_BYTES

if TYPE_CHECKING:
    from barnabas.log.reading import LogReader
    from barnabas.log.segment import ReadPlan

_TOPIC_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
_LEADER_SINCE: Final = 16
_FOLLOWER_READS_SINCE: Final = 11
_ZSTD_SINCE: Final = 10
_STORAGE_ERROR_SINCE: Final = 6
_SOFT_MAX_BYTES_SINCE: Final = 3
# The highest version that gets the magic: messages before 0.10, and before record batches.
_MAGIC_0_UNTIL: Final = 1
_MAGIC_1_UNTIL: Final = 3
_READ_COMMITTED: Final = 1
_NAME_OF: Final = {True: "FetchFollower", False: "FetchConsumer"}


class FetchHandler:
    """Plans in order of arrival; reads at once what is in the page cache, the rest off the loop."""

    api_key = ApiKey.FETCH
    versions = (0, 17)

    def __init__(
        self,
        host: Host,
        fetches: Fetches,
        sessions: FetchSessionCache,
        reader: LogReader,
        replicas: Replicas,
        metadata: MetadataSource,
        topic_metrics: BrokerTopicMetrics,
        logger: logging.Logger,
        *,
        fetch_bytes_max: int,
    ) -> None:
        """`fetch_bytes_max` bounds every response (`fetch.max.bytes`)."""
        self._host = host
        self._fetches = fetches
        self._sessions = sessions
        self._reader = reader
        self._replicas = replicas
        self._metadata = metadata
        self._topic_metrics = topic_metrics
        self._logger = logger
        self._fetch_bytes_max = fetch_bytes_max
        self._shared = SharedFetches(self, sessions, fetches, host.loop.time)

    def handle(self, context: RequestContext, request: FetchRequest) -> FetchResponse | Awaitable[FetchResponse] | None:
        follower_id = _follower_id(context.api_version, request)
        asked = Asked(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
        parameters = self.parameters(context.api_version, follower_id, asked, _follower_epoch(request))
        context.request_name = _NAME_OF[parameters.is_from_follower]
        scope = self._sessions.scope(self._session_request(context.api_version, request, follower_id))
        if scope.error:
            return FetchResponse(error_code=scope.error)
        self._offer_short_way(context, request, follower_id)
        reads = self._fetches.fetch(parameters, scope)
        if reads is not None:
            collected = self.collect(context.api_version, parameters, scope, reads)
            return self.respond(context, parameters, scope, collected)
        responder = context.park()
        parked = self._fetches.park(
            parameters, scope, lambda found: self._respond_later(responder, parameters, scope, found)
        )
        responder.when_lost(parked.give_up)
        return None

    def _offer_short_way(self, context: RequestContext, request: FetchRequest, follower_id: int) -> None:
        """Later requests of the connection need not come here, as long as they are as usual."""
        connection = context.connection
        known = connection.short_way
        state = request.replica_state
        follower = None if follower_id < 0 or state is None else (state.replica_id, state.replica_epoch)
        if known is not None and not (isinstance(known, FetchWay) and known.is_of_former_life(follower)):
            return  # its requests are of other forms, or it produces, and gains more from the way for that
        form = form_of(context.api_version, context.client_id, follower)
        if form is not None:
            connection.short_way = FetchWay(self._shared, context, form, follower)

    def error_response(self, context: RequestContext, request: FetchRequest, error: KafkaError) -> FetchResponse:
        response = FetchResponse(error_code=error.code)
        if context.api_version < _TOPIC_IDS_SINCE:
            response.responses = [
                FetchResponse.FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        FetchResponse.PartitionData(
                            partition_index=partition.partition,
                            error_code=error.code,
                            high_watermark=-1,
                            records=b"",
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        return response

    # What is asked.

    def parameters(
        self, api_version: int, follower_id: int, asked: Asked, follower_epoch: int = UNKNOWN_BROKER_EPOCH
    ) -> FetchParameters:
        """What holds for all partitions of a request."""
        is_follower = follower_id >= 0
        if is_follower:
            isolation = ReadIsolation.LOG_END
        elif asked.isolation_level == _READ_COMMITTED:
            isolation = ReadIsolation.COMMITTED
        else:
            isolation = ReadIsolation.HIGH_WATERMARK
        max_bytes = min(asked.max_bytes, self._fetch_bytes_max)
        return FetchParameters(
            follower_id=follower_id,
            max_wait_ms=asked.max_wait_ms,
            min_bytes=min(asked.min_bytes, max_bytes),
            max_bytes=max_bytes,
            isolation=isolation,
            leader_only=is_follower or api_version < _FOLLOWER_READS_SINCE,
            is_max_bytes_hard=api_version < _SOFT_MAX_BYTES_SINCE,
            follower_epoch=follower_epoch,
        )

    def asked(self, named: Sequence[NamedPartition]) -> list[FetchPartition]:
        """The partitions that a request names, each once."""
        names = self._metadata.image.names_by_id
        found: dict[SessionKey, FetchPartition] = {}
        for each in named:
            topic, number = each.key
            name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else (names.get(topic), topic)
            found[each.key] = FetchPartition(
                name,
                topic_id,
                number,
                fetch_offset=each.fetch_offset,
                max_bytes=each.max_bytes,
                leader_epoch=each.leader_epoch,
                last_fetched_epoch=each.last_fetched_epoch,
                log_start_offset=each.log_start_offset,
            )
        return list(found.values())

    def _session_request(self, version: int, request: FetchRequest, follower_id: int) -> SessionRequest:
        uses_topic_ids = version >= _TOPIC_IDS_SINCE
        named = [
            NamedPartition(
                (topic.topic_id if uses_topic_ids else topic.topic, partition.partition),
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
                partition.log_start_offset,
            )
            for topic in request.topics
            for partition in topic.partitions
        ]
        return SessionRequest(
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            follower_id=follower_id,
            uses_topic_ids=uses_topic_ids,
            asked=self.asked(named),
            forgotten=[
                (topic.topic_id if uses_topic_ids else topic.topic, partition)
                for topic in request.forgotten_topics_data
                for partition in topic.partitions
            ],
            follower_epoch=_follower_epoch(request),
        )

    # What is answered.

    def _respond_later(
        self, responder: Responder, parameters: FetchParameters, scope: FetchScope, reads: Reads
    ) -> None:
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
        else:
            self._topic_metrics.of(item.topic_partition.topic).bytes_out.count += size_bytes

    def collect(self, api_version: int, parameters: FetchParameters, scope: FetchScope, reads: Reads) -> Collected:
        """Chooses what goes into the response, and reads of it what is cached. `scope` says then whether there is an
        error of the session instead."""
        chosen = [
            Chosen(reads[position][0], reads[position][1], _code(api_version, parameters, reads[position][1]))
            for position in scope.select(reads)
        ]
        records: list[Buffer | None] = []
        is_complete = True
        for position, (item, read, code) in enumerate(chosen):
            data: Buffer | None = b""
            if read.plan is not None and code == ErrorCode.NONE:
                try:
                    data = self._reader.read_cached(read.plan)
                except OSError as error:
                    chosen[position] = Chosen(item, read, self._unreadable(read.plan, error))
                is_complete = is_complete and data is not None
            records.append(data)
        return Collected(chosen, records, is_complete)

    def respond(
        self, context: RequestContext, parameters: FetchParameters, scope: FetchScope, collected: Collected
    ) -> FetchResponse | Awaitable[FetchResponse]:
        """The response, if all its records are at hand; otherwise a coroutine that brings them first."""
        if scope.error:
            return FetchResponse(error_code=scope.error, session_id=scope.session_id)
        chosen, records, is_complete = collected
        if is_complete and context.api_version > _MAGIC_1_UNTIL:
            return self._response(context, parameters, scope.session_id, chosen, records)
        for (_, read, _), data in zip(chosen, records, strict=True):
            if data is None and read.plan is not None:
                # The file must not be closed before the coroutine has its turn.
                read.plan.segment.pin()
        return self._fill_and_respond(context, parameters, scope.session_id, chosen, records)

    async def _fill_and_respond(
        self,
        context: RequestContext,
        parameters: FetchParameters,
        session_id: int,
        chosen: list[Chosen],
        records: list[Buffer | None],
    ) -> FetchResponse:
        """Reads what is not cached, one plan after another, and converts for old clients."""
        for position, (item, read, code) in enumerate(chosen):
            data = records[position]
            if data is None and read.plan is not None:
                data, code = await self._read_cold(read.plan, code)
            if context.api_version <= _MAGIC_1_UNTIL and data:
                data, code = await self._convert(context.api_version, item, read, data)
            records[position] = data
            chosen[position] = Chosen(item, read, code)
        return self._response(context, parameters, session_id, chosen, records)

    async def _read_cold(self, plan: ReadPlan, code: ErrorCode) -> tuple[Buffer, ErrorCode]:
        try:
            return await self._reader.read(plan), code
        except OffloadFullError:
            return b"", code  # the client comes back
        except OSError as error:
            return b"", self._unreadable(plan, error)
        finally:
            plan.segment.unpin()

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
    ) -> FetchResponse:
        response = FetchResponse(session_id=session_id)
        topics = response.responses
        last: FetchResponse.FetchableTopicResponse | None = None
        for (item, read, code), data in zip(chosen, records, strict=True):
            topic = item.topic_partition.topic
            if last is None or last.topic != topic or last.topic_id != item.topic_id:
                last = FetchResponse.FetchableTopicResponse(topic=topic, topic_id=item.topic_id, partitions=[])
                topics.append(last)
            last.partitions.append(_partition_data(item, read, code, data or b""))
            if data:
                self.count_given(item, len(data), is_from_follower=parameters.is_from_follower)
        if context.api_version >= _LEADER_SINCE:
            self._add_leaders(context, response, chosen)
        return response

    def _add_leaders(self, context: RequestContext, response: FetchResponse, chosen: Sequence[Chosen]) -> None:
        """Names the leaders to a reader that has come to the wrong broker, or in a former epoch."""
        data = (partition for topic in response.responses for partition in topic.partitions)
        nodes: dict[int, CurrentLeader] = {}
        for (item, _, code), partition in zip(chosen, data, strict=True):
            if code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                continue
            leader = current_leader(item.topic_partition, self._replicas, self._metadata.image, context.listener_name)
            partition.current_leader = FetchResponse.LeaderIdAndEpoch(
                leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
            )
            if leader.node is not None:
                nodes[leader.leader_id] = leader
        response.node_endpoints = [
            FetchResponse.NodeEndpoint(
                node_id=leader.node.broker_id, host=leader.node.host, port=leader.node.port, rack=leader.node.rack
            )
            for leader in nodes.values()
            if leader.node is not None
        ]


def _follower_id(api_version: int, request: FetchRequest) -> int:
    """Negative for a client."""
    if api_version < _REPLICA_STATE_SINCE:
        return request.replica_id
    return NO_FOLLOWER if request.replica_state is None else request.replica_state.replica_id


def _follower_epoch(request: FetchRequest) -> int:
    """-1 for a client, and below version 15."""
    return UNKNOWN_BROKER_EPOCH if request.replica_state is None else request.replica_state.replica_epoch


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
    if read.aborted is not None:
        data.aborted_transactions = [
            FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in read.aborted
        ]
    if read.diverging is not None:
        data.diverging_epoch = FetchResponse.EpochEndOffset(
            epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
        )
    return data


def _code(version: int, parameters: FetchParameters, read: PartitionRead) -> ErrorCode:
    """What the client is told of the partition, which may not know a code or a format."""
    code = read.code
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_SINCE:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= _ZSTD_SINCE or code != ErrorCode.NONE or read.partition is None or read.partition.log is None:
        return code
    config = read.partition.log.config
    if config.compression_type == "zstd":
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    is_converted = version <= _MAGIC_1_UNTIL and not parameters.is_from_follower
    if is_converted and not config.message_downconversion_enable:
        return ErrorCode.UNSUPPORTED_VERSION
    return code
