"""Giving way to the loop without a timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class _NextTurn:
    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        # A task that yields nothing is continued in the next turn of its loop.
        yield


async def yield_to_loop() -> None:
    """Returns in the next turn of the running task's loop, after whatever was ready before."""
    await _NextTurn()
