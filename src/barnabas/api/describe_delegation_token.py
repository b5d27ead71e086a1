"""DescribeDelegationToken, 0 to 3: the tokens that this broker knows of, with their secrets (KIP-48, KIP-373).

Who asks sees those that it owns, has asked for or may renew, and others by an ACL of the token or of its owner.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.api.delegation_tokens import REQUESTERS_SINCE, check_channel, enabled, kind_and_name, principal_of
from barnabas.coordination.layout.delegation_tokens import DelegationToken
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.security.delegation_tokens import DelegationTokens, belongs_to
from barnabas.security.token_store import TokenStore
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse

Described = DescribeDelegationTokenResponse.DescribedDelegationToken
Renewer = DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer


class DescribeDelegationTokenHandler:
    """Tells of tokens."""

    api_key = ApiKey.DESCRIBE_DELEGATION_TOKEN
    versions = (0, 3)

    def __init__(self, store: TokenStore | None) -> None:
        """None where there are no tokens."""
        self._store = store

    def handle(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> Steps[DescribeDelegationTokenResponse]:
        check_channel(context)
        tokens = enabled(self._store).tokens
        owners: set[str] | None = None
        if request.owners is not None:
            owners = set()
            for start in range(0, len(request.owners), STEP_ELEMENTS):
                some = request.owners[start : start + STEP_ELEMENTS]
                owners.update(principal_of(owner.principal_type, owner.principal_name) for owner in some)
                yield
        by_token = Decisions(context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, quietly=True)
        by_owner = Decisions(context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, quietly=True)

        def is_shown(token: DelegationToken) -> bool:
            if owners is not None and not belongs_to(token, owners):
                return False
            return (
                belongs_to(token, (context.principal,)) or by_token.allow(token.token_id) or by_owner.allow(token.owner)
            )

        response = DescribeDelegationTokenResponse()
        looked_at = 0
        for token in [] if owners is not None and not owners else tokens.every():
            if is_shown(token):
                response.tokens.append((yield from _described(context.api_version, token, tokens)))
            looked_at += _TOKEN_ELEMENTS + len(token.renewers)
            if looked_at >= _ELEMENTS_PER_STEP:
                looked_at = 0
                yield
        return response

    def error_response(
        self, _context: RequestContext, _request: DescribeDelegationTokenRequest, error: KafkaError
    ) -> DescribeDelegationTokenResponse:
        return DescribeDelegationTokenResponse(error_code=error.code)


_ELEMENTS_PER_STEP: Final = 4096
"""Names that are looked at."""
_TOKEN_ELEMENTS: Final = 64
"""As much work as a token is without renewers, of which one of Apache Kafka may have tens of thousands."""
_RENEWERS_PER_STEP: Final = 2048


def _described(version: int, token: DelegationToken, tokens: DelegationTokens) -> Steps[Described]:
    kind, name = kind_and_name(token.owner)
    renewers = yield from each(_renewer, token.renewers, _RENEWERS_PER_STEP)
    described = Described(
        principal_type=kind,
        principal_name=name,
        issue_timestamp=token.issue_timestamp_ms,
        expiry_timestamp=token.expiry_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
        renewers=renewers,
    )
    if version >= REQUESTERS_SINCE:
        described.token_requester_principal_type, described.token_requester_principal_name = kind_and_name(
            token.requester
        )
    return described


def _renewer(principal: str) -> Renewer:
    kind, name = kind_and_name(principal)
    return Renewer(principal_type=kind, principal_name=name)
