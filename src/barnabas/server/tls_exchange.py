"""When the keys and certificates of a broker are exchanged: whenever its dynamic configs are read, and every minute,
since whoever renews a certificate may only replace its file; off the loop.

To read a trust store of 144 authorities takes OpenSSL a seventh of a second, for each listener that has it: the loop
goes on meanwhile. One is looked at at a time, and the last configs count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from barnabas.config.broker_config import BrokerConfig
from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind
from barnabas.server.shared_services import SharedServices
from barnabas.server.tls import BrokerTls
from barnabas.tls.errors import TlsConfigError

Result = TypeVar("Result")

_FULL_PAUSE_MS: Final = 1_000
_CHECK_SECONDS_MAX: Final = 25.0
"""Clients wait for 30 seconds."""
FILES_LOOKED_EVERY_MS: Final = 60_000
_LANE: Final = "keys"
"""A thread of its own: files may be on a mount that hangs, for which no handshake and no log must wait."""


class TlsExchange:
    """Those of one broker. It is `cluster.broker_configs.ConfigFollower`."""

    def __init__(self, tls: BrokerTls, shared: SharedServices) -> None:
        self._tls = tls
        self._host = shared.host
        self._timers = shared.timers
        self._one_at_a_time = asyncio.Lock()
        self._wanted: BrokerConfig | None = None
        self._latest: BrokerConfig
        self._taking: asyncio.Task[None] | None = None

    def follow_files(self, config: BrokerConfig) -> None:
        """Takes files that are replaced, too, from now on; `config` names them until there is another one."""
        self._latest = config
        self._timers.call_after(FILES_LOOKED_EVERY_MS, self._look)

    def _look(self) -> None:
        self.take(self._latest)
        self._timers.call_after(FILES_LOOKED_EVERY_MS, self._look)

    async def check(self, config: BrokerConfig) -> None:
        """Whether its keys and certificates can take the place of the present ones. Raises TlsConfigError."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS_MAX), self._one_at_a_time:
                await self._in_thread(self._tls.check, config)
        except TimeoutError:
            raise TlsConfigError(
                f"keys and certificates cannot be read in time ({_CHECK_SECONDS_MAX:g} s): look at the mount that they"
                " are on"
            ) from None
        except OffloadFullError:
            raise TlsConfigError("the broker is too busy to look at keys and certificates: try again") from None

    def take(self, config: BrokerConfig) -> None:
        """Takes what has changed, in the files that it names too, as soon as it is read."""
        self._wanted = self._latest = config
        if self._taking is None:
            self._taking = self._host.loop.create_task(self._take(), name="keys and certificates")

    async def taken(self) -> None:
        """Waits until nothing is to be taken."""
        while self._taking is not None:
            await asyncio.wait([self._taking])

    async def _take(self) -> None:
        try:
            while self._wanted is not None:
                config, self._wanted = self._wanted, None
                if not await self._is_taken(config):
                    if self._wanted is None:  # nothing newer has come meanwhile
                        self._wanted = config
                    await self._timers.sleep(_FULL_PAUSE_MS)
        except HostClosedError:
            return  # and so is the broker
        finally:
            self._taking = None

    async def _is_taken(self, config: BrokerConfig) -> bool:
        """False where there is no room for it now. Raises HostClosedError."""
        try:
            async with self._one_at_a_time:
                self._tls.adopt(await self._in_thread(self._tls.prepare, config))
        except OffloadFullError:
            return False
        except HostClosedError:
            raise
        except Exception:
            # Whatever it is: those that come later are to be taken.
            self._tls.logger.exception("Keys and certificates could not be read: those of before are kept")
        return True

    def _in_thread(self, work: Callable[[BrokerConfig], Result], config: BrokerConfig) -> asyncio.Future[Result]:
        """Behind what is still at work there though nobody waits for it any more. Raises OffloadFullError."""
        return self._host.offload(OffloadKind.DISK, work, config, order=_LANE, lane=_LANE)
