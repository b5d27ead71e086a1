"""RenewDelegationToken, 0 to 2: lets a token that holds expire later (KIP-48), but never after the end of its life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.api.delegation_tokens import TokenEndHandler
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import RenewDelegationTokenRequest, RenewDelegationTokenResponse

if TYPE_CHECKING:
    from barnabas.security.token_store import TokenStore


class RenewDelegationTokenHandler(TokenEndHandler[RenewDelegationTokenRequest, RenewDelegationTokenResponse]):
    """Renews tokens."""

    api_key = ApiKey.RENEW_DELEGATION_TOKEN
    versions = (0, 2)
    response = RenewDelegationTokenResponse

    async def end_ms(self, store: TokenStore, hmac: bytes, principal: str, request: RenewDelegationTokenRequest) -> int:
        return await store.renew(hmac, principal, request.renew_period_ms)
