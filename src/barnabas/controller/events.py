"""The events of the controller: everything that changes what it knows is one of these, on one queue.

An event says itself what it does, what the controller's state is meanwhile (its name in Kafka's gauge and timings), and
its place in the queue. Here are the base classes and the events of elections; those of a term are in `term_events.py`.
A new event is a new class in one of the two files, put by whatever notices it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from barnabas.controller.states import ControllerState

URGENT, IN_ORDER = 0, 1
EVENT_LEVELS = 2
"""The levels of the queue: an urgent event comes before all others, which are processed first in first out."""


class Candidate(Protocol):
    """What events do to a broker that stands for election (`candidacy.py`)."""

    @property
    def session(self) -> int:
        """The number of the present session."""
        ...

    @property
    def is_elected(self) -> bool: ...

    async def watch_controller(self) -> None: ...

    async def elect(self) -> None: ...

    async def maybe_resign(self) -> None: ...

    async def resign(self) -> None: ...

    async def give_back(self) -> None: ...

    async def register(self) -> bool: ...

    async def renew_registration(self) -> bool: ...

    def forget_session(self) -> None: ...


class ControllerEvent:
    """The base of all. `state` is the controller's while it processes the event, `level` the event's in the queue."""

    __slots__ = ()
    state: ClassVar[ControllerState] = ControllerState.IDLE
    level: ClassVar[int] = IN_ORDER

    @property
    def name(self) -> str:
        """The event in log lines."""
        return type(self).__name__

    def finish(self) -> None:
        """The event is over, or will never be processed: releases whoever still waits for it."""
        return


class ElectionEvent(ControllerEvent, ABC):
    """An event for any broker, elected or not."""

    __slots__ = ()
    state = ControllerState.CONTROLLER_CHANGE
    is_election_retried: ClassVar[bool] = True
    """Whether a failure of the event is followed by a `Reelect`: without it the broker would never stand again."""

    @abstractmethod
    async def process(self, candidate: Candidate) -> ElectionEvent | None:
        """Does what the event asks for; returns the event to be put after a back-off, if any."""


@dataclass(frozen=True, slots=True)
class Startup(ElectionEvent):
    """The broker has started: it stands for election."""

    async def process(self, candidate: Candidate) -> ElectionEvent | None:
        if not await candidate.renew_registration():
            return RegisterBrokerAndReelect(candidate.session)
        await candidate.watch_controller()
        await candidate.elect()
        return None


@dataclass(frozen=True, slots=True)
class ControllerChange(ElectionEvent):
    """`/controller` was created or changed: a controller that no longer owns it resigns."""

    async def process(self, candidate: Candidate) -> None:
        await candidate.maybe_resign()
        # The znode may be gone already, before the watch was there to say so.
        await candidate.elect()


@dataclass(frozen=True, slots=True)
class Reelect(ElectionEvent):
    """`/controller` is gone, or a back-off is over: resign, then stand for election."""

    async def process(self, candidate: Candidate) -> None:
        await candidate.maybe_resign()
        await candidate.elect()


@dataclass(frozen=True, slots=True)
class ControllerMoved(ElectionEvent):
    """A write was refused because the controller epoch has changed: this broker is no longer the controller."""

    async def process(self, candidate: Candidate) -> None:
        await candidate.maybe_resign()
        if candidate.is_elected:
            # The znode is ours, but the epoch is not: nothing can be written in it.
            await candidate.give_back()
        await candidate.elect()


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect(ElectionEvent):
    """A new session has begun, the one of this number: register the broker in it, and stand for election."""

    session: int

    async def process(self, candidate: Candidate) -> ElectionEvent | None:
        if self.session != candidate.session:
            return None
        if not await candidate.register() or not await candidate.renew_registration():
            return self
        await candidate.maybe_resign()
        await candidate.elect()
        return None


@dataclass(frozen=True, slots=True)
class RegistrationChange(ElectionEvent):
    """The broker's znode in `/brokers/ids` was changed in the session of this number, or deleted: it is made again."""

    session: int
    is_election_retried = False

    async def process(self, candidate: Candidate) -> ElectionEvent | None:
        if self.session == candidate.session and not await candidate.renew_registration():
            return self
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Expire(ElectionEvent):
    """The session is over: resign, before anything else. `done` is set when that has happened."""

    done: asyncio.Future[None]
    level = URGENT
    is_election_retried = False

    async def process(self, candidate: Candidate) -> None:
        await candidate.resign()
        candidate.forget_session()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
