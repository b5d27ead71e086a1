"""Options that several commands about records have: codec, isolation, rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


class PositiveNumber(click.FloatRange):
    """A number above 0; neither "inf" nor "nan", which Python takes for numbers too."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number above 0.", param, ctx)
        return number


compression_option = click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="The codec of the batches.",
)
"""Gives a command the parameter `compression`."""


def isolation_option(default: str, help_text: str) -> Callable[[_Command], _Command]:
    """Gives a command the parameter `isolation`: `committed` or `uncommitted`."""
    return click.option(
        "--isolation",
        type=click.Choice(["uncommitted", "committed"]),
        default=default,
        show_default=True,
        help=help_text,
    )


def rate_option(verb: str) -> Callable[[_Command], _Command]:
    """Gives a command the parameter `rate`, in records per second; None for any."""
    return click.option("--rate", type=PositiveNumber(), help=f"{verb} so many records in a second at most.")
