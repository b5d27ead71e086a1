"""Sessions of brokers, as the coordinator has them and as the controller has seen them; on the loop of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.protocol import STAT

if TYPE_CHECKING:
    from barnabas.coordination.embedded.server import EmbeddedCoordinator
    from barnabas.server.broker import Broker


def expire_session(coordinator: EmbeddedCoordinator, broker_id: int) -> bool:
    """Ends the broker's session, and its connection; False where it has none."""
    engine, path = coordinator.engine, broker_id_path(broker_id)
    found = [session for session, paths in engine.tree.ephemerals.items() if path in paths]
    ended = [engine.expire_session(session) for session in found]
    return any(ended)


def present_epoch(coordinator: EmbeddedCoordinator, broker_id: int) -> int | None:
    """The epoch that the session of a broker has given it; None where it has no session."""
    znode = coordinator.engine.tree.find(broker_id_path(broker_id))
    return None if znode is None else int(STAT.unpack(znode[1])[0])


def epochs_seen_by(broker: Broker) -> dict[int, int]:
    """The epochs of the brokers that a controller knows, by id; none of a broker that is not the controller."""
    term = broker.components.controller.term
    live = {} if term is None else term.context.live_or_shutting_down_brokers
    return {broker_id: known.epoch for broker_id, known in live.items()}
