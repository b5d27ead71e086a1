"""The faults of the process that it is in: a broker or a coordinator of a test's cluster, started with `--faults`.

The process is the one of `barnabas broker`, but that its files may be slow and its connections held up, as in a node
of a cluster in the test's own process; what is to happen it is told by the test (`real_control`).
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.kernel.real_host import RealHost, run
from barnabas.testing.real_connections import ConnectionTable
from barnabas.testing.real_control import READ_BYTES
from barnabas.testing.real_disk import NodeFiles
from barnabas.testing.real_links import NodeLinks, linked_loop
from barnabas.testing.request_faults import RequestFault, RequestFaults, error_named
from barnabas.testing.session_faults import epochs_seen_by, expire_session, present_epoch
from barnabas.wire.api_keys import ApiKey

if TYPE_CHECKING:
    import asyncio

    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.server.broker import Broker

Result = TypeVar("Result")


class ProcessFaults:
    """What the test may order; `run` the process with it, and say what it is by `of_broker` or `of_coordinator`."""

    def __init__(self, descriptor: int) -> None:
        """Raises OSError where `descriptor` is not the end of a pair of sockets that a test has made."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._rest = b""
        greeting = json.loads(self._greeting())
        self._table = ConnectionTable(greeting["connections"], greeting["owners"])
        self._files = NodeFiles(durable=True)
        self._links = NodeLinks()
        self._links.share(self._table, greeting["owner"])
        self._orders: dict[str, Callable[..., Any]] = {
            "cut": self._links.cut,
            "heal": self._links.heal,
            "slow down": self._files.slow_down,
        }

    def run(self, main: Callable[[RealHost], Coroutine[Any, Any, Result]], name: str) -> Result:
        """As `real_host.run`."""

        async def on_host(host: RealHost) -> Result:
            return await main(dataclasses.replace(host, files=self._files))

        return run(on_host, name=name, loop_factory=lambda: linked_loop(self._links))

    def of_broker(self, broker: Broker) -> None:
        """From now on the test is heard. What asks for requests needs a broker that serves."""
        made: list[RequestFaults] = []

        def faults() -> RequestFaults:
            if not made:
                made.append(RequestFaults(broker, self._links, self._table.has))
            return made[0]

        self._orders |= {
            "add": lambda **fault: faults().add(_fault(**fault)),
            "left": lambda api_key: faults().left(ApiKey(api_key)) if made else 0,
            "clear": lambda: faults().clear() if made else None,
            "epochs seen": lambda: list(epochs_seen_by(broker).items()),
        }
        self._listen(broker.host.loop)

    def of_coordinator(self, coordinator: EmbeddedCoordinator, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the test is heard."""
        self._orders |= {
            "expire": lambda broker_id: expire_session(coordinator, broker_id),
            "epoch": lambda broker_id: present_epoch(coordinator, broker_id),
        }
        self._listen(loop)

    # Inside.

    def _greeting(self) -> bytes:
        """The first line, which is there before the process is."""
        while b"\n" not in self._rest:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the test that has started this process is gone")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        descriptor = self._socket.fileno()

        def read() -> None:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                data = b""
            if not data:  # the test is gone, and the process ends by itself (`--stop-with-parent`)
                loop.remove_reader(descriptor)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._socket.sendall(self._answer(json.loads(line)))

        loop.add_reader(descriptor, read)

    def _answer(self, asked: dict[str, Any]) -> bytes:
        said: dict[str, Any] = {"number": asked["number"]}
        try:
            said["answer"] = self._orders[asked["order"]](**asked["arguments"])
        except Exception as error:  # noqa: BLE001 - who has asked is told, and the process goes on
            said["error"] = f"{type(error).__name__}: {error}"
        return json.dumps(said).encode() + b"\n"


def _fault(api_key: int, error: int | None, **others: Any) -> RequestFault:
    return RequestFault(ApiKey(api_key), error=None if error is None else error_named(error), **others)
