"""Signed tokens (JSON Web Tokens, RFC 7519), checked as by Kafka's OAuthBearerValidatorCallbackHandler (KIP-768).

The signature is checked before anything that the token claims is read, by a key of a set that the broker trusts, and by
an algorithm that fits that key: what a token says of itself cannot make another check of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from barnabas.sasl.bearer_tokens import (
    SECONDS_MAX,
    BearerToken,
    TokenRefusedError,
    check_principal,
    json_object,
    parts_of,
    read_object,
    seconds,
)
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.json_web_keys import ALGORITHMS, KEY_ID_CHARACTERS_MAX, library

_HEADER_CHARACTERS_MAX: Final = 8 * 1024
FindKey = Callable[[str, str | None], Any]
"""The key for an algorithm and the key id that a token names; None where there is none."""


@dataclass(frozen=True, slots=True)
class SignedTokenRules:
    """What a token has to say, under the names of Kafka's `sasl.oauthbearer.*`."""

    audiences: tuple[str, ...] = ()
    """`expected.audience`: a token must name one of them; without any, none may name an audience, as in Kafka."""
    issuer: str | None = None
    """`expected.issuer`."""
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    clock_skew_seconds: int = 30

    def __post_init__(self) -> None:
        """Raises LoginConfigError."""
        for what, name in (("scope", self.scope_claim), ("sub", self.subject_claim)):
            if not name.strip():
                raise LoginConfigError(f"sasl.oauthbearer.{what}.claim.name is empty")
        if not 0 <= self.clock_skew_seconds <= SECONDS_MAX:
            raise LoginConfigError("sasl.oauthbearer.clock.skew.seconds must not be negative")


class SignedTokens:
    """Checks tokens."""

    def __init__(self, rules: SignedTokenRules, find_key: FindKey, time_ms: Callable[[], int]) -> None:
        """`time_ms` is the time since 1970."""
        self._rules = rules
        self._find_key = find_key
        self._time_ms = time_ms
        self._signatures = library().PyJWS(algorithms=list(ALGORITHMS))

    def __call__(self, text: str) -> BearerToken:
        """Raises TokenRefusedError."""
        claims = self._signed_claims(text)
        rules = self._rules
        expiry = _needed(claims, "exp")
        issued, begins = _needed(claims, "iat"), seconds(claims, "nbf")
        now = self._time_ms() / 1000
        # Whole seconds, as Kafka counts.
        if int(now) - rules.clock_skew_seconds >= int(expiry):
            raise TokenRefusedError("the token has expired")
        if int(expiry) < max(int(issued), int(begins or 0)):
            raise TokenRefusedError("the token ends before it begins")
        if begins is not None and int(now) + rules.clock_skew_seconds < int(begins):
            raise TokenRefusedError("the token is not valid yet")
        for name in ("iss", "sub", "jti"):
            _text(claims, name)
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise TokenRefusedError("the token is of another issuer")
        _check_audience(claims.get("aud"), rules.audiences)
        _check_scope(claims.get(rules.scope_claim))
        principal = (_text(claims, rules.subject_claim) or "").strip()
        if not principal:
            raise TokenRefusedError(f"the claim {rules.subject_claim} names nobody")
        check_principal(principal)
        return BearerToken(principal, int(expiry) * 1000)

    def _signed_claims(self, text: str) -> dict[str, Any]:
        """What a token says whose signature is right. Raises TokenRefusedError."""
        section, _, signature = parts_of(text)
        if len(section) > _HEADER_CHARACTERS_MAX or not signature:
            raise TokenRefusedError("the header of the token is too long" if signature else "the token is not signed")
        header = json_object(section, "header")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise TokenRefusedError(f"the token is signed by {algorithm!r:.40}, and may be by {', '.join(ALGORITHMS)}")
        if "crit" in header or "b64" in header:
            raise TokenRefusedError("the header of the token asks for what is not known here")
        if key_id is not None and (not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX):
            raise TokenRefusedError("the token names no key, or one of too long a name")
        key = self._find_key(algorithm, key_id)
        if key is None:
            raise TokenRefusedError(f"there is no key {key_id!r:.80} for {algorithm}")
        try:
            payload = self._signatures.decode_complete(text, key, algorithms=[algorithm])["payload"]
        except Exception as error:  # noqa: BLE001 - whatever two libraries say of a stranger's bytes
            raise TokenRefusedError(f"the signature of the token is not right ({type(error).__name__})") from None
        try:
            return read_object(payload)
        except (ValueError, RecursionError) as error:
            raise TokenRefusedError(f"the claims of the token cannot be read ({type(error).__name__})") from None


def _needed(claims: dict[str, Any], name: str) -> float:
    found = seconds(claims, name)
    if found is None:
        raise TokenRefusedError(f"the token has no {name}")
    return found


def _text(claims: dict[str, Any], name: str) -> str | None:
    found = claims.get(name)
    if found is not None and not isinstance(found, str):
        raise TokenRefusedError(f"the claim {name} is no text")
    return found


def _check_audience(claim: Any, expected: tuple[str, ...]) -> None:
    if claim is None:
        if expected:
            raise TokenRefusedError("the token has no aud")
        return
    named = [claim] if isinstance(claim, str) else claim
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise TokenRefusedError("the claim aud is no audience")
    if set(named).isdisjoint(expected):
        raise TokenRefusedError("the token is for another audience")


def _check_scope(claim: Any) -> None:
    """That it can be read; Kafka asks no more of it."""
    scopes = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    if not all(isinstance(each, str) and each.strip() for each in scopes):
        raise TokenRefusedError("the scope of the token cannot be read")
    if len({each.strip() for each in scopes}) != len(scopes):
        raise TokenRefusedError("the token has a scope twice")
