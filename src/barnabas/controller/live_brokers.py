"""Reads the registrations in `/brokers/ids`, as steps of an event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from barnabas.controller.effects import Steps, operate
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.brokers import BROKER_IDS_PATH, BrokerRegistration, broker_id_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import GetChildren, GetData
from barnabas.coordination.protocol import Stat


@dataclass(frozen=True, slots=True)
class RegisteredBrokers:
    """The registered brokers, in the order of their ids: the brokers that can be used, the znodes of those whose
    registration cannot be read (the czxid is the broker's epoch), and the ids of all that cannot be used, these among
    them.
    """

    usable: dict[int, LiveBroker] = field(default_factory=dict)
    unreadable: dict[int, Stat] = field(default_factory=dict)
    unusable: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BrokerReader:
    """Reads registrations, and leaves the watches of the term at them. `features` are the finalized levels, which a
    broker must support to be counted (KIP-584).
    """

    watches: ControllerWatches
    features: Mapping[str, int]
    logger: logging.Logger

    def read_all(self) -> Steps[RegisteredBrokers]:
        """Everybody."""
        (children,) = yield from operate([GetChildren(BROKER_IDS_PATH, self.watches.brokers)])
        if isinstance(children, Exception):
            raise children
        broker_ids = sorted(int(name) for name in children.names if name.isdecimal())
        return (yield from self._read(broker_ids))

    def read_one(self, broker_id: int) -> Steps[RegisteredBrokers]:
        """Reads one registration; empty when the broker is gone."""
        return (yield from self._read([broker_id]))

    def _read(self, broker_ids: list[int]) -> Steps[RegisteredBrokers]:
        reads = [GetData(broker_id_path(broker_id), self.watches.broker(broker_id)) for broker_id in broker_ids]
        outcomes = yield from operate(reads)
        found = RegisteredBrokers()
        for broker_id, outcome in zip(broker_ids, outcomes, strict=True):
            if isinstance(outcome, NoNodeError):
                continue
            if isinstance(outcome, Exception):
                raise outcome
            try:
                registration = BrokerRegistration.decode(outcome.data, broker_id_path(broker_id))
            except LayoutError as error:
                self.logger.warning("Ignoring broker %d, whose registration cannot be read: %s", broker_id, error)
                found.unreadable[broker_id] = outcome.stat
                found.unusable.append(broker_id)
                continue
            missing = self._unsupported(registration)
            if missing:
                self.logger.warning(
                    "Ignoring broker %d, which does not support the finalized features %s", broker_id, missing
                )
                found.unusable.append(broker_id)
                continue
            found.usable[broker_id] = LiveBroker(broker_id, outcome.stat.czxid, registration)
        return found

    def _unsupported(self, registration: BrokerRegistration) -> dict[str, int]:
        return {
            name: level
            for name, level in self.features.items()
            if (versions := registration.features.get(name)) is None
            or not versions.min_version <= level <= versions.max_version
        }
