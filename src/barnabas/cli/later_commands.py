"""A group of which some commands are imported when they are needed, so that the others start quicker."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LaterCommands(click.Group):
    """Has the commands that were added, and those that are in modules of their own."""

    def __init__(self, *arguments: Any, later: Mapping[str, str], **others: Any) -> None:
        """`later` has `module:name` by the commands' names; for the rest see click."""
        super().__init__(*arguments, **others)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._later[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command
