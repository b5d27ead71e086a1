"""The configs of the transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.config.settings import setting


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's keys `transaction.*` and `transactional.*`."""

    timeout_max_ms: int = setting("transaction.max.timeout.ms", int)
    load_buffer_bytes: int = setting("transaction.state.log.load.buffer.size", int)
    abort_interval_ms: int = setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", int)
    id_expiration_ms: int = setting("transactional.id.expiration.ms", int)
    expiry_interval_ms: int = setting("transaction.remove.expired.transaction.cleanup.interval.ms", int)
    append_timeout_ms: int = setting("request.timeout.ms", int)
    """For every record. Kafka waits for the producer's transaction time-out, which its request does not outlive."""
