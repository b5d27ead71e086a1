"""The keys that sign tokens of OAUTHBEARER, fetched from a file or a server, kept, and fetched again.

As Apache Kafka's `RefreshingHttpsJwks`: at every `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and where a token names a
key that is not among them. Anybody can send such a token, so that is done once a minute for each name, and never twice
within ten seconds: Kafka asks for each new name. What hangs or fails leaves the keys as they are, and nobody waits for
it but the start of a broker, for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.real_http import HttpAnswer, HttpError, HttpRequest
from barnabas.link.oauth_documents import read_document, request_document
from barnabas.sasl.json_web_keys import KEYS_BYTES_MAX, KeySet, KeySetError
from barnabas.sasl.oauthbearer_login import path_of, shown_address
from barnabas.tls.errors import TlsConfigError

if TYPE_CHECKING:
    from barnabas.kernel.host import Host
    from barnabas.kernel.timers import Timer, Timers

_OK: Final = 200
_BETWEEN_EXPEDITED_MS: Final = 10_000
_BETWEEN_SAME_NAME_MS: Final = 60_000
_NAMES_MAX: Final = 16
_START_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class KeyAddress:
    """Where keys come from; times in ms, under the names of Kafka's `sasl.oauthbearer.jwks.endpoint.*`."""

    address: str = field(repr=False)
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Those of the login module that are about TLS."""


class SigningKeys:
    """The keys of one address."""

    def __init__(self, address: KeyAddress, host: Host, timers: Timers, logger: logging.Logger) -> None:
        self._address = address
        self._options: Mapping[str, str] = dict(address.options)
        self._host = host
        self._timers = timers
        self._logger = logger
        self._keys = KeySet()
        self._timer: Timer | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failures = 0
        self._expedited_at_ms = -float(_BETWEEN_EXPEDITED_MS)
        self._missing: OrderedDict[str, float] = OrderedDict()
        """Names of keys that there were not, and when they were asked for; the latest last."""
        self._is_stopped = False

    def find(self, algorithm: str, key_id: str | None) -> Any:
        """It is `sasl.signed_tokens.FindKey`."""
        found = self._keys.find(algorithm, key_id)
        if found is None and key_id is not None:
            self._expedite(key_id)
        return found

    async def start(self) -> None:
        """Returns when the keys are there, or after some seconds without."""
        self._fetch()
        fetching = self._fetching
        if fetching is not None:
            await asyncio.wait([fetching], timeout=_START_SECONDS)

    async def stop(self) -> None:
        """Fetches nothing from now on."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _expedite(self, key_id: str) -> None:
        now_ms = self._host.loop.time() * 1000
        asked_at_ms = self._missing.get(key_id)
        if now_ms - self._expedited_at_ms < _BETWEEN_EXPEDITED_MS or (
            asked_at_ms is not None and now_ms - asked_at_ms < _BETWEEN_SAME_NAME_MS
        ):
            return
        self._expedited_at_ms = self._missing[key_id] = now_ms
        self._missing.move_to_end(key_id)
        if len(self._missing) > _NAMES_MAX:
            self._missing.popitem(last=False)
        self._fetch()

    def _fetch(self) -> None:
        if self._fetching is None and not self._is_stopped:
            if self._timer is not None:
                self._timer.cancel()
            self._fetching = self._host.loop.create_task(self._fetch_once(), name="keys of OAUTHBEARER")

    async def _fetch_once(self) -> None:
        address = self._address
        try:
            keys = await self._read()
        except (OSError, KeySetError, TlsConfigError) as error:
            # Once is enough until it works again.
            log = self._logger.error if not self._failures else self._logger.debug
            has = "those of before are kept" if self._keys.keys else "until then no token is taken"
            log("No keys of OAUTHBEARER from %s, %s: %s", shown_address(address.address), has, error)
            self._failures += 1
            pause_ms = min(address.retry_backoff_ms * 2.0 ** min(self._failures, 30), address.retry_backoff_max_ms)
        except Exception:
            self._logger.exception("Keys of OAUTHBEARER could not be read")
            pause_ms = address.refresh_ms
        else:
            if self._failures or keys != self._keys:
                self._logger.info("%d keys of OAUTHBEARER from %s", len(keys.keys), shown_address(address.address))
            self._keys, self._failures = keys, 0
            for key in keys.keys:
                self._missing.pop(key.key_id or "", None)
            pause_ms = address.refresh_ms
        self._fetching = None
        if not self._is_stopped:
            self._timer = self._timers.call_after(max(pause_ms, 1.0), self._fetch)

    async def _read(self) -> KeySet:
        path = path_of(self._address.address)
        if path is not None:
            return await read_document(self._host, path, KEYS_BYTES_MAX, KeySet.decode)
        request = HttpRequest(self._address.address, bytes_max=KEYS_BYTES_MAX)
        return await request_document(self._host, request, self._options, _answered)


def _answered(answer: HttpAnswer) -> KeySet:
    if answer.status != _OK:
        raise HttpError(f"it answers {answer.status}")
    return KeySet.decode(answer.body)
