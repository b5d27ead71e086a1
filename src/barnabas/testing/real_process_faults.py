"""The faults of the process that it is in: a broker or a coordinator of a test's cluster, started with `--faults`.

The process is the one of `barnabas broker`, but that its files may be slow and its connections held up, as in a node
of a cluster in the test's own process; what is to happen it is told by the test (`real_control`).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
_AT_ONCE: Final = frozenset({"slow down"})
"""Orders that do not wait for a turn of the loop, which may be waiting for its disk."""
_SIGNAL_AT_END_OF_PARENT: Final = 1
"""PR_SET_PDEATHSIG of prctl(2): Python has no call."""


class ProcessFaults:
    """What the test may order; `run` the process with it, and say what it is by `of_broker` or `of_coordinator`."""

    def __init__(self, descriptor: int) -> None:
        """Raises OSError where `descriptor` is not the end of a pair of sockets that a test has made."""
        self._rest = b""
        try:
            self._socket = socket.socket(fileno=descriptor)
            self._socket.set_inheritable(False)
            greeting = json.loads(self._greeting())
            self._table = ConnectionTable(greeting["connections"], greeting["owners"])
            owner, self._ports_cut = greeting["owner"], greeting["cut"]
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise OSError(f"--faults is for tests of barnabas.testing: nothing is to be had by {descriptor}") from error
        _go_on_when_parent_ends()
        self._files = NodeFiles(durable=True)
        self._links = NodeLinks()
        self._links.share(self._table, owner)
        self._saying = threading.Lock()
        self._orders: dict[str, Callable[..., Any]] = {
            "cut": self._links.cut,
            "heal": self._links.heal,
            "slow down": self._files.slow_down,
        }

    def run(self, main: Callable[[RealHost], Coroutine[Any, Any, Result]], name: str) -> Result:
        """As `real_host.run`."""

        async def on_host(host: RealHost) -> Result:
            self._links.cut(self._ports_cut)
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
        def listen() -> None:
            with contextlib.suppress(OSError, RuntimeError):  # nobody is there, or the loop has ended
                while data := self._socket.recv(READ_BYTES):
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    for asked in map(json.loads, lines):
                        if asked["order"] in _AT_ONCE:
                            self._carry_out(asked)
                        else:
                            loop.call_soon_threadsafe(self._carry_out, asked)

        # When the test is gone the process ends by itself (`--stop-with-parent`).
        threading.Thread(target=listen, name="faults", daemon=True).start()

    def _carry_out(self, asked: dict[str, Any]) -> None:
        answer = self._answer(asked)
        with self._saying, contextlib.suppress(OSError):
            self._socket.sendall(answer)

    def _answer(self, asked: dict[str, Any]) -> bytes:
        said: dict[str, Any] = {"number": asked["number"]}
        try:
            said["answer"] = self._orders[asked["order"]](**asked["arguments"])
        except Exception as error:  # noqa: BLE001 - who has asked is told, and the process goes on
            said["error"] = f"{type(error).__name__}: {error}"
        return json.dumps(said).encode() + b"\n"


def _fault(api_key: int, error: int | None, **others: Any) -> RequestFault:
    return RequestFault(ApiKey(api_key), error=None if error is None else error_named(error), **others)


def _go_on_when_parent_ends() -> None:
    """Who is paused when the test is killed goes on then, and hears that it is to stop. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_END_OF_PARENT, signal.SIGCONT)
