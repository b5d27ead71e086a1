"""`barnabas.api.fetch` of very many partitions, which are looked at in steps: what changes between two steps."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from barnabas.api import fetch
from barnabas.log.segments.reading import LogReader
from barnabas.serving import fetch_reads, fetch_sessions
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.errors import ErrorCode
from barnabas.wire.fetch_session import FINAL_EPOCH
from barnabas.wire.messages import StopReplicaRequest
from barnabas.wire.records import Batch, walk_batches
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker, batch
from tests.unit.api.fetching import Data, Run, Session, asked, fetch_request, scenario, values

PARTITIONS = 4
TURNS = 30
"""More than such a fetch takes from its request to its answer."""


def batches_in(data: Data) -> list[Batch]:
    """All that is given, to the last byte."""
    records = bytes(data.records or b"")
    walked = walk_batches(records)
    assert sum(span.size_bytes for span in walked.spans) == len(records)
    return [batch_at(records, span) for span in walked.spans]


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition in each step, of any request."""
    monkeypatch.setattr(fetch, "FEW_PARTITIONS", 1)
    monkeypatch.setattr(fetch_sessions, "FEW_PARTITIONS", 1)
    monkeypatch.setattr(fetch_reads, "READ_PER_STEP", 1)
    monkeypatch.setattr(fetch_sessions, "_PER_STEP", 1)


@pytest.mark.parametrize("replica_id", [-1, 2])
@pytest.mark.parametrize("opens", [True, False])
def test_what_is_appended_between_reading_and_answering_comes_next(
    run: Run, tmp_path: Path, opens: bool, replica_id: int
) -> None:
    """A partition that had nothing to give when it was read is not forgotten until its next change."""
    lost: list[tuple[int, int]] = []

    async def body(broker: DataBroker) -> None:
        for number in range(PARTITIONS):
            broker.lead("flights", number, isr=(1,), replicas=(1, 2))
        for turns in range(TURNS):  # each brings one record for each partition
            for number in range(PARTITIONS):
                session = Session(broker.connect(), 12, replica_id)
                named = [asked(each, turns if each >= number else turns + 1) for each in range(PARTITIONS)]
                if not opens:
                    await session.fetch(*named)
                    assert await session.fetch() == {}
                session.caller.send(session.request(*named), session.version)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await broker.produce("flights", b"late", number=number)
                (response,) = await session.caller.responses(1)
                found = session.take(response)
                if number not in found or not values(found[number]):
                    found = await session.fetch()
                    if number not in found or values(found[number]) != [b"late"]:
                        lost.append((turns, number))
                session.epoch = FINAL_EPOCH
                await session.fetch()
        assert lost == []

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_segment_that_is_deleted_between_two_steps_is_not_read(
    run: Run, tmp_path: Path, is_cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of its descriptor is soon that of another file; and a read that fails takes the directory offline."""
    other = tmp_path / "other"
    other.write_bytes(b"other" * 10_000)
    if not is_cached:
        monkeypatch.setattr(LogReader, "read_cached", lambda *_: None)
    given = set[tuple[bytes | None, ...]]()

    async def body(broker: DataBroker) -> None:
        for turns in range(TURNS):
            opened: list[int] = []
            start = turns * PARTITIONS
            for number in range(start, start + PARTITIONS):
                broker.lead("flights", number)
                await broker.produce("flights", b"one", number=number)
            session = Session(broker.connect(), 12)
            session.epoch = FINAL_EPOCH
            named = [asked(number) for number in range(start, start + PARTITIONS)]
            session.caller.send(session.request(*named), session.version)
            for _ in range(turns):
                await asyncio.sleep(0)
            for number in range(start, start + PARTITIONS):
                log = broker.replicas.get_partition(TopicPartition("flights", number)).log
                assert log is not None
                log.delete_first_segments(1, "a test")
                opened.append(os.open(other, os.O_RDONLY))
            (response,) = await session.caller.responses(1)
            for data in session.take(response).values():
                assert data.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
                given.add(tuple(values(data)))
            for descriptor in opened:
                os.close(descriptor)
        assert not any(directory.is_offline for directory in broker.log_manager.directories)
        assert given == {(), (b"one",)}

    scenario(run, tmp_path / "logs", body)


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_log_that_is_cut_off_and_goes_on_between_two_steps_gives_whole_batches(
    run: Run, tmp_path: Path, is_cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a leader that is deposed, truncates, and leads again meanwhile: where the plan begins and ends is in the
    middle of other batches then."""
    if not is_cached:
        monkeypatch.setattr(LogReader, "read_cached", lambda *_: None)
    given = set[tuple[bytes | None, ...]]()
    former, later = batch(b"former"), batch(b"much longer than the former")

    def written(record_batch: bytes, base_offset: int) -> bytes:
        return base_offset.to_bytes(8) + record_batch[8:]

    async def body(broker: DataBroker) -> None:
        for turns in range(TURNS):
            numbers = range(turns * PARTITIONS, (turns + 1) * PARTITIONS)
            for number in numbers:
                broker.lead("flights", number)
                for _ in range(4):
                    await broker.produce("flights", b"former", number=number)
            session = Session(broker.connect(), 12)
            session.epoch = FINAL_EPOCH
            named = [asked(number, offset=2) for number in numbers]
            session.caller.send(session.request(*named), session.version)
            for _ in range(turns):
                await asyncio.sleep(0)
            for number in numbers:
                log = broker.replicas.get_partition(TopicPartition("flights", number)).log
                assert log is not None
                segment = log.segments.active
                segment.truncate_to(1)
                for offset in range(1, 4):
                    segment.append(written(later, offset), offset, 1_700_000_000_000, writes_at_once=True)
            (response,) = await session.caller.responses(1)
            for data in session.take(response).values():
                for found in batches_in(data):
                    found.verify()
                given.add(tuple(values(data)))
        assert given == {(), (b"former",) * 2, (b"much longer than the former",) * 2}

    assert len(former) != len(later)
    scenario(run, tmp_path, body)


@pytest.mark.parametrize("replica_id", [-1, 2])
def test_what_is_quiet_is_not_looked_at_for_ever(run: Run, tmp_path: Path, replica_id: int) -> None:
    async def body(broker: DataBroker) -> None:
        for number in range(PARTITIONS):
            broker.lead("flights", number, isr=(1,), replicas=(1, 2))
        session = Session(broker.connect(), 12, replica_id)
        await session.fetch(*(asked(number) for number in range(PARTITIONS)))
        assert await session.fetch() == {}
        examined = broker.topic_metrics.of("flights").fetch_requests
        before = examined.count
        assert await session.fetch() == {}
        assert examined.count == before

    scenario(run, tmp_path, body)


def test_a_fetch_that_begins_to_wait_when_its_connection_is_over_does_not(run: Run, tmp_path: Path) -> None:
    """A client may ask to wait for weeks."""

    async def body(broker: DataBroker) -> None:
        for number in range(PARTITIONS):
            broker.lead("flights", number)
        for turns in range(TURNS):
            session = Session(broker.connect(), 12)
            named = [asked(number) for number in range(PARTITIONS)]
            session.caller.send(session.request(*named, max_wait_ms=600_000_000), session.version)
            for _ in range(turns):
                await asyncio.sleep(0)
            session.caller.connection.abort()
            for _ in range(10 * TURNS):
                await asyncio.sleep(0)
            assert not broker.calls.dispatcher.running, turns

    scenario(run, tmp_path, body)


def test_a_fetch_whose_session_ends_is_answered(run: Run, tmp_path: Path) -> None:
    """Whether it waits already or not: nobody tells it of changes any more."""

    async def body(broker: DataBroker) -> None:
        for number in range(PARTITIONS):
            broker.lead("flights", number)
        named = [asked(number) for number in range(PARTITIONS)]
        for turns in range(TURNS):
            session, other = Session(broker.connect(), 12), Session(broker.connect(), 12)
            await session.fetch(*named)
            session.caller.send(session.request(*named, max_wait_ms=600_000_000), session.version)
            for _ in range(turns):
                await asyncio.sleep(0)
            other.session_id, other.epoch = session.session_id, FINAL_EPOCH
            await other.fetch()
            for _ in range(10 * TURNS):
                await asyncio.sleep(0)
            assert len(session.caller.received()) == 1, turns
            assert not broker.sessions.sessions

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [5, 7])
def test_what_fails_in_a_later_step_is_said_as_the_version_can(
    run: Run, tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before version 7 a response has no error of its own, so an empty one would say that nothing is there."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a test")

    monkeypatch.setattr(fetch_reads.FetchReader, "_read", fail)

    async def body(broker: DataBroker) -> None:
        request = fetch_request(version, "flights", *(asked(number) for number in range(PARTITIONS)))
        if version >= 7:
            request.session_epoch = FINAL_EPOCH
        response = await broker.connect().call(request, version)
        failed = {data.partition_index: data.error_code for topic in response.responses for data in topic.partitions}
        if version < 7:
            assert failed == dict.fromkeys(range(PARTITIONS), ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("few", [1, 1024])
@pytest.mark.parametrize("is_full", [True, False])
def test_a_follower_that_is_called_is_answered_whatever_its_fetch_is_doing(
    run: Run, tmp_path: Path, is_full: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to fetch more, which it can only say in another request; its first one has no session yet."""
    monkeypatch.setattr(fetch, "FEW_PARTITIONS", few)

    async def body(broker: DataBroker) -> None:
        for number in range(PARTITIONS):
            broker.lead("flights", number, isr=(1,), replicas=(1, 2))
        named = [asked(number) for number in range(PARTITIONS)]
        for turns in range(1, TURNS):  # its request is handled in the first
            session = Session(broker.connect(), 12, replica_id=2)
            if not is_full:
                await session.fetch(*named)
            session.caller.send(session.request(*named, max_wait_ms=600_000_000), session.version)
            for _ in range(turns):
                await asyncio.sleep(0)
            broker.sessions.call_followers({3})
            assert not session.caller.received(), turns
            broker.sessions.call_followers({2})
            for _ in range(10 * TURNS):
                await asyncio.sleep(0)
            (response,) = session.caller.received()
            session.take(response)
            session.epoch = FINAL_EPOCH
            await session.fetch()
        assert not broker.sessions.sessions

    scenario(run, tmp_path, body)


def test_a_replica_that_is_deleted_between_two_steps_is_told(run: Run, tmp_path: Path) -> None:
    """Nobody reports a change of it any more."""

    async def body(broker: DataBroker) -> None:
        for turns in range(TURNS):
            numbers = range(turns * PARTITIONS, (turns + 1) * PARTITIONS)
            for number in numbers:
                broker.lead("flights", number)
            session = Session(broker.connect(), 12)
            session.epoch = FINAL_EPOCH
            named = [asked(number) for number in numbers]
            session.caller.send(session.request(*named, max_wait_ms=600_000_000), session.version)
            for _ in range(turns):
                await asyncio.sleep(0)
            deleting = asyncio.ensure_future(broker.replicas.stop_replicas(deletion("flights", numbers[-1])))
            for _ in range(10 * TURNS):
                await asyncio.sleep(0)
            (response,) = session.caller.received()
            await deleting
            assert session.take(response)[numbers[-1]].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    scenario(run, tmp_path, body)


def deletion(topic: str, number: int) -> StopReplicaRequest:
    """The controller has a replica deleted."""
    state = StopReplicaRequest.StopReplicaPartitionState(partition_index=number, leader_epoch=-2, delete_partition=True)
    return StopReplicaRequest(
        controller_id=2,
        controller_epoch=1,
        broker_epoch=1,
        topic_states=[StopReplicaRequest.StopReplicaTopicState(topic_name=topic, partition_states=[state])],
    )
