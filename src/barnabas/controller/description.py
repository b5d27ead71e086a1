"""What the active controller says about itself: the answer to DescribeController."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.controller.recent_transitions import TimedTransition
from barnabas.controller.states import ControllerState


@dataclass(frozen=True, slots=True)
class EventTiming:
    """How often the controller was in a state, and for how long, since its broker started."""

    name: str
    """The name of Kafka's metric, such as `TopicChangeRateAndTimeMs`."""
    count: int
    mean_ms: float
    maximum_ms: int


@dataclass(frozen=True, slots=True)
class ControllerDescription:
    """A controller as it is now."""

    controller_id: int
    epoch: int
    elected_at_ms: int
    """When it wrote itself into `/controller`, in ms since 1970."""
    state: ControllerState
    queued_events: int
    oldest_event_age_ms: int
    """How long the oldest event in the queue has waited; 0 when there is none."""
    counts: Mapping[str, int]
    """Kafka's gauges of the controller by name."""
    timings: tuple[EventTiming, ...]
    """Timings of the states that it was in."""
    queued_requests: Mapping[int, int]
    """How many requests wait to be sent, by broker."""
    transitions: tuple[TimedTransition, ...]
    """The last transitions of partitions and replicas in its term, the oldest first."""
