"""Fetch, 0 to 17: records for clients and followers, with or without session, at once or when there are enough.

Left out: naming a replica nearer to the client (KIP-392; a client that asks a follower gets records all the same),
quotas, snapshots (KRaft). A client before version 4 gets its records converted, where
`message.downconversion.enable` allows it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from barnabas.api.context import RequestContext, Responder
from barnabas.api.current_leader import CurrentLeader, current_leader
from barnabas.api.fetch_frames import ISOLATION_LEVELS, form_of
from barnabas.api.fetch_short_way import Asked, Chosen, Collected, FetchWay, SharedFetches
from barnabas.kernel.host import Host, OffloadFullError, OffloadKind
from barnabas.kernel.steps import Steps, at_once, each_within, emptied
from barnabas.log.read_plans import ReadIsolation
from barnabas.replication.fetch import Fetches
from barnabas.replication.fetch_reads import (
    NO_FOLLOWER,
    READ_PER_STEP,
    FetchParameters,
    PartitionRead,
    Reads,
    drop_unreadable,
)
from barnabas.replication.fetch_sessions import (
    FEW_PARTITIONS,
    PARTITIONS_MAX,
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
from barnabas.wire.classes import dissolve
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
_READ_HERE_BYTES_MAX: Final = 16 * 1024 * 1024
_FORGOTTEN_PER_STEP: Final = 16_384
_ERRORS_BEFORE_READING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Of partitions that are not looked at for what they are, or for what the client can: they have an empty list of
aborted transactions in Kafka, whatever the isolation level; all others without records have none.
"""
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

    def handle(self, context: RequestContext, request: FetchRequest) -> Any:
        if request.isolation_level not in ISOLATION_LEVELS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no isolation level {request.isolation_level}.")
        follower_id = _follower_id(context.api_version, request)
        asked = Asked(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
        parameters = self.parameters(context.api_version, follower_id, asked, _follower_epoch(request))
        context.request_name = _NAME_OF[parameters.is_from_follower]
        if self._is_large(request):
            return self._handle_in_steps(context, request, parameters, follower_id)
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

    def _is_large(self, request: FetchRequest) -> bool:
        """It names very many partitions, or there is news of so many in its session."""
        session = self._sessions.sessions.get(request.session_id)
        count = 0 if session is None else session.candidate_count
        for topic in request.topics:
            count += 1 + len(topic.partitions)
            if count > FEW_PARTITIONS:
                return True
        for forgotten in request.forgotten_topics_data:
            count += 1 + len(forgotten.partitions)
            if count > FEW_PARTITIONS:
                return True
        return count > FEW_PARTITIONS

    # Very many partitions.

    def _handle_in_steps(
        self, context: RequestContext, request: FetchRequest, parameters: FetchParameters, follower_id: int
    ) -> Steps[FetchResponse | Awaitable[FetchResponse]]:
        version = context.api_version
        uses_topic_ids = version >= _TOPIC_IDS_SINCE
        found: dict[SessionKey, FetchPartition] = {}
        named = _named(request, uses_topic_ids=uses_topic_ids)
        while some := list(islice(named, READ_PER_STEP)):
            found.update(self._asked_by_key(some))
            yield
        asked = list(found.values())
        forgotten = list(islice(_forgotten(request, uses_topic_ids=uses_topic_ids), PARTITIONS_MAX + 1))
        yield from dissolve(request)
        scope = self._sessions.scope(
            SessionRequest(
                session_id=request.session_id,
                session_epoch=request.session_epoch,
                follower_id=follower_id,
                uses_topic_ids=uses_topic_ids,
                asked=asked,
                forgotten=forgotten,
                follower_epoch=_follower_epoch(request),
            )
        )
        while found:
            for _ in range(min(len(found), _FORGOTTEN_PER_STEP)):
                found.popitem()
            yield
        if scope.error:
            return FetchResponse(error_code=scope.error)
        reads = yield from self._fetches.fetch_in_steps(parameters, scope)
        if reads is None:
            return self._wait_and_respond(context, context.park(), parameters, scope)
        response = yield from self._respond_in_steps(context, parameters, scope, reads)
        yield from emptied(reads)
        yield from emptied(asked)
        return response

    async def _wait_and_respond(
        self, context: RequestContext, responder: Responder, parameters: FetchParameters, scope: FetchScope
    ) -> FetchResponse:
        await self._fetches.wait(parameters, scope, context.in_steps, responder.when_lost)
        reading = self._fetches.reader.read_in_steps(parameters, scope, updates_followers=False)
        reads = await context.in_steps(reading)
        answer = await context.in_steps(self._respond_in_steps(context, parameters, scope, reads))
        await context.in_steps(emptied(reads))
        return await answer if isinstance(answer, Awaitable) else answer

    def _respond_in_steps(
        self, context: RequestContext, parameters: FetchParameters, scope: FetchScope, reads: Reads
    ) -> Steps[FetchResponse | Awaitable[FetchResponse]]:
        """As `collect` and `respond`."""
        version = context.api_version
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

    def error_response(self, context: RequestContext, request: FetchRequest, error: KafkaError) -> Steps[FetchResponse]:
        response = FetchResponse(error_code=error.code)
        if context.api_version < _TOPIC_IDS_SINCE:
            response.responses = yield from each_within(
                request.topics,
                lambda topic: topic.partitions,
                lambda _, partition: FetchResponse.PartitionData(
                    partition_index=partition.partition,
                    error_code=error.code,
                    high_watermark=-1,
                    aborted_transactions=[],
                    records=None,
                ),
                lambda topic, failed: FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=failed),
            )
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
        return list(self._asked_by_key(named).values())

    def _asked_by_key(self, named: Sequence[NamedPartition]) -> dict[SessionKey, FetchPartition]:
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
        return found

    def _session_request(self, version: int, request: FetchRequest, follower_id: int) -> SessionRequest:
        uses_topic_ids = version >= _TOPIC_IDS_SINCE
        return SessionRequest(
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            follower_id=follower_id,
            uses_topic_ids=uses_topic_ids,
            asked=self.asked(list(_named(request, uses_topic_ids=uses_topic_ids))),
            forgotten=list(_forgotten(request, uses_topic_ids=uses_topic_ids)),
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
        return self._collect(api_version, parameters, reads, scope.select(reads))

    def _collect(
        self, api_version: int, parameters: FetchParameters, reads: Reads, positions: Iterable[int]
    ) -> Collected:
        chosen = [
            Chosen(reads[position][0], reads[position][1], _code(api_version, parameters, reads[position][1]))
            for position in positions
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
            return await self._filled(context, parameters, session_id, chosen, records)
        finally:
            context.connection.go_on()

    async def _filled(
        self,
        context: RequestContext,
        parameters: FetchParameters,
        session_id: int,
        chosen: list[Chosen],
        records: list[Buffer | None],
    ) -> FetchResponse:
        for position, (item, read, code) in enumerate(chosen):
            data = records[position]
            if data is None and read.plan is not None:
                data, code = await self._read_cold(read.plan, code)
            if context.api_version <= _MAGIC_1_UNTIL and data:
                data, code = await self._convert(context.api_version, item, read, data)
            records[position] = data
            chosen[position] = Chosen(item, read, code)
            if position % READ_PER_STEP == READ_PER_STEP - 1:
                await context.turn()
        response = self._response(context, parameters, session_id, chosen, records)
        return await context.in_steps(response) if len(chosen) > FEW_PARTITIONS else at_once(response)

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
        nodes: dict[int, CurrentLeader] = {}
        left = READ_PER_STEP
        for (item, _, code), partition in zip(chosen, data, strict=True):
            left -= 1
            if not left:
                yield
                left = READ_PER_STEP
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


def _named(request: FetchRequest, *, uses_topic_ids: bool) -> Iterator[NamedPartition]:
    return (
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
    )


def _forgotten(request: FetchRequest, *, uses_topic_ids: bool) -> Iterator[SessionKey]:
    return (
        (topic.topic_id if uses_topic_ids else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    )


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
    if code in _ERRORS_BEFORE_READING:
        data.aborted_transactions = []
    elif read.aborted is not None:
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
