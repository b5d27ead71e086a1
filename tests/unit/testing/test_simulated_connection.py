"""Bytes on a simulated connection: chunks, back-pressure, and every way a connection ends."""

from __future__ import annotations

import asyncio
import socket

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.profile import NetworkProfile, Profile
from barnabas.testing.simulated_connection import PIECE_BYTES, SimulatedTransport
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.testing.connected_pair import PORT, ConnectedPair, Listener, fresh_listeners, serving


@pytest.fixture
def listeners() -> type[Listener]:
    return fresh_listeners()


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_bytes_arrive_whole_in_order_and_in_random_chunks(seed: int, listeners: type[Listener]) -> None:
    splitting = Profile(network=NetworkProfile(split_probability=0.5))
    with Simulation(seed, profile=splitting) as simulation:
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
        simulation.network.set_latency("client", "server", 0.2, 0.3)
        began = simulation.now
        pair.out.write(b"x")
        simulation.run_until(lambda: bool(pair.far.data))
        assert 0.2 <= simulation.now - began < 0.301
        began = simulation.now
        pair.back.write(b"x")
        simulation.run_until(lambda: bool(pair.near.data))
        assert simulation.now - began < 0.01


def test_bytes_on_their_way_may_be_spoiled(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        near, far = pair.out, pair.back
        assert isinstance(near, SimulatedTransport)
        assert isinstance(far, SimulatedTransport)
        pipe = near.outward
        pipe.spoil = lambda data: None if data is None else data.upper()
        pair.out.write(bytearray(b"turned "))
        simulation.run_until(lambda: bytes(pair.far.data) == b"TURNED ")
        pipe.spoil = lambda _: b""
        pair.out.write(b"swallowed")
        pair.out.write_eof()
        simulation.run_for(1.0)
        assert (bytes(pair.far.data), pair.out.get_write_buffer_size()) == (b"TURNED ", 0)
        assert not far.is_half_closed
        pipe.end()
        simulation.run_until(lambda: far.is_half_closed or far.gone)


def test_the_network_tells_of_each_connection(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        told: list[object] = []
        simulation.network.when_joined = told.append
        pair = ConnectedPair(simulation, listeners)
        assert told == [pair.out]


def test_bandwidth_slows_large_writes(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
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
        simulation.machine("server").start(serving(lambda: received))
        simulation.run_for(0.1)
        simulation.run_on(simulation.machine("client"), talk)
    assert bytes(received.data) == bytes(range(100))
    assert max(received.sizes) <= 10
    assert len(received.sizes) >= 10


def test_a_buffer_changed_before_it_was_sent_fails_the_run(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        buffer = bytearray(b"important")
        pair.out.write(memoryview(buffer))
        buffer[0] = 0
        with pytest.raises(AssertionError, match=r"client .* to server:9092: a buffer of 9 bytes .* was changed"):
            simulation.run_for(1)


def test_a_buffer_may_be_used_again_once_it_is_gone(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        buffer = bytearray(b"important")
        pair.out.write(buffer)
        assert pair.out.get_write_buffer_size() == 9
        simulation.run_until(lambda: pair.out.get_write_buffer_size() == 0)
        buffer[:] = b"reused..."
        simulation.run_for(1)
    assert bytes(pair.far.data) == b"important"


def test_write_takes_bytes_only_and_nothing_after_the_end(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, Open)
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
            pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, Deaf)
        pair.out.close()
        simulation.run_until(lambda: bool(pair.near.lost))
        simulation.run_for(1)
        assert pair.far.lost == []
        pair.back.write(b"are you there?")
        simulation.run_for(1)
    assert [type(error) for error in pair.far.lost] == [ConnectionResetError]


def test_a_crash_of_the_process_ends_its_connections_at_the_peer(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        pair.client.crash()
        simulation.run_until(lambda: bool(pair.far.lost))
        assert simulation.now < 1
        pair.out.write(b"from the dead")
        simulation.run_for(1)
    assert not pair.far.data
    assert pair.near.lost == []


def test_a_crash_with_unread_bytes_resets_the_connection(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        pair.out.pause_reading()
        pair.back.write(b"never read")
        simulation.run_for(0.1)
        pair.client.crash()
        simulation.run_for(1)
    assert [type(error) for error in pair.far.lost] == [ConnectionResetError]


def test_a_connection_that_broke_before_it_was_accepted_is_made_and_lost(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        server, client = simulation.machine("server"), simulation.machine("client")
        server.start(serving(listeners))
        simulation.run_for(0.1)
        server.pause()

        async def hold(host: Host) -> None:
            await host.loop.create_connection(asyncio.Protocol, "server", PORT)
            await host.loop.create_future()

        client.start(hold)
        simulation.run_for(0.1)
        assert simulation.network.reset_connections("server", "client") == 1
        simulation.run_for(0.1)
        assert not listeners.made
        server.resume()
        simulation.run_for(0.1)
    assert [type(error) for error in listeners.made[0].lost] == [ConnectionResetError]
    assert listeners.made[0].transport is not None


def test_connections_can_be_reset(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        assert simulation.network.reset_connections("server", "client") == 1
        simulation.run_for(0.1)
    assert [type(error) for error in pair.far.lost + pair.near.lost] == [ConnectionResetError] * 2


def test_peers_know_each_others_addresses(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        assert pair.out.get_extra_info("peername") == (pair.server.address, PORT)
        assert pair.out.get_extra_info("sockname") == pair.back.get_extra_info("peername")
        assert pair.back.get_extra_info("peername")[0] == pair.client.address
        pair.out.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert pair.out.get_extra_info("sslcontext", "none") == "none"


def test_the_profile_sets_buffers(listeners: type[Listener]) -> None:
    tiny = Profile(network=NetworkProfile(send_buffer_bytes=(10, 10), receive_buffer_bytes=(10, 10)))
    with Simulation(1, profile=tiny) as simulation:
        pair = ConnectedPair(simulation, listeners)
        pair.back.pause_reading()
        pair.out.write(bytes(5))
        pair.out.write(bytes(100))
        pair.out.write(bytes(100))
        simulation.run_for(1)
        assert pair.out.get_write_buffer_size() == 100
        pair.back.resume_reading()
        simulation.run_until(lambda: len(pair.far.data) == 205)
    assert max(pair.far.chunks) <= 10


def test_one_large_write_is_taken_only_as_far_as_the_buffers_have_room(listeners: type[Listener]) -> None:
    size = 8 * 1024 * 1024
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
        pair.back.pause_reading()
        pair.out.write(bytearray(size))
        simulation.run_for(1)
        network = simulation.profile.network
        taken = size - pair.out.get_write_buffer_size()
        most = network.send_buffer_bytes[1] + network.receive_buffer_bytes[1] + PIECE_BYTES
        assert 0 < taken <= most
        pair.back.resume_reading()
        simulation.run_until(lambda: len(pair.far.data) == size)
