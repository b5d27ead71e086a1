"""Faults put into the bounds of connections: the plan `connections` has to find them (KIP-612, 0011)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from barnabas.network.server import NetworkServer
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.testing.cluster_plans import CONNECTIONS
from tests.simulation.mutants import Mutant

if TYPE_CHECKING:
    import pytest

    from barnabas.network.config import ListenerConfig


def keep_brokers_out(patch: pytest.MonkeyPatch) -> None:
    """max.connections counts for brokers as for clients, as it once did."""
    reason_to_refuse = NetworkServer._reason_to_refuse

    def refuse(self: NetworkServer, address: str, listener: ListenerConfig) -> str | None:
        return reason_to_refuse(self, address, dataclasses.replace(listener, is_protected=False))

    patch.setattr(NetworkServer, "_reason_to_refuse", refuse)


def forget_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who has waited to be let in waits on, and all behind it."""
    patch.setattr("barnabas.network.admission.Admission._end", lambda _self, _line: None)


def count_those_that_have_gone(patch: pytest.MonkeyPatch) -> None:
    """A client that ended is not taken off the number of all."""
    closed = NetworkServer.closed

    def close(self: NetworkServer, connection: object) -> None:
        before = self._limited
        closed(self, connection)  # type: ignore[arg-type]
        self._limited = before

    patch.setattr(NetworkServer, "closed", close)


def wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What was counted is never over: connections are made in ever longer intervals."""
    patch.setattr(ConnectionRates, "accept", lambda _self, *_arguments, **_named: 60.0)


CONNECTION_MUTANTS = (
    Mutant("brokers are kept out", CONNECTIONS, keep_brokers_out),
    Mutant("the line of those that wait does not move", CONNECTIONS, forget_nobody),
    Mutant("connections that ended are counted", CONNECTIONS, count_those_that_have_gone),
    Mutant("connections wait a minute", CONNECTIONS, wait_for_ever),
)
