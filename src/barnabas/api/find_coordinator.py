"""FindCoordinator, 0 to 6: which broker coordinates a group or a transactional id; from version 4 of several at once.

That is the leader of the partition of the internal topic which has the key. The first question for a group makes
`__consumer_offsets`, the first for a transactional id `__transaction_state`; until that has leaders the answer is
COORDINATOR_NOT_AVAILABLE. Share groups (type 2) have none, as in every Apache Kafka in ZooKeeper mode.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from itertools import repeat
from typing import Final, NamedTuple

from barnabas.api.administration.ports import TopicCreation
from barnabas.api.authorization import may, may_with_cluster
from barnabas.api.context import RequestContext
from barnabas.cluster.image import MetadataImage, Node
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicPartition

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_BATCHED_SINCE: Final = 4
_SHARE_SINCE: Final = 6
_TOPICS: Final = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_TOPIC}
_DENIED: Final = frozenset((ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
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
        transaction_coordinator: TransactionCoordinator,
        topic_creation: TopicCreation,
    ) -> None:
        self._metadata = metadata
        self._group_coordinator = group_coordinator
        self._transaction_coordinator = transaction_coordinator
        self._topic_creation = topic_creation

    def handle(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> Steps[FindCoordinatorResponse | Coroutine[None, None, FindCoordinatorResponse]]:
        key_type = request.key_type
        if key_type not in (_GROUP, _TRANSACTION, _SHARE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator type received: {key_type}")
        is_batched = context.api_version >= _BATCHED_SINCE
        keys = request.coordinator_keys if is_batched else [request.key]
        image = self._metadata.image
        is_asked = False

        def find(key: str) -> _Found:
            nonlocal is_asked
            found = self._find(context, image, key_type, key)
            is_asked = is_asked or found.error not in _DENIED
            return found

        found = yield from each(find, keys)
        response = (yield from _batched(keys, found)) if is_batched else _single(found[0])
        topic = _TOPICS.get(key_type)
        if is_asked and topic is not None and topic not in image.topics:
            return self._create_topic(topic, response)
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

    async def _create_topic(self, topic: str, response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        """The topic is not there while the answer is made, whatever comes of the attempt: the client asks again."""
        await self._topic_creation.create_topics([topic])
        return response

    def _find(self, context: RequestContext, image: MetadataImage, key_type: int, key: str) -> _Found:
        if key_type == _GROUP and not may(context, AclOperation.DESCRIBE, ResourceType.GROUP, key):
            return _Found(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if key_type == _TRANSACTION and not may(context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
            return _Found(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if key_type == _SHARE:
            if context.api_version < _SHARE_SINCE:
                return _Found(ErrorCode.INVALID_REQUEST)
            is_allowed = may_with_cluster(context, AclOperation.CLUSTER_ACTION)
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        try:
            if key_type == _GROUP:
                partition = TopicPartition(OFFSETS_TOPIC, self._group_coordinator.partition_for(key))
            else:
                partition = TopicPartition(TRANSACTION_TOPIC, self._transaction_coordinator.partition_for(key))
        except KafkaError as error:
            return _Found(error.code)
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
