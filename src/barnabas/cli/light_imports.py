"""Keeps modules out of a command that what it imports asks for, and hardly uses: a twentieth of a short command.

click, asyncio, uvloop and `dataclasses` import `inspect`, which loads the parts of a compiler (`ast`, `dis`), for
`cleandoc` and questions about functions; `uuid`, which click imports, takes from `platform` the name of the system.
So something stands in the places of these two until one wants more of them: whatever else is asked for comes from the
real module, which then takes its place.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any, Final

_FORWARDED: Final = ("isawaitable", "iscoroutine", "iscoroutinefunction", "isgeneratorfunction", "ismethod")
"""Functions of `inspect` that others take while they are imported, and call later if at all."""


def lighten() -> None:
    """Puts the stand-ins in their places, unless the modules are there. Call it before click is imported."""
    if "inspect" not in sys.modules:
        inspect = _StandIn("inspect")
        inspect.take(cleandoc=cleandoc, isfunction=_is_function, isgenerator=_is_generator)
        inspect.take(get_annotations=_annotations_of(inspect))
        inspect.take(**{name: _forwarding(inspect, name) for name in _FORWARDED})
        sys.modules["inspect"] = inspect
    if "platform" not in sys.modules:
        platform = _StandIn("platform")
        platform.take(system=_system)
        sys.modules["platform"] = platform


class _StandIn(types.ModuleType):
    """Has what was put into it; anything else comes from the real module."""

    def take(self, **names: Any) -> None:
        """Puts these into it."""
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import itself asks of a module
            raise AttributeError(name)
        found = getattr(_real(self.__name__), name)
        self.take(**{name: found})
        return found


def _real(name: str) -> types.ModuleType:
    if isinstance(sys.modules.get(name), _StandIn):
        sys.modules.pop(name, None)  # another thread may have done so
    return importlib.import_module(name)


def _forwarding(stand_in: _StandIn, name: str) -> Any:
    def function(*arguments: Any, **others: Any) -> Any:
        real = getattr(_real(stand_in.__name__), name)
        stand_in.take(**{name: real})
        return real(*arguments, **others)

    return function


def _annotations_of(stand_in: _StandIn) -> Any:
    """As `dataclasses` wants them of a class, from Python 3.12 on; all else is left to the real function."""
    forwarded = _forwarding(stand_in, "get_annotations")

    def get_annotations(found: Any, **others: Any) -> Any:
        own = vars(found).get("__annotations__") if type(found) is type and not others else None
        return dict(own) if isinstance(own, dict) else forwarded(found, **others)

    return get_annotations


def _is_function(found: object) -> bool:
    return isinstance(found, types.FunctionType)


def _is_generator(found: object) -> bool:
    return isinstance(found, types.GeneratorType)


def _system() -> str:
    return os.uname().sysname


def cleandoc(text: str) -> str:
    """As `inspect.cleandoc`: without the indentation that all lines but the first have, and empty lines at the ends."""
    first, *others = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in others if line.strip()), default=0)
    lines = [first.lstrip(), *(line[margin:] for line in others)]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        del lines[0]
    return "\n".join(lines)
