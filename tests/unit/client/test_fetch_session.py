"""`barnabas.client.fetch_session`: requests say what is new, and begin anew when the broker has forgotten."""

from __future__ import annotations

from barnabas.client.fetch_session import FetchSession, FetchTarget
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.topics import TopicPartition

ID = bytes(15) + b"\1"
ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


def target(offset: int, topic_id: bytes = ID) -> FetchTarget:
    return FetchTarget(topic_id, offset, 0, 1_000)


def asked(
    session: FetchSession, version: int = 17, **wanted: FetchTarget
) -> tuple[int, int, dict[int, int], list[int]]:
    """Session id and epoch, offsets by partition, and the forgotten partitions of the next request."""
    request = FetchRequest()
    session.fill(request, {TopicPartition("t", int(name[1:])): place for name, place in wanted.items()}, version)
    offsets = {part.partition: part.fetch_offset for topic in request.topics for part in topic.partitions}
    forgotten = [number for topic in request.forgotten_topics_data for number in topic.partitions]
    return request.session_id, request.session_epoch, offsets, forgotten


def test_names_only_what_is_new_or_changed_once_there_is_a_session() -> None:
    session = FetchSession()
    assert asked(session, p1=target(0), p2=target(0)) == (0, 0, {1: 0, 2: 0}, [])
    assert session.accept(FetchResponse(session_id=9))
    assert asked(session, p1=target(5), p2=target(0)) == (9, 1, {1: 5}, [])
    assert session.accept(FetchResponse(session_id=9))
    assert asked(session, p2=target(0)) == (9, 2, {}, [1])
    assert session.accept(FetchResponse(session_id=9))
    assert asked(session, p1=target(5), p2=target(0)) == (9, 3, {1: 5}, [])


def test_names_everything_each_time_where_the_broker_has_no_room_for_a_session() -> None:
    session = FetchSession()
    for _ in range(2):
        assert asked(session, p1=target(0)) == (0, 0, {1: 0}, [])
        assert session.accept(FetchResponse(session_id=0))


def test_begins_anew_after_an_error_another_session_or_a_lost_answer() -> None:
    for response in (
        FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)),
        FetchResponse(session_id=10),
    ):
        session = FetchSession()
        asked(session, p1=target(0))
        assert session.accept(FetchResponse(session_id=9))
        asked(session, p1=target(0))
        assert not session.accept(response)
        assert asked(session, p1=target(3)) == (0, 0, {1: 3}, [])
        session.accept(FetchResponse(session_id=9))
        session.failed()
        assert asked(session, p1=target(4)) == (9, 0, {1: 4}, [])  # ends the session that may be there


def test_a_topic_created_anew_is_forgotten_under_its_old_id() -> None:
    session = FetchSession()
    asked(session, p1=target(0))
    session.accept(FetchResponse(session_id=9))
    assert asked(session, p1=target(0, bytes(15) + b"\2")) == (9, 1, {1: 0}, [1])


def test_names_are_used_where_there_are_no_ids_in_a_session_of_their_own() -> None:
    session = FetchSession()
    wanted = {ONE: target(0, ZERO_UUID), TWO: target(0)}
    assert session.highest_version(wanted, 17) == 12
    assert session.highest_version({TWO: target(0)}, 17) == 17
    asked(session, p1=target(0))
    session.accept(FetchResponse(session_id=9))
    assert asked(session, version=12, p1=target(0, ZERO_UUID)) == (9, 0, {1: 0}, [])
