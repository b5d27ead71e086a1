"""What the controller's core asks of its shell, as frozen values.

The core is made of plain generators: each yields a batch of effects, and is sent their results, a tuple with one
result per effect. The shell carries a batch out in order, writes before what follows from them, and throws into the
generator what ends the event (expiry of the session, shutdown).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.recent_transitions import StateTransition
from barnabas.coordination.errors import (
    BadVersionError,
    CoordinationError,
    MultiFailedError,
    NoNodeError,
)
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH
from barnabas.coordination.operations import Check, Create, Delete, Multi, Operation, SetData, WrittenData
from barnabas.kernel import steps as kernel_steps
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import Message

Result = TypeVar("Result")
Item = TypeVar("Item")
ITEMS_PER_PIECE = 1_000
"""How many partitions or replicas an event handles before it yields to the loop; each takes some microseconds."""
CHANGES_PER_PIECE = 250
"""How many of them it decides about, or makes requests for, until then: each takes 10 to 20 us, and twice as much on a
busy machine. Others have their part of the turn, too: the broker that the controller is in, and what it is sent.
"""
LINES_PER_PIECE = 100
"""How many lines of the state-change log it makes and writes in a turn: each takes some 40 us where it is logged."""
WRITES_PER_MULTI_MAX = 64
"""How many writes share one check of the controller's epoch: a failover of many partitions is mostly such writes."""
BYTES_PER_MULTI_MAX = 128 * 1024
"""Data of the writes that share a multi; well below the servers' bound on requests."""


@dataclass(frozen=True, slots=True)
class ZnodeOperations:
    """Operations that are sent together. Its result is a list as long: the answer of each, or its error as a value.

    An operation whose outcome was lost with the connection is repeated by the shell, so that `ConnectionLossError` is
    among the errors only when that is over; a write that was repeated may find what it has written itself. `ahead` are
    reads that the next effect of this kind with reads will be, as `ReadZnodes` has them.
    """

    operations: tuple[Operation[Any], ...]
    ahead: tuple[Operation[Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadZnodes:
    """Reads the data of many znodes in bulk, without watches. Its result is a list of `WrittenData` or errors.

    `ahead` is what the next effect of this kind will ask for: the shell may begin to read it meanwhile. So it is given
    only where nothing is written to these znodes before.
    """

    paths: tuple[str, ...]
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadChildren:
    """Reads the names of the children of many znodes, without watches. Its result is a list of names or errors."""

    paths: tuple[str, ...]


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
    """A line for the state-change log, with a level of `logging`, with the state transition that it is about, if any.
    Its result is None.
    """

    level: int
    message: str
    move: StateTransition | None = None


@dataclass(frozen=True, slots=True)
class ChangeChannels:
    """Ends the channels to brokers that are gone, with all that waits in them, and then opens those to new brokers.
    One that is opened and is open already goes on, to the address that the broker has now. Its result is None.
    """

    closed: tuple[int, ...] = ()
    opened: tuple[LiveBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class UncleanElections:
    """Counts leaders that were elected although they were not in sync. Its result is None."""

    count: int


@dataclass(frozen=True, slots=True)
class WaitForFeatures:
    """Waits until the broker's own cache of `/feature` has this version of the znode. Its result is None; if the cache
    is too late the event ends with `TimeoutError`.
    """

    version: int


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Yields to the event loop. Its result is None."""


Effect = (
    ZnodeOperations
    | ReadZnodes
    | ReadChildren
    | SendRequests
    | StateChange
    | ChangeChannels
    | UncleanElections
    | WaitForFeatures
    | GiveWay
)
Steps = Generator[tuple[Effect, ...], tuple[Any, ...], Result]
"""A part of an event: yields effects, is sent their results, and returns a `Result`."""


class ControllerMovedError(Exception):
    """Another broker is the controller: the epoch's znode is not the one that this controller wrote."""


class SessionOverError(Exception):
    """The session with the coordinator is over, and with it the term of this controller."""


def give_way() -> Steps[None]:
    """Yields to the loop between pieces of pure computation, so that no event holds it for long."""
    yield (GiveWay(),)


def told(lines: Iterable[StateChange]) -> Steps[None]:
    """Writes lines of the state-change log, as they are made, with `give_way` between pieces."""
    remaining = iter(lines)
    while piece := tuple(islice(remaining, LINES_PER_PIECE)):
        yield piece if len(piece) < LINES_PER_PIECE else (*piece, GiveWay())


def in_pieces(steps: kernel_steps.Steps[Result]) -> Steps[Result]:
    """Runs long work of a lower room with `give_way` between its steps, and returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        yield from give_way()


def each_in_pieces(change: Callable[[Item], object], items: Iterable[Item]) -> Steps[None]:
    """Makes a change for each of the items, with `give_way` between pieces."""
    yield from in_pieces(kernel_steps.each(change, items, CHANGES_PER_PIECE))


def pieces(items: Iterable[Item], size: int = ITEMS_PER_PIECE) -> Iterator[list[Item]]:
    """The items in pieces that may be handled without `give_way`."""
    remaining = iter(items)
    while piece := list(islice(remaining, size)):
        yield piece


def selected(items: Iterable[Item], is_wanted: Callable[[Item], bool]) -> Steps[list[Item]]:
    """`list(filter(is_wanted, items))`, in pieces."""
    found: list[Item] = []
    for piece in pieces(items):
        found += filter(is_wanted, piece)
        if len(piece) == ITEMS_PER_PIECE:
            yield from give_way()
    return found


def operate(operations: Sequence[Operation[Any]], ahead: Sequence[Operation[Any]] = ()) -> Steps[list[Any]]:
    """Carries out operations and returns their answers and errors; none yields nothing. `ahead` is read next."""
    if not operations:
        return []
    (outcomes,) = yield (ZnodeOperations(tuple(operations), tuple(ahead)),)
    return _as_many(outcomes, len(operations))


def read_znodes(paths: Sequence[str], ahead: Sequence[str] = ()) -> Steps[list[WrittenData | CoordinationError]]:
    """Reads many znodes in bulk and returns data and errors; none yields nothing. `ahead` is what is read next."""
    if not paths:
        return []
    (outcomes,) = yield (ReadZnodes(tuple(paths), tuple(ahead)),)
    return _as_many(outcomes, len(paths))


def read_children(paths: Sequence[str]) -> Steps[list[list[str] | CoordinationError]]:
    """Reads the names of the children of many znodes in bulk; none yields nothing."""
    if not paths:
        return []
    (outcomes,) = yield (ReadChildren(tuple(paths)),)
    return _as_many(outcomes, len(paths))


def _as_many(outcomes: Sequence[Any], count: int) -> list[Any]:
    if len(outcomes) != count:
        raise RuntimeError(f"{count} operations on znodes got {len(outcomes)} outcomes")
    return list(outcomes)


Write = Create | Delete | SetData


def write_as_controller(writes: Sequence[Write], epoch_version: int) -> Steps[list[Any]]:
    """Carries out writes, each only while the version of the controller's epoch is `epoch_version`.

    Several share a multi; where one of them fails, each is done by itself. Returns the answers and errors of the
    writes. Raises `ControllerMovedError` when the epoch has changed.
    """
    check = Check(CONTROLLER_EPOCH_PATH, epoch_version)
    outcomes: list[Any] = [None] * len(writes)
    single: list[int] = []
    groups = list(_groups(writes))
    answers = yield from operate([Multi((check, *(writes[index] for index in group))) for group in groups])
    for group, answer in zip(groups, answers, strict=True):
        if isinstance(answer, CoordinationError):
            error = _error_of_write(answer, epoch_version)
            if len(group) > 1:
                single.extend(group)
            else:
                outcomes[group[0]] = error
        else:
            for index, outcome in zip(group, answer[1:], strict=True):
                outcomes[index] = outcome
    answers = yield from operate([Multi((check, writes[index])) for index in single])
    for index, answer in zip(single, answers, strict=True):
        failed = isinstance(answer, CoordinationError)
        outcomes[index] = _error_of_write(answer, epoch_version) if failed else answer[1]
    return outcomes


def _groups(writes: Sequence[Write]) -> Iterator[range]:
    """The indexes of writes that share a multi, in order."""
    start = size_bytes = 0
    for index, write in enumerate(writes):
        write_bytes = 0 if isinstance(write, Delete) else len(write.data or b"")
        full = index - start == WRITES_PER_MULTI_MAX or size_bytes + write_bytes > BYTES_PER_MULTI_MAX
        if full and index > start:
            yield range(start, index)
            start, size_bytes = index, 0
        size_bytes += write_bytes
    if start < len(writes):
        yield range(start, len(writes))


def _error_of_write(error: CoordinationError, epoch_version: int) -> CoordinationError:
    if not isinstance(error, MultiFailedError):
        return error
    if error.index == 0 and isinstance(error.error, BadVersionError | NoNodeError):
        raise ControllerMovedError(
            f"{CONTROLLER_EPOCH_PATH} no longer has version {epoch_version}: another broker is the controller"
        )
    return error.error
