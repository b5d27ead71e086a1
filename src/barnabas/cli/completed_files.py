"""Options and arguments of which shells complete files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


def complete_files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Has the shell complete them."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]
