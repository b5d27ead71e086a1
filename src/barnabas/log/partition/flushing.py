"""What a log makes durable, off the loop."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.kernel.host import Files
from barnabas.log.directories.checkpoints import EpochEntry, write_epochs


@dataclass(frozen=True, slots=True)
class FlushWork:
    """One flush of one log. The descriptors stay open meanwhile."""

    descriptors: tuple[int, ...]
    directories: tuple[str, ...]
    """Those whose entries have changed."""
    epochs_path: str
    epochs: tuple[EpochEntry, ...] | None
    """The leader epochs, where their checkpoint lacks any."""


def perform_flush(files: Files, work: FlushWork) -> None:
    """When it returns, all of it survives a loss of power. Raises OSError."""
    for descriptor in work.descriptors:
        files.fdatasync(descriptor)
    for directory in work.directories:
        files.fsync_directory(directory)
    if work.epochs is not None:
        write_epochs(files, work.epochs_path, work.epochs)
