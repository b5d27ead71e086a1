"""Transactional batches of clients, for tests of what does not ask a coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from barnabas.log.producers.producer_state import ProducerState
from barnabas.wire.record_batch import INT32_MAX


@contextlib.contextmanager
def verified(producers: ProducerState, producer_id: int, epoch: int = 0) -> Iterator[None]:
    """Inside the block the coordinator has said that the producer's transaction has the partition."""
    verification = producers.begin_verification(producer_id, epoch, INT32_MAX)
    if verification is None:
        yield
        return
    verification.is_verified = True
    try:
        yield
    finally:
        producers.end_verification(verification)
