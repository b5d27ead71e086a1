"""What a user named and the cluster does not have: an error that says where to look, and which name was near."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from barnabas.cli.command_config import seen_by_command
from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import say


def missing_topics(names: Sequence[str]) -> CommandError:
    """There are no such topics."""
    what = "there is no topic" if len(names) == 1 else "there are no topics"
    return CommandError(f"{what} {', '.join(names)}; `barnabas topic list` shows which there are", ExitStatus.MISSING)


def say_no_topics() -> None:
    """There are no topics at all, as far as the command may see them."""
    seen = seen_by_command()
    say(f"There are no topics{seen}." if seen else "There are no topics yet: `barnabas topic create NAME` makes one.")


def missing_groups(names: Sequence[str]) -> CommandError:
    """There are no such groups."""
    what = "there is no group" if len(names) == 1 else "there are no groups"
    return CommandError(f"{what} {', '.join(names)}; `barnabas group list` shows which there are", ExitStatus.MISSING)


def missing_broker(node_id: int, known: Iterable[int]) -> CommandError:
    """No broker with this id is alive."""
    alive = ", ".join(map(str, sorted(known)))
    return CommandError(f"there is no broker {node_id}; the cluster has {alive}", ExitStatus.MISSING)


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean that?`, or nothing where no known name is near."""
    from barnabas.config.key_table import nearest_name

    nearest = nearest_name(name, known)
    return "" if nearest is None else f"; did you mean {nearest}?"
