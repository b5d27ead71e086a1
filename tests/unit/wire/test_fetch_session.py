"""`barnabas.wire.fetch_session`: requests say what is new, and both ends agree on what is fetched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import FetchSessionHandler
from barnabas.wire.topics import TopicPartition


class Position(NamedTuple):
    """What is said of a partition."""

    topic_id: Uuid
    offset: int


Session = FetchSessionHandler[Position]
Wanted = tuple[TopicPartition, Position | None]
TOPIC_ID = Uuid(b"a" * 16)
OTHER_ID = Uuid(b"b" * 16)


def partition(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


def at(offset: int, topic_id: Uuid = TOPIC_ID) -> Position:
    return Position(topic_id, offset)


def nothing() -> Iterable[Wanted]:
    raise AssertionError("all partitions were asked for")


def identity(session: Session) -> tuple[int, int]:
    return session.session_id, session.epoch


def opened(*numbers: int) -> Session:
    """A session that fetches these partitions from 0."""
    session = Session()
    assert session.compose((), lambda: [(partition(number), at(0)) for number in numbers]) is not None
    assert session.answered(77, ErrorCode.NONE)
    return session


def test_opens_with_all_partitions_and_goes_on_with_what_changed() -> None:
    session = Session()
    composition = session.compose((), lambda: [(partition(0), at(0)), (partition(1), at(0)), (partition(2), None)])
    assert composition is not None
    assert [name for name, _ in composition.fetched] == [partition(0), partition(1)]
    assert identity(session) == (0, 0)
    assert session.answered(77, ErrorCode.NONE)
    assert session.epoch == 1
    composition = session.compose([(partition(1), at(5)), (partition(0), at(0))], nothing)
    assert composition == ([(partition(1), at(5))], [])


def test_an_idle_session_is_fetched_all_the_same() -> None:
    assert opened(0, 1).compose((), nothing) == ([], [])


def test_forgets_what_is_not_fetched_any_more_and_then_has_nothing_to_say() -> None:
    session = opened(0)
    assert session.compose([(partition(0), None)], nothing) == ([], [(partition(0), at(0))])
    assert session.compose([(partition(0), None)], nothing) is None


def test_a_topic_with_another_id_is_forgotten_and_fetched_anew() -> None:
    session = opened(0)
    composition = session.compose([(partition(0), at(0, OTHER_ID))], nothing)
    assert composition == ([(partition(0), at(0, OTHER_ID))], [(partition(0), at(0))])
    assert session.topic_name(OTHER_ID) == "flights"


def test_a_leader_that_keeps_no_session_gets_full_requests() -> None:
    session = Session()
    session.compose((), lambda: [(partition(0), at(0))])
    assert session.answered(0, ErrorCode.NONE)
    assert session.is_full


def test_errors_of_the_session_open_another() -> None:
    session = opened(0)
    assert not session.answered(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert identity(session) == (0, 0)
    session = opened(0)
    assert not session.answered(0, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert identity(session) == (77, 0)  # closes the old one
    session = opened(0)
    session.failed()
    assert identity(session) == (77, 0)
    session.lost()
    assert identity(session) == (0, 0)


def test_epochs_begin_again_at_1() -> None:
    session = opened(0)
    session.epoch = 2**31 - 1
    session.answered(77, ErrorCode.NONE)
    assert session.epoch == 1


def test_knows_whether_all_topics_have_ids() -> None:
    session = opened(0)
    known = [session.has_topic_ids]
    for position in (at(0, ZERO_UUID), None):
        session.compose([(partition(1), position)], nothing)
        known.append(session.has_topic_ids)
    assert known == [True, False, True]


Changes = list[tuple[int, int | None]]


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 3)), max_size=5), max_size=10))
def test_both_ends_agree_on_the_session(requests: list[Changes]) -> None:
    """Invariant: what a broker makes of the requests is what is to be fetched."""
    session = Session()
    leader: dict[TopicPartition, Position] = {}
    wanted: dict[TopicPartition, Position | None] = {}
    for changes in requests:
        changed = {partition(number): None if offset is None else at(offset) for number, offset in changes}
        wanted.update(changed)
        was_full = session.is_full
        composition = session.compose(changed.items(), wanted.items)
        if composition is None:
            assert not any(wanted.values())
            continue
        if was_full:
            leader = {}
        for name, _ in composition.forgotten:
            del leader[name]
        leader.update(composition.fetched)
        assert leader == {name: position for name, position in wanted.items() if position is not None}
        assert leader == session.positions
        session.answered(5, ErrorCode.NONE)
