"""Blocks of producer ids, given out to brokers through `/latest_producer_id_block` (KIP-730)."""

from __future__ import annotations

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import Steps, operate, write_as_controller
from barnabas.coordination.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.cluster import PRODUCER_ID_BLOCK_PATH, ProducerIdBlock
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Create, GetData, SetData
from barnabas.wire.errors import ErrorCode, KafkaError

PRODUCER_ID_BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1
ATTEMPTS_MAX = 10
"""How often taking a block is tried; only brokers that use ZooKeeper themselves take any in between."""


def allocate_producer_ids(context: ControllerContext, broker_id: int, broker_epoch: int) -> Steps[ProducerIdBlock]:
    """Takes the next block for a broker. No id is ever given out twice; those of an attempt whose answer was lost are
    never used.

    Raises `KafkaError`: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH, or UNKNOWN_SERVER_ERROR when ids are used up or
    the znode cannot be written.
    """
    broker = context.live_or_shutting_down_brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} asks for producer ids in epoch {broker_epoch}; it has epoch {broker.epoch}",
        )
    for _ in range(ATTEMPTS_MAX):
        (found,) = yield from operate([GetData(PRODUCER_ID_BLOCK_PATH)])
        write: Create | SetData
        if isinstance(found, NoNodeError):
            block = ProducerIdBlock(broker_id, 0, PRODUCER_ID_BLOCK_SIZE - 1)
            write = Create(PRODUCER_ID_BLOCK_PATH, block.encode())
        elif isinstance(found, CoordinationError):
            raise found
        else:
            block = _next_block(broker_id, found.data, found.stat.version)
            write = SetData(PRODUCER_ID_BLOCK_PATH, block.encode(), found.stat.version)
        (outcome,) = yield from write_as_controller([write], context.epoch_version)
        if not isinstance(outcome, CoordinationError):
            return block
        if not isinstance(outcome, BadVersionError | NodeExistsError | NoNodeError):
            raise outcome
    raise KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR, f"{PRODUCER_ID_BLOCK_PATH} changed before each of {ATTEMPTS_MAX} writes"
    )


def _next_block(broker_id: int, data: bytes | None, version: int) -> ProducerIdBlock:
    # The persistent path is made without data; later somebody has taken it away.
    if not data and version == 0:
        return ProducerIdBlock(broker_id, 0, PRODUCER_ID_BLOCK_SIZE - 1)
    try:
        before = ProducerIdBlock.decode(data)
    except LayoutError as error:
        # An id that may have been given out already is not given out again.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no producer ids can be given out: {error}") from None
    if before.last > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"producer ids are used up: the last block ends at {before.last}"
        )
    return ProducerIdBlock(broker_id, before.last + 1, before.last + PRODUCER_ID_BLOCK_SIZE, before.extra)
