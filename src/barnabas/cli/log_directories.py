"""Log directories of brokers as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.cli.output import Column, Mark, Marked, size

if TYPE_CHECKING:
    from barnabas.client.log_directories import LogDirectory

DIRECTORY_COLUMNS: Final = (
    Column("Broker", "broker", is_number=True),
    Column("Log directory", "path"),
    Column("Logs", "logs", is_number=True),
    Column("Size", "size_bytes", is_number=True),
    Column("Free", "usable_bytes", is_number=True),
    Column("Of", "total_bytes", is_number=True),
    Column("State", "state"),
)


def directory_row(node_id: int, directory: LogDirectory) -> list[object]:
    """A directory as `DIRECTORY_COLUMNS` has it."""
    return [
        node_id,
        directory.path,
        len(directory.logs),
        size(directory.size_bytes),
        None if directory.usable_bytes is None else size(directory.usable_bytes),
        None if directory.total_bytes is None else size(directory.total_bytes),
        Marked("ok", Mark.GOOD) if directory.error is None else Marked(directory.error, Mark.BAD),
    ]
