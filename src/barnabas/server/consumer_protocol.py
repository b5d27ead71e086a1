"""Whether groups of the consumer protocol (KIP-848) are served here: switched on, and all brokers know them.

Apache Kafka in ZooKeeper mode does not: as their coordinator it would leave their members out. So none are served while
one of its brokers is in the cluster. Every broker is asked which APIs it has, of which ours have one of their own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.kernel.scheduler import Scheduler
from barnabas.wire.api_keys import OWN_APIS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import ProtocolError

_TASK: Final = "other-software"
_PERIOD_MS: Final = 5_000
"""How often brokers are asked again: one that was started anew under the same address may be of other software."""


class ApisOfBrokers(Protocol):
    """The way to other brokers."""

    async def api_keys(self, broker_id: int) -> frozenset[int]:
        """Which APIs the broker answers. Raises OSError, TimeoutError or ProtocolError where it does not say."""
        ...


class ConsumerProtocol:
    """Knows the software of the brokers that are alive, where the protocol is switched on."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        brokers: ApisOfBrokers,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        logger: logging.Logger,
        *,
        is_offered: bool,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._brokers = brokers
        self._scheduler = scheduler
        self._logger = logger
        self.is_offered = is_offered
        """Whether it is switched on."""
        self._is_stopped = False
        self._is_ours: dict[int, bool] = {}
        """By broker, of those that have said so while they were alive."""
        self._loop = loop
        self._asking: asyncio.Task[None] | None = None
        if is_offered:
            metadata.add_listener(self._note_change)

    def start(self) -> None:
        """Asks from now on."""
        if self.is_offered:
            self._scheduler.schedule(_TASK, self._ask_in_background, period_ms=_PERIOD_MS)

    async def stop(self) -> None:
        """Asks no more."""
        task = self._scheduler.tasks.get(_TASK)
        if task is not None:
            task.cancel()
        self._is_stopped = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def refusal(self) -> ErrorCode:
        """NONE where such groups are served; COORDINATOR_NOT_AVAILABLE while a broker has not said what it is."""
        if not self.is_offered:
            return ErrorCode.UNSUPPORTED_VERSION
        others = [broker_id for broker_id in self._metadata.image.brokers if broker_id != self._broker_id]
        if any(self._is_ours.get(broker_id) is False for broker_id in others):
            return ErrorCode.UNSUPPORTED_VERSION
        if all(broker_id in self._is_ours for broker_id in others):
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _note_change(self, change: MetadataChange) -> None:
        brokers = change.image.brokers
        for broker_id in list(self._is_ours):
            if brokers.get(broker_id) != change.previous.brokers.get(broker_id):
                del self._is_ours[broker_id]
        if not self._is_stopped and not all(each in self._is_ours for each in brokers):
            self._ask_in_background()

    def _ask_in_background(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = self._loop.create_task(self._ask(), name=_TASK)

    async def _ask(self) -> None:
        """Until all have said, of whom there may be more in the end than in the beginning."""
        asked: set[int] = set()
        while others := self._metadata.image.brokers.keys() - asked - {self._broker_id}:
            asked |= others
            await asyncio.gather(*map(self._ask_one, sorted(others)))

    async def _ask_one(self, broker_id: int) -> None:
        try:
            keys = await self._brokers.api_keys(broker_id)
        except (OSError, TimeoutError, ProtocolError) as error:
            self._logger.debug("Broker %d does not say which APIs it has: %s", broker_id, error)
            return
        if broker_id not in self._metadata.image.brokers:
            return
        is_ours = not keys.isdisjoint(OWN_APIS)
        if not is_ours and self._is_ours.get(broker_id) is not False:
            self._logger.warning(
                "Broker %d is of other software: groups of the consumer protocol are not served while it is there",
                broker_id,
            )
        self._is_ours[broker_id] = is_ours
