"""What a controller or a broker needs of a coordination store: the part of `Client` that they may use, so that
tests can put something else in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from barnabas.coordination.errors import CoordinationError
from barnabas.coordination.operations import Check, Create, Delete, Operation, SetData, WrittenData, ZnodeData
from barnabas.coordination.session_state import SessionState

Answer = TypeVar("Answer")


class Store(Protocol):
    """One session with a store of znodes. `Client` says what each method promises."""

    @property
    def state(self) -> SessionState: ...

    def add_state_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Calls `listener` with the present state, and with every later one."""
        ...

    def remove_state_listener(self, listener: Callable[[SessionState], None]) -> None: ...

    async def session_over(self) -> SessionState:
        """Waits for the end of the session; at once when it is over already."""
        ...

    async def perform(self, operation: Operation[Answer]) -> Answer:
        """Does one operation; returns its answer or raises its error."""
        ...

    async def submit(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Does operations in a pipeline; returns answers, and errors as values, in order."""
        ...

    async def multi(self, operations: Sequence[Create | Delete | SetData | Check]) -> list[Any]:
        """Does all of the operations or none; raises `MultiFailedError`."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[ZnodeData | CoordinationError]:
        """Reads many znodes; data or error of each, in order."""
        ...

    async def get_written_of_many(self, paths: Sequence[str]) -> list[WrittenData | CoordinationError]:
        """Reads many znodes; data with what tells of the last write, or error, of each, in order."""
        ...

    async def get_children_names_of_many(self, paths: Sequence[str]) -> list[list[str] | CoordinationError]:
        """Reads the children of many znodes; names or error of each, in order."""
        ...
