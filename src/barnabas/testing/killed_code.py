"""What code that was killed leaves behind: coroutines to be closed, and objects of clients that nobody has closed.

A client that is collected without having been closed warns of that (ResourceWarning), wherever Python happens to clear
up, which may be in a later test. It is right to where code has ended by itself; to one that was killed it is no news.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
import warnings
from collections.abc import Iterator
from types import CoroutineType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_CLOSINGS_MAX: Final = 1_000
"""How often a coroutine may await when it is to end."""


def close_quietly(coroutine: CoroutineType[Any, Any, Any]) -> None:
    """Ends a coroutine, whatever it says to that; one that awaits in a `finally` is ended there again."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        # What it was to wait for has not begun either, and is no fault of a process that was killed.
        for given in list(inspect.getcoroutinelocals(coroutine).values()):
            if inspect.iscoroutine(given):
                close_quietly(given)
    for _ in range(_CLOSINGS_MAX):
        # From the inside out: to close the outer one first would hand it the refusal of an inner one that awaits in a
        # finally, which it could take for an error like any other. The inner one would be left where it awaits, and go
        # on when it is collected, on whatever loop runs then.
        innermost = coroutine
        while inspect.iscoroutine(inner := innermost.cr_await) and _is_open(inner):
            innermost = inner
        # Dead code's last words: it awaits in a finally, is running right now, or reaches for what is cut off.
        with contextlib.suppress(BaseException):
            innermost.close()
        if not _is_open(coroutine):
            return


def has_failed_unseen(task: asyncio.Task[Any]) -> bool:
    """Whether a task has raised what nobody has taken yet."""
    return bool(task.done() and task._log_traceback)  # noqa: SLF001 - nothing else tells it


@contextlib.contextmanager
def no_news_of_the_killed() -> Iterator[None]:
    """Within it, objects of processes that were killed do not warn when they are collected; all others do, behind it.

    An object belongs to a process by its `_loop`, as those of asyncio and of aiokafka do.
    """
    found: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ResourceWarning)
            yield
    finally:
        for each in found:
            if not getattr(getattr(each.source, "_loop", None), "was_killed", False):
                _warn(each)


# Inside.


def _warn(found: warnings.WarningMessage) -> None:
    try:
        warnings.warn_explicit(found.message, found.category, found.filename, found.lineno, source=found.source)
    except Warning as error:
        # As where an object is collected: nobody could take it there.
        said = "Exception ignored in warning of"
        unraisable: Any = SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg=said,
            object=found.source,
        )
        # Python's own hook takes nothing but what Python has made.
        if sys.unraisablehook is sys.__unraisablehook__:
            traceback.print_exception(error)
        else:
            sys.unraisablehook(unraisable)


def _is_open(coroutine: CoroutineType[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) in (inspect.CORO_CREATED, inspect.CORO_SUSPENDED)
