"""The states of a broker, and its controlled shutdown."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Final

from barnabas.config.kafka_versions import is_at_least
from barnabas.kernel.timers import Timers
from barnabas.kernel.transitions import TransitionTable
from barnabas.server.config import LifecycleSettings
from barnabas.server.controller_channel import ControllerChannel
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse


class BrokerState(enum.IntEnum):
    """The state of a broker; the number is Kafka's, and the value of the gauge BrokerState."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class BrokerEvent(enum.Enum):
    """What moves a broker from one state to the next."""

    STARTED = "started"
    LOGS_LOADING = "logs loading"
    SERVING = "serving"
    ASKED_TO_STOP = "asked to stop"
    LEADERS_MOVED = "leaders moved"
    ABANDONED = "abandoned"
    STOPPED = "stopped"


BROKER: Final = TransitionTable(
    "broker",
    start=BrokerState.NOT_RUNNING,
    transitions={
        (BrokerState.NOT_RUNNING, BrokerEvent.STARTED): BrokerState.STARTING,
        (BrokerState.STARTING, BrokerEvent.LOGS_LOADING): BrokerState.RECOVERY,
        (BrokerState.RECOVERY, BrokerEvent.SERVING): BrokerState.RUNNING,
        (BrokerState.RUNNING, BrokerEvent.ASKED_TO_STOP): BrokerState.PENDING_CONTROLLED_SHUTDOWN,
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerEvent.LEADERS_MOVED): BrokerState.SHUTTING_DOWN,
        (BrokerState.STARTING, BrokerEvent.ABANDONED): BrokerState.SHUTTING_DOWN,
        (BrokerState.RECOVERY, BrokerEvent.ABANDONED): BrokerState.SHUTTING_DOWN,
        (BrokerState.SHUTTING_DOWN, BrokerEvent.STOPPED): BrokerState.NOT_RUNNING,
    },
)


class ControlledShutdown:
    """Has the controller move this broker's leaders away before it stops (ControlledShutdown)."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        protocol_version: str,
        settings: LifecycleSettings,
        channel: ControllerChannel,
        others_alive: Callable[[], bool],
        timers: Timers,
        logger: logging.Logger,
    ) -> None:
        """`others_alive` says whether another broker could lead instead; if not, one attempt is made."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._version = _request_version(protocol_version)
        self._settings = settings
        self._channel = channel
        self._others_alive = others_alive
        self._timers = timers
        self._logger = logger

    async def run(self) -> bool:
        """True when the broker leads no partition that another could lead. Bounded, and never raises OSError."""
        if not self._settings.controlled_shutdown_enable:
            return False
        self._logger.info("Starting controlled shutdown")
        for attempts_left in reversed(range(self._settings.controlled_shutdown_retries_max)):
            if await self._attempt():
                self._logger.info("Controlled shutdown completed")
                return True
            if not attempts_left or not self._others_alive():
                break
            self._logger.info(
                "Trying the controlled shutdown again in %d ms", self._settings.controlled_shutdown_retry_backoff_ms
            )
            await self._timers.sleep(self._settings.controlled_shutdown_retry_backoff_ms)
        self._logger.warning("Shutting down although this broker may still lead partitions")
        return False

    async def _attempt(self) -> bool:
        request = ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._channel.send_once(request, self._version)
        except (OSError, ValueError) as error:
            self._logger.info("The controller did not answer the controlled shutdown: %s", error)
            return False
        if not isinstance(response, ControlledShutdownResponse):
            raise TypeError(f"{response!r} is not an answer to ControlledShutdown")
        if response.error_code != ErrorCode.NONE:
            self._logger.info(
                "The controller refused the controlled shutdown: %s", ErrorCode.for_code(response.error_code).name
            )
            return False
        for left in response.remaining_partitions:
            self._logger.info("This broker still leads %s-%d", left.topic_name, left.partition_index)
        return not response.remaining_partitions


def _request_version(protocol_version: str) -> int:
    for least, version in (("2.4-IV1", 3), ("2.2-IV0", 2), ("0.9.0", 1)):
        if is_at_least(protocol_version, least):
            return version
    return 0
