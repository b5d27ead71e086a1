"""The network of a simulation: names, links between machines that can be cut, ports that listen, connections that are
made. No bytes: `simulated_connection`; no time: `simulated_link`.

Names and addresses: each machine has a name and an address (10.x.y.z, in order of creation); `localhost` and
`127.0.0.1` are the machine itself. An unknown name raises `socket.gaierror`. Between every ordered pair of machines
there is a `Link`, that is, a direction; cutting one direction lets the other live.

Connecting is TCP's handshake in one step: it takes a round trip, needs both directions, and repeats itself as Linux
does (1, 3, 7, ... s) until ETIMEDOUT when a link is cut, the target has no power, or its backlog is full. A machine
where nobody listens refuses. A process that is paused still accepts connections into the backlog. Port 0 takes the
machine's next ephemeral port; ports are not used twice.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.testing.simulated_connection import Pipe, SimulatedTransport
from barnabas.testing.simulated_link import Link
from barnabas.testing.simulated_socket import SimulatedSocket
from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from barnabas.testing.profile import NetworkProfile
    from barnabas.testing.simulated_loop import SimulatedLoop
    from barnabas.testing.world import World

EPHEMERAL_PORT_FIRST = 32_768
PASSIVE = 1  # AI_PASSIVE of getaddrinfo
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - simulated
LOOPBACK_ADDRESS = "127.0.0.1"

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


def _os_error(number: int, about: str = "") -> OSError:
    return OSError(number, f"{os.strerror(number)}{': ' if about else ''}{about}")


class MachinePort:
    """What the network knows of one machine."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.powered = True
        self.listeners: dict[tuple[str, int], SimulatedServer] = {}
        self.processes: dict[NetworkPort, None] = {}
        self._port_next = EPHEMERAL_PORT_FIRST

    def take_port(self) -> int:
        """An ephemeral port that was never used before on this machine."""
        self._port_next += 1
        return self._port_next - 1

    def listener(self, address: str, port: int) -> SimulatedServer | None:
        """Who listens where a connection arrives."""
        return self.listeners.get((address, port)) or self.listeners.get((ANY_ADDRESS, port))


class SimulatedServer(asyncio.AbstractServer):
    """What `create_server` gives. Like asyncio's since Python 3.12, and unlike that of 3.11 and uvloop's, `wait_closed`
    waits until the server is closed and its last connection is over.
    """

    def __init__(
        self, port: NetworkPort, factory: ProtocolFactory, places: list[tuple[str, int]], backlog: int
    ) -> None:
        self.port = port
        self._factory = factory
        self._places = places
        self._backlog = backlog
        self._serving = False
        self._waiting: list[SimulatedTransport] = []
        self._accepted: dict[SimulatedTransport, None] = {}
        self._closed_waiters: list[asyncio.Future[None]] = []
        self._closed = False
        for place in places:
            port.machine.listeners[place] = self

    @property
    def sockets(self) -> tuple[Any, ...]:
        """Stand-ins that know `getsockname()`."""
        return () if self._closed else tuple(SimulatedSocket(place, None) for place in self._places)

    def is_full(self) -> bool:
        """The backlog takes no more connections."""
        return len(self._waiting) >= self._backlog

    def arrived(self, transport: SimulatedTransport) -> None:
        """A connection was made; the process accepts it in its own time."""
        self._waiting.append(transport)
        if self._serving:
            self.port.loop.call_soon(self._accept)

    def _accept(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            self._accepted[transport] = None
            transport.server = self
            transport.attach(self._factory())

    def connection_is_over(self, transport: SimulatedTransport) -> None:
        """An accepted connection has ended, and its protocol has been told."""
        self._accepted.pop(transport, None)
        self._tell_closed()

    def _tell_closed(self) -> None:
        if self._closed and not self._accepted:
            for waiter in self._closed_waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.port.loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        if not self._serving and not self._closed:
            self._serving = True
            self.port.loop.call_soon(self._accept)

    async def serve_forever(self) -> None:
        await self.start_serving()
        try:
            await self.port.loop.create_future()
        finally:
            self.close()
            await self.wait_closed()

    def close(self) -> None:
        self.stop_listening()
        self._tell_closed()

    def close_clients(self) -> None:
        """Closes every accepted connection (asyncio has this since Python 3.13)."""
        for transport in list(self._accepted):
            transport.close()

    def abort_clients(self) -> None:
        """Aborts every accepted connection (asyncio has this since Python 3.13)."""
        for transport in list(self._accepted):
            transport.abort()

    def stop_listening(self) -> None:
        """The port is free again, and somebody else's from then on; connections that nobody accepted are reset."""
        if self._closed:
            return
        self._closed = True
        self._serving = False
        for place in self._places:
            self.port.machine.listeners.pop(place, None)
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.let_go()

    async def wait_closed(self) -> None:
        if not self._closed or self._accepted:
            waiter = self.port.loop.create_future()
            self._closed_waiters.append(waiter)
            await waiter


class NetworkPort:
    """What one process has of the network. Once it is `cut` nothing that the process does reaches it."""

    def __init__(self, network: SimulatedNetwork, machine: MachinePort, loop: SimulatedLoop, name: str) -> None:
        self.network = network
        self.machine = machine
        self.loop = loop
        self.name = name
        self.cut = False
        self.ends: dict[SimulatedTransport, None] = {}
        self._servers: list[SimulatedServer] = []
        machine.processes[self] = None

    def close_all(self, *, silently: bool) -> None:
        """The process has ended: ports close, connections end (or, `silently`, vanish without a word: power failed)."""
        self.machine.processes.pop(self, None)
        for server in self._servers:
            server.stop_listening()
        for end in list(self.ends):
            if silently:
                end.vanish()
            else:
                end.let_go()
        self.ends.clear()

    def name_of(self, address: str) -> str:
        """The name of the machine at an address."""
        return self.network.machine_name(address)

    async def getaddrinfo(self, host: Any, port: Any, flags: int) -> list[tuple[Any, ...]]:
        """Like asyncio's, with the simulated names; takes a moment."""
        found = self._resolve(host, passive=bool(flags & PASSIVE))
        await self._moment()
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (found, int(port or 0)))]

    async def _moment(self) -> None:
        waiter = self.loop.create_future()
        delay = self.network.link(self.machine, self.machine).latency()
        self.network.world.schedule(self.network.world.now + delay, self._wake, waiter)
        await waiter

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        self.loop.call_soon(_finish, waiter, None)

    def _resolve(self, host: Any, *, passive: bool = False) -> str:
        name = host.decode() if isinstance(host, bytes) else host
        if not name:
            return ANY_ADDRESS if passive else LOOPBACK_ADDRESS
        if name in (ANY_ADDRESS, "::"):
            return ANY_ADDRESS if passive else LOOPBACK_ADDRESS
        if name in ("localhost", LOOPBACK_ADDRESS, "::1"):
            return LOOPBACK_ADDRESS
        found = self.network.find(str(name))
        if found is None:
            raise socket.gaierror(
                socket.EAI_NONAME, f"Name or service not known: {name} is no machine of this simulation"
            )
        return found.address

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str | Sequence[str] | None,
        port: int | None,
        backlog: int,
        start_serving: bool,
    ) -> SimulatedServer:
        """Binds and listens; raises OSError EADDRINUSE or EADDRNOTAVAIL."""
        if self.cut:
            await self.loop.create_future()
        hosts = [host] if host is None or isinstance(host, str) else list(host)
        number = port or self.machine.take_port()
        places = []
        for one in hosts:
            address = self._resolve(one, passive=True)
            if address not in (ANY_ADDRESS, LOOPBACK_ADDRESS, self.machine.address):
                raise _os_error(errno.EADDRNOTAVAIL, f"{one} is another machine")
            for taken in self.machine.listeners:
                if taken[1] == number and (taken[0] == address or ANY_ADDRESS in (taken[0], address)):
                    raise _os_error(errno.EADDRINUSE, f"{address}:{number} on {self.machine.name}")
            if (address, number) not in places:
                places.append((address, number))
        server = SimulatedServer(self, factory, places, backlog)
        self._servers = [other for other in self._servers if other.sockets]
        self._servers.append(server)
        if start_serving:
            await server.start_serving()
        return server

    async def connect(
        self, factory: ProtocolFactory, host: str | None, port: int | None, local_addr: tuple[str, int] | None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Like `create_connection`: the transport and the factory's protocol, after `connection_made`."""
        if port is None:
            raise ValueError("host and port was not specified and no sock specified")
        address = self._resolve(host)
        await self._moment()
        attempt = _Attempt(self, address, int(port), local_addr)
        transport = await attempt.finished()
        protocol = factory()
        transport.attach(protocol)
        waiter = self.loop.create_future()
        self.loop.call_soon(_finish, waiter, None)
        try:
            await waiter
        except BaseException:
            transport.abort()
            raise
        return transport, protocol


def _finish(waiter: asyncio.Future[Any], result: object) -> None:
    if not waiter.done():
        if isinstance(result, BaseException):
            waiter.set_exception(result)
        else:
            waiter.set_result(result)


def _reset(end: SimulatedTransport) -> None:
    end.break_off(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))


class _Attempt:
    """One call of `create_connection`, as the kernels of both machines see it."""

    def __init__(self, port: NetworkPort, address: str, number: int, local_addr: tuple[str, int] | None) -> None:
        self._port = port
        self._network = port.network
        self._address = address
        self._number = number
        local = address == LOOPBACK_ADDRESS
        own_port = (local_addr[1] if local_addr else 0) or port.machine.take_port()
        self._own = (LOOPBACK_ADDRESS if local else port.machine.address, own_port)
        target = port.machine if local else self._network.find(address)
        if target is None:
            raise _os_error(errno.EHOSTUNREACH, address)
        self._target = target
        self._there = self._network.link(port.machine, target)
        self._waiter: asyncio.Future[SimulatedTransport] = port.loop.create_future()
        self._started = self._network.world.now
        self._tries = 0

    async def finished(self) -> SimulatedTransport:
        """Waits until the connection is made or has failed."""
        self._try(None)
        try:
            return await self._waiter
        except asyncio.CancelledError:
            if self._waiter.done() and not self._waiter.cancelled() and self._waiter.exception() is None:
                self._waiter.result().abort()
            raise

    def _try(self, _: object) -> None:
        if not self._port.cut and not self._waiter.done():
            self._network.world.schedule(self._network.world.now + self._there.latency(), self._arrive)

    def _try_later(self) -> None:
        retries = self._network.profile.connect_retry_seconds
        if self._tries < len(retries):
            when = self._started + retries[self._tries]
            self._tries += 1
            self._network.world.schedule(max(when, self._network.world.now), self._try)
        else:
            when = self._started + self._network.profile.connect_timeout_seconds
            timed_out = TimeoutError(
                errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)}: connecting to {self._address}:{self._number}"
            )
            self._network.world.schedule(max(when, self._network.world.now), self._answer, timed_out)

    def _arrive(self, _: object) -> None:
        world = self._network.world
        if not (self._there.is_open() and self._there.opposite.is_open()):
            self._try_later()
            return
        back = world.now + self._there.opposite.latency()
        server = self._target.listener(self._address, self._number)
        if server is None:
            world.trace.add(world.now, Occurrence.REFUSED, world.trace.label(f"{self._target.name}:{self._number}"))
            refused = ConnectionRefusedError(
                errno.ECONNREFUSED,
                f"{os.strerror(errno.ECONNREFUSED)}: nobody listens on {self._target.name}:{self._number}",
            )
            world.schedule(back, self._answer, refused)
        elif server.is_full():
            self._try_later()
        else:
            world.schedule(
                back, self._answer, self._network.join(self._port, server, self._own, (self._address, self._number))
            )

    def _answer(self, answer: SimulatedTransport | OSError) -> None:
        if isinstance(answer, SimulatedTransport) and (self._port.cut or self._waiter.done()):
            answer.let_go()
        elif not self._port.cut:
            self._port.loop.call_soon(self._tell, answer)

    def _tell(self, answer: SimulatedTransport | OSError) -> None:
        if not self._waiter.done():
            _finish(self._waiter, answer)
        elif isinstance(answer, SimulatedTransport):
            answer.abort()


class SimulatedNetwork:
    """All machines' links. The faults: `cut`, `heal`, `partition`, `heal_all`, `reset_connections`, `set_latency`."""

    def __init__(self, world: World, profile: NetworkProfile) -> None:
        self.world = world
        self.profile = profile
        self.random = world.random("network")
        self.connections_made = 0
        self.when_joined: Callable[[SimulatedTransport], object] | None = None
        """Is told of each connection, with the end of who has made it."""
        self._machines: dict[str, MachinePort] = {}
        self._by_address: dict[str, MachinePort] = {}
        self._links: dict[tuple[MachinePort, MachinePort], Link] = {}

    def add_machine(self, name: str) -> MachinePort:
        """Gives a new machine its address and its links."""
        if name in self._machines:
            raise ValueError(f"there is a machine called {name} already")
        number = len(self._machines) + 1
        machine = MachinePort(name, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        self._machines[name] = machine
        self._by_address[machine.address] = machine
        for other in self._machines.values():
            there, back = Link(self, machine, other), Link(self, other, machine)
            if other is machine:
                back = there
            there.opposite, back.opposite = back, there
            self._links[machine, other] = there
            self._links[other, machine] = back
        return machine

    def find(self, name_or_address: str) -> MachinePort | None:
        """The machine of that name or address."""
        return self._machines.get(name_or_address) or self._by_address.get(name_or_address)

    def machine_name(self, address: str) -> str:
        """The name of the machine at an address; the address itself for a loopback."""
        found = self._by_address.get(address)
        return address if found is None else found.name

    def link(self, source: MachinePort | str, target: MachinePort | str) -> Link:
        """The direction from one machine to another, by name or port."""
        return self._links[self._machine(source), self._machine(target)]

    def _machine(self, machine: MachinePort | str) -> MachinePort:
        if isinstance(machine, MachinePort):
            return machine
        found = self.find(machine)
        if found is None:
            raise KeyError(f"{machine} is no machine of this simulation")
        return found

    def join(
        self, client: NetworkPort, server: SimulatedServer, own: tuple[str, int], there: tuple[str, int]
    ) -> SimulatedTransport:
        """Makes the two ends of a connection; the server's end goes into its backlog, the client's is returned."""
        served_by = server.port
        near = SimulatedTransport(self, client, own, there)
        far = SimulatedTransport(self, served_by, there, own)
        near.outward = far.inward = Pipe(self, near, far, self._links[client.machine, served_by.machine])
        far.outward = near.inward = Pipe(self, far, near, self._links[served_by.machine, client.machine])
        client.ends[near] = None
        served_by.ends[far] = None
        self.connections_made += 1
        self.world.trace.add(
            self.world.now, Occurrence.CONNECT, self.world.trace.label(far.label), self.connections_made
        )
        server.arrived(far)
        if self.when_joined is not None:
            self.when_joined(near)
        return near

    # Faults.

    def cut(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` any more; the other direction lives."""
        self.link(source, target).cut()

    def heal(self, source: str, target: str) -> None:
        """Undoes `cut`."""
        self.link(source, target).heal()

    def partition(self, *groups: Sequence[str]) -> None:
        """Cuts both directions between machines of different groups; machines in no group keep all their links."""
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                for one in group:
                    for two in other:
                        self.cut(one, two)
                        self.cut(two, one)

    def heal_all(self) -> None:
        """Every link is open again."""
        for link in self._links.values():
            link.heal()

    def set_latency(self, source: str, target: str, least_seconds: float, most_seconds: float) -> None:
        """Changes how long one direction takes."""
        self.link(source, target).latency_seconds = (least_seconds, most_seconds)

    def set_bandwidth(self, source: str, target: str, bytes_per_second: float | None) -> None:
        """Changes how much each connection gets through one direction; None is without limit."""
        self.link(source, target).bandwidth_bytes_per_second = bytes_per_second

    def reset_connections(self, one: str, two: str) -> int:
        """Breaks every connection between two machines; returns how many. Both ends hear of it after the latency."""
        first, second = self._machine(one), self._machine(two)
        ends = [
            end
            for port in (*first.processes, *second.processes)
            for end in port.ends
            if {end.outward.link.source, end.outward.link.target} == {first, second}
        ]
        for end in ends:
            self.world.schedule(self.world.now + end.inward.link.latency(), _reset, end)
        return len(ends) // 2

    def power_changed(self, machine: MachinePort, *, powered: bool) -> None:
        """Power of a machine failed or came back."""
        machine.powered = powered
        if powered:
            for (source, _), link in self._links.items():
                if source is machine:
                    link.look_again()
