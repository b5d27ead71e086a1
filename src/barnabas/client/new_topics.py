"""Topics to be made; users import this from `barnabas.client.admin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 is the brokers' default. `assignment` has the replicas of each partition instead."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] | None = None
