"""One direction between two machines of a simulation: how long bytes take, and whether they arrive. Also what links and
connections need of the network above them.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from barnabas.testing.profile import NetworkProfile
from barnabas.testing.simulated_loop import SimulatedLoop
from barnabas.testing.trace import Occurrence
from barnabas.testing.world import World


class LinkedNetwork(Protocol):
    """The network, to its parts."""

    @property
    def world(self) -> World: ...
    @property
    def profile(self) -> NetworkProfile: ...
    @property
    def random(self) -> random.Random: ...

    def machine_name(self, address: str) -> str:
        """The name of the machine at an address."""
        ...


class LinkedMachine(Protocol):
    """A machine, to its links."""

    @property
    def name(self) -> str: ...
    @property
    def powered(self) -> bool: ...


class LinkedProcess(Protocol):
    """A process, to the ends of its connections."""

    @property
    def name(self) -> str: ...
    @property
    def loop(self) -> SimulatedLoop: ...
    @property
    def cut(self) -> bool:
        """Nothing that the process does reaches the network any more."""
        ...

    @property
    def ends(self) -> dict[Any, None]:
        """Its ends of connections."""
        ...


class Acceptor(Protocol):
    """A server, to the connections that it has accepted."""

    def connection_is_over(self, transport: Any) -> None:
        """An accepted connection has ended, and its protocol has been told."""
        ...


class Stalled(Protocol):
    """A direction of a connection whose bytes wait for the link."""

    def healed(self) -> None:
        """The link is open again."""
        ...


class Link:
    """One direction between two machines."""

    opposite: Link

    def __init__(self, network: LinkedNetwork, source: LinkedMachine, target: LinkedMachine) -> None:
        self._network = network
        self.source = source
        self.target = target
        self._cut = False
        self._label = network.world.trace.label(f"{source.name}->{target.name}")
        self.latency_seconds = (
            network.profile.loopback_latency_seconds if source is target else network.profile.latency_seconds
        )
        self.bandwidth_bytes_per_second = network.profile.bandwidth_bytes_per_second
        self.stalled: dict[Stalled, None] = {}

    def latency(self) -> float:
        """Seconds that the next bytes take, drawn."""
        least, most = self.latency_seconds
        return least + (most - least) * self._network.random.random()

    def is_open(self) -> bool:
        """Bytes sent now arrive."""
        return not self._cut and self.target.powered and self.source.powered

    def cut(self) -> None:
        """From now on nothing arrives."""
        if not self._cut:
            self._cut = True
            self._network.world.trace.add(self._network.world.now, Occurrence.LINK_CUT, self._label)

    def heal(self) -> None:
        """What is sent arrives again."""
        if self._cut:
            self._cut = False
            self._network.world.trace.add(self._network.world.now, Occurrence.LINK_HEALED, self._label)
        self.look_again()

    def look_again(self) -> None:
        """Moves on what stalled, in either direction, if nothing stands in its way any more."""
        for link in (self, self.opposite):
            if link.is_open():
                stalled, link.stalled = link.stalled, {}
                for pipe in stalled:
                    pipe.healed()
