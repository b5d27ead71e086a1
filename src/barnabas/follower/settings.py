"""The configs of replication."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.config.settings import setting


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What `take` fills from the broker's keys; without arguments, Kafka's defaults."""

    lag_time_max_ms: int = setting("replica.lag.time.max.ms", int)
    high_watermark_checkpoint_interval_ms: int = setting("replica.high.watermark.checkpoint.interval.ms", int)
    fetchers_per_leader: int = setting("num.replica.fetchers", int)
    fetch_bytes_max: int = setting("replica.fetch.max.bytes", int)
    fetch_response_bytes_max: int = setting("replica.fetch.response.max.bytes", int)
    fetch_bytes_min: int = setting("replica.fetch.min.bytes", int)
    fetch_wait_max_ms: int = setting("replica.fetch.wait.max.ms", int)
    fetch_backoff_ms: int = setting("replica.fetch.backoff.ms", int)
    request_timeout_ms: int = setting("replica.socket.timeout.ms", int)
