"""TLS records without data, or with next to none, which cost as much as any: nobody holds a listener by them."""

from __future__ import annotations

import asyncio
import ctypes
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.link.record_turns import SMALL_RECORDS_PER_TURN
from barnabas.link.tls import RECORDS_PER_TURN
from tests.unit.network.secured import Secure, client_context, scenario
from tests.unit.network.serving import framed


class RestlessClient:
    """Does what Python's `ssl` gives no way to: asks for new keys. It is OpenSSL's own library, in memory."""

    def __init__(self) -> None:
        try:
            self._ssl, self._crypto = ctypes.CDLL("libssl.so.3"), ctypes.CDLL("libcrypto.so.3")
        except OSError as error:
            pytest.skip(f"no library of OpenSSL: {error}")
        for library, names in ((self._ssl, _OF_SSL), (self._crypto, _OF_CRYPTO)):
            for name in names:
                getattr(library, name).restype = ctypes.c_void_p
        pointer = ctypes.c_void_p
        memory = self._crypto.BIO_s_mem()
        self._incoming, self._outgoing = (pointer(self._crypto.BIO_new(pointer(memory))) for _ in range(2))
        context = self._ssl.SSL_CTX_new(pointer(self._ssl.TLS_client_method()))
        self._end = pointer(self._ssl.SSL_new(pointer(context)))
        self._ssl.SSL_set_bio(self._end, self._incoming, self._outgoing)
        self._ssl.SSL_set_connect_state(self._end)

    def shakes(self) -> bool:
        return bool(self._ssl.SSL_do_handshake(self._end) == 1)

    def sent(self) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 16)
        count = self._crypto.BIO_read(self._outgoing, buffer, len(buffer))
        return buffer.raw[: max(count, 0)]

    def receive(self, data: bytes) -> None:
        self._crypto.BIO_write(self._incoming, data, len(data))

    def ask(self, request: bytes) -> None:
        data = framed(request)
        assert self._ssl.SSL_write(self._end, data, len(data)) == len(data)

    def pad(self, block_bytes: int) -> None:
        """Makes each record from now on as long as several of these, where it is shorter."""
        assert self._ssl.SSL_set_block_padding(self._end, ctypes.c_size_t(block_bytes)) == 1

    def new_key(self) -> bytes:
        """What asks for another, and for one of the other end's too."""
        assert self._ssl.SSL_key_update(self._end, 1) == 1
        assert self.shakes()
        return self.sent()


def receive_at_once(connection: Any, data: bytes) -> None:
    """As if all of it had come in one reception."""
    connection._transport.get_buffer(-1)[: len(data)] = data
    connection._transport.buffer_updated(len(data))


_OF_SSL = ("SSL_CTX_new", "SSL_new", "TLS_client_method")
_OF_CRYPTO = ("BIO_new", "BIO_s_mem")


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    return pytest.importorskip("uvloop").new_event_loop  # type: ignore[no-any-return]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_behind_handshake", [False, True])
def test_new_keys_without_end_neither_hold_the_loop_nor_go_on(loop_factory: Any, is_behind_handshake: bool) -> None:
    """Each is 27 bytes, and takes OpenSSL 65 µs: 64 KiB of them held the loop for 150 ms, as often as they came."""
    end = RestlessClient()

    async def body(secure: Secure) -> None:
        good, restless = await secure.client(), await secure.plain_client()
        while not end.shakes():
            restless.writer.write(end.sent())
            end.receive(await restless.reader.read(65_536))
        flood = b""
        if is_behind_handshake:
            flood = end.sent()
        else:
            restless.writer.write(end.sent())
            end.ask(b"a")
            restless.writer.write(end.sent())
            assert await restless.reader.read(1000)
        while len(flood) < 200_000:
            flood += end.new_key()
        longest = 0.0
        restless.writer.write(flood)
        ended = asyncio.ensure_future(restless.ended())
        while not ended.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
        assert longest < 0.05, f"the loop was held for {longest * 1000:.0f} ms"
        assert any("records that it sends carry no data" in line for line in secure.serving.lines.lines)
        good.send(b"a")
        assert await good.receive() == b"a"

    scenario(loop_factory, body)


def test_new_keys_that_come_alone_and_in_larger_records_do_not_go_on_either(loop_factory: Any) -> None:
    """What comes as one record, and no small one, is not looked at as closely as others are."""
    end = RestlessClient()

    async def body(secure: Secure) -> None:
        restless = await secure.plain_client()
        while not end.shakes():
            restless.writer.write(end.sent())
            end.receive(await restless.reader.read(65_536))
        restless.writer.write(end.sent())
        end.ask(b"a")
        restless.writer.write(end.sent())
        assert await restless.reader.read(1000)
        (connection,) = secure.serving.handler.opened
        end.pad(256)
        number = 0
        while connection.is_open and number < 2 * RECORDS_PER_TURN:
            number += 1
            key = end.new_key()
            assert len(key) > 256
            receive_at_once(connection, key)
        assert number == RECORDS_PER_TURN
        assert any("records that it sends carry no data" in line for line in secure.serving.lines.lines)

    scenario(loop_factory, body)


def test_new_keys_of_many_connections_in_one_turn_are_worked_on_in_several(loop_factory: Any) -> None:
    """What one connection may have done in a turn, a hundred had done in the same one."""

    async def body(secure: Secure) -> None:
        floods = []
        for _ in range(2 * SMALL_RECORDS_PER_TURN // RECORDS_PER_TURN):
            restless, end = await secure.plain_client(), RestlessClient()
            while not end.shakes():
                restless.writer.write(end.sent())
                end.receive(await restless.reader.read(100_000))
            restless.writer.write(end.sent())
            end.ask(b"a")
            restless.writer.write(end.sent())
            assert await restless.reader.read(1000)
            floods.append(b"".join(end.new_key() for _ in range(RECORDS_PER_TURN)))
        good = await secure.client()
        good.send(b"a")
        assert await good.receive() == b"a"
        connections = secure.serving.handler.opened

        await asyncio.sleep(0)
        assert secure.handshakes.turns.left == SMALL_RECORDS_PER_TURN
        for connection, flood in zip(connections, floods, strict=False):
            receive_at_once(connection, flood)
        half = len(floods) // 2
        ended = [not each.is_open for each in connections]
        assert ended == [True] * half + [False] * (half + 1), "as many as a turn has time for"
        assert secure.handshakes.turns.left == 0
        good.send(b"b")
        assert await good.receive() == b"b"
        await secure.until(lambda: not any(each.is_open for each in connections[:-1]))

    scenario(loop_factory, body)


def test_who_comes_behind_floods_of_small_records_does_not_wait_until_they_have_ended(loop_factory: Any) -> None:
    """Those that were there first had all of each turn until what they had sent was at its end."""

    async def body(secure: Secure) -> None:
        good = await secure.client()
        good.send(b"a")
        assert await good.receive() == b"a"
        connections, floods = secure.serving.handler.opened, list[bytes]()
        for _ in range(2 * SMALL_RECORDS_PER_TURN // RECORDS_PER_TURN):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            ours = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await secure.plain_client()
            while not _shakes(ours):
                client.writer.write(outgoing.read())
                incoming.write(await client.reader.read(65_536))
            client.writer.write(outgoing.read())
            await secure.until(lambda: len(secure.certificates) == len(floods) + 2)
            ours.write(framed(b"x" * 10_000)[:4])
            for _ in range(20 * RECORDS_PER_TURN):
                ours.write(b"xxxx")
            floods.append(outgoing.read())
        for connection, flood in zip(connections[1:], floods, strict=True):
            transport: Any = connection._transport
            transport.get_buffer(-1)[: len(flood)] = flood
            transport.buffer_updated(len(flood))
        good.send(b"b")
        assert await good.receive() == b"b"
        left = [len(each._transport._later) / len(floods[0]) for each in connections[1:]]  # type: ignore[union-attr]
        assert min(left) > 0.5, left

    scenario(loop_factory, body)


def _shakes(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_very_many_small_records_come_in_their_order_over_turns(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.port)
        while True:
            try:
                ours.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        requests = [b"%05d" % number for number in range(3 * RECORDS_PER_TURN)]
        for request in requests:  # as Java's clients: the size is a record of its own
            ours.write(framed(request)[:4])
            ours.write(request)
        writer.write(outgoing.read())  # behind the last bytes of the handshake
        received, expected = b"", b"".join(map(framed, requests))
        while len(received) < len(expected):
            try:
                received += ours.read(65_536)
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(65_536))
        assert received == expected
        assert secure.serving.handler.handled == requests
        writer.close()

    scenario(loop_factory, body)
