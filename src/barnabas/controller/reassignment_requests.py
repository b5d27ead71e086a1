"""What `/admin/reassign_partitions` asks for: read, and removed as it is done.

A request names the whole target of a partition. The znode goes with its last request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from barnabas.controller.effects import Steps, give_way, in_pieces, operate, write_as_controller
from barnabas.controller.topic_znodes import ZnodeWriteError
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import BadVersionError, NoNodeError
from barnabas.coordination.layout.admin import REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Delete, Exists, GetData, SetData
from barnabas.coordination.protocol import Stat
from barnabas.wire.topics import TopicPartition

REPLICAS_MAX = 1_000
"""Of one partition. What is done for a partition is done in one turn of the loop, whatever replicas it has."""
WRITE_ATTEMPTS_MAX = 100
"""How often requests are removed anew because somebody has changed the znode meanwhile."""


def complaint_of(replicas: Collection[int]) -> str | None:
    """Why no partition can have these replicas, whatever the cluster is; None if one can."""
    if not replicas:
        return "Empty replica list specified in partition reassignment."
    if len(replicas) > REPLICAS_MAX:
        return f"{len(replicas)} replicas in partition reassignment; a partition has {REPLICAS_MAX} at most."
    if len(frozenset(replicas)) < len(replicas):
        return f"Duplicate replica ids in partition reassignment replica list: {list(replicas)}"
    if min(replicas) < 0:
        return f"Invalid broker id in replica list: {list(replicas)}"
    return None


class ReassignmentRequests:
    """The znode, as one term reads and writes it.

    Invariant: what is taken for known has been read and handed out, or was written here on top of that. So what another
    client has written is never taken for the controller's own write.
    """

    def __init__(self, watches: ControllerWatches, logger: logging.Logger) -> None:
        self._watches = watches
        self._logger = logger
        self._known: int | None = None
        """The transaction that wrote what is known."""

    def read_news(self) -> Steps[dict[TopicPartition, tuple[int, ...]]]:
        """The targets that are asked for, none where that is known; sets the watch of the term. What cannot be read
        asks for nothing until it is written anew.
        """
        (found,) = yield from operate([Exists(REASSIGN_PARTITIONS_PATH, self._watches.reassignments)])
        if isinstance(found, Exception):
            raise found
        if found is None:
            self._known = None
            return {}
        # Each reassignment that is over removes its request, and each such write fires the watch: for very many
        # requests that must not cost more than this.
        if found.mzxid == self._known:
            return {}
        read = yield from self._read()
        if read is None:
            return {}
        requests, stat = read
        self._known = stat.mzxid
        return dict(requests.partitions)

    def doubt(self) -> None:
        """What was handed out has not been considered to the end: the next time all is handed out again."""
        self._known = None

    def _read(self) -> Steps[tuple[Reassignment, Stat] | None]:
        """The requests, and the znode's; None where there are none that can be read."""
        (outcome,) = yield from operate([GetData(REASSIGN_PARTITIONS_PATH)])
        if isinstance(outcome, NoNodeError):
            return None
        if isinstance(outcome, Exception):
            raise outcome
        try:
            requests = yield from in_pieces(Reassignment.decode_in_steps(outcome.data))
        except LayoutError as error:
            self._logger.warning(
                "Ignoring reassignments that cannot be read; delete the znode, or write it anew: %s", error
            )
            return None
        yield from give_way()
        return requests, outcome.stat

    def forget(self, is_settled: Callable[[TopicPartition, tuple[int, ...]], bool], epoch_version: int) -> Steps[None]:
        """Removes requests that are done or refused, by partition and target. Raises `ZnodeWriteError`."""
        for _ in range(WRITE_ATTEMPTS_MAX):
            (found,) = yield from operate([Exists(REASSIGN_PARTITIONS_PATH)])
            read = None if found is None else (yield from self._read())
            if read is None:
                return
            requests, stat = read
            left = {
                partition: target
                for partition, target in requests.partitions.items()
                if not is_settled(partition, target)
            }
            if len(left) == len(requests.partitions) and left:
                return
            write = (
                SetData(REASSIGN_PARTITIONS_PATH, Reassignment(left, requests.extra).encode(), stat.version)
                if left
                else Delete(REASSIGN_PARTITIONS_PATH, stat.version)
            )
            (outcome,) = yield from write_as_controller([write], epoch_version)
            if isinstance(outcome, NoNodeError):
                return
            if isinstance(outcome, BadVersionError):
                continue
            if isinstance(outcome, Exception):
                raise ZnodeWriteError(f"{REASSIGN_PARTITIONS_PATH} could not be written: {outcome}") from outcome
            if left and self._known == stat.mzxid:
                self._known = outcome.mzxid
            return
        raise ZnodeWriteError(f"{REASSIGN_PARTITIONS_PATH} changed before each of {WRITE_ATTEMPTS_MAX} writes")
