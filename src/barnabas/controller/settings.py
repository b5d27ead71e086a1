"""What of a broker's configuration the controller's core depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`inter_broker_listener_name` is the listener by which brokers reach each other;
    `unclean_leader_election_enable` holds for topics that do not say themselves.
    """

    broker_id: int
    inter_broker_listener_name: str
    unclean_leader_election_enable: bool = False
