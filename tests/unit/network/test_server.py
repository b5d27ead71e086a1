"""`barnabas.network.server`, over sockets, on both loops."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import os
import re
import struct
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.host import files_kept
from barnabas.kernel.metrics import Gauge, MetricName
from barnabas.kernel.real_host import real_host
from barnabas.link.limits import LinkLimits
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.network.connection import ServerConnection
from tests.unit.network.serving import (
    CONTROL,
    DATA,
    LOOPS_THAT_TELL_WHEN_FULL,
    Client,
    Serving,
    framed,
    serving,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def scenario(
    run: Run,
    body: Callable[[Serving, Callable[..., Coroutine[Any, Any, Client]]], Coroutine[Any, Any, None]],
    config: NetworkConfig | None = None,
    listeners: tuple[ListenerConfig, ...] = (DATA,),
) -> None:
    """Runs `body(served, connect)` against a server; `connect(listener="DATA")` makes a client."""

    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host, serving(host, config, listeners) as served:
            clients: list[Client] = []

            async def connect(listener: str = "DATA") -> Client:
                clients.append(await Client.connect(host, served.ports[listener]))
                return clients[-1]

            try:
                await body(served, connect)
            finally:
                for client in clients:
                    await client.close()

    run(main())


def test_answers_in_the_order_of_requests_though_later_ones_are_ready_first(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        client = await connect()
        client.send(b"1", b"park 2", b"3", b"silent", b"park 4", b"park 5", b"6")
        await served.handler.until(lambda: b"6" in served.handler.handled)
        slots = served.handler.slots
        assert await client.receive() == b"1"
        slots[b"park 5"].complete([b"\0\0\0\4", b"five"])
        slots[b"park 4"].complete(None)
        client.send(b"7")
        await served.handler.until(lambda: b"7" in served.handler.handled)
        slots[b"park 2"].complete([b"\0\0\0\3two"])
        assert [await client.receive() for _ in range(5)] == [b"two", b"3", b"five", b"6", b"7"]
        assert served.server.requests_received == 8
        with pytest.raises(RuntimeError, match="answered already"):
            slots[b"park 2"].complete(None)

    scenario(run, body)


def test_a_slot_does_not_keep_what_was_sent(run: Run) -> None:
    class Payload(bytearray):
        """A response that can be referred to weakly."""

    async def body(served: Serving, connect: Any) -> None:
        client = await connect()
        client.send(b"park")
        await served.handler.until(lambda: b"park" in served.handler.slots)
        slot = served.handler.slots[b"park"]
        payload = Payload(b"\0\0\0\3two")
        sent = weakref.ref(payload)
        slot.complete([payload])
        del payload
        assert await client.receive() == b"two"
        assert slot.is_done
        assert sent() is None

    scenario(run, body)


def test_control_goes_before_data_that_came_in_the_same_poll(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        data = await connect("DATA")
        control = await connect("CONTROL")
        await served.handler.until(lambda: len(served.handler.opened) == 2)
        # What a poll of the loop brings, by hand: which of two sockets a loop reads first is not ours to say.
        by_listener = {connection.listener.name: connection for connection in served.handler.opened}
        for name in ("DATA", "CONTROL"):
            connection = by_listener[name]
            frame = struct.pack(">i", len(name)) + name.encode()
            target = connection.get_buffer(-1)
            target[: len(frame)] = frame
            connection.buffer_updated(len(frame))
        assert served.handler.handled == [b"CONTROL"]
        assert await control.receive() == b"CONTROL"
        assert await data.receive() == b"DATA"

    scenario(run, body, listeners=(DATA, CONTROL))


def test_a_poll_that_brings_many_connections_takes_few_buffers(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        clients = [await connect() for _ in range(10)]
        await served.handler.until(lambda: len(served.handler.opened) == 10)
        large = bytes(40_000)
        frame = struct.pack(">i", len(large)) + large
        for connection in served.handler.opened:
            for part in (frame, frame):  # the second fills the buffer, or what is kept instead of one
                target = connection.get_buffer(-1)
                count = min(len(target), len(part))
                target[:count] = part[:count]
                connection.buffer_updated(count)
        assert served.pool.lent == 3
        for client in clients:
            assert await client.receive() == large

    scenario(run, body)


def test_queued_requests_stop_data_but_not_control_and_parked_ones_stop_nobody(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        one, two, control = await connect(), await connect(), await connect("CONTROL")
        one.send(b"park 1", b"park 2", b"park 3", b"queue 1", b"queue 2", b"late of one")
        await served.handler.until(lambda: b"queue 2" in served.handler.handled)
        two.send(b"late of two")
        control.send(b"control")
        assert await control.receive() == b"control"
        assert served.server.queue.queued == 2
        assert served.tick.held
        assert b"late of one" not in served.handler.handled
        assert b"late of two" not in served.handler.handled
        served.handler.slots[b"queue 2"].complete(None)
        assert await two.receive() == b"late of two"
        for slot in (b"park 1", b"park 2", b"park 3", b"queue 1"):
            served.handler.slots[slot].complete(None)
        assert await one.receive() == b"late of one"
        assert served.server.queue.queued == 0

    scenario(run, body, NetworkConfig(queued_requests_max=2), (DATA, CONTROL))


def receive_in_parts(connection: ServerConnection, *parts: bytes) -> None:
    """As a loop does with what comes in these parts."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            target = connection.get_buffer(-1)
            count = min(len(target), len(rest))
            target[:count] = rest[:count]
            connection.buffer_updated(count)
            rest = rest[count:]


@pytest.mark.parametrize("size", [7, 50_000, 300_000])
@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_a_controller_that_comes_by_a_shared_listener_is_heard_while_data_waits(
    run: Run, size: int, piece: int
) -> None:
    async def body(served: Serving, connect: Any) -> None:
        busy, client, controller = await connect(), await connect(), await connect()
        busy.send(b"queue 1")
        await served.handler.until(lambda: b"queue 1" in served.handler.handled)
        assert served.tick.held
        client.send(b"data")
        await served.handler.until(lambda: len(served.handler.opened) == 3)
        request = framed(b"control".ljust(size, b"."))
        receive_in_parts(served.handler.opened[2], request[:piece], request[piece : 2 * piece], request[2 * piece :])
        assert len(await controller.receive()) == size
        controller.send(b"and more")
        assert await controller.receive() == b"and more"
        assert b"data" not in served.handler.handled
        served.handler.slots[b"queue 1"].complete(None)
        assert await client.receive() == b"data"

    scenario(run, body, NetworkConfig(queued_requests_max=1))


def test_too_many_unanswered_requests_stop_their_own_connection_only(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        greedy, other = await connect(), await connect()
        greedy.send(*(b"park %d" % number for number in range(6)))
        await served.handler.until(lambda: len(served.handler.handled) == 4)
        other.send(b"other")
        assert await other.receive() == b"other"
        assert len(served.handler.handled) == 5
        for number in (0, 1):
            served.handler.slots[b"park %d" % number].complete(None)
        await served.handler.until(lambda: len(served.handler.handled) == 7)
        for number in range(2, 6):
            served.handler.slots[b"park %d" % number].complete(None)

    scenario(run, body, NetworkConfig(link=LinkLimits(unanswered_requests_max=4)))


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (b"\xff\xff\xff\xff", "WARNING .*a frame of -1 bytes"),
        (struct.pack(">i", 2**31 - 1), "WARNING .*a frame of 2147483647 bytes; at most 104857600 are allowed"),
        (b"\0\0\0\6broken", "WARNING .*the request is broken"),
        (b"\0\0\0\3bug", "ERROR Handling a frame from 127.0.0.1:.* failed"),
    ],
)
def test_a_bad_frame_ends_its_connection_with_one_line_and_harms_no_other(run: Run, sent: bytes, line: str) -> None:
    async def body(served: Serving, connect: Any) -> None:
        good, bad = await connect(), await connect()
        served.lines.lines.clear()
        bad.writer.write(sent)
        assert await bad.ended()
        good.send(b"good")
        assert await good.receive() == b"good"
        assert len(served.lines.lines) == 1
        assert re.match(line, served.lines.lines[0])
        await served.handler.until(lambda: served.handler.closed)
        assert served.server.connections == 1
        assert served.pool.lent == 0

    scenario(run, body)


def test_large_requests_and_responses_pass(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        client = await connect()
        large = bytes(range(256)) * 8_000
        client.send(b"small", large, b"big", b"small")
        assert await client.receive() == b"small"
        assert await client.receive() == large
        assert await client.receive() == bytes(1 << 20)
        assert await client.receive() == b"small"
        assert served.pool.lent == 0

    scenario(run, body)


@pytest.mark.parametrize("run", LOOPS_THAT_TELL_WHEN_FULL, indirect=True)
def test_a_peer_that_never_reads_is_not_read_any_more(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        greedy, other = await connect(), await connect()
        greedy.writer.transport.pause_reading()
        greedy.send(*([b"big"] * 200))
        await served.handler.until(lambda: served.handler.handled)
        for _ in range(50):
            other.send(b"other")
            assert await other.receive() == b"other"
        handled = served.handler.handled.count(b"big")
        # The requests of one receive are answered until the transport says that it is full: not all 200 of them.
        assert handled < 200
        greedy.writer.transport.resume_reading()
        for _ in range(200):
            assert await greedy.receive() == bytes(1 << 20)

    scenario(run, body)


def test_a_peer_for_which_too_much_is_held_back_is_dropped(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        greedy = await connect()
        greedy.send(*(b"park %d" % number for number in range(8)))
        await served.handler.until(lambda: len(served.handler.slots) == 8)
        for number in range(1, 6):
            served.handler.slots[b"park %d" % number].complete([bytes(1 << 20)])
        await served.handler.until(lambda: served.handler.closed)
        assert any("wait for it to read them; at most 4194304 may" in line for line in served.lines.lines)
        served.handler.slots[b"park 0"].complete([b"too late"])
        assert await greedy.ended()

    scenario(run, body, NetworkConfig(link=LinkLimits(output_bytes_high=2 << 20, output_bytes_max=4 << 20)))


def test_refuses_connections_beyond_the_limits_but_not_those_of_the_control_plane(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        first = await connect()
        first.send(b"first")
        assert await first.receive() == b"first"
        assert await (await connect()).ended()
        assert served.server.connections_refused == 1
        assert "max.connections.per.ip" in served.lines.lines[-1]
        control = await connect("CONTROL")
        control.send(b"control")
        assert await control.receive() == b"control"
        await first.close()
        await served.handler.until(lambda: len(served.handler.closed) == 1)
        again = await connect()
        again.send(b"again")
        assert await again.receive() == b"again"

    config = NetworkConfig(connections_per_ip_max=100, connections_per_ip_overrides={"127.0.0.1": 1})
    scenario(run, body, config, (DATA, CONTROL))


@pytest.mark.parametrize("limit", ["the limit of max.connections", "the limit of its max.connections"])
def test_refuses_connections_beyond_the_broker_s_and_the_listener_s_limit(run: Run, limit: str) -> None:
    async def body(served: Serving, connect: Any) -> None:
        first = await connect()
        first.send(b"first")
        assert await first.receive() == b"first"
        assert await (await connect()).ended()
        assert served.lines.lines[-1].endswith(limit)

    of_broker = "its" not in limit
    listener = ListenerConfig("DATA", "127.0.0.1", 0, connections_max=100 if of_broker else 1)
    scenario(run, body, NetworkConfig(connections_max=1 if of_broker else 100), (listener,))


def test_the_last_open_files_are_not_for_connections(run: Run) -> None:
    """Or whoever connects often enough, and says nothing, has a log fail that cannot begin a segment."""
    gc.collect()  # what others have left open does not go in the middle of this
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    gaps = [os.dup(0)]
    while gaps[-1] < highest:
        gaps.append(os.dup(0))
    bound = gaps[-1] + 30  # the loop, the listeners, and both ends of some connections
    open_files_max = next(each for each in range(bound, 10_000) if each - files_kept(each) == bound)

    async def body(served: Serving, connect: Any) -> None:
        clients = [await connect() for _ in range(20)]
        for client in clients[-5:]:
            assert await client.ended()
        for client in clients[-10:]:
            await client.close()
        assert served.server.connections_refused >= 5
        assert "open files" in served.lines.lines[-1]
        while served.server.connections > 10:
            await asyncio.sleep(0.001)
        control = await connect("CONTROL")
        control.send(b"control")
        assert await control.receive() == b"control"
        for client in clients[:-10]:
            await client.close()
        await served.handler.until(lambda: len(served.handler.closed) == len(served.handler.opened) - 1)
        again = await connect()
        again.send(b"again")
        assert await again.receive() == b"again"

    try:
        scenario(run, body, NetworkConfig(open_files_max=open_files_max), (DATA, CONTROL))
    finally:
        for each in gaps:
            os.close(each)


@pytest.mark.parametrize(
    ("open_files_max", "kept"), [(300, 75), (1_024, 128), (4_096, 512), (65_536, 1_024), (2**31 - 1, 1_024)]
)
def test_some_open_files_are_kept_from_clients(open_files_max: int, kept: int) -> None:
    assert files_kept(open_files_max) == kept


def test_brokers_come_in_beyond_the_limit_and_the_quietest_client_goes(run: Run) -> None:
    """As in Kafka, or a flood of clients would keep followers from their leaders."""

    async def body(served: Serving, connect: Any) -> None:
        working, quiet, talking = [await connect() for _ in range(3)]
        working.send(b"park")
        await served.handler.until(lambda: served.handler.slots)
        served.server._context.idle.step += 1
        for client in (talking, quiet):
            client.send(b"a")
            assert await client.receive() == b"a"
        served.server._context.idle.step += 1
        talking.send(b"b")
        assert await talking.receive() == b"b"
        assert await (await connect()).ended()
        brokers = [await connect("BROKERS") for _ in range(3)]
        assert await quiet.ended()
        assert await talking.ended()
        assert await working.ended()
        for broker in (*brokers, await connect("BROKERS")):  # which takes the place of no other broker
            broker.send(b"fetch")
            assert await broker.receive() == b"fetch"
        assert await (await connect()).ended()
        for broker in brokers:
            await broker.close()
        await served.handler.until(lambda: len(served.handler.closed) == 6)
        again = await connect()
        again.send(b"again")
        assert await again.receive() == b"again"
        gone = [line for line in served.lines.lines if "a broker needs its place" in line]
        ports = [client.writer.get_extra_info("sockname")[1] for client in (quiet, talking, working)]
        assert [line.split(" with ")[1].split(":")[1] for line in gone] == list(map(str, ports))

    brokers = ListenerConfig("BROKERS", "127.0.0.1", 0, is_protected=True)
    scenario(run, body, NetworkConfig(connections_max=3), (DATA, brokers))


def test_limits_that_change_count_for_connections_from_then_on(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        first = await connect()
        served.server.limit_connections(10, 10, {"DATA": 2})
        second = await connect()
        assert await (await connect()).ended()
        served.server.limit_connections(10, 10, {"DATA": 1})
        assert await (await connect()).ended()
        for client in (first, second):
            client.send(b"a")
            assert await client.receive() == b"a"

    scenario(run, body, NetworkConfig(), (dataclasses.replace(DATA, connections_max=1),))


def test_an_idle_connection_is_closed_and_one_with_a_parked_request_is_not(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        idle, waiting = await connect(), await connect()
        waiting.send(b"park")
        assert await idle.ended()
        assert served.server.connections == 1
        served.handler.slots[b"park"].complete([b"\0\0\0\4done"])
        assert await waiting.receive() == b"done"

    scenario(run, body, NetworkConfig(link=LinkLimits(idle_ms_max=2_000)))


def test_a_muted_connection_is_not_read_until_it_is_unmuted(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        muted, other = await connect(), await connect()
        muted.send(b"1")
        assert await muted.receive() == b"1"
        (connection,) = [one for one in served.handler.opened if one.peer.endswith(f":{_port(muted)}")]
        connection.mute()
        muted.send(b"2")
        for _ in range(20):
            other.send(b"other")
            await other.receive()
        assert b"2" not in served.handler.handled
        connection.unmute()
        assert await muted.receive() == b"2"

    scenario(run, body)


def test_closing_answers_what_is_on_its_way_and_takes_nothing_new(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        client = await connect()
        client.send(b"park", b"behind")
        await served.handler.until(lambda: b"behind" in served.handler.handled)
        closing = asyncio.ensure_future(served.server.close(drain_ms=60_000))
        await asyncio.wait([closing], timeout=0)
        client.send(b"new")
        served.handler.slots[b"park"].complete([b"\0\0\0\4done"])
        assert await client.receive() == b"done"
        assert await client.receive() == b"behind"
        assert await client.ended()
        assert await closing
        assert b"new" not in served.handler.handled
        assert len(served.metrics) == 0

    scenario(run, body)


def test_closing_is_bounded(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        client = await connect()
        client.send(b"park")
        await served.handler.until(lambda: served.handler.slots)
        assert not await served.server.close(drain_ms=20)
        assert await client.ended()
        assert served.server.connections == 0

    scenario(run, body)


def test_a_listener_that_cannot_listen_is_named_and_leaves_no_other_listening(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        taken = ListenerConfig("TAKEN", "127.0.0.1", served.ports["DATA"])
        with pytest.raises(OSError, match=r"listener TAKEN cannot be bound to 127\.0\.0\.1") as caught:
            await served.server.listen([ListenerConfig("FREE", "127.0.0.1", 0), taken])
        assert caught.value.errno == errno.EADDRINUSE

    scenario(run, body)


def test_counts_connections_and_requests(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        client = await connect()
        client.send(b"1")
        await client.receive()
        for tags in ((), (("listener", "DATA"),)):
            gauge = served.metrics.get(MetricName("kafka.server", "socket-server-metrics", "connection-count", tags))
            assert isinstance(gauge, Gauge)
            assert gauge.read() == 1
        total = served.metrics.get(MetricName("kafka.server", "socket-server-metrics", "request-total"))
        assert isinstance(total, Gauge)
        assert total.read() == 1

    scenario(run, body)


def _port(client: Client) -> int:
    return int(client.writer.get_extra_info("sockname")[1])


def test_a_throttled_connection_is_not_read_and_what_came_before_is_answered(run: Run) -> None:
    async def body(served: Serving, connect: Any) -> None:
        client, other = await connect(), await connect()
        client.send(b"park")
        await served.handler.until(lambda: b"park" in served.handler.slots)
        (connection,) = [each for each in served.handler.opened if each.unanswered]
        now = asyncio.get_running_loop().time
        began = now()
        for throttle_ms in (150, 300, 100, 0):
            connection.throttle(throttle_ms)
            assert connection.is_throttled
        client.send(b"later")
        served.handler.slots[b"park"].complete([framed(b"parked")])
        assert await client.receive() == b"parked"
        other.send(b"meanwhile")
        assert await other.receive() == b"meanwhile"
        assert b"later" not in served.handler.handled
        assert await client.receive() == b"later"
        assert now() - began >= 0.299
        assert not connection.is_throttled
        connection.throttle(60_000)
        connection.abort()
        await served.handler.until(lambda: connection in served.handler.closed)
        assert not connection.is_throttled
        connection.throttle(60_000)
        assert not connection.is_throttled

    scenario(run, body)
