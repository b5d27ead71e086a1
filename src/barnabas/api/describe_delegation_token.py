"""DescribeDelegationToken, 0 to 3: the tokens that this broker knows of, with their secrets (KIP-48, KIP-373).

Who asks sees those that it owns, has asked for or may renew, and others by an ACL of the token or of its owner.
"""

from __future__ import annotations

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

        def described(token: DelegationToken) -> Described | None:
            if owners is not None and not belongs_to(token, owners):
                return None
            is_shown = (
                belongs_to(token, (context.principal,)) or by_token.allow(token.token_id) or by_owner.allow(token.owner)
            )
            return _described(context.api_version, token, tokens) if is_shown else None

        every = [] if owners is not None and not owners else tokens.every()
        found = yield from each(described, every, _TOKENS_PER_STEP)
        return DescribeDelegationTokenResponse(tokens=[token for token in found if token is not None])

    def error_response(
        self, _context: RequestContext, _request: DescribeDelegationTokenRequest, error: KafkaError
    ) -> DescribeDelegationTokenResponse:
        return DescribeDelegationTokenResponse(error_code=error.code)


_TOKENS_PER_STEP = 16
"""Each may have a thousand renewers."""


def _described(version: int, token: DelegationToken, tokens: DelegationTokens) -> Described:
    kind, name = kind_and_name(token.owner)
    renewers = [kind_and_name(renewer) for renewer in token.renewers]
    described = Described(
        principal_type=kind,
        principal_name=name,
        issue_timestamp=token.issue_timestamp_ms,
        expiry_timestamp=token.expiry_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
        renewers=[Renewer(principal_type=renewer_kind, principal_name=renewer) for renewer_kind, renewer in renewers],
    )
    if version >= REQUESTERS_SINCE:
        described.token_requester_principal_type, described.token_requester_principal_name = kind_and_name(
            token.requester
        )
    return described
