"""The broker that coordinates a group or a transactional id: finding it, asking it, and finding it again."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.cluster import BrokerNode
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.sentinels import NO_BROKER

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.connections import Lane

_COORDINATOR_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class KeyType(enum.IntEnum):
    """What is coordinated; the value is that of the protocol."""

    GROUP = 0
    TRANSACTIONAL_ID = 1


class Coordinator:
    """Requests to whichever broker coordinates one group or transactional id now."""

    def __init__(self, client: Client, lane: Lane, key: str, key_type: KeyType) -> None:
        self.key = key
        self._key_type = key_type
        self._what = f"{key_type.name.lower().replace('_', ' ')} {key}"
        self._client = client
        self._lane = lane
        self._node: BrokerNode | None = None

    @property
    def node_id(self) -> int:
        """The broker that coordinates it, as far as is known; -1 when it has to be looked for."""
        return NO_BROKER if self._node is None else self._node.node_id

    async def ask(self, message: Any, timeout_ms: float | None = None, lane: Lane | None = None) -> Any:
        """One request to the coordinator, which is looked for first where it is not known. A `lane` of its own is for a
        request that may wait long.

        Raises as `Client.ask` does, and KafkaError when nobody coordinates it now. After a lost connection, and after
        `moved`, the coordinator is looked for again.
        """
        client = self._client
        limit_ms = client.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        ends_at = client.host.loop.time() + limit_ms / 1_000
        node = self._node
        if node is None:
            node = self._node = await self._find(min(limit_ms, client.settings.request_timeout_ms))
        left_ms = max(1.0, (ends_at - client.host.loop.time()) * 1_000)
        try:
            return await client.ask(node, self._lane if lane is None else lane, message, left_ms)
        except (ConnectionError, RequestTimeoutError):
            self.moved()
            raise

    def moved(self) -> None:
        """The coordinator is another broker now, or cannot be reached."""
        self._node = None

    def check(self, code: int, what: str) -> None:
        """Raises KafkaError for a code of an answer, and looks for the coordinator again where the code says so."""
        if code in _COORDINATOR_MOVED:
            self.moved()
        raise_for_code(code, f"{what} of {self._what}")

    async def _find(self, timeout_ms: float) -> BrokerNode:
        request = messages.FindCoordinatorRequest(key_type=int(self._key_type), coordinator_keys=[self.key])
        response = await self._client.ask_any(lambda node: self._client.ask(node, self._lane, request, timeout_ms))
        for answer in response.coordinators:
            if answer.key == self.key:
                raise_for_code(answer.error_code, f"coordinator of {self._what}")
                return BrokerNode(answer.node_id, answer.host, answer.port)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no broker answers for {self._what}")
