"""Kafka's `zookeeper.connect`: `host:port,host:port/chroot`."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.coordination.errors import BadArgumentsError, ConnectionStringError
from barnabas.coordination.paths import validate_path

PORT_DEFAULT = 2181


class Endpoint(NamedTuple):
    """One server; `host` is a name or an address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectionString(NamedTuple):
    """The servers of one ensemble, in the order given, and the path that every path of the client is under; empty
    for none.
    """

    endpoints: tuple[Endpoint, ...]
    chroot: str


def parse_connection_string(text: str) -> ConnectionString:
    """Reads `host:port,host:port/chroot`.

    The port may be left out (2181); an IPv6 address with a port stands in brackets; the chroot, once and at the
    end, holds for all servers. Raises `ConnectionStringError`.
    """
    servers, slash, rest = text.strip().partition("/")
    chroot = slash + rest
    if chroot in {"", "/"}:
        chroot = ""
    else:
        try:
            validate_path(chroot)
        except BadArgumentsError as error:
            raise ConnectionStringError(f"the chroot of {text!r} is not a path: {error.detail}") from None
        if "," in chroot:
            raise ConnectionStringError(f"{text!r} names a chroot before its last server; write it once, at the end")
    endpoints = tuple([_endpoint(part.strip(), text) for part in servers.split(",") if part.strip()])
    if not endpoints:
        raise ConnectionStringError(f"{text!r} names no server; write host:port,host:port/chroot")
    return ConnectionString(endpoints, chroot)


def _endpoint(part: str, text: str) -> Endpoint:
    if part.startswith("["):
        host, bracket, rest = part[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConnectionStringError(f"{part!r} in {text!r} is not an address in brackets; write [address]:port")
        port = rest[1:]
    elif part.count(":") > 1:
        # An IPv6 address without brackets, which leaves no room for a port.
        host, port = part, ""
    else:
        host, _, port = part.partition(":")
    if not host:
        raise ConnectionStringError(f"{part!r} in {text!r} has no host")
    if not port:
        return Endpoint(host, PORT_DEFAULT)
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConnectionStringError(f"{port!r} in {text!r} is not a port; write a number from 1 to 65535")
    return Endpoint(host, int(port))
