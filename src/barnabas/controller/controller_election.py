"""The election of the controller: the znodes `/controller` and `/controller_epoch`, as steps of an event."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.controller.effects import ControllerMovedError, Steps, operate, write_as_controller
from barnabas.coordination.errors import (
    BadVersionError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
)
from barnabas.coordination.layout.controller import (
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    ControllerRegistration,
    decode_controller_epoch,
    encode_controller_epoch,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Check, Create, Delete, Exists, GetData, Multi, SetData, Watcher
from barnabas.coordination.protocol import CreateMode, Stat

INITIAL_EPOCH = 0
"""What `/controller_epoch` holds before the first controller, whose epoch is the next one."""


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """A successful election: the new epoch, and the version of its znode, on which every write of the term depends.

    `began` and `former_began` are the transactions that began this term and the one before it.
    """

    epoch: int
    epoch_version: int
    began: int
    former_began: int


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Who holds `/controller`, and the payload by which a broker knows its own. `broker_id` is None, and `fault` says
    why, where the payload cannot be read.
    """

    broker_id: int | None
    payload: bytes | None
    fault: str = ""


def read_incumbent(watcher: Watcher | None = None) -> Steps[Incumbent | None]:
    """Reads who the controller is; None when there is none. `watcher` is called at the next change, in either case."""
    if watcher is not None:
        (exists,) = yield from operate([Exists(CONTROLLER_PATH, watcher)])
        if isinstance(exists, Exception):
            raise exists
        if exists is None:
            return None
    (found,) = yield from operate([GetData(CONTROLLER_PATH)])
    if isinstance(found, NoNodeError):
        return None
    if isinstance(found, Exception):
        raise found
    try:
        return Incumbent(ControllerRegistration.decode(found.data).broker_id, found.data)
    except LayoutError as error:
        return Incumbent(None, found.data, str(error))


def claim_controllership(registration: ControllerRegistration) -> Steps[ElectionResult]:
    """Creates `/controller` and raises the epoch, both or neither.

    Raises `ControllerMovedError` when another broker was faster.
    """
    epoch, former = yield from _read_epoch()
    payload = registration.encode()
    claim = Multi(
        (
            Create(CONTROLLER_PATH, payload, mode=CreateMode.EPHEMERAL),
            SetData(CONTROLLER_EPOCH_PATH, encode_controller_epoch(epoch + 1), former.version),
        )
    )
    (outcome,) = yield from operate([claim])
    if not isinstance(outcome, Exception):
        return ElectionResult(epoch + 1, outcome[1].version, outcome[1].mzxid, former.mzxid)
    if not isinstance(outcome, MultiFailedError) or not isinstance(outcome.error, NodeExistsError | BadVersionError):
        raise outcome
    # It may be ours, from an attempt whose answer was lost.
    incumbent = yield from read_incumbent()
    if incumbent is not None and incumbent.payload == payload:
        present, stat = yield from _read_epoch()
        if present == epoch + 1:
            return ElectionResult(present, stat.version, stat.mzxid, former.mzxid)
    raise ControllerMovedError("another broker was elected controller, or has just been")


def _read_epoch() -> Steps[tuple[int, Stat]]:
    """The epoch and the stat of its znode, which is created if missing."""
    (found,) = yield from operate([GetData(CONTROLLER_EPOCH_PATH)])
    if isinstance(found, NoNodeError):
        (made,) = yield from operate([Create(CONTROLLER_EPOCH_PATH, encode_controller_epoch(INITIAL_EPOCH))])
        if isinstance(made, Exception) and not isinstance(made, NodeExistsError):
            raise made
        (found,) = yield from operate([GetData(CONTROLLER_EPOCH_PATH)])
    if isinstance(found, Exception):
        raise found
    return decode_controller_epoch(found.data), found.stat


def mend_registration(payload: bytes, epoch_version: int) -> Steps[None]:
    """Writes `/controller` as the active controller has made it, where what it holds cannot be read. As long as the
    epoch is that of the controller nobody else has been elected, so that the znode is its own.

    Raises `ControllerMovedError`.
    """
    (found,) = yield from operate([GetData(CONTROLLER_PATH)])
    if isinstance(found, NoNodeError):
        return
    if isinstance(found, Exception):
        raise found
    write = SetData(CONTROLLER_PATH, payload, found.stat.version)
    (outcome,) = yield from write_as_controller([write], epoch_version)
    # A faster writer has fired the watch.
    if isinstance(outcome, Exception) and not isinstance(outcome, BadVersionError | NoNodeError):
        raise outcome


def delete_controller_znode(epoch_version: int) -> Steps[None]:
    """Deletes `/controller`, so that a new controller is elected. Raises `ControllerMovedError` when another one was
    elected since.
    """
    (outcome,) = yield from operate([Multi((Check(CONTROLLER_EPOCH_PATH, epoch_version), Delete(CONTROLLER_PATH)))])
    if not isinstance(outcome, Exception):
        return
    if not isinstance(outcome, MultiFailedError):
        raise outcome
    if outcome.index == 0:
        raise ControllerMovedError("another broker has become the controller since")
    if not isinstance(outcome.error, NoNodeError):
        raise outcome


def give_back(payload: bytes) -> Steps[None]:
    """Deletes `/controller` if it is the one with this payload, whatever the epoch is: nobody serves under it."""
    incumbent = yield from read_incumbent()
    if incumbent is None or incumbent.payload != payload:
        return
    # Nobody else can create it before it is gone.
    (outcome,) = yield from operate([Delete(CONTROLLER_PATH)])
    if isinstance(outcome, Exception) and not isinstance(outcome, NoNodeError):
        raise outcome
