"""Options that several commands about records have: codec, isolation, rate, and the topic that they go to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from barnabas.cli.completed_files import complete_files

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


def target_options(target: str, configs_help: str) -> Callable[[_Command], _Command]:
    """Gives a command that writes to a topic, which its help calls `target`, the parameters `mapping` (`keep` or
    `key`), `create`, `replication_factor` and `copies_configs`; `check_target` checks them.
    """
    options = (
        click.option(
            "--partitions",
            "mapping",
            type=click.Choice(["keep", "key"]),
            default="keep",
            show_default=True,
            help="Each record goes to the partition of the same number, or to that which its key chooses.",
        ),
        click.option("--create", is_flag=True, help=f"Create {target}, with as many partitions, where there is none."),
        click.option("--replication-factor", type=click.IntRange(1, 32_767), help=f"Of a {target} that is created."),
        click.option("--configs", "copies_configs", is_flag=True, help=configs_help),
    )

    def give(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give


state_option = click.option(
    "--state",
    "state_file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Keeps in this file how far it is, and goes on from there.",
)
"""Gives a command the parameter `state_file`."""


def check_target(
    *, create: bool, replication_factor: int | None, state_file: str | None, transactional: str | None
) -> None:
    """Raises click.UsageError for options that do not go together."""
    if replication_factor is not None and not create:
        raise click.UsageError("--replication-factor goes with --create")
    if transactional is not None and (state_file is not None or not transactional):
        raise click.UsageError("--transactional needs a name, and keeps how far it is itself: leave --state out")
