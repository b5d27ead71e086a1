"""InitProducerId, 0 to 5: an id for a producer, so that what it sends twice is kept once (KIP-98).

The epoch is 0. Left out: transactional ids. There being no transactions yet, they are refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients take as final, after the checks that come before it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final

from barnabas.api.context import RequestContext
from barnabas.api.transactional_ids import REASON, REFUSAL
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID

_FIRST_EPOCH: Final = 0


class InitProducerIdHandler:
    """Takes ids from the broker's blocks."""

    api_key = ApiKey.INIT_PRODUCER_ID
    versions = (0, 5)

    def __init__(self, producer_ids: ProducerIdManager, transaction_timeout_max_ms: int) -> None:
        self._producer_ids = producer_ids
        self._transaction_timeout_max_ms = transaction_timeout_max_ms

    def handle(
        self, _context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse | Coroutine[None, None, InitProducerIdResponse]:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            self._check_transactional(request)
            raise KafkaError(REFUSAL, REASON)
        producer_id = self._producer_ids.next_id_now()
        return self._wait() if producer_id is None else _response(producer_id)

    def error_response(
        self, _context: RequestContext, _request: InitProducerIdRequest, error: KafkaError
    ) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)

    def _check_transactional(self, request: InitProducerIdRequest) -> None:
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id has at least one character")
        if not 0 < request.transaction_timeout_ms <= self._transaction_timeout_max_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    async def _wait(self) -> InitProducerIdResponse:
        return _response(await self._producer_ids.next_id())


def _response(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=_FIRST_EPOCH)
