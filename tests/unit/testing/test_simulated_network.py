"""Names, ports, connections, and everything that can be wrong with a network."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.profile import NetworkProfile, Profile
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation, simulation_seeds

PORT = 9092


class Listener(asyncio.Protocol):
    """Collects what it is told; one per accepted connection, all of them in `made`."""

    made: list[Listener]

    def __init__(self) -> None:
        self.made.append(self)
        self.transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.chunks: list[int] = []
        self.ended = False
        self.lost: list[BaseException | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.chunks.append(len(data))

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)


@pytest.fixture
def listeners() -> type[Listener]:
    return type("FreshListener", (Listener,), {"made": []})


def serving(factory: Callable[[], asyncio.BaseProtocol]) -> Callable[[Host], Awaitable[None]]:
    async def main(host: Host) -> None:
        server = await host.loop.create_server(factory, host.name, PORT)
        await server.serve_forever()

    return main


class Pair:
    """A simulation with a server of `Listener`s and a client that is connected to it."""

    def __init__(self, simulation: Simulation, listeners: type[Listener]) -> None:
        self.simulation = simulation
        self.server = simulation.machine("server")
        self.client = simulation.machine("client")
        self.server.start(serving(listeners))  # type: ignore[arg-type]
        simulation.run_for(0.1)
        self.near = listeners()
        listeners.made.clear()
        self.client.start(self._hold)
        simulation.run_until(lambda: bool(listeners.made) and self.near.transport is not None)
        self.far = listeners.made[0]
        self.out = self._transport(self.near)
        self.back = self._transport(self.far)

    @staticmethod
    def _transport(listener: Listener) -> asyncio.Transport:
        assert listener.transport is not None
        return listener.transport

    async def _hold(self, host: Host) -> None:
        await host.loop.create_connection(lambda: self.near, "server", PORT)
        await host.loop.create_future()


def connecting(host_name: str, port: int = PORT) -> Callable[[Host], Any]:
    """A main that connects and gives the seconds until the error, and the error."""

    async def main(host: Host) -> tuple[float, OSError | None]:
        began = host.loop.time()
        try:
            transport, _ = await host.loop.create_connection(asyncio.Protocol, host_name, port)
        except OSError as error:
            return host.loop.time() - began, error
        transport.close()
        return host.loop.time() - began, None

    return main


# Names and ports.


def test_names_resolve_to_the_machines_of_the_simulation() -> None:
    async def main(host: Host) -> None:
        found = await host.loop.getaddrinfo("b", 5, type=socket.SOCK_STREAM)
        assert found == [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (other.address, 5))]
        assert await host.loop.getaddrinfo("localhost", 5) == await host.loop.getaddrinfo("127.0.0.1", 5)
        assert await host.loop.getnameinfo((other.address, 5)) == ("b", "5")
        with pytest.raises(socket.gaierror, match="nowhere is no machine"):
            await host.loop.getaddrinfo("nowhere", 5)
        with pytest.raises(socket.gaierror):
            await host.loop.create_connection(asyncio.Protocol, "nowhere", 5)

    with Simulation(1) as simulation:
        other = simulation.machine("b")
        simulation.run_on(simulation.machine("a"), main)


def test_nobody_listens_connection_is_refused() -> None:
    with Simulation(1) as simulation:
        simulation.machine("server")
        seconds, error = simulation.run_on(simulation.machine("client"), connecting("server"))
    assert isinstance(error, ConnectionRefusedError)
    assert error.errno == errno.ECONNREFUSED
    assert "server:9092" in str(error)
    assert seconds < 0.01


def test_a_port_is_taken_once_and_free_after_close() -> None:
    async def main(host: Host) -> None:
        server = await host.loop.create_server(asyncio.Protocol, "a", 1)
        with pytest.raises(OSError, match="a") as caught:
            await host.loop.create_server(asyncio.Protocol, None, 1)
        assert caught.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError, match="another machine") as caught:
            await host.loop.create_server(asyncio.Protocol, "b", 2)
        assert caught.value.errno == errno.EADDRNOTAVAIL
        assert server.is_serving()
        assert [one.getsockname() for one in server.sockets] == [(simulation.machine("a").address, 1)]
        server.close()
        await server.wait_closed()
        assert not server.is_serving()
        assert not server.sockets
        async with await host.loop.create_server(asyncio.Protocol, "0.0.0.0", 1):
            pass
        one = await host.loop.create_server(asyncio.Protocol, "localhost", 0)
        two = await host.loop.create_server(asyncio.Protocol, "localhost", 0)
        assert one.sockets[0].getsockname() != two.sockets[0].getsockname()

    with Simulation(1) as simulation:
        simulation.machine("b")
        simulation.run_on(simulation.machine("a"), main)


def test_a_listener_on_localhost_is_reached_only_from_its_machine() -> None:
    async def serve(host: Host) -> None:
        server = await host.loop.create_server(asyncio.Protocol, "localhost", PORT)
        await server.serve_forever()

    with Simulation(1) as simulation:
        server = simulation.machine("server")
        server.start(serve)
        simulation.run_for(0.1)
        assert simulation.run_on(server, connecting("localhost"))[1] is None
        assert isinstance(simulation.run_on(server, connecting("server"))[1], ConnectionRefusedError)
        assert isinstance(simulation.run_on(simulation.machine("c"), connecting("server"))[1], ConnectionRefusedError)


def test_a_server_that_does_not_serve_yet_accepts_later(listeners: type[Listener]) -> None:
    async def serve(host: Host) -> None:
        server = await host.loop.create_server(listeners, "server", PORT, start_serving=False)
        await asyncio.sleep(1)
        assert not listeners.made
        await server.start_serving()
        await asyncio.sleep(1)
        assert len(listeners.made) == 1

    with Simulation(1) as simulation:
        process = simulation.machine("server").start(serve)
        simulation.run_for(0.1)
        assert simulation.run_on(simulation.machine("client"), connecting("server"))[1] is None
        simulation.run_until(lambda: process.ended)


# Data.


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_bytes_arrive_whole_in_order_and_in_random_chunks(seed: int, listeners: type[Listener]) -> None:
    splitting = Profile(network=NetworkProfile(split_probability=0.5))
    with Simulation(seed, profile=splitting) as simulation:
        pair = Pair(simulation, listeners)
        messages = [bytes([number % 251]) * (number * 7 % 3_000) for number in range(300)]
        for message in messages:
            pair.out.write(message)
            if len(message) % 10 == 0:
                simulation.run_for(0.001)
        pair.out.writelines([b"the ", bytearray(b"end"), memoryview(b"!")])
        expected = b"".join(messages) + b"the end!"
        simulation.run_until(lambda: len(pair.far.data) == len(expected))
    assert bytes(pair.far.data) == expected
    assert len(set(pair.far.chunks)) > 20
    assert len({size for size in pair.far.chunks if size <= 32}) >= 3


def test_delivery_takes_the_latency_of_the_link(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        simulation.network.set_latency("client", "server", 0.2, 0.3)
        began = simulation.now
        pair.out.write(b"x")
        simulation.run_until(lambda: bool(pair.far.data))
        assert 0.2 <= simulation.now - began < 0.301
        began = simulation.now
        pair.back.write(b"x")
        simulation.run_until(lambda: bool(pair.near.data))
        assert simulation.now - began < 0.01


def test_bandwidth_slows_large_writes(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        simulation.network.set_bandwidth("client", "server", 1_000_000)
        began = simulation.now
        for _ in range(20):
            pair.out.write(bytes(100_000))
        simulation.run_until(lambda: len(pair.far.data) == 2_000_000)
        assert 2.0 <= simulation.now - began < 2.1


class Filling(asyncio.BufferedProtocol):
    """Receives into a small buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray(10)
        self.data = bytearray()
        self.sizes: list[int] = []

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.sizes.append(nbytes)
        self.data += self.buffer[:nbytes]


def test_a_buffered_protocol_gets_at_most_what_its_buffer_holds() -> None:
    received = Filling()

    async def talk(host: Host) -> None:
        transport, _ = await host.loop.create_connection(asyncio.Protocol, "server", PORT)
        transport.write(bytes(range(100)))
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        simulation.machine("server").start(serving(lambda: received))  # type: ignore[arg-type]
        simulation.run_for(0.1)
        simulation.run_on(simulation.machine("client"), talk)
    assert bytes(received.data) == bytes(range(100))
    assert max(received.sizes) <= 10
    assert len(received.sizes) >= 10


def test_a_buffer_changed_before_it_was_sent_fails_the_run(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        buffer = bytearray(b"important")
        pair.out.write(memoryview(buffer))
        buffer[0] = 0
        with pytest.raises(AssertionError, match=r"client .* to server:9092: a buffer of 9 bytes .* was changed"):
            simulation.run_for(1)


def test_a_buffer_may_be_used_again_once_it_is_gone(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        buffer = bytearray(b"important")
        pair.out.write(buffer)
        assert pair.out.get_write_buffer_size() == 9
        simulation.run_until(lambda: pair.out.get_write_buffer_size() == 0)
        buffer[:] = b"reused..."
        simulation.run_for(1)
    assert bytes(pair.far.data) == b"important"


def test_write_takes_bytes_only_and_nothing_after_the_end(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        with pytest.raises(TypeError, match="bytes-like"):
            pair.out.write("text")  # type: ignore[arg-type]
        pair.out.write(b"")
        assert pair.out.get_write_buffer_size() == 0
        pair.out.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            pair.out.write(b"x")


# Back-pressure.


def test_a_reader_that_stops_fills_bounded_buffers_and_pauses_the_writer(listeners: type[Listener]) -> None:
    calls: list[str] = []

    class Writer(asyncio.Protocol):
        def pause_writing(self) -> None:
            calls.append("pause")

        def resume_writing(self) -> None:
            calls.append("resume")

    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        pair.out.set_protocol(Writer())
        pair.back.pause_reading()
        simulation.run_for(0.01)
        written = 0
        while calls != ["pause"]:
            assert written < 2_000_000
            pair.out.write(bytes(10_000))
            written += 10_000
            simulation.run_for(0.01)
        simulation.run_for(1)
        assert calls == ["pause"]
        assert not pair.far.data
        assert pair.out.get_write_buffer_size() > 65_536
        pair.back.resume_reading()
        simulation.run_until(lambda: len(pair.far.data) == written)
        assert calls == ["pause", "resume"]


def test_water_marks_are_the_callers_to_set(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        assert isinstance(pair.out, asyncio.Transport)
        pair.out.set_write_buffer_limits(high=10)
        assert pair.out.get_write_buffer_limits() == (2, 10)
        pair.out.set_write_buffer_limits(low=5)
        assert pair.out.get_write_buffer_limits() == (5, 20)
        with pytest.raises(ValueError, match="high"):
            pair.out.set_write_buffer_limits(high=1, low=2)


# Ends of connections.


def test_close_sends_what_was_written_then_the_end(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        pair.out.write(b"last words" * 1000)
        pair.out.close()
        assert pair.out.is_closing()
        pair.out.write(b"ignored")
        simulation.run_until(lambda: bool(pair.far.lost) and bool(pair.near.lost))
    assert bytes(pair.far.data) == b"last words" * 1000
    assert pair.far.ended
    assert pair.far.lost == pair.near.lost == [None]


def test_half_close_leaves_the_other_direction_open(listeners: type[Listener]) -> None:
    class Open(Listener):
        made = listeners.made

        def eof_received(self) -> bool:
            self.ended = True
            return True

    with Simulation(1) as simulation:
        pair = Pair(simulation, Open)
        pair.out.write(b"question")
        pair.out.write_eof()
        simulation.run_until(lambda: pair.far.ended)
        assert bytes(pair.far.data) == b"question"
        pair.back.write(b"answer")
        simulation.run_until(lambda: bytes(pair.near.data) == b"answer")
        pair.back.close()
        pair.out.close()
        simulation.run_until(lambda: bool(pair.far.lost) and bool(pair.near.lost))
    assert pair.far.lost == pair.near.lost == [None]


def test_abort_loses_what_is_held_and_ends_both_sides(listeners: type[Listener]) -> None:
    received = set()
    for seed in range(1, 30):
        listeners.made.clear()
        with Simulation(seed) as simulation:
            pair = Pair(simulation, listeners)
            pair.out.write(b"x" * 1000)
            pair.out.abort()
            simulation.run_until(lambda near=pair.near, far=pair.far: bool(near.lost and far.lost))  # type: ignore[misc]
            received.add(len(pair.far.data))
            assert pair.near.lost == [None]
    assert min(received) < 500 < max(received)
    assert max(received) < 1000


def test_writing_to_an_end_that_is_gone_resets_the_connection(listeners: type[Listener]) -> None:
    class Deaf(Listener):
        made = listeners.made

        def eof_received(self) -> bool:
            return True

    with Simulation(1) as simulation:
        pair = Pair(simulation, Deaf)
        pair.out.close()
        simulation.run_until(lambda: bool(pair.near.lost))
        simulation.run_for(1)
        assert pair.far.lost == []
        pair.back.write(b"are you there?")
        simulation.run_for(1)
    assert [type(error) for error in pair.far.lost] == [ConnectionResetError]


def test_a_crash_of_the_process_ends_its_connections_at_the_peer(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        pair.client.crash()
        simulation.run_until(lambda: bool(pair.far.lost))
        assert simulation.now < 1
        pair.out.write(b"from the dead")
        simulation.run_for(1)
    assert not pair.far.data
    assert pair.near.lost == []


def test_a_crash_with_unread_bytes_resets_the_connection(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        pair.out.pause_reading()
        pair.back.write(b"never read")
        simulation.run_for(0.1)
        pair.client.crash()
        simulation.run_for(1)
    assert [type(error) for error in pair.far.lost] == [ConnectionResetError]


def test_connections_can_be_reset(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        assert simulation.network.reset_connections("server", "client") == 1
        simulation.run_for(0.1)
    assert [type(error) for error in pair.far.lost + pair.near.lost] == [ConnectionResetError] * 2


# Cuts.


def test_a_partition_stalls_bytes_and_a_heal_lets_them_go_on(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        simulation.network.partition(["client"], ["server"])
        pair.out.write(b"to")
        pair.back.write(b"fro")
        simulation.run_for(10)
        assert not pair.far.data
        assert not pair.near.data
        assert not pair.far.lost
        assert not pair.near.lost
        simulation.network.heal_all()
        simulation.run_for(3)
        pair.out.write(b" and on")
        simulation.run_for(1)
    assert bytes(pair.far.data) == b"to and on"
    assert bytes(pair.near.data) == b"fro"


def test_a_long_partition_ends_connections_that_have_something_to_send(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        simulation.network.partition(["client"], ["server"])
        pair.out.write(b"to")
        simulation.run_for(40)
        assert [type(error) for error in pair.near.lost] == [TimeoutError]
        assert isinstance(pair.near.lost[0], OSError)
        assert pair.near.lost[0].errno == errno.ETIMEDOUT
        assert pair.far.lost == []
        simulation.network.heal_all()
        simulation.run_for(10)
        assert pair.far.lost == []
        pair.back.write(b"hello?")
        simulation.run_for(1)
    assert [type(error) for error in pair.far.lost] == [ConnectionResetError]
    assert not pair.far.data


def test_a_cut_of_one_direction_lets_the_other_deliver_until_acknowledgements_are_missed(
    listeners: type[Listener],
) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        simulation.network.cut("client", "server")
        pair.back.write(b"arrives")
        pair.out.write(b"does not")
        simulation.run_for(5)
        assert bytes(pair.near.data) == b"arrives"
        assert not pair.far.data
        simulation.run_for(30)
        assert [type(error) for error in pair.far.lost] == [TimeoutError]
        assert [type(error) for error in pair.near.lost] == [TimeoutError]


def test_a_cut_that_heals_in_time_costs_nothing_but_time(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        simulation.network.cut("client", "server")
        pair.back.write(b"arrives")
        simulation.run_for(5)
        simulation.network.heal("client", "server")
        simulation.run_for(60)
        assert pair.far.lost == pair.near.lost == []
        pair.out.write(b"still here")
        simulation.run_for(1)
    assert bytes(pair.far.data) == b"still here"


def test_groups_of_a_partition_keep_their_own_links(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        simulation.machine("server").start(serving(listeners))  # type: ignore[arg-type]
        machines = {name: simulation.machine(name) for name in ("near", "far", "neither")}
        simulation.run_for(0.1)
        simulation.network.partition(["server", "near"], ["far"])
        assert simulation.run_on(machines["near"], connecting("server"))[1] is None
        assert simulation.run_on(machines["neither"], connecting("server"))[1] is None
        seconds, error = simulation.run_on(machines["far"], connecting("server"), 200)
        assert isinstance(error, TimeoutError)
        assert seconds == pytest.approx(127, abs=1)


def test_connecting_is_tried_again_while_nothing_answers(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        simulation.machine("server").start(serving(listeners))  # type: ignore[arg-type]
        client = simulation.machine("client")
        simulation.run_for(0.1)
        simulation.network.cut("server", "client")
        simulation.after(2, simulation.network.heal_all)
        seconds, error = simulation.run_on(client, connecting("server"))
    assert error is None
    assert seconds == pytest.approx(3, abs=0.1)


def test_a_full_backlog_of_a_paused_process_keeps_clients_waiting() -> None:
    async def serve(host: Host) -> None:
        server = await host.loop.create_server(asyncio.Protocol, "server", PORT, backlog=2)
        await server.serve_forever()

    with Simulation(1) as simulation:
        server = simulation.machine("server")
        server.start(serve)
        simulation.run_for(0.1)
        server.pause()
        for name in ("one", "two"):
            seconds, error = simulation.run_on(simulation.machine(name), connecting("server"))
            assert error is None
            assert seconds < 0.1
        simulation.after(5, server.resume)
        seconds, error = simulation.run_on(simulation.machine("three"), connecting("server"))
        assert error is None
        assert seconds == pytest.approx(7, abs=0.1)


def test_a_machine_without_power_is_silent_and_resets_once_it_is_back(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        pair.client.power_fail()
        simulation.run_for(5)
        assert pair.far.lost == []
        pair.back.write(b"hello?")
        simulation.run_for(5)
        assert pair.far.lost == []
        pair.client.power_restore()
        simulation.run_for(5)
    assert [type(error) for error in pair.far.lost] == [ConnectionResetError]


def test_a_paused_process_receives_into_bounded_buffers(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        pair.server.pause()
        for _ in range(100):
            pair.out.write(bytes(10_000))
        simulation.run_for(1)
        assert not pair.far.data
        assert pair.out.get_write_buffer_size() > 100_000
        pair.server.resume()
        simulation.run_until(lambda: len(pair.far.data) == 1_000_000)


def test_peers_know_each_others_addresses(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = Pair(simulation, listeners)
        assert pair.out.get_extra_info("peername") == (pair.server.address, PORT)
        assert pair.out.get_extra_info("sockname") == pair.back.get_extra_info("peername")
        assert pair.back.get_extra_info("peername")[0] == pair.client.address
        pair.out.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert pair.out.get_extra_info("sslcontext", "none") == "none"


def test_names_of_machines_are_unique() -> None:
    with Simulation(1) as simulation:
        first: SimulatedMachine = simulation.machine("a")
        assert simulation.machine("a") is first
        with pytest.raises(ValueError, match="called a already"):
            simulation.network.add_machine("a")
        with pytest.raises(KeyError, match="no machine"):
            simulation.network.cut("a", "z")


def test_the_profile_sets_buffers(listeners: type[Listener]) -> None:
    tiny = Profile(network=NetworkProfile(send_buffer_bytes=(10, 10), receive_buffer_bytes=(10, 10)))
    with Simulation(1, profile=tiny) as simulation:
        pair = Pair(simulation, listeners)
        pair.back.pause_reading()
        pair.out.write(bytes(5))
        pair.out.write(bytes(100))
        pair.out.write(bytes(100))
        simulation.run_for(1)
        assert pair.out.get_write_buffer_size() == 100
        pair.back.resume_reading()
        simulation.run_until(lambda: len(pair.far.data) == 205)
    assert max(pair.far.chunks) <= 10
