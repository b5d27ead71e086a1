"""What clients should not do to a listener with TLS: floods, silence, drips, not reading."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import ssl
import struct
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.kernel.host import OffloadFullError, OffloadKind
from barnabas.kernel.timers import Timer, Timers
from barnabas.link import handshakes as handshakes_module
from barnabas.link.connection import Pause
from barnabas.link.tls import TlsConnection
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings
from tests.support.certificates import (
    rsa,
    shared_authority,
)
from tests.unit.network.secured import Secure, client_context, scenario, server_context
from tests.unit.network.serving import framed


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    return pytest.importorskip("uvloop").new_event_loop  # type: ignore[no-any-return]


def test_an_answer_that_is_not_read_is_not_encrypted_and_its_client_not_read(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*[b"big"] * 64)
        await secure.until(lambda: len(secure.serving.handler.handled) >= 1)
        connection = secure.serving.handler.opened[0]
        transport = connection._transport
        await secure.until(lambda: connection._pauses & Pause.UNREAD_OUTPUT)
        await asyncio.sleep(0.1)
        assert len(secure.serving.handler.handled) < 32
        raw = transport._raw  # type: ignore[union-attr]
        assert raw.get_write_buffer_size() < 512 * 1024
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(64):
            assert len(await client.receive()) == 1 << 20
        await secure.until(lambda: len(secure.serving.handler.handled) == 64)
        await client.close()

    scenario(loop_factory, body)


def test_small_answers_that_are_not_read_are_not_encrypted_either_and_stay_in_order(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        client = await secure.client()
        client.send(b"x")
        assert await client.receive() == b"x"
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        transport: Any = secure.serving.handler.opened[0]._transport
        sent = 0

        def answer() -> None:
            nonlocal sent
            transport.write(sent.to_bytes(4, "big") * 1024)
            sent += 1

        while not transport._is_raw_full:
            answer()
            await asyncio.sleep(0)
        encrypted = transport._raw.get_write_buffer_size()
        for _ in range(100):
            answer()
        assert transport._raw.get_write_buffer_size() == encrypted
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        while transport._is_raw_full:
            await asyncio.sleep(0)
        for _ in range(100):
            answer()
        for number in range(sent):
            assert await client.reader.readexactly(4096) == number.to_bytes(4, "big") * 1024

    scenario(loop_factory, body)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (framed(b"\0\x12\0\3\0\0\0\1plain"), "not TLS; is the other end's security.protocol without SSL?"),
        (b"GET / HTTP/1.1\r\n\r\n", "what came is HTTP"),
        (b"\x16\x03\x01\x40\x01" + bytes(20_000), "SSL handshake failed"),
        (b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff" + bytes(100), "SSL handshake failed"),
        (bytes(range(256)) * 64, "SSL handshake failed"),
    ],
)
def test_what_is_no_handshake_ends_its_connection_and_is_counted(loop_factory: Any, sent: bytes, says: str) -> None:
    async def body(secure: Secure) -> None:
        good = await secure.client()
        bad = await secure.plain_client()
        bad.writer.write(sent)
        assert await bad.ended()
        await secure.until(lambda: secure.failed == 1)
        assert any(says in line for line in secure.serving.lines.lines), secure.serving.lines.lines
        good.send(b"a")
        assert await good.receive() == b"a"
        await good.close()

    scenario(loop_factory, body)


def test_who_only_looks_whether_the_port_is_open_is_not_a_failed_handshake(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        looker = await secure.plain_client()
        await looker.close()
        halfway = await secure.plain_client()
        halfway.writer.write(b"\x16\x03\x01")
        await secure.until(lambda: secure.handshakes.begun == 1)
        await halfway.close()
        await secure.until(lambda: not secure.serving.server.connections)
        assert secure.failed == secure.handshakes.begun == 0

    scenario(loop_factory, body)


def test_handshakes_that_are_not_finished_in_time_end(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from barnabas.link import tls

    # A time that nobody waits for, and that nothing else takes: the test says when it is over.
    monkeypatch.setattr(tls, "HANDSHAKE_MS", 123_456)
    begun: list[tuple[Timer, Callable[..., object]]] = []
    call_after = Timers.call_after

    def noted(timers: Timers, delay_ms: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        timer = call_after(timers, delay_ms, callback, *arguments)
        if delay_ms == 123_456:
            begun.append((timer, callback))
        return timer

    monkeypatch.setattr(Timers, "call_after", noted)

    async def body(secure: Secure) -> None:
        silent = await secure.plain_client()
        slow = await secure.plain_client()
        slow.writer.write(b"\x16\x03\x01")
        good = await secure.client()
        good.send(b"a")
        assert await good.receive() == b"a"
        await secure.until(lambda: len(begun) == 3 and secure.handshakes.begun == 1)
        for timer, time_out in begun:
            if timer.cancel():
                time_out()
        assert await silent.ended()
        assert await slow.ended()
        assert secure.failed == 1  # who has said nothing has failed at nothing
        good.send(b"a")
        assert await good.receive() == b"a"
        await good.close()

    scenario(loop_factory, body)


def test_places_are_few_and_the_quiet_make_room(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes_module, "BEGUN_PER_ADDRESS_MAX", 2)
    monkeypatch.setattr(handshakes_module, "QUIET_SECONDS", 600.0)
    monkeypatch.setattr(handshakes_module, "_LOOK_MS", 50)

    async def body(secure: Secure) -> None:
        quiet = [await secure.plain_client() for _ in range(4)]
        for client in quiet:
            client.writer.write(b"\x16\x03\x01\x02\x00")
        await secure.until(lambda: secure.handshakes.begun == 2 and secure.handshakes.waiting == 2)
        monkeypatch.setattr(handshakes_module, "QUIET_SECONDS", 0.3)
        good = await secure.client()  # once all four were sent away, two by two
        good.send(b"a")
        assert await good.receive() == b"a"
        assert secure.failed >= 3
        assert any("while others wait for its place" in line for line in secure.serving.lines.lines)
        await good.close()
        for client in quiet:
            await client.close()
        await secure.until(lambda: not secure.serving.server.connections)
        assert secure.handshakes.begun == secure.handshakes.waiting == 0

    scenario(loop_factory, body)


def test_of_who_waits_for_a_place_little_is_kept(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes_module, "BEGUN_PER_ADDRESS_MAX", 1)

    async def body(secure: Secure) -> None:
        first = await secure.plain_client()
        first.writer.write(b"\x16\x03\x01\x40\x00")
        await secure.until(lambda: secure.handshakes.begun == 1)
        waiting = [await secure.plain_client() for _ in range(3)]
        for client in waiting:
            client.writer.write(b"\x16\x03\x01\x40\x00" + bytes(60_000))
        await secure.until(lambda: secure.handshakes.waiting == 3)
        ends: list[Any] = [connection._transport for connection in secure.serving.handler.opened[1:]]

        def kept() -> list[int]:
            return [len(end._later) + end._incoming.pending for end in ends]

        await secure.until(lambda: kept() == [handshakes_module.FIRST_BYTES] * 3)
        await asyncio.sleep(0.02)
        assert kept() == [handshakes_module.FIRST_BYTES] * 3

    scenario(loop_factory, body)


_SHAKES = """
import socket, ssl, sys, threading
context = ssl.create_default_context(cafile=sys.argv[2])
def shake():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(b"\\0\\0\\0\\1a")
            answers.append(secured.recv(100))
answers = []
threads = [threading.Thread(target=shake) for _ in range(60)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(answers != [b"\\0\\0\\0\\1a"] * 60)
"""


@pytest.mark.usefixtures("no_collector")
def test_many_handshakes_at_once_leave_the_loop_free(loop_factory: Any) -> None:
    """A signature with such a key takes 5 ms and more, so that 60 of them would take 300 ms."""
    large = shared_authority().sign(kind=rsa(4096))

    async def body(secure: Secure) -> None:
        longest, is_done = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not is_done:
                before = time.thread_time()  # other processes take the machine's time, but not this thread's
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)

        watching = asyncio.create_task(watch())
        arguments = (str(secure.port), str(shared_authority().certificate))
        shakes = await asyncio.create_subprocess_exec(sys.executable, "-c", _SHAKES, *arguments)
        assert await shakes.wait() == 0
        is_done = True
        await watching
        assert len(secure.certificates) == 60
        assert longest < 0.03, f"the loop was held for {longest * 1000:.0f} ms"

    scenario(loop_factory, body, server_context(large))


def test_a_full_line_of_other_work_only_delays_a_handshake(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        offload, refused = secure.host.offload, 0

        def full(kind: OffloadKind, function: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused % 3:
                raise OffloadFullError("full")
            return offload(kind, function, *arguments, **options)

        secure.handshakes._offload = full
        client = await secure.client()
        client.send(b"a")
        assert await client.receive() == b"a"
        assert refused > 3
        await client.close()

    scenario(loop_factory, body)


def test_a_connection_that_ends_amid_its_own_handshake_leaves_nothing(loop_factory: Any) -> None:
    async def body(secure: Secure) -> None:
        for _ in range(30):
            client = await secure.plain_client()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            ours = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            with contextlib.suppress(ssl.SSLWantReadError):
                ours.do_handshake()
            client.writer.write(outgoing.read())
            await asyncio.sleep(0)
            await client.close()
        await secure.until(lambda: not secure.serving.server.connections)
        await secure.until(lambda: secure.handshakes.begun == secure.handshakes.waiting == 0)
        good = await secure.client()
        good.send(struct.pack(">i", 1))
        assert await good.receive() == struct.pack(">i", 1)
        await good.close()

    scenario(loop_factory, body)


def test_who_waits_to_be_let_in_has_no_handshake_yet(loop_factory: Any) -> None:
    """Too many connections in a second wait (KIP-612): the dear part of TLS would be done for them otherwise."""
    rates = ConnectionRates(ClientQuotaSettings(window_count=11, window_seconds=1))
    rates.limit_listener("TLS", 1)

    async def body(secure: Secure) -> None:
        admission = secure.serving.server._admission
        real, ends = secure.serving.timers.call_after, []

        def noted(delay_ms: float, end: Callable[..., object], *arguments: Any) -> Timer:
            """The test says when a wait is over."""
            ends.append(functools.partial(end, *arguments))
            return real(600_000, end, *arguments)

        admission._timers = SimpleNamespace(call_after=noted)  # type: ignore[assignment]
        while not admission.waiting:
            await secure.plain_client()
            await asyncio.sleep(0)
        coming = asyncio.ensure_future(secure.client())
        await secure.until(lambda: admission.waiting == 2 or coming.done())
        assert not coming.done()
        assert secure.handshakes.begun == 0
        while not coming.done():
            while ends:
                ends.pop()()
            await asyncio.sleep(0.005)
        client = await coming
        client.send(b"in")
        assert await client.receive() == b"in"
        assert len(secure.certificates) == 1

    scenario(loop_factory, body, rates=rates)


def test_who_lets_bytes_drip_holds_a_place_no_longer_than_who_is_quiet(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes_module, "BEGUN_PER_ADDRESS_MAX", 1)
    monkeypatch.setattr(handshakes_module, "QUIET_SECONDS", 0.4)
    monkeypatch.setattr(handshakes_module, "_LOOK_MS", 50)

    async def body(secure: Secure) -> None:
        begun_at = secure.host.loop.time()
        dripping = await secure.plain_client()
        dripping.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
        await secure.until(lambda: secure.handshakes.begun == 1)
        coming = asyncio.ensure_future(secure.client())
        longest_pause = 0.0
        while not coming.done():
            dripping.writer.write(b"\x03")
            dripped_at = secure.host.loop.time()
            await asyncio.sleep(0.1)
            longest_pause = max(longest_pause, secure.host.loop.time() - dripped_at)
        # Where the machine kept this process from its processor, it was quiet.
        assert secure.host.loop.time() - begun_at > 0.5 or longest_pause > 0.2, "it is sent away for being slow"
        client = await coming
        client.send(b"a")
        assert await client.receive() == b"a"

    scenario(loop_factory, body)


@pytest.mark.parametrize("sent", ["garbage", "half a handshake", "no certificate", "a request"])
def test_a_connection_that_is_over_leaves_nothing_to_the_collector(
    no_collector: None, loop_factory: Any, sent: str
) -> None:
    """The collector knows nothing of what OpenSSL holds, some 40 KiB each, and comes late."""

    async def body(secure: Secure) -> None:
        for number in range(5):
            if sent in ("a request", "no certificate"):
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    client = await secure.client()
                    client.send(b"x")
                    await client.receive()
            else:
                client = await secure.plain_client()
                client.writer.write(b"GET / HTTP/1.1\r\n\r\n" if sent == "garbage" else b"\x16\x03\x01\x02\x00\x01")
                await secure.until(lambda: secure.failed > number or secure.handshakes.begun)  # noqa: B023
            for client in secure.clients:
                client.writer.transport.abort()
            await secure.until(lambda: not secure.serving.server.connections)
            secure.clients.clear()
        await secure.until(lambda: not secure.handshakes.begun and not secure.handshakes.waiting)
        assert sum(type(each) is TlsConnection for each in gc.get_objects()) <= 1  # what the loop's last call still has

    scenario(loop_factory, body, server_context(asks=sent == "no certificate"))
