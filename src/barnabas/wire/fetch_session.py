"""The asking end of an incremental fetch session (KIP-227): what the broker knows already, and what to tell it.

Consumers and followers use it. Only what may have changed since the last request is looked at, so a request costs what
it names, however many partitions the session has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from barnabas.wire.topics import TopicPartition

NO_SESSION: Final = 0
"""The id of no session: the broker has no room for one, or none is wanted."""
INITIAL_EPOCH: Final = 0
"""Of a request that opens a session."""
FINAL_EPOCH: Final = -1
"""Of a request that ends a session, or wants none."""
_EPOCH_MAX: Final = 2**31 - 1
_STALE_NAMES_MAX: Final = 1000


class FetchedPosition(Protocol):
    """Where a partition is fetched from, and whatever else is said of it; two that are equal say the same."""

    @property
    def topic_id(self) -> bytes: ...


T = TypeVar("T", bound=FetchedPosition)


class Composition(NamedTuple, Generic[T]):
    """What a request says."""

    fetched: list[tuple[TopicPartition, T]]
    """New or at another position; in a full request all."""
    forgotten: list[tuple[TopicPartition, T]]
    """Not fetched any more, by the position that was told last."""


def next_epoch(epoch: int) -> int:
    """Of the request after the one of this epoch."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1


class FetchSessionHandler(Generic[T]):
    """A session with one broker, one request at a time; begins without one.

    Invariant: after `compose`, `positions` is what the broker will hold for the session once it has handled the
    request, so a response is about exactly these positions.
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        """Of the next request: 0 for one that names all partitions and opens a session, else counted up."""
        self.positions: dict[TopicPartition, T] = {}
        self._names: dict[bytes, str] = {}
        self._without_id = 0

    @property
    def is_full(self) -> bool:
        """The next request names all partitions."""
        return self.epoch == INITIAL_EPOCH

    @property
    def has_topic_ids(self) -> bool:
        """Every topic of the session has an id."""
        return not self._without_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic of the session."""
        return self._names.get(topic_id)

    def compose(
        self,
        changed: Iterable[tuple[TopicPartition, T | None]],
        everything: Callable[[], Iterable[tuple[TopicPartition, T | None]]],
    ) -> Composition[T] | None:
        """What the next request says; None if there is nothing to fetch and nothing to forget.

        `changed` names what may have changed since the last call, with the position or with None for what is not to be
        fetched; `everything` gives the same for all partitions, and is called for a full request.
        """
        fetched: list[tuple[TopicPartition, T]] = []
        forgotten: list[tuple[TopicPartition, T]] = []
        if self.is_full:
            self.positions.clear()
            self._names.clear()
            self._without_id = 0
            changed = everything()
        elif len(self._names) > len(self.positions) + _STALE_NAMES_MAX:
            self._names = {position.topic_id: partition.topic for partition, position in self.positions.items()}
        for partition, position in changed:
            known = self.positions.get(partition)
            if position == known:
                continue
            if known is not None and (position is None or position.topic_id != known.topic_id):
                forgotten.append((partition, known))
                self._drop(partition, known)
            if position is not None:
                fetched.append((partition, position))
                self._keep(partition, position)
        if not self.positions and not forgotten:
            return None
        return Composition(fetched, forgotten)

    def answered(self, session_id: int, error: ErrorCode) -> bool:
        """Takes over what a response says of the session; False if it has no partitions to look at."""
        if error is ErrorCode.NONE:
            if session_id == NO_SESSION:
                self.lost()
            else:
                self.session_id = session_id
                self.epoch = next_epoch(self.epoch)
            return True
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        return False

    def failed(self) -> None:
        """Nobody knows whether the request was handled: the next one closes the session and opens another."""
        self.epoch = INITIAL_EPOCH

    def lost(self) -> None:
        """The broker has no such session any more: the next request opens another."""
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH

    def _keep(self, partition: TopicPartition, position: T) -> None:
        if partition not in self.positions:
            if position.topic_id == ZERO_UUID:
                self._without_id += 1
            else:
                self._names[position.topic_id] = partition.topic
        self.positions[partition] = position

    def _drop(self, partition: TopicPartition, position: T) -> None:
        # The name stays known: a response on its way may speak of it, and topics are few.
        del self.positions[partition]
        if position.topic_id == ZERO_UUID:
            self._without_id -= 1
