"""Every message of the protocol as a class: `from barnabas.wire.messages import FetchRequest`.

A class spans all versions of its message. Its instances are made with keywords, are mutable, compare by value, and
hold the schema's defaults where nothing is given; structures are attributes of the class (`FetchRequest.FetchTopic`).
Classes are made from the schema files when they are first asked for, so that importing this module costs nothing.

Type checkers read `messages.pyi`, which `python -m barnabas.wire.stubs` generates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.wire import catalogue, classes

if TYPE_CHECKING:
    from barnabas.wire.classes import Message


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        try:
            made: type[Message] = classes.message_class(name)
        except KeyError:
            pass
        else:
            globals()[name] = made
            return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *catalogue.message_names()})
