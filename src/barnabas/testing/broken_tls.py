"""Connections that break where TLS is in the middle of something: a handshake, or a record.

A pipe to or from a broker is armed: so many bytes later it delivers a part of what is sent and ends, is reset, falls
silent, or has one bit turned. What comes of that is the ends' affair: the one who reads must never be given a byte that
was not sent.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.link.tls import TlsConnection

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from barnabas.testing.simulated_connection import Pipe, SimulatedTransport
    from barnabas.testing.simulation import Simulation

HANDSHAKE_BYTES: Final = 2_500
"""About what both ends say in one."""
RECORD_BYTES: Final = 20_000
COVERAGE: Final = ("broken TLS: amid a handshake", "broken TLS: amid records", "broken TLS: a bit turned")


class _How(enum.Enum):
    END = "end"
    RESET = "reset"
    SILENCE = "silence"
    BIT = "bit"


class BrokenTls:
    """Breaks connections of one port."""

    def __init__(self, simulation: Simulation, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self._port = port
        self._simulation = simulation
        self._machines = simulation.machines
        self._random: random.Random = simulation.world.random("broken TLS")
        self._wanted: list[Callable[[], object]] = []
        """For the next connections that are made: what is told when they have broken."""
        simulation.network.when_joined = self._joined

    def strike(self, happened: Callable[[], object]) -> bool:
        """Breaks a connection that there is, or, as often, the next that is made; False where there is none."""
        if self._random.random() < 0.5:
            self._wanted.append(happened)
            return True
        ends = [
            end
            for machine in self._machines.values()
            for process in machine.port.processes
            for end in process.ends
            if end.get_extra_info("sockname")[1] == self._port and not end.gone
        ]
        if not ends:
            return False
        self._arm(self._random.choice(ends), self._random.randrange(RECORD_BYTES), happened)
        return True

    def _joined(self, end: SimulatedTransport) -> None:
        if self._wanted and end.get_extra_info("peername")[1] == self._port:
            self._arm(end, self._random.randrange(HANDSHAKE_BYTES), self._wanted.pop(0))

    def _arm(self, end: SimulatedTransport, after_bytes: int, happened: Callable[[], object]) -> None:
        pipe = self._random.choice((end.outward, end.inward))
        how, left = self._random.choice(list(_How)), after_bytes

        def spoiled(data: bytes | None) -> bytes | None:
            nonlocal left
            if data is None or left >= len(data):
                left -= 0 if data is None else len(data)
                return data
            happened()
            return self._break(pipe, data, left, how)

        pipe.spoil = spoiled

    def _break(self, pipe: Pipe, data: bytes, at: int, how: _How) -> bytes:
        """What is sent of these bytes."""
        protocols = [end.protocol for end in (pipe.sender, pipe.receiver)]
        amid_handshake = any(isinstance(each, TlsConnection) and not each.secured.done() for each in protocols)
        self.counts[f"broken TLS: amid {'a handshake' if amid_handshake else 'records'}"] += 1
        if how is _How.BIT:
            pipe.spoil = None
            turned = bytearray(data)
            turned[at] ^= 1 << self._random.randrange(8)
            self.counts["broken TLS: a bit turned"] += 1
            return bytes(turned)
        pipe.spoil = _swallow
        if how is _How.RESET:
            pipe.reset()
            pipe.sender.break_off(ConnectionResetError("broken"))
            return b""
        if how is _How.END:
            self._simulation.after(0.0, pipe.end)
        return data[:at]


def _swallow(_data: bytes | None) -> bytes:
    return b""
