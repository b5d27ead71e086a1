"""How many connections a broker accepts in a second (KIP-612): all in all, by each listener, and from one address.

As Kafka's `ConnectionQuotas`: each connection is recorded when its turn comes, and waits a window at most where that is
beyond a bound. A connection that its address must not make is taken off the other rates again. The broker's
own bound does not count what comes by the listener of brokers, where that is not the only one.
"""

from __future__ import annotations

from typing import Final

from barnabas.quotas.rate import Rate
from barnabas.quotas.settings import ClientQuotaSettings

UNLIMITED: Final = 2**31 - 1
ADDRESSES_MAX: Final = 16_384
"""Addresses with a bound whose rates are kept; with more, that of the one that was quiet for longest is forgotten."""


class _Limited:
    """A rate and its bound."""

    __slots__ = ("bound", "latest", "rate")

    def __init__(self, rate: Rate, bound: int = UNLIMITED) -> None:
        self.rate = rate
        self.bound = bound
        self.latest = 0.0


class ConnectionRates:
    """Those of one broker. Times are seconds of one clock that only grows."""

    def __init__(self, settings: ClientQuotaSettings) -> None:
        self._settings = settings
        self._broker = _Limited(self._rate())
        self._listeners: dict[str, _Limited] = {}
        self._addresses: dict[str, _Limited] = {}
        """The quietest first."""
        self._bounds: dict[str, int] = {}
        self._default = UNLIMITED

    def _rate(self) -> Rate:
        return Rate(self._settings.window_count, self._settings.window_seconds)

    def limit_broker(self, bound: int) -> None:
        """`max.connection.creation.rate`."""
        self._broker.bound = bound

    def limit_listener(self, listener: str, bound: int) -> None:
        """`listener.name.NAME.max.connection.creation.rate`, or the broker's."""
        self._of_listener(listener).bound = bound

    def limit_address(self, address: str | None, bound: int | None) -> None:
        """`connection_creation_rate` of an address, or of all that have none of their own; None: there is none."""
        if address is None:
            self._default = UNLIMITED if bound is None else bound
        elif bound is None:
            self._bounds.pop(canonical(address), None)
        else:
            self._bounds[canonical(address)] = bound

    def accept(self, listener: str, now: float, *, is_protected: bool = False) -> float:
        """Records a connection that has its turn; returns how many seconds it is to wait, and all behind it."""
        rates = [self._of_listener(listener)] if is_protected else [self._broker, self._of_listener(listener)]
        return max([self._record(limited, now) for limited in rates])

    def accept_from(self, address: str, listener: str, now: float, *, is_protected: bool = False) -> float:
        """Records by its address a connection that was recorded before; returns 0.0, or in how many seconds it is to be
        closed, and is taken off all rates then.
        """
        address = canonical(address) if self._bounds or self._default != UNLIMITED else address
        bound = self._bounds.get(address, self._default)
        if bound == UNLIMITED:
            return 0.0
        limited = self._of_address(address, now)
        limited.bound = bound
        seconds = self._record(limited, now)
        if seconds > 0:
            taken_off = [limited, self._of_listener(listener)]
            for each in taken_off if is_protected else [*taken_off, self._broker]:
                each.rate.record(-1, now)
        return seconds

    def measure(self, listener: str | None, now: float) -> float:
        """How many connections in a second came by the listener of late, or by all together."""
        return (self._broker if listener is None else self._of_listener(listener)).rate.measure(now)

    @property
    def addresses(self) -> int:
        """Of how many addresses rates are kept."""
        return len(self._addresses)

    def _record(self, limited: _Limited, now: float) -> float:
        limited.rate.record(1, now)
        return min(limited.rate.throttle_seconds(limited.bound, now), self._settings.window_seconds)

    def _of_listener(self, listener: str) -> _Limited:
        limited = self._listeners.get(listener)
        if limited is None:
            limited = self._listeners[listener] = _Limited(self._rate())
        return limited

    def _of_address(self, address: str, now: float) -> _Limited:
        limited = self._addresses.pop(address, None) or _Limited(self._rate())
        limited.latest = now
        self._addresses[address] = limited
        # After all windows it would begin anew anyway.
        expired = now - self._settings.window_count * self._settings.window_seconds
        while True:
            quietest = next(iter(self._addresses))
            if self._addresses[quietest].latest > expired and len(self._addresses) <= ADDRESSES_MAX:
                return limited
            del self._addresses[quietest]


def canonical(address: str) -> str:
    """An IP address in one form, in which IPv4 that is mapped into IPv6 is IPv4; any other text as it is."""
    if ":" not in address:
        return address
    import ipaddress  # few brokers have such clients

    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or parsed)
