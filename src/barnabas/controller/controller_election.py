"""The election of the controller: the znodes `/controller` and `/controller_epoch`, as steps of an event."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.controller.effects import (
    ControllerMovedError,
    Steps,
    give_way,
    operate,
    pieces,
    read_children,
    read_znodes,
    write_as_controller,
)
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
from barnabas.coordination.layout.payload import EPOCH_MAX, LayoutError
from barnabas.coordination.layout.topics import TOPICS_PATH, PartitionState, partitions_path
from barnabas.coordination.operations import (
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    SetData,
    Watcher,
)
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


def claim_controllership(
    registration: ControllerRegistration, heard_epoch: int = INITIAL_EPOCH
) -> Steps[ElectionResult]:
    """Creates `/controller` and raises the epoch, both or neither. The epoch is above `heard_epoch` too, the greatest
    that the broker has heard of: brokers obey nobody of a lesser one, whatever the znode holds.

    Raises `ControllerMovedError` when another broker was faster.
    """
    written, former = yield from _read_epoch()
    epoch = max(written, heard_epoch) if heard_epoch < EPOCH_MAX else written
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
    """The epoch and the stat of its znode, which is created if missing: in a new cluster, or where somebody has deleted
    it.
    """
    (found,) = yield from operate([GetData(CONTROLLER_EPOCH_PATH)])
    if isinstance(found, NoNodeError):
        epoch = yield from _greatest_epoch_of_states()
        (made,) = yield from operate([Create(CONTROLLER_EPOCH_PATH, encode_controller_epoch(epoch))])
        if isinstance(made, Exception) and not isinstance(made, NodeExistsError):
            raise made
        (found,) = yield from operate([GetData(CONTROLLER_EPOCH_PATH)])
    if isinstance(found, Exception):
        raise found
    return decode_controller_epoch(found.data), found.stat


def _greatest_epoch_of_states() -> Steps[int]:
    """The greatest epoch of a controller that has written the state of a partition: a controller of a lesser one could
    not use it. States that cannot be right do not count.
    """
    (children,) = yield from operate([GetChildren(TOPICS_PATH)])
    epoch = INITIAL_EPOCH
    for topics in pieces([] if isinstance(children, Exception) else sorted(children.names)):
        roots = [partitions_path(topic) for topic in topics]
        names = yield from read_children(roots)
        paths = (
            f"{root}/{name}/state"
            for root, found in zip(roots, names, strict=True)
            if not isinstance(found, Exception)
            for name in found
        )
        for piece in pieces(paths):
            outcomes = yield from read_znodes(piece)
            for path, outcome in zip(piece, outcomes, strict=True):
                if not isinstance(outcome, Exception):
                    epoch = max(epoch, _epoch_of_state(outcome.data, path))
            yield from give_way()
    return epoch


def _epoch_of_state(data: bytes | None, path: str) -> int:
    try:
        epoch = PartitionState.decode(data, path).controller_epoch
    except LayoutError:
        return INITIAL_EPOCH
    return epoch if epoch < EPOCH_MAX else INITIAL_EPOCH


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
