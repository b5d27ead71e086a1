"""Tokens of OAUTHBEARER for our own logins: made here, read from a file, or fetched by client credentials (RFC 6749).

As Apache Kafka's OAuthBearerLoginCallbackHandler (KIP-768) asks for them; a token is used for all connections until
most of its life is over, and longer where no new one is to be had: nobody whose token still holds waits long for
another, since a connection that logs in again sends nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import math
from typing import Any, Final

from barnabas.kernel.host import Host
from barnabas.kernel.real_http import HttpAnswer, HttpError, HttpRequest
from barnabas.kernel.timers import Timers
from barnabas.link.errors import AuthenticationFailedError, ConnectionLostError
from barnabas.link.oauth_documents import read_document, request_document
from barnabas.sasl.bearer_tokens import TokenRefusedError, json_object, parts_of, read_object, seconds
from barnabas.sasl.oauthbearer_login import OAuthBearerLogin, TokenEndpoint, shown_address
from barnabas.sasl.oauthbearer_messages import TOKEN_CHARACTERS_MAX
from barnabas.sasl.unsecured_tokens import make_unsecured

_ANSWER_BYTES_MAX: Final = 256 * 1024
_FORM: Final = "application/x-www-form-urlencoded"
_OK: Final = (200, 201)
_FINAL: Final = frozenset((400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505))
"""Answers after which Kafka asks no more."""
_PATIENCE_SECONDS: Final = 1.0
"""For a new token, while the one before still holds."""
_BETWEEN_REFUSALS_SECONDS: Final = 10.0
"""So often at most a token that brokers refuse is followed by another one."""


class _RefusedError(Exception):
    """The endpoint gives no token, and will not the next time."""


class TokenSource:
    """The tokens of one login, for all of its connections."""

    def __init__(self, login: OAuthBearerLogin, host: Host, timers: Timers) -> None:
        self._login = login
        self._host = host
        self._timers = timers
        self._token = ""
        self._expiry_ms = 0
        self._refresh_at_ms = 0
        self._fetching: asyncio.Task[str] | None = None
        self._patient_until = 0.0
        """By the loop's time."""
        self._refused_at = -math.inf

    async def token(self) -> str:
        """A token that holds now. Raises AuthenticationFailedError where there is none for these credentials, and
        ConnectionLostError where none is to be had for now.
        """
        now_ms = self._host.clock.time_ms()
        if self._token and now_ms < self._refresh_at_ms:
            return self._token
        fetching = self._fetching
        if fetching is None:
            self._patient_until = self._host.loop.time() + _PATIENCE_SECONDS
            fetching = self._fetching = self._host.loop.create_task(self._fetch(), name="token of OAUTHBEARER")
            fetching.add_done_callback(self._fetched)
        if self._token and now_ms < self._expiry_ms:
            left_seconds = max(0.0, self._patient_until - self._host.loop.time())
            await asyncio.wait([fetching], timeout=left_seconds)
            if not fetching.done() and self._host.clock.time_ms() < self._expiry_ms:
                return self._token
        try:
            return await asyncio.shield(fetching)
        except (AuthenticationFailedError, ConnectionLostError):
            if self._token and self._host.clock.time_ms() < self._expiry_ms:
                return self._token
            raise

    def refused(self, token: str) -> None:
        """A broker has not taken that token. Its key may have been withdrawn, so the next who asks gets another one, if
        one is to be had: Kafka's clients use it until most of its life is over.
        """
        now = self._host.loop.time()
        if token == self._token and now - self._refused_at >= _BETWEEN_REFUSALS_SECONDS:
            self._refused_at = now
            self._refresh_at_ms = 0

    def _fetched(self, fetching: asyncio.Task[str]) -> None:
        self._fetching = None
        if not fetching.cancelled():
            fetching.exception()  # whoever still waits has it too

    async def _fetch(self) -> str:
        login, clock = self._login, self._host.clock
        began_ms = clock.time_ms()
        if login.endpoint is None:
            token, expiry_ms = make_unsecured(login.options, began_ms)
        else:
            token, expiry_ms = await self._from(login.endpoint)
        life_ms = max(0, expiry_ms - began_ms)
        share = login.refresh_factor + login.refresh_jitter * self._host.random.random()
        self._token, self._expiry_ms, self._refresh_at_ms = token, expiry_ms, began_ms + int(life_ms * min(share, 1.0))
        return token

    async def _from(self, endpoint: TokenEndpoint) -> tuple[str, int]:
        path = endpoint.path
        try:
            if path is not None:
                return await read_document(self._host, path, _ANSWER_BYTES_MAX, _checked)
            return await self._ask(endpoint)
        except (TokenRefusedError, _RefusedError) as error:
            raise AuthenticationFailedError(f"no token from {shown_address(endpoint.address)}: {error}") from None
        except (OSError, ValueError) as error:
            raise ConnectionLostError(f"no token from {shown_address(endpoint.address)}: {error}") from None

    async def _ask(self, endpoint: TokenEndpoint) -> tuple[str, int]:
        """Repeats what may work the next time, for `retry_backoff_max_ms`."""
        request = _request(endpoint)
        ends_at = self._host.loop.time() + endpoint.retry_backoff_max_ms / 1000
        pause_ms = float(endpoint.retry_backoff_ms)
        while True:
            try:
                return await request_document(self._host, request, self._login.options, _granted)
            except HttpError:
                left_ms = (ends_at - self._host.loop.time()) * 1000
                if left_ms <= 0 or pause_ms <= 0:
                    raise
                await self._timers.sleep(min(pause_ms, left_ms))
                pause_ms *= 2


def _request(endpoint: TokenEndpoint) -> HttpRequest:
    from urllib.parse import quote_plus, urlencode

    names = endpoint.client_id, endpoint.client_secret
    named = ":".join(map(quote_plus, names) if endpoint.encodes_credentials else names)
    credentials = base64.b64encode(named.encode()).decode()
    form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
    return HttpRequest(
        endpoint.address,
        urlencode(form).encode(),
        {"Authorization": f"Basic {credentials}", "Content-Type": _FORM, "Cache-Control": "no-cache"},
        connect_seconds=endpoint.connect_timeout_ms / 1000,
        read_seconds=endpoint.read_timeout_ms / 1000,
        bytes_max=_ANSWER_BYTES_MAX,
    )


def _granted(answer: HttpAnswer) -> tuple[str, int]:
    """The token of an answer. Raises HttpError for what may be repeated, _RefusedError and TokenRefusedError."""
    found: dict[str, Any] = {}
    try:
        found = read_object(answer.body)
    except (ValueError, RecursionError):
        if answer.status in _OK:
            raise HttpError("its answer is no JSON object") from None
    if answer.status not in _OK:
        said = f"it answers {answer.status}" + "".join(f", {each:.100}" for each in _said(found))
        raise _RefusedError(said) if answer.status in _FINAL else HttpError(said)
    token = found.get("access_token")
    if not isinstance(token, str) or not token.strip():
        raise _RefusedError("its answer has no access_token")
    return _checked(token.encode())


def _said(answer: dict[str, Any]) -> list[str]:
    """Of an error (RFC 6749, 5.2); it has no secret."""
    return [text for name in ("error", "error_description") if isinstance(text := answer.get(name), str)]


def _checked(data: bytes) -> tuple[str, int]:
    """A token as it is sent, and until when it holds, by its own words: its signature is the broker's to check."""
    token = data.decode(errors="replace").strip()
    if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
        raise TokenRefusedError("it is too long, or no token")
    expiry = seconds(json_object(parts_of(token)[1], "claims"), "exp")
    if expiry is None:
        raise TokenRefusedError("the token has no exp")
    return token, int(expiry) * 1000
