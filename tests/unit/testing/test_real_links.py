"""Connections of a node that is cut off, on the loop that goes on for a moment."""

from __future__ import annotations

import asyncio
import socket

import pytest

from barnabas.testing.real_links import NodeLinks, linked_loop
from barnabas.testing.real_node import turn


def test_a_loop_that_watches_its_sockets_anew_after_they_are_cut_off_lives_on() -> None:
    """libuv aborts the process where it cannot watch a descriptor: killing a broker at the wrong moment did that."""
    links = NodeLinks()
    loop = linked_loop(links)

    async def use() -> None:
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        other, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        await turn()
        peer = socket.create_connection(("127.0.0.1", port))
        await turn()
        transport.pause_reading()
        await turn()
        links.cut_off()
        transport.resume_reading()  # watched anew
        other.write(bytes(10_000_000))  # watched for more
        await turn()
        with peer, pytest.raises(ConnectionResetError):
            peer.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        links.close_all()
        await turn()

    try:
        loop.run_until_complete(use())
    finally:
        loop.close()


def test_a_connection_that_was_on_its_way_when_its_node_was_killed_is_reset_and_the_node_does_not_hear_of_it() -> None:
    """The loop has taken it, in the turn in which the node is cut off: nobody closed it with the others."""
    links, told = NodeLinks(), list[str]()
    loop = linked_loop(links)

    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            told.append("made")

        def connection_lost(self, error: Exception | None) -> None:
            told.append("lost")

    def killed() -> asyncio.Protocol:
        links.cut_off()
        return Told()

    async def use() -> None:
        server = await loop.create_server(killed, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as peer:
            while not links.is_cut_off:
                await turn()
            peer.settimeout(60)
            with pytest.raises(ConnectionResetError):
                await loop.run_in_executor(None, peer.recv, 1)
        links.close_all()
        await turn()
        assert (told, links.connections) == ([], 0)

    try:
        loop.run_until_complete(use())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class Taking(asyncio.Protocol):
    """Says when something has come."""

    def __init__(self) -> None:
        self.has_come = asyncio.get_running_loop().create_future()

    def data_received(self, _data: bytes) -> None:
        if not self.has_come.done():
            self.has_come.set_result(None)


def test_what_is_cut_again_passes_when_it_is_healed_once() -> None:
    """Partitions of one broker from others come one after another, and all end at once."""
    links = NodeLinks()
    loop = linked_loop(links)

    async def use() -> None:
        taking: list[Taking] = []

        def take() -> Taking:
            taking.append(Taking())
            return taking[-1]

        server = await loop.create_server(take, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        links.cut([port])
        links.cut([port, 1])
        transport.write(b"x")
        links.heal()
        async with asyncio.timeout(30):
            while not taking:
                await turn()
            await taking[0].has_come
        # Held, and closed by its node, which then stops: nothing of it is left.
        links.cut([port])
        transport.close()
        links.end_held()
        server.close()
        async with asyncio.timeout(30):
            while links.connections:
                await turn()

    try:
        loop.run_until_complete(use())
    finally:
        loop.close()
