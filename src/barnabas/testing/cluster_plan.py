"""What one run of a cluster is like: which faults strike how often, what the users do, and what may be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.testing.cluster_load import Load
from barnabas.testing.faults import FaultKind

if TYPE_CHECKING:
    from barnabas.testing.profile import Range


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is like. Rates are strikes per virtual minute."""

    name: str
    per_minute: Mapping[FaultKind, float]
    brokers: int = 3
    down_at_most: int = 1
    keeps_one_in_sync: bool = False
    """A broker loses its power only where every partition keeps another member of its ISR that can be reached, and
    nothing else breaks before it is back: so no acknowledged record may be lost.
    """
    lasting_seconds: Range = (0.3, 9.0)
    lasting: Mapping[FaultKind, Range] = field(default_factory=dict)
    """For kinds that last another time, in seconds."""
    faults_seconds: float = 60.0
    load: Load = field(default_factory=Load)
    late_copies: float = 0.0
    """How probable it is for a LeaderAndIsr request that it arrives once more, late (see `late_requests`)."""
    expiries_at_start: float = 0.0
    """How probable it is for a broker that starts or stops that its session ends at some step of it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What the brokers' configs have besides the usual."""
    protocols: Sequence[str] = ()
    """Values of inter.broker.protocol.version, of which each seed takes one."""
    clock_step_seconds: Range = (-10.0, 10.0)
