"""What a container lets its processes have: memory and processors, as Linux's cgroups limit them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from barnabas.cli.doctor_findings import Finding, State
from barnabas.cli.output import size

MEMORY_MIN: Final = 256 * 1024**2
"""A broker at rest takes some 40 MiB; connections, requests and partitions come on top."""
_NO_LIMIT: Final = 1 << 60
"""What version 1 has where there is no limit is as much as its counters can hold."""


def check_container(root: str | os.PathLike[str] = "/") -> list[Finding]:
    """The limits of this process; nothing where there are none."""
    found = []
    memory = memory_limit(root)
    if memory is not None:
        what = f"this container may have {size(memory)} of memory"
        if memory < MEMORY_MIN:
            what += ": too little for a broker under load, which the system kills then"
            found.append(Finding("memory", State.WARNING, what, f"raise the limit to {size(MEMORY_MIN)} or more"))
        else:
            found.append(Finding("memory", State.OK, what))
    processors = processor_limit(root)
    if processors is not None:
        what = f"this container may have {processors:g} processors"
        if processors < 1:
            what += ": brokers stand still in each tenth of a second, and time-outs come sooner"
            found.append(Finding("processors", State.WARNING, what, "raise the limit to one processor or more"))
        else:
            found.append(Finding("processors", State.OK, what))
    return found


def memory_limit(root: str | os.PathLike[str]) -> int | None:
    """In bytes; the lowest on the way up, None without one."""
    texts = [*_values(root, "", "memory.max"), *_values(root, "memory", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text.isdecimal() and int(text) < _NO_LIMIT]
    return min(limits, default=None)


def processor_limit(root: str | os.PathLike[str]) -> float | None:
    """In processors; the lowest on the way up, None without one."""
    pairs = [text.split() for text in _values(root, "", "cpu.max")]
    quotas = _values(root, "cpu", "cpu.cfs_quota_us")
    pairs += [list(pair) for pair in zip(quotas, _values(root, "cpu", "cpu.cfs_period_us"), strict=False)]
    limits = [int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and all(map(_is_positive, pair))]
    return min(limits, default=None)


# Inside.


def _is_positive(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _values(root: str | os.PathLike[str], controller: str, name: str) -> list[str]:
    """What the files of this name have, from the process's own group up; `controller` is empty for version 2."""
    found = []
    for directory in _groups(root, controller):
        try:
            found.append(_text(os.path.join(directory, name)).strip())
        except OSError:
            continue
    return found


def _groups(root: str | os.PathLike[str], controller: str) -> Iterator[str]:
    """The process's group and those above it; within a container its own is the topmost that is seen."""
    top = os.path.join(root, "sys/fs/cgroup", controller).rstrip("/")
    try:
        lines = _text(os.path.join(root, "proc/self/cgroup")).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            names = [name for name in path.split("/") if name]
            for depth in range(len(names), -1, -1):
                yield os.path.join(top, *names[:depth])
            return


def _text(path: str) -> str:
    """Raises OSError."""
    with open(path, errors="replace") as stream:
        return stream.read()
