"""ExpireDelegationToken, 0 to 2: lets a token expire at another time, or deletes it at once (KIP-48).

Any broker does it, for the owner of the token and for its renewers.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from barnabas.api.context import RequestContext
from barnabas.api.delegation_tokens import check_channel, enabled, secret_of
from barnabas.security.token_store import TokenStore
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


class ExpireDelegationTokenHandler:
    """Lets tokens expire."""

    api_key = ApiKey.EXPIRE_DELEGATION_TOKEN
    versions = (0, 2)

    def __init__(self, store: TokenStore | None) -> None:
        """None where there are no tokens."""
        self._store = store

    def handle(
        self, context: RequestContext, request: ExpireDelegationTokenRequest
    ) -> Coroutine[Any, Any, ExpireDelegationTokenResponse]:
        check_channel(context)
        store = enabled(self._store)
        context.park()  # it waits for ZooKeeper, which is not this broker's work
        return _done(store, secret_of(request.hmac), context.principal, request.expiry_time_period_ms)

    def error_response(
        self, _context: RequestContext, _request: ExpireDelegationTokenRequest, error: KafkaError
    ) -> ExpireDelegationTokenResponse:
        return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)


async def _done(store: TokenStore, hmac: bytes, principal: str, period_ms: int) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=await store.expire(hmac, principal, period_ms))
