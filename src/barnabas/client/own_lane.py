"""What asks on connections that nothing else of the client uses, so that nothing else waits for its answers."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from barnabas.client.client import Client


class OwnLane:
    """A lane of the client's connections; use it as a context, or `close` it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lane = client.connections.new_lane()

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.connections.close_lane(self._lane)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
