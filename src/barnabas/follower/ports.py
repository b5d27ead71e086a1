"""What a follower needs of the rooms above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from barnabas.cluster.image import Node
    from barnabas.log.directories.checkpoints import EpochEntry
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
    from barnabas.wire.primitives import Buffer


class LeaderConnection(Protocol):
    """A connection to the leader of partitions that this broker follows; `link.outgoing.Outgoing` is one."""

    def start(
        self,
        message: Any,
        version: int,
        timeout_ms: float,
        on_response: Callable[[Any], object],
        on_failure: Callable[[Exception], object],
    ) -> None:
        """Sends a request; later calls one of the two, once. Records of the response are valid until `on_response`
        returns. Raises ConnectionError if the connection was closed by us."""
        ...

    def start_encoded(
        self,
        encode: Callable[[int], list[Buffer]],
        decode: Callable[[Buffer, int, int], Any],
        timeout_ms: float,
        on_response: Callable[[Any], object],
        on_failure: Callable[[Exception], object],
    ) -> None:
        """As `start`, of a request whose frame `encode` makes, given its correlation id; `decode` reads the response
        (buffer, start at its header, end)."""
        ...

    async def send(self, message: Any, version: int, timeout_ms: float) -> Any:
        """Sends a request and returns the response; raises ConnectionError and TimeoutError."""
        ...

    async def ready(self, timeout_ms: float) -> None:
        """Returns once connected; raises as `send` does."""
        ...

    def close(self) -> None:
        """Ends the connection at once; what is in flight fails."""
        ...


class LeaderConnections(Protocol):
    """Makes connections to leaders."""

    def connect(self, node: Node, client_id: str) -> LeaderConnection:
        """A connection that is made when it is first used, and again when it was lost."""
        ...


class AuxiliaryState(NamedTuple):
    """What a follower needs whose log goes on behind what is in remote storage."""

    end_offset: int
    """Where it goes on."""
    epochs: Sequence[EpochEntry]
    producers: Sequence[ProducerSnapshotEntry]


class RemoteStates(Protocol):
    """What is in remote storage beside records; `tiered.remote_reads` has one."""

    async def auxiliary_state(self, log: PartitionLog, leader_epoch: int, last_offset: int) -> AuxiliaryState | None:
        """Of what ends with `last_offset`, which was written in that epoch; None where no remote segment has it.

        Raises KafkaError where that cannot be told now.
        """
        ...
