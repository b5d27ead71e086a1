"""Fetch, 0 to 17: records for clients and followers, with or without session, at once or when there are enough.

A leader names a replica in the client's rack (KIP-392), and a follower gives what is committed as far as it knows.
A client that has taken more than its quota is answered without records, and is not read for a while (KIP-13). Left out:
snapshots (KRaft). A client before version 4 gets its records converted, where
`message.downconversion.enable` allows it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from barnabas.api.context import RequestContext, Responder
from barnabas.api.fetch_access import fetch_access
from barnabas.api.fetch_answers import FetchAnswers
from barnabas.api.fetch_fast_path import Asked, FetchFastPath, FetchQuotas, NoFetchQuotas, SharedFetches
from barnabas.api.fetch_frames import ISOLATION_LEVELS, form_of
from barnabas.api.request_time import counted_steps
from barnabas.kernel.host import Host
from barnabas.kernel.steps import Steps, each_within, emptied
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.serving.fetch import DelayedFetches
from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, SessionKey
from barnabas.serving.fetch_reads import READ_PER_STEP, FetchAccess, FetchParameters, FetchQuota
from barnabas.serving.fetch_session import PARTITIONS_MAX
from barnabas.serving.fetch_sessions import FEW_PARTITIONS, FetchScope, FetchSessionCache, SessionRequest
from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import dissolve
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import CONSUMER_ID, NO_EPOCH

if TYPE_CHECKING:
    from barnabas.log.segments.reading import LogReader
    from barnabas.serving.leader_throttle import LeaderThrottle
    from barnabas.serving.remote_fetch import RemoteReader

_TOPIC_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
_FOLLOWER_READS_SINCE: Final = 11
_ERROR_OF_ALL_SINCE: Final = 7
"""A response has an error of its own."""
_SOFT_MAX_BYTES_SINCE: Final = 3
_READ_COMMITTED: Final = 1
_FORGOTTEN_PER_STEP: Final = 16_384
_NAME_OF: Final = {True: "FetchFollower", False: "FetchConsumer"}


class FetchHandler:
    """Finds out what is asked, in order of arrival, and waits until there is enough; `FetchAnswers` answers it."""

    api_key = ApiKey.FETCH
    versions = (0, 17)

    def __init__(
        self,
        host: Host,
        fetches: DelayedFetches,
        sessions: FetchSessionCache,
        reader: LogReader,
        replicas: Replicas,
        metadata: MetadataSource,
        topic_metrics: BrokerTopicMetrics,
        logger: logging.Logger,
        *,
        fetch_bytes_max: int,
        throttle: LeaderThrottle | None = None,
        remote: RemoteReader | None = None,
        quotas: FetchQuotas | None = None,
    ) -> None:
        """`fetch_bytes_max` bounds every response (`fetch.max.bytes`); `throttle` is that of `fetches`; `remote` is
        there where the broker has remote storage; without `quotas` clients have none."""
        self._quotas = quotas or NoFetchQuotas()
        self._fetches = fetches
        self._sessions = sessions
        self._metadata = metadata
        self._fetch_bytes_max = fetch_bytes_max
        self._answers = FetchAnswers(host, reader, replicas, metadata, topic_metrics, logger, throttle, remote)
        self._shared = SharedFetches(
            self, self._answers, sessions, fetches, host.loop.time, reader.read_cached, self._quotas
        )

    def handle(self, context: RequestContext, request: FetchRequest) -> Any:
        if request.isolation_level not in ISOLATION_LEVELS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no isolation level {request.isolation_level}.")
        follower_id = _follower_id(context.api_version, request)
        asked = Asked(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
        parameters = self.parameters(
            context.api_version,
            follower_id,
            asked,
            _follower_epoch(request),
            rack_id=request.rack_id,
            listener_name=context.listener_name,
            quota=self._quotas.of(context.principal, context.client_id) if follower_id < 0 else None,
            access=fetch_access(context, is_follower=follower_id >= 0),
        )
        self._sessions.rights_are(request.session_id, parameters.access)
        context.request_name = _NAME_OF[parameters.is_from_follower]
        if self._is_large(request):
            steps = self._handle_in_steps(context, request, parameters, follower_id)
            return steps if parameters.quota is None else counted_steps(steps, parameters.quota)
        quota = parameters.quota
        if quota is None:
            return self._handle(context, request, parameters, follower_id)
        quota.begin()
        try:
            return self._handle(context, request, parameters, follower_id)
        finally:
            quota.end()

    def _handle(
        self, context: RequestContext, request: FetchRequest, parameters: FetchParameters, follower_id: int
    ) -> Any:
        scope = self._sessions.scope(self._session_request(context.api_version, request, follower_id))
        if scope.error:
            return FetchResponse(error_code=scope.error)
        self._offer_fast_path(context, request, follower_id)
        reads = self._fetches.fetch(parameters, scope)
        if reads is not None:
            collected = self._answers.collect(context.api_version, parameters, scope, reads)
            return self._answers.respond(context, parameters, scope, collected)
        responder = context.park()
        parked = self._fetches.park(
            parameters,
            scope,
            lambda found: self._answers.respond_later(responder, parameters, scope, found),
            lambda error: self._answers.fail_later(responder, error),
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
        call_count = self._sessions.call_counts.get(follower_id, 0)
        named = _named(request, uses_topic_ids=uses_topic_ids)
        while some := list(islice(named, READ_PER_STEP)):
            found.update(self._asked_by_key(some))
            yield
        asked = list(found.values())
        forgotten = list(islice(_forgotten(request, uses_topic_ids=uses_topic_ids), PARTITIONS_MAX + 1))
        if version >= _ERROR_OF_ALL_SINCE:  # before, its partitions are named if anything fails from here on
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
        scope.call_count = call_count
        while found:
            for _ in range(min(len(found), _FORGOTTEN_PER_STEP)):
                found.popitem()
            yield
        if scope.error:
            return FetchResponse(error_code=scope.error)
        reads = yield from self._fetches.fetch_in_steps(parameters, scope)
        if reads is None:
            return self._wait_and_respond(context, context.park(), parameters, scope)
        response = yield from self._answers.respond_in_steps(context, parameters, scope, reads)
        yield from emptied(reads)
        yield from emptied(asked)
        return response

    async def _wait_and_respond(
        self, context: RequestContext, responder: Responder, parameters: FetchParameters, scope: FetchScope
    ) -> FetchResponse:
        await self._fetches.wait(parameters, scope, context.in_steps, responder.when_lost)
        reading = self._fetches.reader.read_in_steps(parameters, scope, updates_followers=False)
        reads = await context.in_steps(counted_steps(reading, parameters.quota))
        answering = self._answers.respond_in_steps(context, parameters, scope, reads)
        answer = await context.in_steps(counted_steps(answering, parameters.quota))
        await context.in_steps(emptied(reads))
        return await answer if isinstance(answer, Awaitable) else answer

    def _offer_fast_path(self, context: RequestContext, request: FetchRequest, follower_id: int) -> None:
        """Later requests of the connection need not come here, as long as they are as usual."""
        connection = context.connection
        known = connection.fast_path
        state = request.replica_state
        follower = None if follower_id < 0 or state is None else (state.replica_id, state.replica_epoch)
        if known is not None and not (isinstance(known, FetchFastPath) and known.is_of_former_life(follower)):
            return  # its requests are of other forms, or it produces, and gains more from the fast path of that
        form = form_of(context.api_version, context.client_id, follower, request.rack_id)
        if form is not None:
            connection.learn(FetchFastPath(self._shared, context, form, follower, request.rack_id))

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
        self,
        api_version: int,
        follower_id: int,
        asked: Asked,
        follower_epoch: int = NO_EPOCH,
        *,
        rack_id: str = "",
        listener_name: str = "",
        quota: FetchQuota | None = None,
        access: FetchAccess | None = None,
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
        if quota is not None and quota.burst < max_bytes:
            max_bytes = int(quota.burst)  # more would be held back however long he had taken nothing
        return FetchParameters(
            follower_id=follower_id,
            max_wait_ms=asked.max_wait_ms,
            min_bytes=min(asked.min_bytes, max_bytes),
            max_bytes=max_bytes,
            isolation=isolation,
            leader_only=is_follower or api_version < _FOLLOWER_READS_SINCE,
            is_max_bytes_hard=api_version < _SOFT_MAX_BYTES_SINCE,
            follower_epoch=follower_epoch,
            rack_id=rack_id,
            listener_name=listener_name,
            quota=quota,
            access=access,
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
    return CONSUMER_ID if request.replica_state is None else request.replica_state.replica_id


def _follower_epoch(request: FetchRequest) -> int:
    """-1 for a client, and below version 15."""
    return NO_EPOCH if request.replica_state is None else request.replica_state.replica_epoch
