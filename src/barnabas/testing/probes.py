"""Probes around production methods: they tell of each call, change nothing, and are taken away in the end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def after(owner: type, name: str, tell: Callable[..., object]) -> Iterator[None]:
    """Calls `tell(result, *arguments)` after each call of the method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def probe(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        tell(result, *arguments)
        return result

    setattr(owner, name, probe)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def before(owner: type, name: str, tell: Callable[..., object]) -> Iterator[None]:
    """Calls `tell(*arguments)` before each call of the method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def probe(*arguments: Any, **keywords: Any) -> Any:
        tell(*arguments)
        return original(*arguments, **keywords)

    setattr(owner, name, probe)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def completed(owner: type, name: str, tell: Callable[..., object]) -> Iterator[None]:
    """As `after`, of a coroutine that has returned."""
    original = getattr(owner, name)

    @functools.wraps(original)
    async def probe(*arguments: Any, **keywords: Any) -> Any:
        result = await original(*arguments, **keywords)
        tell(result, *arguments)
        return result

    setattr(owner, name, probe)
    try:
        yield
    finally:
        setattr(owner, name, original)
