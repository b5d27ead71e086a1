"""The expiry of transactional ids (transactional.id.expiration.ms): tombstones, a bounded batch at a time."""

from __future__ import annotations

import logging
from typing import Final

from barnabas.coordinators.shard import Shard
from barnabas.coordinators.transaction.records import transaction_key
from barnabas.coordinators.transaction.transactions import NO_PRODUCER, Transactions
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.wire.errors import ErrorCode, KafkaError

_BATCH_BYTES_MAX: Final = 16_384
"""Of keys. As in Kafka; more than one key comes only within it."""
_PASSED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def expire(shard: Shard[Transactions], expiration_ms: int, now_ms: int, logger: logging.Logger) -> Steps[None]:
    """Writes tombstones for ids of the shard that have no transaction and have not changed for so long.

    Ids are looked at and written in the same step, so that what is written is true; ends where the log refuses a batch,
    until the next time.
    """
    ids = shard.content.ids if shard.is_active else []
    for start in range(0, len(ids), STEP_ELEMENTS):
        if start:
            yield
        if not shard.is_active:
            return
        transactions = shard.content
        due = [
            transactional_id
            for transactional_id in ids[start : start + STEP_ELEMENTS]
            if transactions.get(transactional_id) is not None
            and transactions.is_expired(transactional_id, expiration_ms, now_ms)
        ]
        while due:
            batch, size = [due.pop()], 0
            while due and (size := size + len(batch[-1])) < _BATCH_BYTES_MAX:
                batch.append(due.pop())
            try:
                _write_tombstones(shard, batch, now_ms, logger)
            except KafkaError as error:
                logger.warning("Expired ids of %s stay for now: %s", shard.partition, error)
                return


def _write_tombstones(shard: Shard[Transactions], ids: list[str], now_ms: int, logger: logging.Logger) -> None:
    """Until they are committed, however late, the ids are pending."""
    transactions = shard.content
    keys = [transaction_key(transactional_id) for transactional_id in ids]
    last_offset = -1

    def replay(base_offset: int) -> None:
        nonlocal last_offset
        last_offset = base_offset + len(keys) - 1
        for transactional_id in ids:
            transactions.replay_appended(transactional_id, None, NO_PRODUCER)

    def committed() -> None:
        for transactional_id in ids:
            transactions.committed(transactional_id)
        logger.info("%d transactional ids of %s have expired", len(ids), shard.partition)

    def committed_late(offset: int) -> None:
        if offset >= last_offset and shard.is_active:
            committed()

    def done(error: ErrorCode) -> None:
        if not shard.is_active:
            return
        if error in _PASSED:
            committed()
        elif error is ErrorCode.REQUEST_TIMED_OUT:
            shard.await_commit(("expiry", ids[0]), last_offset, committed_late)

    shard.append([(key, None) for key in keys], now_ms, replay, done)
