"""Writes that happen only while the controller is the one that was read: how Kafka keeps a deposed controller, or one
of KRaft, from being written against.
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
from barnabas.coordination.layout.controller import CONTROLLER_PATH, ControllerRegistration
from barnabas.coordination.operations import Check, Create, Delete, GetData, Multi, SetData, ZnodeData
from barnabas.wire.errors import ErrorCode, KafkaError

ATTEMPTS: Final = 5
"""How often a change is tried that others keep getting ahead of."""
READ_CONTROLLER: Final = GetData(CONTROLLER_PATH)


def controller_check(found: ZnodeData | CoordinationError, *, broker_id: int | None = None) -> Check:
    """The check, for a multi, that the controller is still the one that `READ_CONTROLLER` found.

    Raises `KafkaError` (NOT_CONTROLLER) when there is none, when it is one of KRaft, or is not `broker_id`; and
    `CoordinationError` when it could not be read.
    """
    if isinstance(found, NoNodeError):
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "There is no controller at the moment.")
    if isinstance(found, CoordinationError):
        raise found
    registration = ControllerRegistration.decode(found.data)
    if (registration.kraft_controller_epoch or 0) > 0:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster is being migrated to a controller of KRaft.")
    if broker_id is not None and registration.broker_id != broker_id:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"The controller is broker {registration.broker_id} now.")
    return Check(CONTROLLER_PATH, found.stat.version)


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


def as_kafka_error(error: CoordinationError, logger: logging.Logger, what: str) -> KafkaError:
    """What a client is told of a change that the coordinator did not take."""
    if isinstance(error, RequestTooLargeError):
        return KafkaError(ErrorCode.INVALID_REQUEST, f"{what} does not fit into a znode: {error}")
    if isinstance(error, SessionExpiredError | ClientClosedError | ConnectionLossError):
        return KafkaError(ErrorCode.NOT_CONTROLLER, "The broker has lost its session with ZooKeeper.")
    logger.error("%s failed: %s", what, error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
