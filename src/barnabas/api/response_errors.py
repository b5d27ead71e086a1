"""Finds the errors that a response carries, wherever its schema has them, and whether it is a large one.

Every response is looked through before it is sent, so this is straight-line Python that is made from the schema, once
per message, as the codec is (`wire/compiler.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from barnabas.kernel.steps import Steps
from barnabas.wire import catalogue
from barnabas.wire.classes import Message
from barnabas.wire.compiler import Source
from barnabas.wire.schema import Field

LARGE_ELEMENTS: Final = 2048
"""A response with more elements of arrays is encoded in steps."""
_STEP_ELEMENTS: Final = 2048
_ERROR_CODE: Final = "error_code"


def errors_of(response: Message) -> list[int] | None:
    """The codes other than NONE of all fields called `error_code`; None if the response has more than `LARGE_ELEMENTS`
    elements.
    """
    found: list[int] = []
    return found if _finder(type(response).__name__, in_steps=False)(response, found) else None


def errors_in_steps(response: Message) -> Steps[list[int]]:
    """As `errors_of`, for large responses."""
    found: list[int] = []
    yield from _finder(type(response).__name__, in_steps=True)(response, found)
    return found


@functools.cache
def _finder(message_name: str, *, in_steps: bool) -> Callable[[Any, list[int]], Any]:
    """A function that adds the codes to a list, and returns False as soon as it has seen too many elements."""
    message = catalogue.message(message_name)
    out = Source(message, message.versions.high)
    with out.block("def find(m, found):"):
        out.line(f"left = {_STEP_ELEMENTS if in_steps else LARGE_ELEMENTS}")
        if in_steps:
            with out.block("if False:"):  # a generator, also where there is no array
                out.line("yield")
        _look_at(out, "m", message.fields, in_steps=in_steps)
        out.line("return True")
    return out.build("find")


def _look_at(out: Source, owner: str, fields: tuple[Field, ...], *, in_steps: bool) -> None:
    """Writes what looks at the fields of the structure that the expression `owner` gives."""
    for field in fields:
        if field.name == _ERROR_CODE:
            with out.block(f"if {owner}.{_ERROR_CODE}:"):
                out.line(f"found.append(int({owner}.{_ERROR_CODE}))")
        elif field.type.is_array:
            _look_at_array(out, f"{owner}.{field.name}", field, in_steps=in_steps)
        elif field.type.is_struct and _is_of_interest(out, out.struct_fields(field)):
            value = out.name("s")
            out.line(f"{value} = {owner}.{field.name}")
            with out.block(f"if {value} is not None:"):
                _look_at(out, value, out.struct_fields(field), in_steps=in_steps)


def _look_at_array(out: Source, expression: str, field: Field, *, in_steps: bool) -> None:
    value, element = out.name("v"), out.name("e")
    out.line(f"{value} = {expression}")
    with out.block(f"if {value}:"):
        if in_steps:
            out.line(f"left -= len({value}) if len({value}) < {_STEP_ELEMENTS} else {_STEP_ELEMENTS}")
            with out.block("if left <= 0:"):
                out.line("yield")
                out.line(f"left = {_STEP_ELEMENTS}")
        else:
            out.line(f"left -= len({value})")
            with out.block("if left < 0:"):
                out.line("return False")
        if field.type.is_struct and _is_of_interest(out, out.struct_fields(field)):
            with out.block(f"for {element} in {value}:"):
                _look_at(out, element, out.struct_fields(field), in_steps=in_steps)
                if in_steps:
                    out.line("left -= 1")
                    with out.block("if left <= 0:"):
                        out.line("yield")
                        out.line(f"left = {_STEP_ELEMENTS}")


def _is_of_interest(out: Source, fields: tuple[Field, ...]) -> bool:
    """A structure with such fields has errors or arrays, in whatever depth."""
    return any(
        field.name == _ERROR_CODE
        or field.type.is_array
        or (field.type.is_struct and _is_of_interest(out, out.struct_fields(field)))
        for field in fields
    )
