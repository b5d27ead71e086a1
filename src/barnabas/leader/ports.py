"""What a leader needs of the rooms above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barnabas.wire.api_keys import ApiKey
    from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse


class AlterPartitionSender(Protocol):
    """The way to the controller for changes of ISRs."""

    async def send_in_version(
        self, api_key: ApiKey, lowest: int, highest: int, build: Callable[[int], AlterPartitionRequest]
    ) -> tuple[AlterPartitionResponse, int]:
        """The present controller's answer, and the version of it: the highest within these bounds that the controller
        speaks, for which `build` makes the request. Looks for the controller, and tries again where it has moved or a
        connection was lost, for as long as that takes; after any exception but cancellation the caller asks again."""
        ...
