"""What one run of a cluster is like: which faults strike how often, what the users do, and what may be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.serving.fetch_sessions import FEW_PARTITIONS
from barnabas.testing.cluster_load import Load
from barnabas.testing.faults import FaultKind

if TYPE_CHECKING:
    from barnabas.testing.profile import Range

BROKER_PORT: Final = 9092
COORDINATOR_PORT: Final = 2181
DIRECTORIES: Final = ("/data/one", "/data/two")
_SEEDS_ALIKE: Final = 6
USUAL_PROPERTIES: Final = f"""
listeners=PLAINTEXT://:{BROKER_PORT}
zookeeper.connect=coordinator:{COORDINATOR_PORT}
zookeeper.session.timeout.ms=4000
zookeeper.connection.timeout.ms=4000
log.dirs={",".join(DIRECTORIES)}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.num.partitions=2
offsets.topic.replication.factor=3
replica.lag.time.max.ms=4000
replica.fetch.wait.max.ms=1000
replica.socket.timeout.ms=5000
controller.socket.timeout.ms=5000
request.timeout.ms=5000
group.initial.rebalance.delay.ms=200
log.segment.bytes=16384
controlled.shutdown.enable=true
auto.leader.rebalance.enable=false
barnabas.log.dir.patience.ms=0
"""
"""What the configs of all simulated brokers have."""


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
    writes: Sequence[str] = ("loop", "offload")
    """Values of barnabas.log.dir.writes (0025), of which six seeds take one, and the next six another: so much as six
    meet together is looked at."""
    few_partitions: Sequence[int] = (FEW_PARTITIONS, FEW_PARTITIONS, 1)
    """How many partitions of a Fetch brokers do in a turn, at most (0016): as `writes` go by seeds, so do these."""
    clock_step_seconds: Range = (-10.0, 10.0)

    def few_partitions_of(self, seed: int) -> int:
        """How many partitions of a Fetch a run's brokers do in a turn."""
        return self.few_partitions[(seed - 1) // _SEEDS_ALIKE % len(self.few_partitions)]

    def properties_of(self, seed: int) -> str:
        """What a run's brokers have in their configs, as in a file of properties."""
        more = {
            "barnabas.log.dir.writes": self.writes[(seed - 1) // _SEEDS_ALIKE % len(self.writes)],
            **self.properties,
        }
        if self.protocols:
            more["inter.broker.protocol.version"] = self.protocols[seed % len(self.protocols)]
        return USUAL_PROPERTIES + "".join(f"{name}={value}\n" for name, value in more.items())
