"""Configs of topics and brokers, asked for when somebody looks at them, and kept for a while for all who do."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from barnabas.client.admin import Admin
from barnabas.client.config_admin import ResourceType
from barnabas.client.config_entries import ConfigEntry
from barnabas.console.question import SHARE, failure

if TYPE_CHECKING:
    from barnabas.client.client import Client

Result = TypeVar("Result")
Entries: TypeAlias = Mapping[str, ConfigEntry]
"""The configs of one resource by name."""

KEPT_SECONDS: Final = 10.0
RESOURCES_KEPT_MAX: Final = 200
ASKED_AT_ONCE_MAX: Final = 4
PAGE_WAIT_SECONDS: Final = 1.2
"""How long a page waits for an answer; it comes without, and the next one has it."""
_TIMEOUT_SECONDS: Final = 5.0

TOPIC, BROKER, BROKERS, STATIC, DEFAULT = 1, 2, 3, 4, 5
"""Where a value comes from, as DescribeConfigs numbers it."""
SOURCES: Final = {
    TOPIC: "this topic",
    BROKER: "this broker, while it runs",
    BROKERS: "all brokers, while they run",
    STATIC: "server.properties",
    DEFAULT: "default",
    6: "this broker's loggers",
}


@dataclass(slots=True)
class Known(Generic[Result]):
    """What was answered last, and why there is nothing newer, if so."""

    value: Result | None = None
    answered_ms: int | None = None
    error: str | None = None
    ask_again_at: float = 0.0
    asking: asyncio.Task[None] | None = None


class ConfigReader:
    """Asks for configs."""

    def __init__(self, client: Client, *, pace: float = 1.0) -> None:
        """With a higher `pace` answers are kept so many times as short."""
        self._client = client
        self._kept_seconds = KEPT_SECONDS / pace
        self._share = SHARE / pace
        self._resources: OrderedDict[object, Known[Entries]] = OrderedDict()
        self._lists: OrderedDict[object, Known[Mapping[str, Entries]]] = OrderedDict()
        self._places = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def of(self, resource_type: ResourceType, name: str) -> Known[Entries]:
        """The configs of a topic or a broker, with all places that could set each; "" as broker is all of them."""

        async def ask(admin: Admin) -> Entries:
            return await admin.describe_configs(resource_type, name, _TIMEOUT_SECONDS * 900, with_synonyms=True)

        return await self._known(self._resources, (resource_type, name), ask)

    async def of_topics(self, names: tuple[str, ...]) -> Known[Mapping[str, Entries]]:
        """The configs of the topics that a page lists."""

        async def ask(admin: Admin) -> Mapping[str, Entries]:
            return await admin.describe_topic_configs(names, None, _TIMEOUT_SECONDS * 900)

        return await self._known(self._lists, names, ask)

    def renew(self) -> None:
        """Something was changed: what is known, or was asked before, counts no more."""
        for kept in (self._resources, self._lists):
            for known in kept.values():
                if known.asking is not None:
                    known.asking.cancel()
            kept.clear()

    async def close(self) -> None:
        """Gives up what is being asked."""
        asking = [each.asking for kept in (self._resources, self._lists) for each in kept.values() if each.asking]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # Inside.

    async def _known(
        self, kept: OrderedDict[object, Known[Result]], key: object, ask: Callable[[Admin], Awaitable[Result]]
    ) -> Known[Result]:
        known = kept.get(key)
        if known is None:
            known = kept[key] = Known()
            self._make_room(kept)
        kept.move_to_end(key)
        loop = self._client.host.loop
        if known.asking is None and loop.time() >= known.ask_again_at:
            known.asking = loop.create_task(self._ask(known, ask), name="console asks: configs")
        if known.asking is not None and known.value is None:
            # What is known is shown at once, and renewed for the next one who looks.
            await asyncio.wait([known.asking], timeout=PAGE_WAIT_SECONDS)
        return known

    def _make_room(self, kept: OrderedDict[object, Known[Result]]) -> None:
        for key in list(kept):
            if len(kept) <= RESOURCES_KEPT_MAX:
                return
            if kept[key].asking is None:
                del kept[key]

    async def _ask(self, known: Known[Result], ask: Callable[[Admin], Awaitable[Result]]) -> None:
        loop = self._client.host.loop
        took = 0.0
        try:
            async with asyncio.timeout(2 * _TIMEOUT_SECONDS), self._places, Admin(self._client) as admin:
                began = loop.time()
                known.value = await ask(admin)
                took = loop.time() - began
            known.error = None
            known.answered_ms = self._client.host.clock.time_ms()
        except Exception as error:
            known.error = failure(error)
            if known.error == "":
                known.error = f"no answer within {_TIMEOUT_SECONDS:g} s"
            if known.error is None:
                self._client.logger.exception("Asking for configs failed")
                known.error = f"a mistake of the console: {type(error).__name__}"
        finally:
            known.asking = None
            known.ask_again_at = loop.time() + max(self._kept_seconds, self._share * took)
