"""The login and the TLS of the metrics endpoint: by a password as Prometheus sends it, on real sockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricName
from barnabas.kernel.metrics_prometheus import scrape_in_steps
from barnabas.kernel.real_host import real_host
from barnabas.link.places import COME_MAX
from barnabas.security import password_checks
from barnabas.security.login_files import PasswordHash
from barnabas.server import metrics_access as metrics_access_module
from barnabas.server import metrics_files
from barnabas.server.config import MetricsSettings
from barnabas.server.errors import BrokerStartError
from barnabas.server.metrics_access import credentials, metrics_access
from barnabas.server.metrics_endpoint import MetricsEndpoint
from barnabas.server.shared_services import SharedServices
from tests.support.certificates import broker_certificate, shared_authority

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Work = Callable[[int, SharedServices], Coroutine[Any, Any, None]]
SALT = bytes(range(16))
CHEAP = PasswordHash(16, 1, 1, SALT, hashlib.scrypt(b"right:\xc3\xa9", salt=SALT, n=16, r=1, p=1, dklen=32))
RIGHT = "right:é"


@pytest.fixture
def login_file(tmp_path: Path) -> str:
    path = tmp_path / "logins"
    path.write_text(f"prometheus:viewer:{CHEAP}\n")
    return str(path)


async def serving(settings: MetricsSettings, work: Work) -> None:
    loop = asyncio.get_running_loop()
    async with real_host("test", loop) as host:
        shared = SharedServices.on(host, Logs("test", host.clock, logging.NullHandler()))
        shared.metrics.gauge(MetricName("kafka.server", "KafkaServer", "BrokerState"), lambda: 3)
        access = metrics_access(settings, shared)
        endpoint = MetricsEndpoint(host, shared.metrics, shared.steps, shared.logs.logger("barnabas.metrics"))
        port = await endpoint.start("127.0.0.1", 0, access)
        try:
            await work(port, shared)
        finally:
            await endpoint.stop()
            shared.timers.close()


def basic(name: str, password: str) -> str:
    return f"Authorization: Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}\r\n"


async def ask(port: int, headers: str = "", path: str = "/metrics", tls: ssl.SSLContext | None = None) -> bytes:
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


async def failed_logins(shared: SharedServices) -> bytes:
    text = await shared.steps.run(scrape_in_steps(shared.metrics))
    return next(line for line in text.split(b"\n") if line.startswith(b"barnabas_server_metricsendpoint_failedlogins "))


def test_metrics_are_for_who_has_a_password_and_health_is_for_all(
    run: Run, login_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_checks, "FAILURE_SECONDS", 0.2)

    async def work(port: int, shared: SharedServices) -> None:
        refused = await ask(port)
        assert refused.startswith(b"HTTP/1.0 401 Unauthorized\r\n")
        assert b'\r\nWWW-Authenticate: Basic realm="metrics", charset="UTF-8"\r\n' in refused
        assert b"brokerstate" not in refused
        assert b"brokerstate 3.0" in await ask(port, basic("prometheus", RIGHT))
        for path in ("/livez", "/readyz"):
            assert b" 200 " in await ask(port, path=path)
        for name, password in (("prometheus", "wrong"), ("nobody", RIGHT), ("", ""), ("prometheus", "x" * 3_000)):
            began = time.monotonic()
            answer = await ask(port, basic(name, password))
            assert answer.split()[1] == b"401"
            assert b"brokerstate" not in answer
            assert time.monotonic() - began > 0.19, "it is answered late"
        assert await failed_logins(shared) == b"barnabas_server_metricsendpoint_failedlogins 4.0"

    run(serving(MetricsSettings(login_file=login_file), work))


def test_who_was_right_once_is_not_kept_waiting_by_those_who_guess(
    run: Run, login_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_checks, "FAILURE_SECONDS", 600.0)
    monkeypatch.setattr(password_checks, "FAILURE_SECONDS_MAX", 600.0)

    async def work(port: int, shared: SharedServices) -> None:
        assert b" 200 " in await ask(port, basic("prometheus", RIGHT))
        guesses = [asyncio.ensure_future(ask(port, basic("prometheus", str(number)))) for number in range(20)]
        while await failed_logins(shared) != b"barnabas_server_metricsendpoint_failedlogins 4.0":
            await asyncio.sleep(0.01)
        assert b" 200 " in await ask(port, basic("prometheus", RIGHT)), "it would be refused for want of a place"
        for guess in guesses:
            guess.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)

    run(serving(MetricsSettings(login_file=login_file), work))


def test_who_only_holds_a_connection_makes_room_for_a_scrape(run: Run, login_file: str) -> None:
    async def work(port: int, _shared: SharedServices) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COME_MAX)]
        assert b" 200 " in await ask(port, basic("prometheus", RIGHT))
        for _, writer in held:
            writer.close()

    run(serving(MetricsSettings(login_file=login_file), work))


@pytest.mark.parametrize(
    "head",
    [
        "", "Authorization: Bearer abc\r\n", "Authorization: Basic\r\n", "Authorization: Basic !\r\n",
        "Authorization: Basic YWI=\r\n", "Authorization: Basic /w==\r\n", "X-Authorization: Basic YTpi\r\n",
        "Authorization: Basic YTpi\r\nauthorization: Basic YTpi\r\n", "\r\nAuthorization: Basic YTpi\r\n",
    ],
)  # fmt: skip
def test_what_is_no_login_is_none(head: str) -> None:
    assert credentials(f"GET /metrics HTTP/1.1\r\n{head}\r\n".encode()) is None


def test_a_login_is_read_however_its_header_is_written() -> None:
    assert credentials(b"GET / HTTP/1.1\naUTHORIZATION:basic  YTpiOmM=\n\n") == ("a", "b:c")


def test_with_a_certificate_the_endpoint_speaks_tls_alone(run: Run, login_file: str) -> None:
    certified = broker_certificate()
    settings = MetricsSettings(
        login_file=login_file, tls_certificate=str(certified.certificate), tls_key=str(certified.key)
    )
    client = ssl.create_default_context(cafile=str(shared_authority().certificate))

    async def work(port: int, shared: SharedServices) -> None:
        for number in range(3_000):
            tags = (("partition", str(number)),)
            shared.metrics.gauge(MetricName("kafka.log", "Log", "Size", tags), lambda: 1024)
        answer = await ask(port, basic("prometheus", RIGHT), tls=client)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 OK")
        assert f"Content-Length: {len(body)}".encode() in head
        assert body.count(b"kafka_log_log_size{") == 3_000
        assert b" 401 " in await ask(port, tls=client)
        assert b"HTTP" not in await ask(port, basic("prometheus", RIGHT))  # in clear

    run(serving(settings, work))


def test_who_may_read_is_exchanged_with_the_file(run: Run, login_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_files, "LOOKED_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(metrics_files, "_WAIT_SECONDS_MAX", 60.0)  # a busy machine takes longer than what is for it
    monkeypatch.setattr(password_checks, "FAILURE_SECONDS", 0.01)
    path = Path(login_file)

    async def work(port: int, _: SharedServices) -> None:
        assert b" 200 " in await ask(port, basic("prometheus", RIGHT))
        path.write_text(f"grafana:viewer:{CHEAP}\n")
        assert b" 401 " in await ask(port, basic("prometheus", RIGHT)), "who was right once, too"
        assert b" 200 " in await ask(port, basic("grafana", RIGHT))
        for spoiled in ("", "grafana:viewer:nothing\n"):
            path.write_text(spoiled)
            assert b" 200 " in await ask(port, basic("grafana", RIGHT))
        path.unlink()
        assert b" 200 " in await ask(port, basic("grafana", RIGHT))
        other = PasswordHash(16, 1, 1, SALT, hashlib.scrypt(b"other", salt=SALT, n=16, r=1, p=1, dklen=32))
        path.write_text(f"grafana:viewer:{other}\n")
        assert b" 401 " in await ask(port, basic("grafana", RIGHT))
        assert b" 200 " in await ask(port, basic("grafana", "other"))

    run(serving(MetricsSettings(login_file=login_file), work))


def test_files_are_not_read_with_each_request(run: Run, login_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = metrics_access_module._users

    def noted(files: Any, path: str) -> Any:
        reads.append(path)
        return read(files, path)

    monkeypatch.setattr(metrics_access_module, "_users", noted)

    async def work(port: int, _: SharedServices) -> None:
        for _number in range(5):
            assert b" 200 " in await ask(port, basic("prometheus", RIGHT))

    run(serving(MetricsSettings(login_file=login_file), work))
    assert len(reads) == 1


def test_a_file_that_hangs_holds_no_scrape_up(run: Run, login_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_files, "LOOKED_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(metrics_files, "_WAIT_SECONDS_MAX", 0.05)
    read, goes_on, begun = metrics_access_module._users, threading.Event(), list[float]()

    def hang(files: Any, path: str) -> Any:
        if begun:
            goes_on.wait(200)
        begun.append(time.perf_counter())
        return read(files, path)

    monkeypatch.setattr(metrics_access_module, "_users", hang)

    async def work(port: int, _: SharedServices) -> None:
        try:
            for _number in range(3):
                assert b" 200 " in await ask(port, basic("prometheus", RIGHT))
            assert len(begun) == 1
        finally:
            goes_on.set()

    run(serving(MetricsSettings(login_file=login_file), work))


def test_a_certificate_is_exchanged_while_the_endpoint_runs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_files, "LOOKED_EVERY_SECONDS", 0.0)
    first, later = broker_certificate(), shared_authority().sign("/CN=later")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(first.certificate.read_bytes())
    key.write_bytes(first.key.read_bytes())
    client = ssl.create_default_context(cafile=str(shared_authority().certificate))
    client.check_hostname = False

    async def shown(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async def until_shown(port: int, wanted: bytes) -> None:
        async with asyncio.timeout(60):
            while await shown(port) != wanted:
                pass

    async def work(port: int, _: SharedServices) -> None:
        before = await shown(port)
        certificate.write_bytes(later.certificate.read_bytes())  # and the key is not the one of it yet
        for _number in range(3):
            assert await shown(port) == before
        key.write_bytes(later.key.read_bytes())
        await until_shown(port, ssl.PEM_cert_to_DER_cert(later.certificate.read_text()))

    run(serving(MetricsSettings(tls_certificate=str(certificate), tls_key=str(key)), work))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (MetricsSettings(login_file="/none"), "barnabas.metrics.login.file=/none: No such file or directory"),
        (MetricsSettings(tls_key="/none"), "barnabas.metrics.tls.key goes with barnabas.metrics.tls.certificate"),
        (MetricsSettings(tls_certificate="/none"), "barnabas.metrics.tls.certificate: /none cannot be read: No such"),
        (MetricsSettings(login_file=__file__), "test_metrics_access.py: line 1: it must be NAME:ROLE:HASH"),
        (MetricsSettings(tls_certificate=__file__), "it must have one PEM block PRIVATE KEY"),
        (MetricsSettings(tls_certificate=str(broker_certificate().certificate)), "has 0 private keys and 1 certifi"),
    ],
)
def test_a_broker_does_not_start_with_what_lets_everybody_or_nobody_in(
    run: Run, settings: MetricsSettings, why: str
) -> None:
    async def start() -> None:
        with pytest.raises(BrokerStartError) as caught:
            await serving(settings, lambda *_: asyncio.sleep(0))
        assert why in str(caught.value)

    run(start())
