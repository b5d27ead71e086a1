"""Files that are on the disk, and not only in the machine's memory, when a call returns."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Mapping[str, Any], *, is_durable: bool = True) -> None:
    """Replaces a file whole, so that a kill leaves the old one or the new one; durable, a loss of power too."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as output:
        output.write(json.dumps(content, indent=2) + "\n")
        output.flush()
        if is_durable:
            os.fsync(output.fileno())
    new.replace(path)
    if is_durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Brings the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path, since_ns: int = 0) -> None:
    """Brings all files below a directory to the disk, and the directories that name them.

    What was changed before `since_ns` (as of `st_mtime_ns`) was brought there before. What goes meanwhile, as Spark
    removes what it needs no longer, is no error.
    """
    for parent, _, names in os.walk(directory):
        for path in (*(os.path.join(parent, name) for name in names), parent):
            with contextlib.suppress(FileNotFoundError):
                _sync(path, since_ns)


def sync_new_files(directory: Path, since_ns: int) -> None:
    """Like `sync_tree`, for a tree of very many files: those that have not changed are not opened."""
    for parent, _, names in os.walk(directory):
        for path in (*(os.path.join(parent, name) for name in names), parent):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_mtime_ns >= since_ns:
                    _sync(path, since_ns)


def _sync(path: str, since_ns: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if os.fstat(descriptor).st_mtime_ns >= since_ns:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
