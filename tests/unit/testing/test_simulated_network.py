"""Names, ports, connecting, and links that are cut."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation
from tests.unit.testing.connected_pair import PORT, ConnectedPair, Listener, connecting, fresh_listeners, serving


@pytest.fixture
def listeners() -> type[Listener]:
    return fresh_listeners()


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


# Cuts.


def test_a_partition_stalls_bytes_and_a_heal_lets_them_go_on(listeners: type[Listener]) -> None:
    with Simulation(1) as simulation:
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
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
        simulation.machine("server").start(serving(listeners))
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
        simulation.machine("server").start(serving(listeners))
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
        pair = ConnectedPair(simulation, listeners)
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
        pair = ConnectedPair(simulation, listeners)
        pair.server.pause()
        for _ in range(100):
            pair.out.write(bytes(10_000))
        simulation.run_for(1)
        assert not pair.far.data
        assert pair.out.get_write_buffer_size() > 100_000
        pair.server.resume()
        simulation.run_until(lambda: len(pair.far.data) == 1_000_000)


def test_names_of_machines_are_unique() -> None:
    with Simulation(1) as simulation:
        first: SimulatedMachine = simulation.machine("a")
        assert simulation.machine("a") is first
        with pytest.raises(ValueError, match="called a already"):
            simulation.network.add_machine("a")
        with pytest.raises(KeyError, match="no machine"):
            simulation.network.cut("a", "z")


def test_a_port_that_was_given_back_is_not_closed_by_the_end_of_its_first_owner() -> None:
    async def brief(host: Host) -> None:
        server = await host.loop.create_server(asyncio.Protocol, host.name, PORT)
        server.close()
        await host.loop.create_future()

    async def connect(host: Host) -> bool:
        await host.loop.create_connection(asyncio.Protocol, "server", PORT)
        return True

    with Simulation(1) as simulation:
        machine = simulation.machine("server")
        first = machine.start(brief, name="first")
        simulation.run_for(1)
        machine.start(serving(asyncio.Protocol), name="second")
        simulation.run_for(1)
        first.crash()
        assert simulation.run_on(simulation.machine("client"), connect)


@pytest.mark.parametrize("ending", ["close", "close_clients", "abort_clients"])
def test_a_closed_server_waits_until_its_connections_are_over(ending: str) -> None:
    """As asyncio's does since Python 3.12; on 3.11 it does not wait, and nobody may rely on that."""

    async def serve(host: Host) -> list[str]:
        accepted: asyncio.Future[asyncio.BaseTransport] = host.loop.create_future()
        told: list[str] = []

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(transport)

            def connection_lost(self, exc: BaseException | None) -> None:
                told.append("lost")

        server = await host.loop.create_server(Accepted, host.name, PORT)
        transport = await accepted
        server.close()
        waiting = asyncio.ensure_future(server.wait_closed())
        await asyncio.sleep(1)
        assert not waiting.done()
        if ending == "close":
            transport.close()
        else:
            getattr(server, ending)()
        await waiting
        return told

    async def connect(host: Host) -> None:
        await asyncio.sleep(0.1)
        await host.loop.create_connection(asyncio.Protocol, "server", PORT)
        await host.loop.create_future()

    with Simulation(1) as simulation:
        simulation.machine("client").start(connect)
        assert simulation.run_on(simulation.machine("server"), serve) == ["lost"]
