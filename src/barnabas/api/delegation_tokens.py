"""What the requests about delegation tokens have in common (KIP-48): who may send one, and who keeps the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.network.connection import ANONYMOUS
from barnabas.security.delegation_tokens import HMAC_BYTES
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext
    from barnabas.security.token_store import TokenStore
    from barnabas.wire.primitives import Buffer

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
