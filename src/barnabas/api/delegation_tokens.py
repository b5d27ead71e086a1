"""What the requests about delegation tokens have in common (KIP-48): who may send one, who keeps the tokens, and how
one comes to hold until another time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from barnabas.network.connection import ANONYMOUS
from barnabas.security.delegation_tokens import HMAC_BYTES
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from barnabas.api.context import RequestContext
    from barnabas.security.token_store import TokenStore
    from barnabas.wire.primitives import Buffer

Request = TypeVar("Request", RenewDelegationTokenRequest, ExpireDelegationTokenRequest)
Response = TypeVar("Response", RenewDelegationTokenResponse, ExpireDelegationTokenResponse)

REQUESTERS_SINCE: Final = 3
"""From this version on, responses tell who has asked for a token, beside whom it belongs to."""


def check_channel(context: RequestContext) -> None:
    """Raises KafkaError unless the connection shows who the client is, and by other means than a token: who has got
    hold of one could have tokens for ever otherwise.
    """
    connection = context.connection
    if connection.is_by_token or (not connection.listener.authenticates and context.principal == ANONYMOUS):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def enabled(store: TokenStore | None) -> TokenStore:
    """Raises KafkaError where there are no tokens, since this broker has no secret for them."""
    if store is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return store


def secret_of(hmac: Buffer) -> bytes:
    """A token's HMAC, as much of it as tells it from all others: whoever has logged in may send 100 MB for one."""
    return bytes(hmac[: HMAC_BYTES + 1])


def principal_of(kind: str | None, name: str) -> str:
    """As `User:alice`."""
    if kind is None:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka, which fails there
    return f"{kind}:{name}"


def kind_and_name(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


class TokenEndHandler(ABC, Generic[Request, Response]):
    """Has a token hold until another time: for its owner and its renewers, at any broker. Its subclasses say how, and
    what is answered.
    """

    response: type[Response]

    def __init__(self, store: TokenStore | None) -> None:
        """None where there are no tokens."""
        self._store = store

    def handle(self, context: RequestContext, request: Request) -> Coroutine[Any, Any, Response]:
        check_channel(context)
        store = enabled(self._store)
        context.park()  # it waits for ZooKeeper, which is not this broker's work
        return self._done(store, context.principal, request)

    def error_response(self, _context: RequestContext, _request: Request, error: KafkaError) -> Response:
        return self.response(error_code=error.code, expiry_timestamp_ms=-1)

    async def _done(self, store: TokenStore, principal: str, request: Request) -> Response:
        return self.response(expiry_timestamp_ms=await self.end_ms(store, secret_of(request.hmac), principal, request))

    @abstractmethod
    async def end_ms(self, store: TokenStore, hmac: bytes, principal: str, request: Request) -> int:
        """Until when the token of that HMAC holds then, in ms since 1970. Raises KafkaError."""
