"""What the handlers of the controller's requests share: fencing by broker epoch, and the port to topic configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH

BrokerEpoch = Callable[[], int]
"""The epoch of this broker's registration, as it is now."""


class TopicConfigLoader(Protocol):
    """Where the configs of topics come from."""

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics whose configs are not in memory."""
        ...

    async def prefetch(self, topics: Iterable[str]) -> None:
        """Reads the configs of these topics; does not raise."""
        ...


def check_broker_epoch(request_epoch: int, broker_epoch: int) -> None:
    """Raises KafkaError with STALE_BROKER_EPOCH for a request that is meant for a former life of this broker.

    An epoch that is greater than ours is no error: the controller may see a registration before its broker does.
    """
    if request_epoch != NO_EPOCH and request_epoch < broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"the request is for broker epoch {request_epoch}; {broker_epoch} is ours"
        )
