"""`--measure`: how long a command measures what is written to partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

_MEASURED_MS_MAX: Final = 3_600_000
_Command = TypeVar("_Command", bound=Callable[..., Any])


def measured_option(text: str) -> Callable[[_Command], _Command]:
    """Gives a command the parameter `measured_ms`."""
    return click.option(
        "--measure",
        "measured_ms",
        default="5s",
        show_default=True,
        metavar="TIME",
        callback=_duration_ms,
        help=text,
    )


def _duration_ms(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    from barnabas.cli.starts import parse_duration_ms

    try:
        duration_ms = parse_duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if duration_ms > _MEASURED_MS_MAX:
        raise click.BadParameter("an hour is the longest")
    return duration_ms
