"""`barnabas completion`: has a shell complete commands, options, topics and groups."""

from __future__ import annotations

import sys
from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from barnabas.cli.connection import exiting
from barnabas.cli.output import say

PROGRAM: Final = "barnabas"
_VARIABLE: Final = "_BARNABAS_COMPLETE"
_INSTALL: Final = {
    "bash": "add to ~/.bashrc:  source <(barnabas completion bash)",
    "zsh": "add to ~/.zshrc, after compinit:  source <(barnabas completion zsh)",
    "fish": "run once:  barnabas completion fish > ~/.config/fish/completions/barnabas.fish",
}


@click.command(name="completion", epilog="\b\n" + "\n".join(f"{shell}: {how}" for shell, how in _INSTALL.items()))
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def command(shell: str) -> None:
    """Print the script with which a shell completes what follows `barnabas`: commands, options, topics, groups.

    Topics and groups come from the cluster that BARNABAS_BOOTSTRAP_SERVERS or --bootstrap-server names, where it
    answers within a second.
    """
    with exiting():
        click.echo(_script(shell))
    if sys.stdout.isatty():
        say(f"This is the script. To install it, {_INSTALL[shell]}")


def _script(shell: str) -> str:
    from barnabas.cli.main import main

    return _KINDS[shell](main, {}, PROGRAM, _VARIABLE).source()


class _Bash(BashComplete):
    """click's, which runs bash to learn its version: where the script is used is another question."""

    @staticmethod
    def _check_version() -> None: ...


class _Fish(FishComplete):
    """click's, which takes a description to end at its first comma."""

    def source(self) -> str:
        return super().source().replace('(string split "," ', '(string split --max 1 "," ')


_KINDS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": ZshComplete, "fish": _Fish}
