"""The configs of quotas."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.config.settings import setting


@dataclass(frozen=True, slots=True)
class ReplicationQuotaSettings:
    """What `take` fills from the broker's keys; without arguments, Kafka's defaults."""

    window_count: int = setting("replication.quota.window.num", int)
    window_seconds: int = setting("replication.quota.window.size.seconds", int)


@dataclass(frozen=True, slots=True)
class ClientQuotaSettings:
    """Of what clients take: likewise."""

    window_count: int = setting("quota.window.num", int)
    window_seconds: int = setting("quota.window.size.seconds", int)


@dataclass(frozen=True, slots=True)
class ControllerQuotaSettings:
    """Of changes that controllers make for clients: likewise."""

    window_count: int = setting("controller.quota.window.num", int)
    window_seconds: int = setting("controller.quota.window.size.seconds", int)
