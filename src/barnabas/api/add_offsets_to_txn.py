"""AddOffsetsToTxn, 0 to 4: a producer is about to commit offsets of a group in its transaction.

The partition of `__consumer_offsets` that has the group becomes part of the transaction, so that it is told the
outcome.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext
from barnabas.api.transaction_codes import fenced_code
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

_FENCED_SINCE: Final = 2


class AddOffsetsToTxnHandler:
    """Asks the coordinator."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    versions = (0, 4)

    def __init__(self, transactions: TransactionCoordinator, groups: GroupCoordinator) -> None:
        self._transactions = transactions
        self._groups = groups

    def handle(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse | None:
        if not may(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not may(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        partition = TopicPartition(OFFSETS_TOPIC, self._groups.partition_for(request.group_id))
        responder = context.park()
        self._transactions.add_partitions(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            (partition,),
            lambda code: responder.respond(_response(context, code)),
        )
        return None

    def error_response(
        self, context: RequestContext, _request: AddOffsetsToTxnRequest, error: KafkaError
    ) -> AddOffsetsToTxnResponse:
        return _response(context, ErrorCode.for_code(error.code))


def _response(context: RequestContext, code: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=fenced_code(code, context.api_version, known_since=_FENCED_SINCE))
