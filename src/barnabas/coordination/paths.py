"""Znode paths: what ZooKeeper accepts, and how they are taken apart and joined."""

from __future__ import annotations

import re
from collections.abc import Sequence

from barnabas.coordination.errors import BadArgumentsError

# The code points that ZooKeeper refuses anywhere in a path. Those beyond 16 bits are pairs of surrogates in Java and
# fall into its refused range.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_PLAIN = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")
_PLAIN_BYTES = b"/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"


def validate_path(path: str, *, sequential: bool = False) -> None:
    """Raises `BadArgumentsError` unless ZooKeeper accepts the path.

    With `sequential` the server appends a number to the path, so that it may end with a slash.
    """
    if _PLAIN.fullmatch(path):
        return
    complaint = _complaint(path + "1" if sequential else path)
    if complaint is not None:
        raise BadArgumentsError(path, complaint)


def validate_paths(paths: Sequence[str]) -> None:
    """Raises `BadArgumentsError` unless ZooKeeper accepts all of the paths; much faster than one by one."""
    if not _are_plain(paths):
        for path in paths:
            validate_path(path)


def _are_plain(paths: Sequence[str]) -> bool:
    """Whether all are as `_PLAIN` has them, by searches of C's through all of them together."""
    lines = "\n" + "\n".join(paths) + "\n"
    if not lines.isascii():
        return False
    data = lines.encode()
    # What is left without the bytes that may be in a path are the line breaks, none of which is in one.
    return (
        len(data.translate(None, _PLAIN_BYTES)) == len(paths) + 1
        and data.count(b"\n/") == len(paths)
        and b"//" not in data
        and b"/\n" not in data
        and (b"." not in data or b"/." not in data)
    )


def _complaint(path: str) -> str | None:
    if not path:
        return "a path cannot be empty"
    if path[0] != "/":
        return "a path starts with a slash"
    if path == "/":
        return None
    if path[-1] == "/":
        return "a path does not end with a slash"
    refused = _REFUSED.search(path)
    if refused is not None:
        return f"the character U+{ord(refused[0]):04X} is not allowed in a path"
    for name in path[1:].split("/"):
        if not name:
            return "a path has no empty names"
        if name in {".", ".."}:
            return "a path has no relative names"
    return None


def parent_of(path: str) -> str:
    """The path of the znode above; that of the root is the root."""
    cut = path.rfind("/")
    return path[:cut] if cut > 0 else "/"


def name_of(path: str) -> str:
    """The last name of the path; empty for the root."""
    return path[path.rfind("/") + 1 :]


def child_of(parent: str, name: str) -> str:
    """The path of the child `name` of `parent`."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
