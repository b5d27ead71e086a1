"""The connections of one node of a cluster in this process: held up, cut off, reset.

Each connection passes through here on its way between the loop and the broker. One that is held is like one whose
packets are lost: neither end hears of the other, and neither is told; what they sent comes when it is let go, as TCP
repeats what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from barnabas.testing.real_connections import ConnectionTable

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: the peer gets a reset, as from a process that was killed with unread bytes."""
_NOWHERE: Final = struct.pack("=H14x", socket.AF_UNSPEC)
"""The address by which connect(2) dissolves a TCP socket's association, or stops its listening: Python has no call."""
_LIBC: Final = ctypes.CDLL(None)
Factory = Callable[[], asyncio.BaseProtocol]


class NodeLinks:
    """All connections and listeners of one node; used on the node's loop only, but for the questions at the end."""

    def __init__(self) -> None:
        self._links: dict[Link, None] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._ports_cut: dict[int, asyncio.Future[None]] = {}
        self._ends: dict[tuple[int, int], None] = {}
        self._table: ConnectionTable | None = None
        self._owner = 0
        self.is_cut_off = False

    def share(self, table: ConnectionTable | None, owner: int) -> None:
        """From now on the connections that this node makes are in the table too, as those of `owner`; in none again
        with None.
        """
        self._table, self._owner = table, owner

    # The loop's calls.

    def wrap(self, factory: Factory, port: int | None) -> Callable[[], Link]:
        """`factory` for the loop; `port` is that of the listener that is connected to, None for who connects to us."""

        def make() -> Link:
            protocol = factory()
            kind = BufferedLink if isinstance(protocol, asyncio.BufferedProtocol) else StreamLink
            return kind(self, protocol, port)

        return make

    async def until_reachable(self, port: int) -> None:
        """Waits while nothing that is sent to that port arrives. Raises ConnectionError on a node that was killed."""
        while port in self._ports_cut:
            await asyncio.shield(self._ports_cut[port])
        self.check()

    def check(self) -> None:
        if self.is_cut_off:
            raise ConnectionAbortedError("the node that connects was killed")

    def add_server(self, server: asyncio.AbstractServer) -> None:
        self._servers.append(server)

    def opened(self, link: Link) -> None:
        self._links[link] = None
        if link.port is None:
            return
        self._ends[link.local_port, link.port] = None
        if self._table is not None:
            self._table.add(self._owner, link.local_port, link.port)
        if link.port in self._ports_cut:
            link.transport.hold()

    def lost(self, link: Link) -> None:
        self._links.pop(link, None)
        if link.port is not None:
            self._ends.pop((link.local_port, link.port), None)
            if self._table is not None:
                self._table.remove(self._owner, link.local_port, link.port)

    # For faults.

    def cut(self, ports: Iterable[int]) -> None:
        """From now on nothing passes between this node and listeners on these ports."""
        loop = asyncio.get_running_loop()
        new = frozenset(ports) - self._ports_cut.keys()  # what is cut already is held already
        for port in new:
            self._ports_cut[port] = loop.create_future()
        for link in self._links:
            if link.port in new:
                link.transport.hold()

    def heal(self, ports: Iterable[int] | None = None) -> None:
        """Ends what `cut` began, for these ports or for all."""
        for port in list(self._ports_cut) if ports is None else ports:
            healed = self._ports_cut.pop(port, None)
            if healed is not None:
                healed.set_result(None)
            for link in list(self._links):
                if link.port == port:
                    link.transport.let_go()

    def transport_of(self, protocol: object) -> HeldTransport | None:
        """The transport of a connection; None where it is over."""
        return next((link.transport for link in self._links if link.inner is protocol), None)

    def cut_off(self) -> None:
        """Resets every connection and closes every listener at once, without a word to the node: its process is gone.

        The descriptors stay, so that nobody else's come under their numbers, and stay the sockets that they are: libuv
        aborts the whole process where it is to watch a descriptor under whose number something else has come.
        """
        self.is_cut_off = True
        for link in self._links:
            link.is_cut_off = True
        for descriptor in self.descriptors():
            _reset(descriptor)

    def close_all(self) -> None:
        """After `cut_off`: has the loop let go of everything."""
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.transport.real.abort()

    def end_held(self) -> None:
        """When the node has stopped: ends the connections whose ends nobody was to hear of."""
        for link in list(self._links):
            if link.transport.is_held:
                link.transport.real.abort()

    # For any thread.

    def descriptors(self) -> list[int]:
        """Of all listeners and connections."""
        listening = (each.fileno() for server in self._servers for each in getattr(server, "sockets", ()))
        found = (*listening, *(link.transport.descriptor for link in self._links))
        return [descriptor for descriptor in found if descriptor >= 0]

    def has_connection(self, local_port: int, port: int) -> bool:
        """Whether this node has connected to the listener on `port` from that port of its own, which connections to
        other listeners may have too.
        """
        return (local_port, port) in self._ends

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._links)


class Link:
    """Stands between a transport and the protocol of one connection."""

    def __init__(self, links: NodeLinks, inner: asyncio.BaseProtocol, port: int | None) -> None:
        self.links = links
        self.inner: Any = inner
        self.port = port
        """Of the listener that this node has connected to; None where the other end has connected."""
        self.local_port = 0
        self.is_cut_off = False
        self.transport: HeldTransport

    def connection_made(self, transport: Any) -> None:
        self.transport = HeldTransport(transport, self)
        if self.links.is_cut_off:
            # It was on its way to the node when that was killed: its system resets it.
            self.is_cut_off = True
            _reset(self.transport.descriptor)
            transport.abort()
            return
        name = transport.get_extra_info("sockname")
        self.local_port = int(name[1]) if isinstance(name, tuple) else 0
        self.links.opened(self)
        self.inner.connection_made(self.transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.links.lost(self)
        self.tell_lost(error)

    def tell_lost(self, error: Exception | None) -> None:
        """Tells the protocol that its connection is over, once."""
        if not self.is_cut_off:
            self.is_cut_off = True
            self.inner.connection_lost(error)

    def eof_received(self) -> bool | None:
        return None if self.is_cut_off else self.inner.eof_received()

    def pause_writing(self) -> None:
        if not self.is_cut_off:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if not self.is_cut_off:
            self.inner.resume_writing()


class BufferedLink(Link, asyncio.BufferedProtocol):
    """For protocols that lend their buffers."""

    def get_buffer(self, size_hint: int) -> Any:
        return bytearray(65_536) if self.is_cut_off else self.inner.get_buffer(size_hint)

    def buffer_updated(self, count: int) -> None:
        if not self.is_cut_off:
            self.inner.buffer_updated(count)


class StreamLink(Link, asyncio.Protocol):
    """For protocols that take bytes."""

    def data_received(self, data: bytes) -> None:
        if not self.is_cut_off:
            self.inner.data_received(data)


class HeldTransport(asyncio.Transport):
    """A transport that can be held: then it neither sends nor reads, and keeps what it is given."""

    def __init__(self, real: Any, link: Link) -> None:
        super().__init__()
        self.real = real
        self._link = link
        self._kept: list[Any] = []
        self._holds = 0
        self._is_reading = True
        self._is_closing = False
        self._is_lost_at_write = False

    # For faults.

    def hold(self) -> None:
        """Nothing passes until `let_go` was called as often."""
        self._holds += 1
        if self._is_reading and not self.real.is_closing():
            self.real.pause_reading()

    def let_go(self) -> None:
        if not self._holds:
            return
        self._holds -= 1
        if self._holds or self.real.is_closing():
            return
        kept, self._kept = self._kept, []
        if self._is_closing:
            self.real.abort()
            return
        if kept:
            self.real.writelines(kept)
        if self._is_reading:
            self.real.resume_reading()

    @property
    def is_held(self) -> bool:
        return self._holds > 0

    def lose_next(self) -> None:
        """The connection ends when it is written to next, and what is written is lost."""
        self._is_lost_at_write = True

    @property
    def descriptor(self) -> int:
        found = self.real.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    # The protocol's calls.

    def write(self, data: Any) -> None:
        if self._is_lost_at_write:
            self.real.abort()
        elif self._holds:
            self._kept.append(bytes(data))
        else:
            self.real.write(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._holds or self._is_lost_at_write:
            self.write(b"".join(list_of_data))
        else:
            self.real.writelines(list_of_data)

    def pause_reading(self) -> None:
        self._is_reading = False
        if not self._holds:
            self.real.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        if not self._holds:
            self.real.resume_reading()

    def is_reading(self) -> bool:
        return self._is_reading

    def close(self) -> None:
        if self._holds:
            self._end_unheard()
        else:
            self.real.close()

    def abort(self) -> None:
        if self._holds:
            self._end_unheard()
        else:
            self.real.abort()

    def is_closing(self) -> bool:
        return self._is_closing or bool(self.real.is_closing())

    def get_write_buffer_size(self) -> int:
        return int(self.real.get_write_buffer_size()) + sum(map(len, self._kept))

    def get_write_buffer_limits(self) -> Any:
        return self.real.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.real.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.real.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return False

    # Inside.

    def _end_unheard(self) -> None:
        """The node ends its side; the other one does not hear of it while the connection is held."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._link.tell_lost, None)


class LinkedLoop:
    """What a node's loop does otherwise: its connections go through `links`. A base before that of a real loop."""

    links: NodeLinks

    async def create_server(self, protocol_factory: Factory, *arguments: Any, **options: Any) -> asyncio.AbstractServer:
        self.links.check()
        server: asyncio.AbstractServer = await super().create_server(  # type: ignore[misc]
            self.links.wrap(protocol_factory, None), *arguments, **options
        )
        self.links.add_server(server)
        return server

    async def create_connection(
        self, protocol_factory: Factory, host: str | None = None, port: int | None = None, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        await self.links.until_reachable(port or 0)
        _, link = await super().create_connection(  # type: ignore[misc]
            self.links.wrap(protocol_factory, port or 0), host, port, **options
        )
        return link.transport, link.inner


def linked_loop(links: NodeLinks) -> asyncio.AbstractEventLoop:
    """A loop, uvloop's where that is installed, whose connections go through `links`."""
    base: type[asyncio.AbstractEventLoop]
    try:
        import uvloop
    except ImportError:
        base = asyncio.SelectorEventLoop
    else:
        base = uvloop.Loop
    loop: Any = type("NodeLoop", (LinkedLoop, base), {})()
    loop.links = links
    made: asyncio.AbstractEventLoop = loop
    return made


def _reset(descriptor: int) -> None:
    """Has the descriptor's socket reset its connection, or listen no more. It stays open."""
    if _LIBC.connect(descriptor, _NOWHERE, len(_NOWHERE)) == 0:
        return
    # Not Linux: the peer reads an end, and a reset when the loop closes the socket.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        same.shutdown(socket.SHUT_RDWR)
