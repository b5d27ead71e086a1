"""What can be set of a consumer; users import it from `barnabas.client.settings`."""

from __future__ import annotations

import enum

from barnabas.client.assignors import RANGE, Assignor
from barnabas.client.isolation import IsolationLevel
from barnabas.kernel.facts import fact
from barnabas.link.limits import check_positive


class OffsetReset(enum.Enum):
    """Where to begin where there is no position (`auto.offset.reset`)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@fact(kw_only=True)
class ConsumerSettings:
    """How a consumer reads, and how it is a member of its group."""

    group_id: str | None = None
    group_instance_id: str | None = None
    """The name of a static member (KIP-345)."""
    assignors: tuple[Assignor, ...] = (RANGE,)
    """The best first; the group uses one that all members have. They must be all eager or all cooperative."""
    offset_reset: OffsetReset = OffsetReset.LATEST
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fetch_bytes_min: int = 1
    fetch_bytes_max: int = 50 * 1024 * 1024
    fetch_wait_ms: int = 500
    partition_bytes_max: int = 1024 * 1024
    poll_records_max: int = 500
    checks_crcs: bool = True
    rack_id: str = ""
    """Where a replica near this consumer may be (KIP-392)."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    poll_interval_ms_max: int = 300_000
    """A member that does not poll for so long leaves its group; also the time for a rebalance."""
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        check_positive(
            self,
            "fetch_bytes_max",
            "partition_bytes_max",
            "poll_records_max",
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "poll_interval_ms_max",
            "auto_commit_interval_ms",
        )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be less than session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual"
            )
        if not self.assignors:
            raise ValueError("assignors is empty: a member of a group needs at least one")
        if len({assignor.is_cooperative for assignor in self.assignors}) > 1:
            raise ValueError("assignors must be all eager or all cooperative")
