"""Who has a connection at a small server of HTTP: bounded for each step of a request, and shared out by address.

By nothing but how far it comes is a client told from a flood, above all where both have the same address (a proxy, or
who scrapes and something beside it). So the connections that have come equally far have places of their own, and
none of those that have come less far takes one. For one more, that goes which has had its place longest, of the address
that has most of them: who goes on at once keeps his, and no address keeps another out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Protocol

COME_MAX: Final = 256
"""How many there may be that have only come, in whichever server: as many may be amid their handshakes."""


class Step(enum.Enum):
    """How far a connection has come; it only goes forward."""

    COME = "come"
    BEGUN = "begun"  # its handshake is over, or, without TLS, the first bytes of its request have come
    ASKED = "asked"  # its request has come, and its answer is being made
    ANSWERED = "answered"  # its answer is made, and not taken yet


class Held(Protocol):
    """A connection."""

    @property
    def peer(self) -> str:
        """The other end's address, without its port."""
        ...

    def abort(self) -> None: ...


class Places:
    """Those of one server."""

    def __init__(self, bounds: Mapping[Step, int]) -> None:
        """`bounds` has how many connections there may be of each step, one at least."""
        self._bounds = bounds
        self._step: dict[Held, Step] = {}
        self._by_address: dict[Step, dict[str, dict[Held, None]]] = {step: {} for step in Step}
        self._counts = dict.fromkeys(Step, 0)

    @property
    def held(self) -> list[Held]:
        """All that have a place."""
        return list(self._step)

    def count(self, step: Step) -> int:
        """How many have come so far, and no further."""
        return self._counts[step]

    def step(self, connection: Held) -> Step | None:
        """How far it has come; None where it has no place."""
        return self._step.get(connection)

    def enter(self, connection: Held) -> None:
        """A connection has come."""
        self._take(connection, Step.COME)

    def go_on(self, connection: Held, step: Step) -> bool:
        """It has come further. False where it has lost its place meanwhile, or does now: it is to be closed.

        Whom an answer is being made for is cut off for nobody; and of one address these are three quarters at most.
        """
        if connection not in self._step:
            return False
        self.leave(connection)
        return self._take(connection, step)

    def leave(self, connection: Held) -> None:
        """It is over. Does nothing where it has no place."""
        step = self._step.pop(connection, None)
        if step is None:
            return
        addresses = self._by_address[step]
        own = addresses[connection.peer]
        del own[connection]
        if not own:
            del addresses[connection.peer]
        self._counts[step] -= 1

    # Inside.

    def _take(self, connection: Held, step: Step) -> bool:
        address, addresses, bound = connection.peer, self._by_address[step], self._bounds[step]
        is_full = self._counts[step] >= bound
        if step is Step.ASKED:
            if is_full or len(addresses.get(address, ())) >= max(bound * 3 // 4, 1):
                return False
        elif is_full:
            # It counts with those of its address; and they go first where another address has as many.
            most = max(addresses, key=lambda each: (len(addresses[each]) + (each == address), each == address))
            longest = next(iter(addresses[most]))
            self.leave(longest)
            longest.abort()
        self._step[connection] = step
        addresses.setdefault(address, {})[connection] = None
        self._counts[step] += 1
        return True
