"""What `barnabas doctor` looks at on this machine. Each check is given what it judges, or asks the system for it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.cli.doctor_aside import aside, found_aside, mode_of
from barnabas.cli.doctor_container import check_container
from barnabas.cli.doctor_findings import Finding, State
from barnabas.cli.output import printable, size
from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from concurrent.futures import Future

    from barnabas.config.listeners import Endpoint

OLDEST_PYTHON: Final = (3, 11)
OPEN_FILES_MIN: Final = 4_096
FILES_PER_PARTITION: Final = 4
"""A segment, its indexes, and what a start opens besides, of the newest segment; older ones are opened when read."""
FREE_SHARE_MIN: Final = 0.05
FREE_BYTES_MIN: Final = 1024**3
_FREE_INODES_SHARE_MIN: Final = 0.02
_TIME_ERROR: Final = 5
"""What adjtimex returns where nothing keeps the clock right."""
_TIMEX_BYTES: Final = 512
_NETWORK_TYPES: Final = ("nfs", "cifs", "smb", "9p", "ceph", "glusterfs", "afs", "fuse.sshfs", "fuse.s3")
_FLEETING_TYPES: Final = ("tmpfs", "ramfs", "overlay")


@fact
class Space:
    """A file system: sizes in bytes, and inodes, of which some file systems count none."""

    total_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


async def check_surroundings(java: Future[list[Finding]]) -> list[Finding]:
    """What a broker and pipelines need of this machine, and what takes a while to be found. What does not answer is a
    finding, after some seconds. `java` is `check_java`, which has begun.
    """
    name = socket.gethostname()
    found = await asyncio.gather(
        found_aside(
            lambda: [check_host_name(name, _addresses_of)],
            Finding("host_name", State.WARNING, f"looking up this machine's name, {printable(name)}, {_NO_END}", _DNS),
        ),
        found_aside(
            java,
            Finding("java", State.WARNING, f"Java {_NO_END}", "look at JAVA_HOME and the PATH"),
            _JAVA_SECONDS,
        ),
    )
    return [finding for some in found for finding in some]


async def check_machine(
    directories: Iterable[str], partitions: int, surroundings: Awaitable[list[Finding]]
) -> list[Finding]:
    """All checks that need no cluster; `surroundings` is `check_surroundings`, which has begun."""
    waited = [
        found_aside(
            partial(check_directory, directory),
            Finding("directory", State.CRITICAL, f"{printable(directory)}: its file system {_NO_END}", _DEAD_MOUNT),
        )
        for directory in directories
    ]
    return [
        check_python(sys.version_info[:2]),
        check_loop(_has_module("uvloop")),
        check_open_files(_open_files_limit(), partitions),
        *check_container(),
        *check_clock(_clock_state()),
        *(finding for some in await asyncio.gather(surroundings, *waited) for finding in some),
    ]


_OTHER_USER: Final = "run as the broker's user, or change the directory's owner"
_NO_END: Final = "does not end in time"
_DNS: Final = "look at DNS (/etc/resolv.conf), or add the name to /etc/hosts"
_DEAD_MOUNT: Final = "look at the mount (mount, dmesg): its server may be gone, or the disk hang; so would a broker"
_JAVA_SECONDS: Final = 35.0
"""Longer than each that is found may take to tell its version."""


def check_python(version: tuple[int, ...]) -> Finding:
    """Whether this Python runs Barnabas."""
    shown = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        return Finding("python", State.CRITICAL, f"Python {shown} is too old", "install Python 3.11 or newer")
    return Finding("python", State.OK, f"Python {shown}")


def check_loop(has_uvloop: bool) -> Finding:
    """Whether brokers have the quick loop."""
    if not has_uvloop:
        what = "uvloop is not installed: brokers work, and are slower"
        return Finding("uvloop", State.WARNING, what, "pip install uvloop")
    return Finding("uvloop", State.OK, "uvloop is installed")


def check_open_files(limit: int | None, partitions: int) -> Finding:
    """Whether a broker may open its partitions and connections; `limit` is the hard one, None where there is none."""
    wanted = max(OPEN_FILES_MIN, 2 * FILES_PER_PARTITION * partitions)
    if limit is None or limit >= wanted:
        return Finding("open_files", State.OK, f"{'any number of' if limit is None else f'{limit:,}'} open files")
    state = State.CRITICAL if limit < FILES_PER_PARTITION * partitions else State.WARNING
    what = f"a process may have {limit:,} files open; a broker with these logs wants {wanted:,}"
    advice = f"raise it: ulimit -Hn {wanted}, LimitNOFILE={wanted} of a systemd unit, or /etc/security/limits.conf"
    return Finding("open_files", state, what, advice)


def check_clock(state: int | None) -> list[Finding]:
    """Whether something keeps the clock right, as far as the system tells (adjtimex; None: it does not)."""
    if state is None:
        return []
    if state == _TIME_ERROR:
        what = "the system does not know that anything keeps its clock right; timestamps and retention go by it"
        advice = "run chrony or systemd-timesyncd; within a container or a virtual machine its host may see to it"
        return [Finding("clock", State.NOTE, what, advice)]
    return [Finding("clock", State.OK, "the clock is kept right")]


def check_host_name(name: str, addresses: Callable[[str], list[str]]) -> Finding:
    """Whether others reach a broker here that has no advertised.listeners: it tells them this name."""
    found = addresses(name)
    shown = printable(name)
    if not found:
        what = f"this machine's name, {shown}, has no address"
        return Finding("host_name", State.WARNING, what, f"add it to /etc/hosts, or set {_ADVERTISED}")
    if all(is_loopback(each) for each in found):
        what = f"this machine's name, {shown}, means {', '.join(found)}: others do not reach brokers here by it"
        return Finding("host_name", State.NOTE, what, f"for clients on other machines set {_ADVERTISED}")
    return Finding("host_name", State.OK, f"{shown} means {', '.join(found)}")


_ADVERTISED: Final = "advertised.listeners to an address that others reach"


def check_directory(directory: str) -> list[Finding]:
    """Whether a broker can keep its data there."""
    shown = printable(directory)
    try:
        return _check_directory(directory, shown)
    except OSError as error:
        what = f"{shown}: {printable(str(error.filename or directory))}: {error.strerror or error}"
        return [Finding("directory", State.CRITICAL, what, f"{_OTHER_USER}; or {_DEAD_MOUNT}")]


def _check_directory(directory: str, shown: str) -> list[Finding]:
    there = os.path.abspath(directory)
    while (mode := mode_of(there)) is None and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if not stat.S_ISDIR(mode or 0):
        return [Finding("directory", State.CRITICAL, f"{there} is no directory", "name another in log.dirs")]
    if not os.access(there, os.W_OK | os.X_OK):
        what = f"{shown}: this user may not write to {there}"
        return [Finding("directory", State.CRITICAL, what, _OTHER_USER)]
    status = os.statvfs(there)
    space = Space(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, status.f_files, status.f_favail)
    return [check_space(shown, space), check_file_system(shown, _file_system_of(there))]


def check_space(directory: str, space: Space) -> Finding:
    """Whether there is room."""
    what = f"{directory}: {size(space.free_bytes)} of {size(space.total_bytes)} are free"
    if space.free_bytes < max(FREE_BYTES_MIN / 8, space.total_bytes * FREE_SHARE_MIN / 5):
        return Finding("disk_space", State.CRITICAL, what, _MAKE_ROOM)
    if space.free_bytes < max(FREE_BYTES_MIN, space.total_bytes * FREE_SHARE_MIN):
        return Finding("disk_space", State.WARNING, what, _MAKE_ROOM)
    if space.inodes and space.free_inodes < space.inodes * _FREE_INODES_SHARE_MIN:
        what = f"{directory}: {space.free_inodes:,} of {space.inodes:,} inodes are free"
        return Finding("disk_space", State.WARNING, what, "larger segments (segment.bytes) make fewer files")
    return Finding("disk_space", State.OK, what)


_MAKE_ROOM: Final = "make room, or lower retention.ms or retention.bytes of large topics; a full disk stops the broker"


def check_file_system(directory: str, kind: str | None) -> Finding:
    """Whether the file system keeps what brokers write, and quickly."""
    if kind is None:
        return Finding("file_system", State.OK, f"{directory}: the system does not tell the type of its file system")
    if kind.startswith(_NETWORK_TYPES):
        what = f"{directory} is on {kind}, over the network: slow, and it may stop brokers"
        return Finding("file_system", State.WARNING, what, "keep log.dirs on a local disk")
    if kind in _FLEETING_TYPES:
        what = f"{directory} is on {kind}, which a restart of the machine or the container empties"
        return Finding("file_system", State.WARNING, what, "keep log.dirs on a disk, or a volume of the container")
    return Finding("file_system", State.OK, f"{directory} is on {kind}")


async def check_ports(endpoints: Iterable[Endpoint]) -> list[Finding]:
    """As `check_endpoints`, also where a name is not found in time."""
    return await found_aside(
        lambda: list(check_endpoints(endpoints)),
        Finding("port", State.WARNING, f"looking up the hosts of listeners {_NO_END}", _DNS),
    )


def check_endpoints(endpoints: Iterable[Endpoint]) -> Iterator[Finding]:
    """Whether a broker can listen where its properties say; a port that something has taken may be the broker's."""
    for endpoint in endpoints:
        if endpoint.port == 0:
            continue
        error = bind_error(endpoint.host or "", endpoint.port)
        if error is None:
            yield Finding("port", State.OK, f"{endpoint}: the port is free")
        elif error.errno == errno.EADDRINUSE:
            what = f"{endpoint}: something listens on this port already"
            yield Finding("port", State.NOTE, what, "fine if that is this broker; else choose another in listeners")
        else:
            what = f"{endpoint}: nobody can listen there: {error.strerror or error}"
            advice = "listeners needs an address of this machine, and a port above 1023 for who is not root"
            yield Finding("port", State.CRITICAL, what, advice)


def bind_error(host: str, port: int) -> OSError | None:
    """Why this process could not listen there; None where it could."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found[:1]:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as error:
        return error
    return None


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it; an address as `getaddrinfo` writes it."""
    return address.startswith("127.") or address.partition("%")[0] == "::1"


def look_up(name: str) -> list[str]:
    """The addresses of a name. Raises OSError, and UnicodeError for what is none."""
    # Of a text Python looks whether it is of another alphabet, by tables that take a while to load.
    host = name.encode() if name.isascii() else name
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def existing(directories: Iterable[str]) -> list[str]:
    """Those that are directories here: a broker at this address may be in a container, with others. One that does not
    answer is among them.
    """
    names = list(dict.fromkeys(directories))
    found = await asyncio.gather(*(aside(partial(_is_directory, name)) for name in names), return_exceptions=True)
    return [name for name, is_there in zip(names, found, strict=True) if is_there]


# Inside.


def _is_directory(name: str) -> bool:
    return stat.S_ISDIR(mode_of(name) or 0)


def _has_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _open_files_limit() -> int | None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _clock_state() -> int | None:
    import ctypes

    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state


def _addresses_of(name: str) -> list[str]:
    try:
        return look_up(name)
    except (OSError, UnicodeError):
        return []


def _file_system_of(path: str | os.PathLike[str], mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system, as Linux tells it."""
    try:
        with open(mounts, errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return None
    best: tuple[int, str | None] = (-1, None)
    absolute = os.path.realpath(path)
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if not dash or len(fields) < 5:
            continue
        mount = fields[4].encode().decode("unicode_escape", "replace") if "\\" in fields[4] else fields[4]
        is_above = absolute == mount or absolute.startswith(mount.rstrip("/") + "/")
        if is_above and len(mount) >= best[0]:
            best = len(mount), after.split()[0]
    return best[1]
