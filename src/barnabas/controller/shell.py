"""Carries out what the controller's core asks for: the bridge from its effects to the store, the channels and the log.

Operations whose outcome was lost with a connection are repeated here, so that the core sees definite answers only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from barnabas.controller.channels import BrokerChannels
from barnabas.controller.effects import (
    ChangeChannels,
    Effect,
    GiveWay,
    ReadChildren,
    ReadZnodes,
    SendRequests,
    SessionOverError,
    StateChange,
    Steps,
    UncleanElections,
    WaitForFeatures,
    ZnodeOperations,
)
from barnabas.controller.ports import FinalizedFeatureCache
from barnabas.controller.recent_transitions import RecentTransitions
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.errors import (
    AuthFailedError,
    ClientClosedError,
    ConnectionLossError,
    SessionExpiredError,
)
from barnabas.coordination.operations import Multi
from barnabas.coordination.ports import Store
from barnabas.kernel.metrics import Meter
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop

Result = TypeVar("Result")
Item = TypeVar("Item")
_SESSION_OVER = (SessionExpiredError, AuthFailedError, ClientClosedError)
REPEAT_BACKOFF_MS = 50
"""Between two attempts at operations that were lost; the client itself waits for a connection."""


class ControllerShell:
    """Runs the steps of one event after the other, on one store."""

    def __init__(
        self,
        store: Store,
        settings: ControllerSettings,
        features: FinalizedFeatureCache,
        *,
        timers: Timers,
        state_change_logger: logging.Logger,
        recent_transitions: RecentTransitions,
        unclean_elections: Meter,
    ) -> None:
        self._store = store
        self._settings = settings
        self._features = features
        self._timers = timers
        self._state_change_logger = state_change_logger
        self._recent_transitions = recent_transitions
        self._unclean_elections = unclean_elections
        self.channels: BrokerChannels | None = None
        """The channels of the present term; without a term requests are dropped."""
        self._session = 0
        self._ahead: dict[type[Effect], tuple[tuple[Any, ...], asyncio.Task[list[Any]]]] = {}
        """The reads that were begun before the steps ask for them, one of each kind."""

    def session_over(self) -> None:
        """The session is over: ends the steps that run in it."""
        self._session += 1

    async def run(self, steps: Steps[Result]) -> Result:
        """Carries the steps out to their end and returns their result.

        The end of the session is thrown into them as `SessionOverError`.
        """
        try:
            return await self._run(steps)
        finally:
            for kind in tuple(self._ahead):
                self._forget_ahead(kind)

    async def _run(self, steps: Steps[Result]) -> Result:
        session = self._session
        results: tuple[Any, ...] | None = None
        failure: Exception | None = None
        while True:
            try:
                effects = steps.send(results) if failure is None else steps.throw(failure)  # type: ignore[arg-type]
            except StopIteration as end:
                result: Result = end.value
                return result
            failure, results = None, None
            try:
                results = tuple([await self._carry_out(effect, session) for effect in effects])
            except Exception as error:  # noqa: BLE001  # it is the core's to handle, or to end with
                failure = error

    async def _carry_out(self, effect: Effect, session: int) -> Any:
        self._check(session)
        match effect:
            case ZnodeOperations():
                submit = self._store.submit
                begun = self._begin(ZnodeOperations, effect.operations, effect.ahead, submit)
                return await self._repeat(effect.operations, submit, session, begun)
            case ReadZnodes():
                read = self._store.get_written_of_many
                begun = self._begin(ReadZnodes, effect.paths, effect.ahead, read)
                return await self._repeat(effect.paths, read, session, begun)
            case ReadChildren():
                return await self._repeat(effect.paths, self._store.get_children_names_of_many, session)
            case SendRequests():
                if self.channels is not None:
                    for request in effect.requests:
                        self.channels.send(request)
            case StateChange():
                self._state_change_logger.log(effect.level, "%s", effect.message)
                if effect.move is not None:
                    self._recent_transitions.add(effect.move)
            case ChangeChannels():
                if self.channels is not None:
                    await self.channels.close(effect.closed)
                    for broker in effect.opened:
                        self.channels.open(broker)
            case UncleanElections():
                self._unclean_elections.count += effect.count
            case GiveWay():
                await yield_to_loop()
            case WaitForFeatures():
                try:
                    await self._features.wait_for_epoch(effect.version, self._settings.zookeeper_connection_timeout_ms)
                except SessionExpiredError as error:
                    raise SessionOverError("the session with the coordinator is over") from error
        return None

    def _begin(
        self,
        kind: type[Effect],
        items: tuple[Item, ...],
        ahead: tuple[Item, ...],
        submit: Callable[[Sequence[Item]], Awaitable[list[Any]]],
    ) -> Awaitable[list[Any]] | None:
        """Begins to read what comes after these items; returns what they are read by where that has been begun."""
        begun: asyncio.Task[list[Any]] | None = None
        if kind in self._ahead and self._ahead[kind][0] == items:
            _, begun = self._ahead.pop(kind)
        elif not all(isinstance(item, Multi) for item in items):
            # Writes that come between are not of what was read ahead.
            self._forget_ahead(kind)
        if ahead:
            self._forget_ahead(kind)
            if begun is None:
                # It comes first: the store answers in order.
                begun = asyncio.ensure_future(submit(items))
            self._ahead[kind] = (ahead, asyncio.ensure_future(submit(ahead)))
        return begun

    def _forget_ahead(self, kind: type[Effect]) -> None:
        if kind in self._ahead:
            self._ahead.pop(kind)[1].cancel()

    def _check(self, session: int) -> None:
        if session != self._session:
            raise SessionOverError("the session with the coordinator is over")

    async def _repeat(
        self,
        items: Sequence[Item],
        submit: Callable[[Sequence[Item]], Awaitable[list[Any]]],
        session: int,
        begun: Awaitable[list[Any]] | None = None,
    ) -> list[Any]:
        """Submits the items, unless that has `begun`, and again those whose outcome was lost, until the session is
        over.
        """
        outcomes = list(await (submit(items) if begun is None else begun))
        while True:
            # The answers may be those of a new session, to which this event does not belong.
            self._check(session)
            if not any(issubclass(kind, Exception) for kind in set(map(type, outcomes))):
                return outcomes
            lost = []
            for index, outcome in enumerate(outcomes):
                if isinstance(outcome, ConnectionLossError):
                    lost.append(index)
                elif isinstance(outcome, _SESSION_OVER):
                    raise SessionOverError("the session with the coordinator is over") from outcome
            if not lost:
                return outcomes
            await self._timers.sleep(REPEAT_BACKOFF_MS)
            self._check(session)
            again = await submit([items[index] for index in lost])
            for index, outcome in zip(lost, again, strict=True):
                outcomes[index] = outcome
