"""ExpireDelegationToken, 0 to 2: lets a token expire at another time, or deletes it at once (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.api.delegation_tokens import TokenEndHandler
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse

if TYPE_CHECKING:
    from barnabas.security.token_store import TokenStore


class ExpireDelegationTokenHandler(TokenEndHandler[ExpireDelegationTokenRequest, ExpireDelegationTokenResponse]):
    """Lets tokens expire."""

    api_key = ApiKey.EXPIRE_DELEGATION_TOKEN
    versions = (0, 2)
    response = ExpireDelegationTokenResponse

    async def end_ms(
        self, store: TokenStore, hmac: bytes, principal: str, request: ExpireDelegationTokenRequest
    ) -> int:
        return await store.expire(hmac, principal, request.expiry_time_period_ms)
