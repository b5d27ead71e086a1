"""A follower's end of an incremental fetch session (KIP-227): what the leader knows that we fetch, and what to tell it.

Sans I/O. Only what changed since the last request is looked at, so a request costs what it names, however many
partitions the session has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.wire.topics import TopicPartition

NO_SESSION: Final = 0
_FULL: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_STALE_NAMES_MAX: Final = 1000


class Position(NamedTuple):
    """Where a partition is fetched from."""

    topic_id: Uuid
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """-1 where the log is empty or knows no epochs."""
    log_start_offset: int


class Composition(NamedTuple):
    """What a request says."""

    fetched: list[tuple[TopicPartition, Position]]
    """New or at another position; in a full request all."""
    forgotten: list[tuple[TopicPartition, Position]]
    """Not fetched any more, by the position that was told last."""


Wanted = tuple["TopicPartition", Position | None]


class FollowerSession:
    """The session with one leader; begins without one.

    Invariant: after `compose`, `positions` is what the leader will hold for the session once it has handled the
    request, so a response is about exactly these positions.
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = _FULL
        """Of the next request: 0 for one that names all partitions and opens a session, else counted up."""
        self.positions: dict[TopicPartition, Position] = {}
        self._names: dict[bytes, str] = {}
        self._without_id = 0

    @property
    def is_full(self) -> bool:
        """The next request names all partitions."""
        return self.epoch == _FULL

    @property
    def has_topic_ids(self) -> bool:
        """Every topic of the session has an id."""
        return not self._without_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic of the session."""
        return self._names.get(topic_id)

    def compose(self, changed: Iterable[Wanted], everything: Callable[[], Iterable[Wanted]]) -> Composition | None:
        """What the next request says; None if there is nothing to fetch and nothing to forget.

        `changed` names what may have changed since the last call, with the position or with None for what is not to be
        fetched; `everything` gives the same for all partitions, and is called for a full request.
        """
        fetched: list[tuple[TopicPartition, Position]] = []
        forgotten: list[tuple[TopicPartition, Position]] = []
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

    def name_again(self, partition: TopicPartition, position: Position) -> bool:
        """As `compose` where this is the only partition that has changed, and only in how far its log goes. False, and
        nothing has changed, where there is more to say or less: `compose` tells.
        """
        known = self.positions.get(partition)
        if (
            self.is_full
            or known is None
            or position == known
            or position.leader_epoch != known.leader_epoch
            or position.topic_id != known.topic_id
            or self._without_id
        ):
            return False
        self.positions[partition] = position
        return True

    def answered(self, session_id: int, error: ErrorCode) -> bool:
        """Takes over what a response says of the session; False if it has no partitions to look at."""
        if error is ErrorCode.NONE:
            if session_id == NO_SESSION:
                self.session_id, self.epoch = NO_SESSION, _FULL
            else:
                self.session_id = session_id
                self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
            return True
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        self.epoch = _FULL
        return False

    def failed(self) -> None:
        """Nobody knows whether the request was handled: the next one closes the session and opens another."""
        self.epoch = _FULL

    def _keep(self, partition: TopicPartition, position: Position) -> None:
        if partition not in self.positions:
            if position.topic_id == ZERO_UUID:
                self._without_id += 1
            else:
                self._names[position.topic_id] = partition.topic
        self.positions[partition] = position

    def _drop(self, partition: TopicPartition, position: Position) -> None:
        # The name stays known: a response on its way may speak of it, and topics are few.
        del self.positions[partition]
        if position.topic_id == ZERO_UUID:
            self._without_id -= 1
