"""One broker that is registered, as the controller knows it."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.coordination.layout.brokers import BrokerRegistration


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; `epoch` is the czxid of its registration."""

    broker_id: int
    epoch: int
    registration: BrokerRegistration
