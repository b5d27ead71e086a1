"""EndTxn, 0 to 4: a producer commits or aborts its transaction.

Answered when the outcome is committed to `__transaction_state`; its partitions are told after that.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext
from barnabas.api.transaction_codes import fenced_code
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import EndTxnRequest, EndTxnResponse

_FENCED_SINCE: Final = 2


class EndTxnHandler:
    """Asks the coordinator."""

    api_key = ApiKey.END_TXN
    versions = (0, 4)

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def handle(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | None:
        if not may(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        responder = context.park()
        self._transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            lambda code: responder.respond(_response(context, code)),
            is_commit=request.committed,
        )
        return None

    def error_response(self, context: RequestContext, _request: EndTxnRequest, error: KafkaError) -> EndTxnResponse:
        return _response(context, ErrorCode.for_code(error.code))


def _response(context: RequestContext, code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(error_code=fenced_code(code, context.api_version, known_since=_FENCED_SINCE))
