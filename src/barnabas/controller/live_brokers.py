"""Who is registered in `/brokers/ids`, as steps of an event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.controller.context import LiveBroker
from barnabas.controller.effects import Steps, operate
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.brokers import BROKER_IDS_PATH, BrokerRegistration, broker_id_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import GetChildren, GetData


@dataclass(frozen=True, slots=True)
class BrokerReader:
    """Reads registrations, and leaves the watches of the term at them. `features` are the finalized levels, which a
    broker must support to be counted (KIP-584).
    """

    watches: ControllerWatches
    features: Mapping[str, int]
    logger: logging.Logger

    def read_all(self) -> Steps[dict[int, LiveBroker]]:
        """The registered brokers by id, in the order of their ids."""
        (children,) = yield from operate([GetChildren(BROKER_IDS_PATH, self.watches.brokers)])
        if isinstance(children, Exception):
            raise children
        broker_ids = sorted(int(name) for name in children.names if name.isdecimal())
        found = yield from self._read(broker_ids)
        return {broker.broker_id: broker for broker in found}

    def read_one(self, broker_id: int) -> Steps[LiveBroker | None]:
        """One registration; None when it is gone or cannot be used."""
        found = yield from self._read([broker_id])
        return found[0] if found else None

    def _read(self, broker_ids: list[int]) -> Steps[list[LiveBroker]]:
        reads = [GetData(broker_id_path(broker_id), self.watches.broker(broker_id)) for broker_id in broker_ids]
        outcomes = yield from operate(reads)
        found = []
        for broker_id, outcome in zip(broker_ids, outcomes, strict=True):
            if isinstance(outcome, NoNodeError):
                continue
            if isinstance(outcome, Exception):
                raise outcome
            try:
                registration = BrokerRegistration.decode(outcome.data, broker_id_path(broker_id))
            except LayoutError as error:
                self.logger.warning("Ignoring broker %d, whose registration cannot be read: %s", broker_id, error)
                continue
            missing = self._unsupported(registration)
            if missing:
                self.logger.warning(
                    "Ignoring broker %d, which does not support the finalized features %s", broker_id, missing
                )
                continue
            found.append(LiveBroker(broker_id, outcome.stat.czxid, registration))
        return found

    def _unsupported(self, registration: BrokerRegistration) -> dict[str, int]:
        return {
            name: level
            for name, level in self.features.items()
            if (versions := registration.features.get(name)) is None
            or not versions.min_version <= level <= versions.max_version
        }
