"""Where an administrator's calls are asked, and how often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.client.own_lane import OwnLane
from barnabas.wire.errors import ErrorCode, raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.group_coordinator import GroupCoordinator

Result = TypeVar("Result")

_MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""What an administrator wants to hear at once, though a broker may only be late to know."""


class AdminCalls(OwnLane):
    """What all calls share: where to ask, and how often."""

    async def _somewhere(
        self,
        what: str,
        ask: Callable[[BrokerNode, float], Coroutine[Any, Any, Result]],
        timeout_ms: float | None,
        *,
        is_change: bool = False,
    ) -> Result:
        """Asks any broker, and soon another beside one that is silent; changes go to one at a time, since a broker that
        was stopped would make them again when it goes on.
        """

        async def attempt(attempt_ms: float) -> Result:
            if is_change:
                return await ask(self._client.any_nodes()[0], attempt_ms)
            return await self._client.ask_any(lambda node: ask(node, attempt_ms))

        return await self._client.repeat(what, attempt, timeout_ms, final=_MISSING)

    async def _at_controller(
        self,
        what: str,
        build: Callable[[int], Any],
        codes: Callable[[Any], list[tuple[str, int, str | None]]],
        timeout_ms: float | None,
    ) -> Any:
        async def attempt(attempt_ms: float) -> Any:
            node = self._client.node(self._client.cluster.controller_id)
            response = await self._client.ask(node, self._lane, build(broker_ms(attempt_ms)), attempt_ms)
            for name, code, message in codes(response):
                raise_for_code(code, f"{name}: {message or ErrorCode.for_code(code).message}")
            return response

        return await self._client.repeat(what, attempt, timeout_ms, final=_MISSING)

    async def _at_leaders(
        self,
        what: str,
        topics: Collection[str],
        attempt: Callable[[float], Awaitable[Result]],
        timeout_ms: float | None,
    ) -> Result:
        """As `Client.repeat`, of what leaders of partitions of these topics are asked: a client that has just begun
        learns first who they are, since the first attempt would fail, and be followed by a pause.
        """
        retry = self._client.retry(what, timeout_ms)
        await self._client.metadata.asked_for(topics, retry)
        return await self._client.repeat(what, attempt, retry.left_ms)

    async def _at_coordinator(
        self,
        group_id: str,
        what: str,
        ask: Callable[[GroupCoordinator, float], Awaitable[Result]],
        timeout_ms: float | None,
    ) -> Result:
        from barnabas.client.group_coordinator import GroupCoordinator

        coordinator = GroupCoordinator(self._client, self._lane, group_id)
        return await self._client.repeat(what, lambda attempt_ms: ask(coordinator, attempt_ms), timeout_ms)


def broker_ms(attempt_ms: float) -> int:
    """How long a broker may work at what is given up after `attempt_ms`: it answers before."""
    return max(1, int(attempt_ms * 0.9))
