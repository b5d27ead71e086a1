"""Tokens that nobody has signed, which Apache Kafka makes and takes unless it is told otherwise (KIP-255).

Whoever can reach a listener that takes them can be anybody: they are for trials. Options are those of Kafka's
OAuthBearerLoginModule: of a client `unsecuredLoginStringClaim_sub`, of a server `unsecuredValidatorRequiredScope`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.sasl.bearer_tokens import (
    INSUFFICIENT_SCOPE,
    BearerToken,
    TokenRefusedError,
    check_principal,
    json_object,
    parts_of,
    seconds,
)
from barnabas.sasl.errors import LoginConfigError

LOGIN_PREFIX: Final = "unsecuredLogin"
EXTENSION_PREFIX: Final = f"{LOGIN_PREFIX}Extension_"
_VALIDATOR: Final = "unsecuredValidator"
_CLAIMS: Final = {kind: f"{LOGIN_PREFIX}{kind}Claim_" for kind in ("String", "Number", "List")}
_RESERVED: Final = ("iat", "exp")
_LIFETIME_SECONDS: Final = "3600"


class UnsecuredTokens:
    """Reads tokens without a signature, as Kafka's OAuthBearerUnsecuredValidatorCallbackHandler."""

    def __init__(self, options: Mapping[str, str], time_ms: Callable[[], int]) -> None:
        """`time_ms` is the time since 1970. Raises LoginConfigError."""
        self._principal_claim = _word(options, f"{_VALIDATOR}PrincipalClaimName", "sub")
        self._scope_claim = _word(options, f"{_VALIDATOR}ScopeClaimName", "scope")
        self._required_scope = _word(options, f"{_VALIDATOR}RequiredScope", "").split()
        skew = _word(options, f"{_VALIDATOR}AllowableClockSkewMs", "0")
        if not (skew.isascii() and skew.isdigit()):
            raise LoginConfigError(f"{_VALIDATOR}AllowableClockSkewMs must be a number of milliseconds, not negative")
        self._skew_ms = int(skew[:10])
        self._time_ms = time_ms

    def __call__(self, text: str) -> BearerToken:
        """Raises TokenRefusedError."""
        header, section, signature = parts_of(text)
        if json_object(header, "header").get("alg") != "none" or signature:
            raise TokenRefusedError("the token is signed, and unsecured ones are taken only")
        claims = json_object(section, "claims")
        issued, expiry = seconds(claims, "iat"), seconds(claims, "exp")
        principal = claims.get(self._principal_claim)
        now_ms = self._time_ms()
        if not isinstance(principal, str) or not principal.strip():
            raise TokenRefusedError(f"the claim {self._principal_claim} names nobody")
        check_principal(principal)
        if expiry is None:
            raise TokenRefusedError("the token has no exp")
        if issued is not None and 1000 * issued > now_ms + self._skew_ms:
            raise TokenRefusedError("the token is of the future")
        if now_ms - self._skew_ms >= 1000 * expiry:
            raise TokenRefusedError("the token has expired")
        if issued is not None and expiry <= issued:
            raise TokenRefusedError("the token ends before it begins")
        self._check_scope(claims.get(self._scope_claim))
        return BearerToken(principal, round(1000 * expiry))

    def _check_scope(self, claim: Any) -> None:
        if claim is not None and not isinstance(claim, str | list):
            raise TokenRefusedError(f"the claim {self._scope_claim} is no scope")
        has = {str(each).strip() for each in (claim if isinstance(claim, list) else [claim])}
        if not has.issuperset(self._required_scope):
            wanted = f"[{', '.join(self._required_scope)}]"
            raise TokenRefusedError(f"the token has not the scope {wanted}", INSUFFICIENT_SCOPE, wanted)


def make_unsecured(options: Mapping[str, str], now_ms: int) -> tuple[str, int]:
    """A token by the options of a login module, and until when it holds, in ms since 1970. Raises LoginConfigError."""
    lifetime = options.get(f"{LOGIN_PREFIX}LifetimeSeconds", _LIFETIME_SECONDS)
    if re.fullmatch(r"[+-]?[0-9]{1,10}", lifetime) is None:
        raise LoginConfigError(f"{LOGIN_PREFIX}LifetimeSeconds must be a whole number")
    claims: dict[str, Any] = {"exp": now_ms / 1000 + int(lifetime), "iat": now_ms / 1000}
    for option, value in options.items():
        for kind, prefix in _CLAIMS.items():
            name = option.removeprefix(prefix)
            if name in (option, ""):
                continue
            if name in _RESERVED:
                raise LoginConfigError(f"{option}: the claim {name} cannot be given")
            claims[name] = _claim(option, kind, value)
    principal = claims.get(_word(options, f"{LOGIN_PREFIX}PrincipalClaimName", "sub"))
    if not isinstance(principal, str) or not principal.strip():
        raise LoginConfigError(f'a login by OAUTHBEARER needs {_CLAIMS["String"]}sub="NAME", or the address of tokens')
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}.", round(1000 * claims["exp"])


def _claim(option: str, kind: str, value: str) -> Any:
    if kind == "List":  # the first character parts the others
        return value[1:].split(value[0]) if len(value) > 1 else []
    if kind == "String":
        return value
    try:
        return float(value)
    except ValueError:
        raise LoginConfigError(f"{option} must be a number") from None


def _encoded(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _word(options: Mapping[str, str], name: str, default: str) -> str:
    return options.get(name, "").strip() or default
