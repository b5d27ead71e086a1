"""The passwords and keys in a broker's own dynamic configs: encrypted in ZooKeeper, in the clear for who uses them.

What cannot be decoded is said, left out, and left as it is in ZooKeeper. All work is done by one thread of its own, a
value at a time; a value that was decoded once is not decoded again. Source: Kafka's `DynamicBrokerConfig`, whose rule
on what is a password is by the end of a name.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from barnabas.config.key_table import broker_keys
from barnabas.config.keys import ConfigType, Password, UpdateMode
from barnabas.kernel.host import Host, OffloadKind
from barnabas.security.password_encoder import Encoded, PasswordEncoder, PasswordEncoderError, PasswordEncoderSettings

Texts = Mapping[str, str]
Result = TypeVar("Result")

ITERATIONS_OF_ALL_MAX: Final = 10_000_000
"""Of all values that are read at once, with both secrets: some seconds of a thread. A znode has room for 1,000."""
_LANE: Final = "passwords"
"""A thread of its own: no handshake and no log waits for a znode with a million iterations."""
_NOT_CONFIGURED: Final = "Password encoder secret not configured: set password.encoder.secret, and start again"
_SHOWN: Final = 200


class Sealed(str):
    """A password that cannot be decoded, as it stands in ZooKeeper: to be written again, and looked at by nobody."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Outcome:
    clear: str | None = field(repr=False)
    """None where it cannot be decoded."""
    why_not: str = ""
    by_old_secret: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The configs of a broker, `clear`, and what of them could not be decoded, `sealed`, as it stands in ZooKeeper."""

    clear: Texts = field(repr=False)
    sealed: Mapping[str, Sealed] = field(repr=False)
    by_old_secret: frozenset[str] = frozenset()
    """What is encoded with `password.encoder.old.secret` still, by name."""
    encoded: Texts = field(default_factory=dict, repr=False)
    """What `clear` was made of."""


@functools.cache
def _endings() -> tuple[str, ...]:
    return tuple(
        key.name
        for key in broker_keys().values()
        if key.type is ConfigType.PASSWORD and key.update_mode is not UpdateMode.READ_ONLY
    )


def is_stored_password(name: str) -> bool:
    """Whether a dynamic config of that name is kept encrypted."""
    return name.endswith(_endings())


class StoredPasswords:
    """Those of one broker."""

    def __init__(self, host: Host, settings: PasswordEncoderSettings, logger: logging.Logger) -> None:
        self._host = host
        self._logger = logger
        self._encoder = _encoder(settings.secret, settings)
        # Without a secret to encode with again, what an old one opens would be lost with it: Kafka does not start then.
        self._old = _encoder(settings.old_secret, settings) if self._encoder else None
        self._one_at_a_time = asyncio.Lock()
        self._known: dict[str, _Outcome] = {}
        """What has become of each value that is there, by its encoded text."""

    async def opened(self, texts: Texts) -> Opened:
        """Decodes what is to be; what cannot be is logged when it is seen for the first time. Raises HostClosedError
        only.
        """
        stored = {name: text for name, text in texts.items() if is_stored_password(name)}
        async with self._one_at_a_time:
            await self._decode(stored)
            self._known = {text: self._known[text] for text in stored.values()}
            outcomes = {name: self._known[text] for name, text in stored.items()}
        clear = {name: text for name, text in texts.items() if name not in stored}
        clear |= {name: outcome.clear for name, outcome in outcomes.items() if outcome.clear is not None}
        return Opened(
            {name: clear[name] for name in texts if name in clear},
            {name: Sealed(text) for name, text in stored.items() if name not in clear},
            frozenset(name for name, outcome in outcomes.items() if outcome.by_old_secret),
            {name: text for name, text in stored.items() if name in clear},
        )

    async def encoded(self, clear: Texts, before: Opened) -> dict[str, str]:
        """What is to be written for `clear`: values that have not changed stay as they are encoded, unless that was by
        another secret or cipher.

        Raises PasswordEncoderError.
        """
        written = dict(clear)
        for name, text in clear.items():
            if not is_stored_password(name):
                continue
            former = before.encoded.get(name, "")
            may_stay = before.clear.get(name) == text and name not in before.by_old_secret and self._is_of_today(former)
            written[name] = former if may_stay else await self._encode(text)
        return written

    async def check(self, clear: Texts) -> None:
        """Whether there can be such configs. Raises PasswordEncoderError."""
        if any(is_stored_password(name) for name in clear):
            await self._in_thread(self._needed_encoder().check)

    async def _encode(self, text: str) -> str:
        written = await self._in_thread(self._needed_encoder().encode, text, self._host.entropy)
        self._known[written] = _Outcome(text)  # as it will be read soon
        return written

    def _is_of_today(self, encoded: str) -> bool:
        return self._needed_encoder().uses_cipher_of(encoded)

    def _needed_encoder(self) -> PasswordEncoder:
        if self._encoder is None:
            raise PasswordEncoderError(_NOT_CONFIGURED)
        return self._encoder

    async def _decode(self, stored: Texts) -> None:
        """Has `_known` say what has become of each of them."""
        new = {text: name for name, text in stored.items() if text not in self._known}
        parsed: dict[str, Encoded] = {}
        for text, name in new.items():
            found = await self._tried(self._parsed, text)
            if isinstance(found, Encoded):
                parsed[text] = found
            else:
                self._sealed(name, text, found)
        left = ITERATIONS_OF_ALL_MAX
        # Those that take long come last, so that they keep nobody else from being read.
        for text, encoded in sorted(parsed.items(), key=lambda entry: entry[1].iterations):
            left = await self._open(new[text], text, encoded, left)

    async def _open(self, name: str, text: str, encoded: Encoded, left: int) -> int:
        """Tries both secrets; returns how many iterations are left."""
        why_not = ""
        for encoder in (self._encoder, self._old):
            if encoder is None:
                continue
            left -= encoded.iterations
            if left < 0:
                why_not = f"all of them together have more than {ITERATIONS_OF_ALL_MAX} iterations"
                break
            clear = await self._tried(encoder.decode, encoded)
            if not isinstance(clear, PasswordEncoderError):
                # What an old secret in place takes for its own by chance cannot come here: the present one goes first.
                self._known[text] = _Outcome(clear, by_old_secret=encoder is self._old)
                return left
            why_not = why_not or str(clear)
        self._sealed(name, text, PasswordEncoderError(why_not))
        return left

    def _parsed(self, text: str) -> Encoded:
        self._needed_encoder()
        return Encoded.parse(text)

    def _sealed(self, name: str, text: str, error: PasswordEncoderError) -> None:
        self._known[text] = _Outcome(None, str(error))
        self._logger.error("Dynamic password config %s could not be decoded, ignoring: %s", name[:_SHOWN], error)

    async def _tried(self, work: Callable[..., Result], *arguments: object) -> Result | PasswordEncoderError:
        try:
            return await self._in_thread(work, *arguments)
        except PasswordEncoderError as error:
            return error

    def _in_thread(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        return self._host.offload(OffloadKind.DISK, work, *arguments, order=_LANE, lane=_LANE)


def _encoder(secret: Password | None, settings: PasswordEncoderSettings) -> PasswordEncoder | None:
    return None if secret is None else PasswordEncoder(secret, settings)
