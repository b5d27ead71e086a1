"""FindCoordinator, 0 to 6: which broker coordinates a group or a transactional id; from version 4 of several at once.

That is the leader of the partition of the internal topic which has the key. The first question for a group makes
`__consumer_offsets`; until it has leaders the answer is COORDINATOR_NOT_AVAILABLE. Left out: `__transaction_state` is
not made, there being no transactions yet; transactional ids are refused for good, with the reason
(TRANSACTIONAL_ID_AUTHORIZATION_FAILED), unless an Apache Kafka broker of the cluster has made it. Share groups
(type 2) have none either, as in every Apache Kafka in ZooKeeper mode.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from itertools import repeat
from typing import Final, NamedTuple

from barnabas.api.administration.ports import TopicCreation
from barnabas.api.context import RequestContext
from barnabas.api.transactional_ids import REASON, REFUSAL
from barnabas.cluster.image import MetadataImage, Node
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.placement import partition_for
from barnabas.kernel.steps import Steps, each
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicPartition

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_BATCHED_SINCE: Final = 4
_SHARE_SINCE: Final = 6
_NO_NODE: Final = Node(-1, "", -1)
_SUCCESS_MESSAGE: Final = "NONE"
"""What Kafka puts beside error code 0 in versions 1 to 3."""


class _Found(NamedTuple):
    error: ErrorCode
    node: Node = _NO_NODE
    message: str = ""
    """More than the code says."""


class FindCoordinatorHandler:
    """Looks keys up in the metadata."""

    api_key = ApiKey.FIND_COORDINATOR
    versions = (0, 6)

    def __init__(
        self,
        metadata: MetadataCache,
        group_coordinator: GroupCoordinator,
        topic_creation: TopicCreation,
        transaction_partition_count: int,
    ) -> None:
        self._metadata = metadata
        self._group_coordinator = group_coordinator
        self._topic_creation = topic_creation
        self._transaction_partition_count = transaction_partition_count

    def handle(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> Steps[FindCoordinatorResponse | Coroutine[None, None, FindCoordinatorResponse]]:
        key_type = request.key_type
        if key_type not in (_GROUP, _TRANSACTION, _SHARE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator type received: {key_type}")
        is_batched = context.api_version >= _BATCHED_SINCE
        keys = request.coordinator_keys if is_batched else [request.key]
        image = self._metadata.image
        found = yield from each(lambda key: self._find(context, image, key_type, key), keys)
        response = (yield from _batched(keys, found)) if is_batched else _single(found[0])
        if keys and key_type == _GROUP and OFFSETS_TOPIC not in image.topics:
            return self._create_offsets_topic(response)
        return response

    def error_response(
        self, context: RequestContext, request: FindCoordinatorRequest, error: KafkaError
    ) -> Steps[FindCoordinatorResponse]:
        if context.api_version < _BATCHED_SINCE:
            response = _single(_Found(error.code))
            response.error_message = error.message
            return response
        found = repeat(_Found(error.code), len(request.coordinator_keys))
        return (yield from _batched(request.coordinator_keys, found, error.message))

    async def _create_offsets_topic(self, response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        """The topic is not there while the answer is made, whatever comes of the attempt: the client asks again."""
        await self._topic_creation.create_topics([OFFSETS_TOPIC])
        return response

    def _find(self, context: RequestContext, image: MetadataImage, key_type: int, key: str) -> _Found:
        if key_type == _SHARE:
            is_known = context.api_version >= _SHARE_SINCE
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE if is_known else ErrorCode.INVALID_REQUEST)
        if key_type == _GROUP:
            try:
                partition = TopicPartition(OFFSETS_TOPIC, self._group_coordinator.partition_for(key))
            except KafkaError as error:
                return _Found(error.code)
        else:
            partition = TopicPartition(TRANSACTION_TOPIC, partition_for(key, self._transaction_partition_count))
            if TRANSACTION_TOPIC not in image.topics:
                return _Found(REFUSAL, message=REASON)
        node = image.leader_node(partition, context.listener_name)
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE) if node is None else _Found(ErrorCode.NONE, node)


def _single(found: _Found) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=found.error,
        error_message=_SUCCESS_MESSAGE if found.error is ErrorCode.NONE else found.message or found.error.message,
        node_id=found.node.broker_id,
        host=found.node.host,
        port=found.node.port,
    )


def _batched(keys: list[str], found: Iterable[_Found], message: str = "") -> Steps[FindCoordinatorResponse]:
    """Without messages, which Kafka leaves empty here, but for the whole request and for transactional ids."""

    def coordinator(named: tuple[str, _Found]) -> FindCoordinatorResponse.Coordinator:
        key, (error, node, own) = named
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=node.broker_id,
            host=node.host,
            port=node.port,
            error_code=error,
            error_message=own or message,
        )

    coordinators = yield from each(coordinator, zip(keys, found, strict=True))
    return FindCoordinatorResponse(coordinators=coordinators)
