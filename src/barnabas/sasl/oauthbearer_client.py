"""OAUTHBEARER, the client's end: sends a token, and confirms a refusal so that the server may say that it failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.sasl.errors import SaslError
from barnabas.sasl.oauthbearer_messages import CONFIRMATION, ClientFirst

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps


class OAuthBearerClient:
    """One exchange."""

    __slots__ = ("_first", "_is_refused", "is_complete")

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self._first = ClientFirst(token, extensions=extensions)
        self._is_refused = False
        self.is_complete = False

    def begin(self) -> bytes:
        return self._first.encode()

    def answer(self, challenge: bytes) -> Steps[bytes | None]:
        yield from ()
        if self.is_complete or self._is_refused:
            raise SaslError("the server asks for more than OAUTHBEARER has")
        if challenge:
            self._is_refused = True
            return CONFIRMATION
        self.is_complete = True
        return None
