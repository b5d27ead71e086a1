"""Connections of which too many come in a second (KIP-612), at a broker of ours and at one of Apache Kafka 3.9.1 in one
cluster: Kafka's own tool bounds both while they run, and both let as many in, have as many wait, and close the others.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder
from barnabas.wire.messages import ApiVersionsRequest
from tests.support.apache_kafka import CONFIG_COMMAND, apache_kafka_broker, run_tool
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at
from tests.support.zookeeper import ZooKeeperServer

PATIENCE_SECONDS: Final = 90.0
TRIES: Final = 3
ASKED: Final = b"".join(request_encoder(ApiKey.API_VERSIONS, 0, "tests")(1, ApiVersionsRequest()))
WINDOWS_SECONDS: Final = 11
SOURCE, UNBOUND = "127.0.0.9", "127.0.0.10"


@pytest.fixture(scope="module")
def ports(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int]]:
    """That of ours, and that of Kafka's."""
    address = f"{zookeeper_server.address}/connection-rates"
    directory = tmp_path_factory.mktemp("connection-rates")
    overrides = {"zookeeper.session.timeout.ms": 6_000}
    ours = BrokerProcess(directory / "ours", 1, address, overrides=overrides)
    with apache_kafka_broker(directory / "theirs", address, 2, overrides=overrides) as theirs:
        ours.start()
        try:
            for port in (ours.port, theirs.port):
                wait_until(lambda: len(brokers_known_at(port)) == 2, "both are known", PATIENCE_SECONDS)  # noqa: B023
            yield ours.port, theirs.port
        finally:
            ours.stop()


def alter(port: int, *arguments: str) -> None:
    run_tool(CONFIG_COMMAND, ["--bootstrap-server", f"127.0.0.1:{port}", "--alter", *arguments])


def answers(port: int, count: int, source: str, seconds: float) -> tuple[list[float], int]:
    """After how many seconds connections that all come at once are answered, in order; and how many are closed."""
    times: list[float] = []
    closed = 0
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        begun = time.monotonic()
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20.0, (source, 0)))
            connection.sendall(ASKED)
            selector.register(connection, selectors.EVENT_READ)
        left = count
        while left and time.monotonic() < begun + seconds:
            for key, _ in selector.select(0.1):
                selector.unregister(key.fileobj)
                left -= 1
                try:
                    is_answered = bool(key.fileobj.recv(4))  # type: ignore[union-attr]
                except OSError:
                    is_answered = False
                if is_answered:
                    times.append(time.monotonic() - begun)
                else:
                    closed += 1
    return times, closed


def quiet() -> None:
    """What has come before counts no more."""
    time.sleep(WINDOWS_SECONDS + 1)


def seen(check: Callable[[], None]) -> None:
    """After a quiet time, which is tried again: seconds are counted, in which a busy machine may do something else."""
    for _ in range(TRIES - 1):
        quiet()
        try:
            check()
        except AssertionError:
            continue
        return
    quiet()
    check()


def test_beyond_the_brokers_rate_both_have_connections_wait(ports: tuple[int, int]) -> None:
    alter(ports[0], "--entity-type", "brokers", "--entity-default", "--add-config", "max.connection.creation.rate=2")

    def both_wait() -> None:
        found = [answers(port, 30, "127.0.0.1", 40.0) for port in ports]
        for times, closed in found:
            assert (len(times), closed) == (30, 0)
        (ours, _), (theirs, _) = found
        soon = [sum(time < 0.3 for time in times) for times in (ours, theirs)]
        assert max(soon) <= 20
        assert min(soon) >= 15
        assert abs(soon[0] - soon[1]) <= 3
        assert ours[-1] == pytest.approx(theirs[-1], abs=3.0)
        assert min(ours[-1], theirs[-1]) > 3.0

    seen(both_wait)
    alter(ports[0], "--entity-type", "brokers", "--entity-default", "--delete-config", "max.connection.creation.rate")


def test_beyond_the_rate_of_an_address_both_close_connections(ports: tuple[int, int]) -> None:
    alter(ports[1], "--entity-type", "ips", "--entity-name", SOURCE, "--add-config", "connection_creation_rate=1")

    def both_close() -> None:
        for port in ports:
            times, closed = answers(port, 15, SOURCE, 10.0)
            assert (len(times), closed) == (10, 5)
            assert max(times) < 0.3
            times, closed = answers(port, 15, UNBOUND, 10.0)
            assert (len(times), closed) == (15, 0)

    seen(both_close)
    alter(ports[0], "--entity-type", "ips", "--entity-name", SOURCE, "--delete-config", "connection_creation_rate")
    for port in ports:
        wait_until(lambda: answers(port, 15, SOURCE, 10.0)[1] == 0, "the rate is gone", PATIENCE_SECONDS)  # noqa: B023


@pytest.mark.night("half a minute or more of waiting, and no commit says that it has found anything")
def test_a_listener_of_ours_is_bound_while_it_runs(ports: tuple[int, int]) -> None:
    key = "listener.name.plaintext.max.connection.creation.rate"
    for broker_id, port in zip((1, 2), ports, strict=True):
        alter(port, "--entity-type", "brokers", "--entity-name", str(broker_id), "--add-config", f"{key}=2")

    def both_wait() -> None:
        for port in ports:
            times, _ = answers(port, 25, "127.0.0.1", 40.0)
            assert len(times) == 25
            assert 15 <= sum(time < 0.3 for time in times) <= 20

    seen(both_wait)
    for broker_id, port in zip((1, 2), ports, strict=True):
        alter(port, "--entity-type", "brokers", "--entity-name", str(broker_id), "--delete-config", key)
    for port in ports:
        # 25 have just come, so that 15 more at once would wait for as long as the rate held.
        wait_until(lambda: max(answers(port, 15, "127.0.0.1", 10.0)[0]) < 0.5, "the rate is gone", PATIENCE_SECONDS)  # noqa: B023
