"""The Prometheus endpoint, spoken to by a plain socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.metrics_prometheus import LINES_PER_STEP, NAMES_PER_STEP, scrape_in_steps
from barnabas.kernel.real_host import real_host
from barnabas.kernel.steps import StepRunner
from barnabas.link.places import COME_MAX, Step
from barnabas.server.metrics_endpoint import PLACES, REQUEST_BYTES_MAX, MetricsEndpoint, _Connection

Run = Callable[[Coroutine[Any, Any, Any]], Any]
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
LIVE = b"GET /livez HTTP/1.1\r\n\r\n"


async def serving(
    work: Callable[[int], Coroutine[Any, Any, Any]],
    fill: Callable[[MetricsRegistry], object] = lambda _metrics: None,
    process: Callable[[], bytes] | None = None,
    not_ready: Callable[[], str] = lambda: "",
) -> None:
    loop = asyncio.get_running_loop()
    metrics = MetricsRegistry(loop.time)
    metrics.gauge(MetricName("kafka.server", "KafkaServer", "BrokerState"), lambda: 3)
    fill(metrics)
    async with real_host("test", loop) as host:
        endpoint = MetricsEndpoint(
            host, metrics, StepRunner(loop), logging.getLogger("test"), process, not_ready=not_ready
        )
        port = await endpoint.start("127.0.0.1", 0)
        try:
            await work(port)
        finally:
            await endpoint.stop()


def many_partitions(metrics: MetricsRegistry) -> None:
    for number in range(3_000):
        tags = (("topic", "orders"), ("partition", str(number)))
        metrics.gauge(MetricName("kafka.log", "Log", "Size", tags), lambda: 1024)


async def ask(port: int, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_a_scrape_has_every_metric_and_closes(run: Run) -> None:
    async def scrape(port: int) -> None:
        head, _, body = (await ask(port, GET)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 OK\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"kafka_server_kafkaserver_brokerstate 3.0\n" in body

    run(serving(scrape))


def test_a_request_in_pieces_is_one_request(run: Run) -> None:
    async def scrape(port: int) -> None:
        assert b" 200 " in await ask(port, *(GET[i : i + 1] for i in range(len(GET))))

    run(serving(scrape))


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics?name=x HTTP/1.0\n\n", b"200"),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD /readyz?verbose HTTP/1.1\r\n\r\n", b"200"),
        (b"POST /readyz HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /livez/ HTTP/1.1\r\n\r\n", b"404"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"garbage\r\n\r\n", b"400"),
        (b"\x00\x00\x00\x12" + b"\x00" * REQUEST_BYTES_MAX, b"400"),
    ],
)
def test_whatever_is_asked_is_answered(run: Run, request_text: bytes, status: bytes) -> None:
    async def scrape(port: int) -> None:
        assert (await ask(port, request_text)).split()[1] == status

    run(serving(scrape))


def test_too_many_connections_are_closed_and_the_next_scrape_goes_on(run: Run) -> None:
    async def scrape(port: int) -> None:
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COME_MAX)]
        assert b" 200 " in await ask(port, GET)
        first, _ = open_ones[0]
        with contextlib.suppress(ConnectionError):
            assert await first.read(1) == b"", "it has waited longest"
        last, writer = open_ones[-1]
        writer.write(GET)
        assert b" 200 " in await last.read()
        for _, each in open_ones:
            each.close()

    run(serving(scrape))


class Held(asyncio.Transport):
    """A connection of some address, as the endpoint sees it."""

    def __init__(self, endpoint: MetricsEndpoint, address: str, *, takes_answers: bool = True) -> None:
        super().__init__({"peername": (address, 1)})
        self.takes_answers = takes_answers
        self.answer = b""
        self.is_over = False
        self.protocol = _Connection(endpoint, asyncio.get_running_loop())
        self.protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.answer += data

    def close(self) -> None:
        if self.takes_answers:
            self.abort()

    def abort(self) -> None:
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


def test_who_holds_most_connections_makes_room_and_keeps_no_other_address_out(run: Run) -> None:
    """Whoever came again at once when he was cut off had every scrape cut off before it had asked."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with real_host("test", loop) as host:
            logger = logging.getLogger("test")
            endpoint = MetricsEndpoint(host, MetricsRegistry(loop.time), StepRunner(loop), logger)
            flood = [Held(endpoint, "10.0.0.2") for _ in range(COME_MAX)]
            scrape, health = Held(endpoint, "10.0.0.1"), Held(endpoint, "10.0.0.3")
            flood += [Held(endpoint, "10.0.0.2") for _ in range(3 * COME_MAX)]
            assert not scrape.is_over
            assert not health.is_over
            assert [each.is_over for each in flood] == [True] * (3 * COME_MAX + 2) + [False] * (COME_MAX - 2)
            assert len(endpoint.places.held) == COME_MAX
            scrape.protocol.data_received(b"GET /livez HTTP/1.1\r\n\r\n")
            assert b" 200 " in scrape.answer
            for each in (health, *flood[-COME_MAX:]):
                each.abort()
            await asyncio.sleep(0)
            assert not endpoint.places.held
            # Who has asked is not cut off; a further one is then, of the address that asks most.
            most = PLACES[Step.ASKED] * 3 // 4
            asking = [Held(endpoint, "10.0.0.2") for _ in range(most + 1)]
            for each in asking:
                each.protocol.data_received(GET)
            assert [each.is_over for each in asking] == [False] * most + [True]
            other = Held(endpoint, "10.0.0.1")
            other.protocol.data_received(GET)
            assert not other.is_over
            await endpoint.stop()
            await asyncio.sleep(0)

    run(main())


def test_who_scrapes_is_answered_beside_a_flood_of_his_own_address(run: Run) -> None:
    """Who holds connections, who begins requests and does not end them, who does not take his answers."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with real_host("test", loop) as host:
            endpoint = MetricsEndpoint(host, MetricsRegistry(loop.time), StepRunner(loop), logging.getLogger("test"))

            def flood() -> None:
                for number in range(2 * COME_MAX):
                    each = Held(endpoint, "10.0.0.1", takes_answers=False)
                    if number % 3:
                        each.protocol.data_received(b"GET /livez HTTP/1.1\r\n" if number % 3 == 1 else LIVE)

            flood()
            scrape = Held(endpoint, "10.0.0.1")
            for _ in range(COME_MAX - 1):
                Held(endpoint, "10.0.0.1")
            scrape.protocol.data_received(GET[:-2])
            for _ in range(PLACES[Step.BEGUN] - 1):
                Held(endpoint, "10.0.0.1").protocol.data_received(b"GET")
            scrape.protocol.data_received(GET[-2:])
            assert endpoint.places.step(scrape.protocol) is Step.ASKED
            flood()
            async with asyncio.timeout(30):
                while not scrape.is_over:
                    await asyncio.sleep(0)
            assert scrape.answer.startswith(b"HTTP/1.0 200 OK\r\n")
            assert all(endpoint.places.count(each) <= PLACES[each] for each in Step)
            await endpoint.stop()
            await asyncio.sleep(0)

    run(main())


def test_what_is_read_in_many_turns_is_whole_and_others_have_their_turns(run: Run) -> None:
    turn = 0
    read_in: list[int] = []

    def fill(metrics: MetricsRegistry) -> None:
        def read() -> int:
            read_in.append(turn)
            return 1

        for number in range(3_000):
            metrics.gauge(MetricName("kafka.log", "Log", "Size", (("partition", str(number)),)), read)

    async def scrape(port: int) -> None:
        async def others() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        body = await ask(port, GET)
        other.cancel()
        assert body.count(b"kafka_log_log_size{") == len(read_in) == 3_000
        assert max(Counter(read_in).values()) <= LINES_PER_STEP

    run(serving(scrape, fill))


def test_a_step_of_a_scrape_is_bounded_however_many_metrics_there_are() -> None:
    metrics = MetricsRegistry(lambda: 0.0)
    many_partitions(metrics)
    read = 0

    def count() -> int:
        nonlocal read
        read += 1
        return 1

    for number in range(2_000):
        metrics.gauge(MetricName("kafka.log", "Log", "Start", (("partition", str(number)),)), count)
    before, worst, steps = 0, 0, 0
    for _ in scrape_in_steps(metrics):
        worst, before, steps = max(worst, read - before), read, steps + 1
    assert worst <= LINES_PER_STEP
    assert steps >= 5_000 // LINES_PER_STEP + 5_000 // NAMES_PER_STEP


def test_who_comes_while_a_scrape_is_read_is_given_the_same(run: Run) -> None:
    reads = 0

    def fill(metrics: MetricsRegistry) -> None:
        def read() -> int:
            nonlocal reads
            reads += 1
            return reads

        many_partitions(metrics)
        metrics.gauge(MetricName("kafka.log", "Log", "Last"), read)

    async def scrape(port: int) -> None:
        bodies = await asyncio.gather(*(ask(port, GET) for _ in range(10)))
        assert all(b"\nkafka_log_log_last " in body for body in bodies)
        assert reads < 10
        before = reads
        assert f"\nkafka_log_log_last {before + 1}.0\n".encode() in await ask(port, GET), "a later one is read anew"

    run(serving(scrape, fill))


def test_whoever_goes_while_a_scrape_is_read_takes_it_from_nobody(run: Run) -> None:
    async def scrape(port: int) -> None:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            await writer.drain()
            waiting = asyncio.create_task(ask(port, GET))
            await asyncio.sleep(0)
            writer.transport.abort()
            assert (await waiting).count(b"kafka_log_log_size{") == 3_000

    run(serving(scrape, many_partitions))


def test_a_scrape_has_what_is_told_of_the_process(run: Run) -> None:
    async def scrape(port: int) -> None:
        body = await ask(port, GET)
        assert b"\r\n\r\nprocess_open_fds 5.0\n" in body
        assert b"\nkafka_server_kafkaserver_brokerstate 3.0\n" in body

    run(serving(scrape, process=lambda: b"process_open_fds 5.0\n"))


def test_a_scrape_that_fails_says_so_and_the_next_one_is_tried(run: Run) -> None:
    calls = 0

    def process() -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no more files")
        return b""

    async def scrape(port: int) -> None:
        assert (await ask(port, GET)).split()[1] == b"500"
        assert (await ask(port, GET)).split()[1] == b"200"

    run(serving(scrape, process=process))


def test_readiness_says_what_is_missing_while_the_process_is_alive(run: Run) -> None:
    missing = ["recovery, 3 of 5 logs are loaded"]

    async def check(port: int) -> None:
        answer = await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 503 Service Unavailable\r\n")
        assert answer.endswith(b"\r\n\r\nnot ready: recovery, 3 of 5 logs are loaded\n")
        assert (await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nalive\n")
        missing[0] = ""
        assert (await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nready\n")

    run(serving(check, not_ready=lambda: missing[0]))
