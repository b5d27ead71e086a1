"""InitProducerId, 0 to 5: an id for a producer, so that what it sends twice is kept once, and the next epoch of a
transactional one, so that whoever had the transactional id before is fenced (KIP-98, KIP-360).

Without a transactional id the epoch is 0. With one the answer comes when it is committed to `__transaction_state`; an
open transaction of the id is aborted first, and the producer asks again (CONCURRENT_TRANSACTIONS).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final

from barnabas.api.authorization import may, may_with_any, may_with_cluster
from barnabas.api.context import RequestContext
from barnabas.api.transaction_codes import fenced_code
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.coordinators.transaction.transactions import NO_PRODUCER, Producer
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID

_FIRST_EPOCH: Final = 0
_FENCED_SINCE: Final = 4


class InitProducerIdHandler:
    """Takes ids from the broker's blocks; asks the coordinator for what has a transactional id."""

    api_key = ApiKey.INIT_PRODUCER_ID
    versions = (0, 5)

    def __init__(self, producer_ids: ProducerIdManager, transactions: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    def handle(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Coroutine[None, None, InitProducerIdResponse] | None:
        _check(context, request.transactional_id)
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            self._ask_coordinator(context, request, request.transactional_id)
            return None
        producer_id = self._producer_ids.next_id_now()
        return self._wait(context) if producer_id is None else _response(context, Producer(producer_id, _FIRST_EPOCH))

    def _ask_coordinator(self, context: RequestContext, request: InitProducerIdRequest, transactional_id: str) -> None:
        present = Producer(request.producer_id, request.producer_epoch)
        responder = context.park()
        self._transactions.init_producer_id(
            transactional_id,
            request.transaction_timeout_ms,
            None if present == NO_PRODUCER else present,
            lambda code, given: responder.respond(_response(context, given, code)),
        )

    def error_response(
        self, context: RequestContext, _request: InitProducerIdRequest, error: KafkaError
    ) -> InitProducerIdResponse:
        return _response(context, NO_PRODUCER, ErrorCode.for_code(error.code))

    async def _wait(self, context: RequestContext) -> InitProducerIdResponse:
        return _response(context, Producer(await self._producer_ids.next_id(), _FIRST_EPOCH))


def _check(context: RequestContext, transactional_id: str | None) -> None:
    """Raises `KafkaError`. Whoever may write to any topic may do it as an idempotent producer (KIP-679)."""
    if transactional_id is not None:
        if not may(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not may_with_cluster(context, AclOperation.IDEMPOTENT_WRITE, quietly=True) and not may_with_any(
        context, AclOperation.WRITE, ResourceType.TOPIC
    ):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _response(context: RequestContext, given: Producer, code: ErrorCode = ErrorCode.NONE) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=fenced_code(code, context.api_version, known_since=_FENCED_SINCE),
        producer_id=given.producer_id,
        producer_epoch=given.epoch,
    )
