"""Delegation tokens (KIP-48, KIP-373) without I/O: who may renew and expire them, for how long they hold, and what a
client logs in with.

A token's HMAC, by the secret that all brokers share, is what its owner is given: as bytes for requests, in base64 as a
password of SCRAM. It is nowhere written, since every broker can work it out of the token's id. Source: Kafka's
`DelegationTokenManager` and `DelegationTokenCache`.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, KeysView
from dataclasses import dataclass, field, replace
from typing import Final

from barnabas.coordination.layout.delegation_tokens import DelegationToken
from barnabas.kernel.host import Entropy
from barnabas.sasl.hashes import hmac_of
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.sasl.scram_server import TokenLogin
from barnabas.security.login import PRINCIPAL_TYPE
from barnabas.wire.errors import ErrorCode, KafkaError

HMAC_BYTES: Final = 64
_SALT_BYTES: Final = 24
_TIMESTAMP_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TokenLifetimes:
    """How long tokens may hold."""

    lifetime_ms_max: int
    """`delegation.token.max.lifetime.ms`."""
    expiry_ms: int
    """`delegation.token.expiry.time.ms`: how long one holds that is not renewed."""


@dataclass(slots=True)
class _Held:
    token: DelegationToken
    hmac: bytes = field(repr=False)
    credentials: dict[ScramMechanism, ScramCredential] = field(default_factory=dict, repr=False)


class DelegationTokens:
    """Those of the cluster, as far as this broker has heard of them."""

    def __init__(self, secret: str, entropy: Entropy) -> None:
        """`secret` is `delegation.token.secret.key`."""
        self._secret = secret.encode()
        self._entropy = entropy
        self._held: dict[str, _Held] = {}
        self._by_hmac: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._held)

    def every(self) -> list[DelegationToken]:
        return [held.token for held in self._held.values()]

    def ids(self) -> KeysView[str]:
        return self._held.keys()

    def find(self, token_id: str) -> DelegationToken | None:
        held = self._held.get(token_id)
        return None if held is None else held.token

    def with_hmac(self, hmac: bytes) -> DelegationToken | None:
        """The token whose HMAC that is."""
        token_id = self._by_hmac.get(hmac)
        return None if token_id is None else self.find(token_id)

    def hmac_of(self, token_id: str) -> bytes:
        """The secret of the token with that id, whether there is one or not."""
        held = self._held.get(token_id)
        return hmac_of(self._secret, token_id.encode(), "sha512") if held is None else held.hmac

    def put(self, token: DelegationToken) -> None:
        """There is this token, new or changed."""
        held = self._held.get(token.token_id)
        if held is not None:
            held.token = token
            return
        hmac = self.hmac_of(token.token_id)
        self._held[token.token_id] = _Held(token, hmac)
        self._by_hmac[hmac] = token.token_id

    def remove(self, token_id: str) -> None:
        """There is no such token any more. Who has logged in with it stays."""
        held = self._held.pop(token_id, None)
        if held is not None:
            del self._by_hmac[held.hmac]

    def login(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """What the token logs in with, where there is one. Its credential is worked out at its first login here, in
        some milliseconds: a cluster may have many that never log in at this broker.

        None also for one whose owner is no user: nobody is `User:root` by a token of `Group:root`.
        """
        held = self._held.get(token_id)
        if held is None:
            return None
        kind, _, owner = held.token.owner.partition(":")
        if kind != PRINCIPAL_TYPE:
            return None
        credential = held.credentials.get(mechanism)
        if credential is None:
            password = base64.b64encode(held.hmac).decode()
            credential = ScramCredential.of_password(mechanism, password, self._entropy(_SALT_BYTES))
            held.credentials[mechanism] = credential
        return TokenLogin(owner, credential, held.token.expiry_timestamp_ms)


def new_token(
    token_id: str,
    owner: str,
    requester: str,
    renewers: tuple[str, ...],
    *,
    lifetime_ms: int,
    now_ms: int,
    lifetimes: TokenLifetimes,
) -> DelegationToken:
    """A token made now. It lives for `lifetime_ms`, or as long as it may where that is no positive number."""
    longest_ms = lifetimes.lifetime_ms_max
    max_ms = _sum(now_ms, min(lifetime_ms, longest_ms) if lifetime_ms > 0 else longest_ms)
    expiry_ms = min(max_ms, _sum(now_ms, lifetimes.expiry_ms))
    return DelegationToken(token_id, owner, requester, renewers, now_ms, max_ms, expiry_ms)


def has_expired(token: DelegationToken, now_ms: int) -> bool:
    return token.max_timestamp_ms < now_ms or token.expiry_timestamp_ms < now_ms


def renewed(
    token: DelegationToken, principal: str, period_ms: int, now_ms: int, lifetimes: TokenLifetimes
) -> DelegationToken:
    """The token as `principal` renews it: for `period_ms` from now, or for as long as is usual where that is negative,
    and never beyond the end of its life. Raises KafkaError.
    """
    _check_renewer(token, principal)
    _check_lives(token, now_ms)
    end_ms = _sum(now_ms, lifetimes.expiry_ms if period_ms < 0 else period_ms)
    return replace(token, expiry_timestamp_ms=min(token.max_timestamp_ms, end_ms))


def expiring(token: DelegationToken, principal: str, period_ms: int, now_ms: int) -> DelegationToken | None:
    """The token as `principal` has it expire: in `period_ms`; None: at once, where that is negative, and also for one
    that has expired already. Raises KafkaError.
    """
    _check_renewer(token, principal)
    if period_ms < 0:
        return None
    _check_lives(token, now_ms)
    return replace(token, expiry_timestamp_ms=min(token.max_timestamp_ms, _sum(now_ms, period_ms)))


def belongs_to(token: DelegationToken, principals: Collection[str]) -> bool:
    """Whether one of them owns it, has asked for it, or may renew it."""
    return (
        token.owner in principals
        or token.requester in principals
        or any(renewer in principals for renewer in token.renewers)
    )


def _check_renewer(token: DelegationToken, principal: str) -> None:
    # Not who has asked for it on behalf of its owner, as in Kafka.
    if principal != token.owner and principal not in token.renewers:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _check_lives(token: DelegationToken, now_ms: int) -> None:
    if has_expired(token, now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def _sum(time_ms: int, duration_ms: int) -> int:
    """Where Kafka would go round to times before 1970."""
    return min(time_ms + duration_ms, _TIMESTAMP_MAX)
