"""A broker of ours and one of Apache Kafka 3.9.1 on one ZooKeeper, which log in at each other, and what is said to
either on a plain connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.kernel.steps import at_once
from barnabas.sasl.errors import SaslError
from barnabas.sasl.mechanisms import Login
from barnabas.wire.codec import request_encoder, response_decoder
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support.apache_kafka import CONFIG_COMMAND, ApacheKafkaBroker, run_tool
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.sasl_cluster import PASSWORD, USER, listener_properties
from tests.support.waiting import wait_until
from tests.support.wire_calls import metadata
from tests.support.zookeeper import ZooKeeperServer

OURS, THEIRS = 1, 2
PATIENCE_SECONDS: Final = 90.0
BROKERS_PASSWORD = "brokers' own"
SESSION_MS = 2_000_000
ALICE: Final[Mapping[str, str]] = {USER: PASSWORD}
NO_OVERRIDES: Final[Mapping[str, object]] = {}


class Pair:
    """Both brokers; `sasl_ports` are where they want a login."""

    def __init__(
        self, directory: Path, *, passwords: Mapping[str, str] = ALICE, overrides: Mapping[str, object] = NO_OVERRIDES
    ) -> None:
        """`passwords` are those of users by SCRAM, beside the brokers' own."""
        self._passwords = passwords
        self._overrides = overrides
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.ports = {OURS: free_port(), THEIRS: free_port()}
        self.sasl_ports = {OURS: free_port(), THEIRS: free_port()}
        self._directory = directory
        self.brokers: dict[int, BrokerProcess | ApacheKafkaBroker] = {}

    @property
    def sasl_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.sasl_ports.values())

    def start(self) -> None:
        self.zookeeper.start()
        address = self.zookeeper.address
        for user, password, mechanisms in (
            ("broker", BROKERS_PASSWORD, ("SCRAM-SHA-256",)),
            *((user, password, ("SCRAM-SHA-256", "SCRAM-SHA-512")) for user, password in self._passwords.items()),
        ):
            added = ",".join(f"{mechanism}=[iterations=8192,password={password}]" for mechanism in mechanisms)
            alter = ("--alter", "--entity-type", "users", "--entity-name", user, "--add-config", added)
            run_tool(CONFIG_COMMAND, ["--zookeeper", address, *alter])
        for broker_id in (OURS, THEIRS):
            port, sasl_port = self.ports[broker_id], self.sasl_ports[broker_id]
            overrides = listener_properties(
                port,
                sasl_port,
                **{
                    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
                    "connections.max.reauth.ms": SESSION_MS,
                    "zookeeper.session.timeout.ms": 6_000,
                    **self._overrides,
                },
            )
            directory = self._directory / str(broker_id)
            if broker_id == OURS:
                self.brokers[broker_id] = BrokerProcess(directory, broker_id, address, port=port, overrides=overrides)
            else:
                self.brokers[broker_id] = ApacheKafkaBroker(
                    directory, address, broker_id, port=port, overrides=overrides
                )
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.wait_until_ready()
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        for port in self.ports.values():
            wait_until(
                lambda: len(metadata(port).brokers) == 2,  # noqa: B023 - called in this turn
                "both know both",
                PATIENCE_SECONDS,
            )

    def controller(self) -> int:
        return int(metadata(self.ports[OURS]).controller_id)

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.zookeeper.kill()


@dataclass(frozen=True)
class Sent:
    """A request; or bytes without a header; `shown` picks of the response what has to be alike."""

    message: Any
    version: int = 0
    shown: Callable[[Any], Any] = repr


class Wire:
    """One connection; what comes back to each request, or "closed"."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20.0)
        self.lifetime_ms = 0

    def say(self, sent: Sent) -> Any:
        if isinstance(sent.message, bytes):
            frame = struct.pack(">i", len(sent.message)) + sent.message
        else:
            encode = request_encoder(type(sent.message).SCHEMA.api_key, sent.version, "tests")
            frame = b"".join(encode(1, sent.message))
        try:
            self._socket.sendall(frame)
            size = struct.unpack(">i", self._receive(4))[0]
            answer = self._receive(size)
        except OSError:
            return "closed"
        if isinstance(sent.message, bytes):
            return answer
        return sent.shown(response_decoder(type(sent.message).SCHEMA.api_key, sent.version)(answer, 0, size)[0])

    def is_open(self, seconds: float = 0.5) -> bool:
        """Whether it stays open for so long after an answer."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(1) != b""
        except TimeoutError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data


def of_handshake(answer: Any) -> Any:
    return ErrorCode.for_code(answer.error_code).name, sorted(answer.mechanisms)  # Kafka's order is that of a set


def of_authenticate(answer: Any) -> Any:
    code = ErrorCode.for_code(answer.error_code).name
    return code, answer.error_message, bool(answer.auth_bytes), answer.session_lifetime_ms


def error_only(answer: Any) -> Any:
    return ErrorCode.for_code(answer.error_code).name


def handshake(mechanism: str = "PLAIN", version: int = 1) -> Sent:
    return Sent(SaslHandshakeRequest(mechanism=mechanism), version, of_handshake)


def authenticate(token: bytes, version: int = 2) -> Sent:
    return Sent(SaslAuthenticateRequest(auth_bytes=token), version, of_authenticate)


def scram(port: int, mechanism: str, user: str, password: str, *, is_token: bool = False) -> Any:
    """None when the login is taken, else what the broker says, or our end of it."""
    wire = Wire(port)
    try:
        return log_in(wire, mechanism, user, password, is_token=is_token)
    finally:
        wire.close()


def log_in(wire: Wire, mechanism: str, user: str, password: str, *, is_token: bool = False) -> Any:
    """As `scram`, on a connection that stays; `wire.lifetime_ms` is what the broker has said of the session."""
    try:
        wire.say(handshake(mechanism))
        exchange = Login(mechanism, user, password, is_token=is_token).exchange(lambda count: bytes(range(count)))
        message: bytes | None = exchange.begin()
        while message is not None:
            answer = wire.say(Sent(SaslAuthenticateRequest(auth_bytes=message), 2, lambda response: response))
            if answer == "closed" or answer.error_code:
                return answer if answer == "closed" else (answer.error_code, answer.error_message)
            wire.lifetime_ms = answer.session_lifetime_ms
            message = at_once(exchange.answer(bytes(answer.auth_bytes)))
    except SaslError as error:
        return str(error)
    return None
