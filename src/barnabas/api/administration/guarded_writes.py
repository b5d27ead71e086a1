"""Writes that happen only while the controller is the one that was read, or nobody has followed it yet.

Kafka checks the version of `/controller`, which is 0 again when another broker has made it anew. Here it is that of
`/controller_epoch`, which every election moves on, and which is read first: so whoever is found in `/controller` has
this epoch or a later one, and the check fails for a later one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from barnabas.coordination.errors import (
    ClientClosedError,
    ConnectionLossError,
    CoordinationError,
    MultiFailedError,
    NoNodeError,
    RequestTooLargeError,
    SessionExpiredError,
)
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, ControllerRegistration
from barnabas.coordination.operations import Check, Create, Delete, GetData, Multi, SetData, ZnodeData
from barnabas.wire.errors import ErrorCode, KafkaError

ONE_ZNODE: Final = "a topic has all its partitions in one, so make several topics with fewer"
ATTEMPTS: Final = 5
"""How often a change is tried that others keep getting ahead of."""
READ_CONTROLLER: Final = (GetData(CONTROLLER_EPOCH_PATH), GetData(CONTROLLER_PATH))


def controller_check(found: Sequence[ZnodeData | CoordinationError], *, broker_id: int | None = None) -> Check:
    """The check, for a multi, that no other controller has been elected than the one `READ_CONTROLLER` found.

    Raises `KafkaError` (NOT_CONTROLLER) when there is none, when it is one of KRaft, or is not `broker_id`; and
    `CoordinationError` when it could not be read.
    """
    epoch, registered = found
    if isinstance(epoch, NoNodeError) or isinstance(registered, NoNodeError):
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "There is no controller at the moment.")
    if isinstance(epoch, CoordinationError):
        raise epoch
    if isinstance(registered, CoordinationError):
        raise registered
    controller = ControllerRegistration.decode(registered.data)
    if (controller.kraft_controller_epoch or 0) > 0:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster is being migrated to a controller of KRaft.")
    if broker_id is not None and controller.broker_id != broker_id:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"The controller is broker {controller.broker_id} now.")
    return Check(CONTROLLER_EPOCH_PATH, epoch.stat.version)


def guarded(check: Check, writes: Sequence[Create | Delete | SetData]) -> Multi:
    """All of the writes, or none."""
    return Multi((check, *writes))


def answer_of(outcome: Any) -> Any:
    """What was read. Raises its `CoordinationError`."""
    if isinstance(outcome, CoordinationError):
        raise outcome
    return outcome


def may_be_tried_again(outcome: Any) -> bool:
    """Whether a guarded write has failed, or may have, because somebody else was ahead or a connection broke."""
    return isinstance(outcome, ConnectionLossError | MultiFailedError)


def as_kafka_error(
    error: CoordinationError, logger: logging.Logger, what: str, advice: str = "ask for less at once"
) -> KafkaError:
    """What a client is told of a change that the coordinator did not take; `advice` is for one that is too large."""
    if isinstance(error, RequestTooLargeError):
        return too_large_for_one_znode(f"{what} takes {error.size_bytes} bytes", error.size_bytes_max, advice)
    if isinstance(error, SessionExpiredError | ClientClosedError | ConnectionLossError):
        return KafkaError(ErrorCode.NOT_CONTROLLER, "The broker has lost its session with ZooKeeper.")
    logger.error("%s failed: %s", what, error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)


def too_large_for_one_znode(what_takes: str, size_bytes_max: int, advice: str) -> KafkaError:
    """What a client is told; `what_takes` ends with a number of bytes."""
    room = f"one znode of {size_bytes_max / 2**20:.3g} MiB (jute.maxbuffer)"
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{what_takes}, which do not fit into {room}: {advice}.")
