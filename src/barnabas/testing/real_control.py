"""How a test reaches into a process of its cluster: orders and answers, lines of JSON through a pair of sockets.

The process has its end from its start (`barnabas broker --faults DESCRIPTOR`), and nobody else can have one.
"""

from __future__ import annotations

import json
import socket
from typing import Any, Final

from barnabas.testing.real_node import NodeError

ANSWER_SECONDS_MAX: Final = 30.0
READ_BYTES: Final = 65_536


class Control:
    """The test's end; used by one thread at a time."""

    def __init__(self, name: str, greeting: dict[str, Any]) -> None:
        """`name` is that of the process, which reads `greeting` before it does anything."""
        self._name = name
        self._own, self._theirs = socket.socketpair()
        self._own.settimeout(ANSWER_SECONDS_MAX)
        self._number = 0
        self._rest = b""
        self._own.sendall(json.dumps(greeting).encode() + b"\n")

    @property
    def descriptor(self) -> int:
        """The end of the process, to be given to it; it stays open here until `was_given`."""
        return self._theirs.fileno()

    def was_given(self) -> None:
        """The process has its end, or there is none."""
        self._theirs.close()

    def ask(self, order: str, **arguments: Any) -> Any:
        """Has the process do something, and returns what it answers. Raises NodeError."""
        try:
            self._send(order, arguments)
            # One that was given up may still be answered.
            while (answer := json.loads(self._line()))["number"] != self._number:
                pass
        except TimeoutError:
            raise NodeError(f"{self._name} did not do that within {ANSWER_SECONDS_MAX:g} s") from None
        except (OSError, EOFError) as error:
            raise NodeError(f"{self._name} has ended: {error}") from error
        if "error" in answer:
            raise NodeError(f"{self._name}: {answer['error']}")
        return answer["answer"]

    def tell(self, order: str, **arguments: Any) -> None:
        """Has the process do something, as soon as it runs, and does not wait for that. Raises NodeError."""
        try:
            self._send(order, arguments)
        except OSError as error:
            raise NodeError(f"{self._name} has ended: {error}") from error

    def close(self) -> None:
        self._own.close()
        self._theirs.close()

    # Inside.

    def _send(self, order: str, arguments: dict[str, Any]) -> None:
        self._number += 1
        asked = {"number": self._number, "order": order, "arguments": arguments}
        self._own.sendall(json.dumps(asked).encode() + b"\n")

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            data = self._own.recv(READ_BYTES)
            if not data:
                raise EOFError("nobody reads its orders any more")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line
