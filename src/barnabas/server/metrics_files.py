"""Files of the metrics endpoint that may be exchanged while it runs: who may read, key and certificate.

They are read again, by a thread, when somebody comes and they were not looked at for some seconds. What cannot be read
then is logged, once, and what was there before stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind
from barnabas.server.errors import BrokerStartError

if TYPE_CHECKING:
    from barnabas.kernel.host import Host

Content = TypeVar("Content")

LOOKED_EVERY_SECONDS: Final = 10.0
_WAIT_SECONDS_MAX: Final = 1.0
"""For a look: files may be on a mount that hangs, for which no scrape is to wait."""
_LANE: Final = "metrics files"
"""A thread of its own, likewise."""


class ExchangedFiles(Generic[Content]):
    """What stands in some files. One look is under way at a time."""

    def __init__(
        self,
        host: Host,
        what: str,
        read: Callable[[], Content],
        adopt: Callable[[Content], object],
        logger: logging.Logger,
    ) -> None:
        """`read` is called in a thread, and raises BrokerStartError; `adopt` is given what is not as it was. Raises
        BrokerStartError, where they cannot be read now.
        """
        self._host = host
        self._what = what
        self._read = read
        self._adopt = adopt
        self._logger = logger
        self.content = read()
        self._looked_at = host.loop.time()
        self._looking: asyncio.Task[None] | None = None
        self._failure = ""

    def look(self) -> None:
        """Reads them again, unless that was done a moment ago."""
        now = self._host.loop.time()
        if self._looking is None and now - self._looked_at >= LOOKED_EVERY_SECONDS:
            self._looked_at = now
            self._looking = self._host.loop.create_task(self._look(), name="files of the metrics endpoint")

    async def looked(self) -> None:
        """Waits for a look that is under way, but not for long."""
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=_WAIT_SECONDS_MAX)

    def stop(self) -> None:
        """No look is needed any more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        try:
            found = await self._host.offload(OffloadKind.DISK, self._read, order=_LANE, lane=_LANE)
        except (OffloadFullError, HostClosedError):
            return  # the next who comes looks
        except BrokerStartError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                self._logger.warning("%s; %s of before stays in force", error, self._what)
        else:
            self._failure = ""
            if found != self.content:
                self.content = found
                self._adopt(found)
                self._logger.info("The metrics endpoint has taken another %s", self._what)
        finally:
            self._looking = None
