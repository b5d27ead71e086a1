"""Tasks and futures whose hash is their number: sets of them have an order that does not depend on addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have an order that does not depend on addresses."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is its number, as a task's: what `asyncio.wait` has done is walked in the same order too."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other
