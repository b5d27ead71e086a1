"""`barnabas completion`: has a shell complete commands, options, and names of the cluster."""

from __future__ import annotations

import sys
from typing import Final

import click

from barnabas.cli.connection import exiting
from barnabas.cli.output import say
from barnabas.cli.shells import PROGRAM, SHELLS, VARIABLE

_INSTALL: Final = {
    "bash": "add to ~/.bashrc:  source <(barnabas completion bash)",
    "zsh": "add to ~/.zshrc, after compinit:  source <(barnabas completion zsh)",
    "fish": "run once:  barnabas completion fish > ~/.config/fish/completions/barnabas.fish",
}


@click.command(name="completion", epilog="\b\n" + "\n".join(f"{shell}: {how}" for shell, how in _INSTALL.items()))
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def command(shell: str) -> None:
    """Print the script with which a shell completes what follows `barnabas`.

    It completes commands, options and files, and from the cluster topics, groups, brokers, configs, users and
    transactional ids: from that which the line names, by --bootstrap-server or --profile, or else the environment,
    where it answers within a second.
    """
    with exiting():
        click.echo(_script(shell))
    if sys.stdout.isatty():
        say(f"This is the script. To install it, {_INSTALL[shell]}")


def _script(shell: str) -> str:
    from barnabas.cli.main import main

    return SHELLS[shell](main, {}, PROGRAM, VARIABLE).source()
