"""A server of S3's protocol (S3Proxy 2.6.0, which keeps objects as files), and a door before it that can be hurt."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.apache_kafka_jars import S3PROXY, class_path
from tests.support.java import java
from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.waiting import wait_until

BUCKET = "tier"
READY_SECONDS = 60.0
_CHUNK_BYTES = 16 * 1024
_TRICKLE_SECONDS = 0.2
_STANDS_SECONDS = 0.05
_REFUSAL = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 63\r\nConnection: close\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>try later</Message></Error>"
)


class Weather(enum.Enum):
    """What becomes of what a client sends."""

    FAIR = enum.auto()
    TRICKLE = enum.auto()
    """It reaches the server, 16 KiB at a time, five times a second."""
    STANDS = enum.auto()
    """Nothing comes or goes."""
    REFUSES = enum.auto()
    """Each connection is answered with status 503 and closed."""
    BREAKS = enum.auto()
    """Each connection is closed after 16 KiB."""


class Door:
    """Where clients connect; `weather` counts at once, for connections that are there too."""

    def __init__(self, server_port: int) -> None:
        self.weather = Weather.FAIR
        self.bytes_sent = 0
        """Of clients, to the server."""
        self.connections = 0
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._is_open = False
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port))
        except OSError:
            client.close()
            return
        self._sockets.append(server)
        threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()
        self._pass_on(client, server, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        sent = 0
        try:
            while data := source.recv(_CHUNK_BYTES):
                while self.weather is Weather.STANDS and self._is_open:
                    time.sleep(_STANDS_SECONDS)
                if is_request:
                    if self.weather is Weather.REFUSES:
                        source.sendall(_REFUSAL)
                        break
                    if self.weather is Weather.BREAKS and sent >= _CHUNK_BYTES:
                        break
                    if self.weather is Weather.TRICKLE:
                        time.sleep(_TRICKLE_SECONDS)
                    self.bytes_sent += len(data)
                target.sendall(data)
                sent += len(data)
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class S3Server:
    """One bucket, `BUCKET`, for who has the key; `door` is where to connect."""

    def __init__(self, directory: Path) -> None:
        self.objects = directory / "objects" / BUCKET
        """The files that the objects are."""
        self.objects.mkdir(parents=True)
        port = free_port()
        properties = directory / "s3proxy.conf"
        properties.write_text(
            f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
            "s3proxy.authorization=aws-v2-or-v4\n"
            "s3proxy.identity=barnabas\n"
            "s3proxy.credential=secret\n"
            "jclouds.provider=filesystem\n"
            f"jclouds.filesystem.basedir={self.objects.parent}\n"
        )
        logging = directory / "logback.xml"
        logging.write_text(
            '<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>'
            "%d %level %msg%n</pattern></encoder></appender>"
            '<root level="WARN"><appender-ref ref="OUT"/></root></configuration>'
        )
        options = ("-Xmx256m", f"-Dlogback.configurationFile={logging}", "-cp", class_path(S3PROXY))
        main = ("org.gaul.s3proxy.Main", "--properties", properties)
        self.process = ServerProcess("s3proxy", [java().executable, *options, *main], directory / "s3proxy.log")
        self._port = port
        self.door = Door(port)

    @property
    def options(self) -> dict[str, Any]:
        """What s3fs is to be given. S3Proxy does not know the checksums that newer clients send unasked."""
        return {
            "key": "barnabas",
            "secret": "secret",
            "endpoint_url": f"http://127.0.0.1:{self.door.port}",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "connect_timeout": 2,
                "read_timeout": 1,
                "retries": {"max_attempts": 0},
            },
        }

    def start(self) -> None:
        self.process.start()
        wait_until(self._answers, "S3Proxy answers", READY_SECONDS, self.process.log_tail)

    def stop(self) -> None:
        self.door.close()
        self.process.kill()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/", timeout=5).close()
        except urllib.error.HTTPError:
            return True  # it wants a key
        except OSError:
            return False
        return True


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """A running server; it is ended with the block."""
    server = S3Server(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
