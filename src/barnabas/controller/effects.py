"""What the controller's core asks of its shell, as frozen values.

The core is made of plain generators: each yields a batch of effects, and is sent their results, a tuple with one
result per effect. The shell carries a batch out in order, writes before what follows from them, and throws into the
generator what ends the event (expiry of the session, shutdown).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from barnabas.coordination.errors import (
    BadVersionError,
    CoordinationError,
    MultiFailedError,
    NoNodeError,
)
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH
from barnabas.coordination.operations import Check, Create, Delete, Multi, Operation, SetData
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import Message

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ZnodeOperations:
    """Operations that are sent together. Its result is a list as long: the answer of each, or its error as a value.

    An operation whose outcome was lost with the connection is repeated by the shell, so that `ConnectionLossError` is
    among the errors only when that is over; a write that was repeated may find what it has written itself.
    """

    operations: tuple[Operation[Any], ...]


@dataclass(frozen=True, slots=True)
class BrokerRequest:
    """One request to one broker, in a version that the controller chose; it is not negotiated."""

    broker_id: int
    api_key: ApiKey
    api_version: int
    message: Message


@dataclass(frozen=True, slots=True)
class SendRequests:
    """Puts requests into the queues of their brokers, in this order. Its result is None: responses are events."""

    requests: tuple[BrokerRequest, ...]


@dataclass(frozen=True, slots=True)
class StateChange:
    """A line for the state-change log, with a level of `logging`. Its result is None."""

    level: int
    message: str


Effect = ZnodeOperations | SendRequests | StateChange
Steps = Generator[tuple[Effect, ...], tuple[Any, ...], Result]
"""A part of an event: yields effects, is sent their results, and returns a `Result`."""


class ControllerMovedError(Exception):
    """Another broker is the controller: the epoch's znode is not the one that this controller wrote."""


def operate(operations: Sequence[Operation[Any]]) -> Steps[list[Any]]:
    """Carries out operations and returns their answers and errors; none yields nothing."""
    if not operations:
        return []
    (outcomes,) = yield (ZnodeOperations(tuple(operations)),)
    if len(outcomes) != len(operations):
        raise RuntimeError(f"{len(operations)} operations on znodes got {len(outcomes)} outcomes")
    return list(outcomes)


def write_as_controller(writes: Sequence[Create | Delete | SetData], epoch_version: int) -> Steps[list[Any]]:
    """Carries out writes, each only while the version of the controller's epoch is `epoch_version`.

    Returns the answers and errors of the writes. Raises `ControllerMovedError` when the epoch has changed.
    """
    check = Check(CONTROLLER_EPOCH_PATH, epoch_version)
    outcomes = yield from operate([Multi((check, write)) for write in writes])
    return [_outcome_of_write(outcome, epoch_version) for outcome in outcomes]


def _outcome_of_write(outcome: Any, epoch_version: int) -> Any:
    if isinstance(outcome, MultiFailedError):
        if outcome.index == 0 and isinstance(outcome.error, BadVersionError | NoNodeError):
            raise ControllerMovedError(
                f"{CONTROLLER_EPOCH_PATH} has no longer the version {epoch_version}: another broker is the controller"
            )
        return outcome.error
    if isinstance(outcome, CoordinationError):
        return outcome
    return outcome[1]
