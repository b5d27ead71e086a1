"""What a checked token of OAUTHBEARER says, and how the JSON of tokens is read.

Both kinds of tokens are JSON Web Tokens: signed ones (`signed_tokens`) and unsecured ones (`unsecured_tokens`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

INVALID_TOKEN: Final = "invalid_token"  # noqa: S105 - a status
INSUFFICIENT_SCOPE: Final = "insufficient_scope"
SECONDS_MAX: Final = 2**53 // 1000
"""The latest time that is taken, in seconds since 1970."""
PRINCIPAL_BYTES_MAX: Final = 4096
"""Of a principal's name in UTF-8. Kafka has no bound; a name has to find room in what others are told of it, as in the
lists of delegation tokens.
"""


class TokenRefusedError(Exception):
    """A token is not taken. The text is for the log, and quotes nothing that gives access."""

    def __init__(self, reason: str, status: str = INVALID_TOKEN, scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


@dataclass(frozen=True, slots=True)
class BearerToken:
    """Whom a token names, and until when, in ms since 1970."""

    principal: str
    expiry_ms: int


ValidateToken = Callable[[str], BearerToken]
"""What a token says; raises TokenRefusedError, and nothing else for any text."""


def parts_of(text: str) -> tuple[str, str, str]:
    """Header, claims and signature, as they were sent. Raises TokenRefusedError."""
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenRefusedError(f"a token has three sections, and this one {len(parts)}")
    return parts[0], parts[1], parts[2]


def json_object(section: str, what: str) -> dict[str, Any]:
    """The object that a section of a token is in base64url. Raises TokenRefusedError, also for a name that is there
    twice: two readers could take one of two values.
    """
    try:
        data = base64.b64decode(section + "=" * (-len(section) % 4), b"-_", validate=True)
        return read_object(data)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise TokenRefusedError(f"the {what} of the token cannot be read ({type(error).__name__})") from None


def read_object(data: bytes) -> dict[str, Any]:
    """Raises ValueError and RecursionError."""
    found = json.loads(data.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - a value, as all the others
    return found


def check_principal(name: str) -> None:
    """Raises TokenRefusedError for a name that no message can have: JSON has halves of surrogate pairs too."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise TokenRefusedError("the name of the principal is no text of Unicode") from None
    if size_bytes > PRINCIPAL_BYTES_MAX:
        raise TokenRefusedError(f"the name of the principal has more than {PRINCIPAL_BYTES_MAX} bytes")


def seconds(claims: dict[str, Any], name: str) -> float | None:
    """A time, since 1970. Raises TokenRefusedError."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise TokenRefusedError(f"the claim {name} is no time")
    return value


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _no_constant(_name: str) -> None:
    raise ValueError("no JSON number")
