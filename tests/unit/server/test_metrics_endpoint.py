"""The Prometheus endpoint, spoken to by a plain socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.real_host import real_host
from barnabas.server.metrics_endpoint import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsEndpoint

Run = Callable[[Coroutine[Any, Any, Any]], Any]
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


async def serving(work: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
    loop = asyncio.get_running_loop()
    metrics = MetricsRegistry(loop.time)
    metrics.gauge(MetricName("kafka.server", "KafkaServer", "BrokerState"), lambda: 3)
    async with real_host("test", loop) as host:
        endpoint = MetricsEndpoint(host, metrics, logging.getLogger("test"))
        port = await endpoint.start("127.0.0.1", 0)
        try:
            await work(port)
        finally:
            await endpoint.stop()


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
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        refused, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionError):
            writer.write(GET)
            while await refused.read(1):
                pass
            raise ConnectionResetError  # an end of the stream says the same
        writer.close()
        for _, each in open_ones:
            each.close()
            await each.wait_closed()
        while b" 200 " not in await ask(port, GET):
            await asyncio.sleep(0)

    run(serving(scrape))
