"""What can be set of a producer; users import it from `barnabas.client.settings`."""

from __future__ import annotations

from typing import Final

from barnabas.kernel.facts import fact
from barnabas.link.limits import check_positive
from barnabas.wire.compression_types import NO_COMPRESSION, Compression

REQUEST_BYTES_DEFAULT: Final = 1024 * 1024
BUFFER_BYTES_DEFAULT: Final = 32 * 1024 * 1024
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5


@fact(kw_only=True)
class ProducerSettings:
    """How a producer sends."""

    acks: int = -1
    """-1: when every replica in sync has it; 1: when the leader has it; 0: nobody tells."""
    idempotent: bool = True
    """Each record exactly once and in order, as long as the producer lives (KIP-98); needs `acks` -1."""
    batch_bytes: int = 16 * 1024
    linger_ms: float = 0
    compression: Compression = NO_COMPRESSION
    in_flight_max: int = 5
    """Produce requests per broker that wait for their answers; 5 at most when idempotent. Otherwise a partition has one
    batch on its way at a time, so that none overtakes another that has to be sent again."""
    request_bytes_max: int = REQUEST_BYTES_DEFAULT
    """The largest request, and so the largest record, before compression (`max.request.size`). The topic has a limit of
    its own for what is left after it (`max.message.bytes`).
    """
    buffer_bytes_max: int = BUFFER_BYTES_DEFAULT
    """What may wait to be sent or acknowledged (`buffer.memory`)."""
    max_block_ms: int = 60_000
    """How long `send` waits for room, and for a topic to be known."""
    delivery_timeout_ms: int = 120_000
    """From `send` to success or failure."""

    def __post_init__(self) -> None:
        if self.acks not in (-1, 0, 1):
            raise ValueError(f"acks is {self.acks}: it must be -1, 0 or 1")
        if self.idempotent and self.acks != -1:
            raise ValueError(f"an idempotent producer needs acks=-1, not {self.acks}; or set idempotent=False")
        if self.idempotent and self.in_flight_max > IDEMPOTENT_IN_FLIGHT_MAX:
            raise ValueError(
                f"in_flight_max is {self.in_flight_max}: brokers remember the last {IDEMPOTENT_IN_FLIGHT_MAX} batches "
                "of an idempotent producer, so it must not be more"
            )
        check_positive(
            self, "batch_bytes", "in_flight_max", "request_bytes_max", "buffer_bytes_max", "delivery_timeout_ms"
        )
