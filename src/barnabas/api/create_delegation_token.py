"""CreateDelegationToken, 0 to 3: a token that logs in by SCRAM as its owner, who is its requester or, from version 3
on, whoever the requester may have tokens for (KIP-48, KIP-373). Any broker makes it, and tells the others.

Kafka has no bound on renewers; here there is one, which keeps a token far from the size of a znode.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from barnabas.api.authorization import may
from barnabas.api.context import RequestContext
from barnabas.api.delegation_tokens import REQUESTERS_SINCE, check_channel, enabled, kind_and_name, principal_of
from barnabas.network.connection import ANONYMOUS
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.security.login import PRINCIPAL_TYPE
from barnabas.security.token_store import TokenStore
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse

RENEWERS_MAX: Final = 1024
NAMES_MAX: Final = 65_536
"""Characters of the names of the owner and all renewers together: twelve bytes each at most, in the znode."""


class CreateDelegationTokenHandler:
    """Makes tokens."""

    api_key = ApiKey.CREATE_DELEGATION_TOKEN
    versions = (0, 3)

    def __init__(self, store: TokenStore | None) -> None:
        """None where there are no tokens."""
        self._store = store

    def handle(
        self, context: RequestContext, request: CreateDelegationTokenRequest
    ) -> Coroutine[Any, Any, CreateDelegationTokenResponse]:
        requester, owner = context.principal, _owner(context, request)
        check_channel(context)
        if owner != requester and not may(context, AclOperation.CREATE_TOKENS, ResourceType.USER, owner):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        _check_size(request)
        if any(renewer.principal_type != PRINCIPAL_TYPE for renewer in request.renewers):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
        store = enabled(self._store)
        renewers = tuple([principal_of(renewer.principal_type, renewer.principal_name) for renewer in request.renewers])
        context.park()  # it waits for ZooKeeper, which is not this broker's work
        return _created(context, store, owner, renewers, request.max_lifetime_ms)

    def error_response(
        self, context: RequestContext, request: CreateDelegationTokenRequest, error: KafkaError
    ) -> CreateDelegationTokenResponse:
        if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            return _response(context, error.code, ANONYMOUS, ANONYMOUS)
        return _response(context, error.code, _owner(context, request), context.principal)


async def _created(
    context: RequestContext, store: TokenStore, owner: str, renewers: tuple[str, ...], lifetime_ms: int
) -> CreateDelegationTokenResponse:
    token = await store.create(owner, context.principal, renewers, lifetime_ms)
    response = _response(context, ErrorCode.NONE, owner, context.principal)
    response.issue_timestamp_ms = token.issue_timestamp_ms
    response.expiry_timestamp_ms = token.expiry_timestamp_ms
    response.max_timestamp_ms = token.max_timestamp_ms
    response.token_id = token.token_id
    response.hmac = store.tokens.hmac_of(token.token_id)
    return response


def _owner(context: RequestContext, request: CreateDelegationTokenRequest) -> str:
    name = request.owner_principal_name
    return principal_of(request.owner_principal_type, name) if name else context.principal


def _check_size(request: CreateDelegationTokenRequest) -> None:
    if len(request.renewers) > RENEWERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"A delegation token can have {RENEWERS_MAX} renewers at most.")
    names = [renewer.principal_name for renewer in request.renewers]
    names += [request.owner_principal_type or "", request.owner_principal_name or ""]
    if sum(map(len, names)) > NAMES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"The names of a token's owner and renewers can have {NAMES_MAX} characters."
        )


def _response(context: RequestContext, code: ErrorCode, owner: str, requester: str) -> CreateDelegationTokenResponse:
    kind, name = kind_and_name(owner)
    response = CreateDelegationTokenResponse(
        error_code=code,
        principal_type=kind,
        principal_name=name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
    if context.api_version >= REQUESTERS_SINCE:
        response.token_requester_principal_type, response.token_requester_principal_name = kind_and_name(requester)
    return response
