"""What a follower is told of the records before its log, wherever that begins."""

from __future__ import annotations

from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.tiered.auxiliary_state import ProducersPlan, ReplayedPart, plan_producers
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.storage import open_store
from barnabas.wire.control_records import ControlRecordType
from barnabas.wire.record_validation import AppendOrigin
from tests.unit.log.log_broker import send
from tests.unit.tiered import test_remote_log_manager
from tests.unit.tiered.test_metadata_cache import cache_of, segment
from tests.unit.tiered.test_remote_log_manager import Run, commit, fill, tier
from tests.unit.tiered.test_remote_reads import end_marker
from tests.unit.tiered.tiered_broker import TieredBroker

run = test_remote_log_manager.run


def test_of_a_segment_that_goes_on_nothing_is_told_behind_the_place(run: Run) -> None:
    """The leader may have lost that part, in an unclean election: its epochs and producers are not the follower's."""

    async def body(tiered: TieredBroker) -> None:
        log, now_ms = tiered.log, tiered.host.clock.time_ms()
        for number in range(45):
            send(log, number // 3, b"v" * 100, producer_id=number % 3, timestamp_ms=now_ms)
        tiered.log.begin_epoch(3, 45)
        for number in range(45, 60):
            send(log, number // 3, b"v" * 100, producer_id=number % 3, timestamp_ms=now_ms)
        await commit(tiered)
        await fill(tiered, 60, 90)
        await tier(tiered)
        (crossed,) = (each for each in tiered.cache.segments() if {0, 3} <= set(each.leader_epochs))
        assert crossed.start_offset < 45 < crossed.end_offset
        for end_offset in range(1, 60):
            state = await tiered.reads.auxiliary_state(log, 0 if end_offset <= 45 else 3, end_offset - 1)
            assert state is not None
            assert state.end_offset == end_offset
            assert state.epochs == [EpochEntry(0, 0), EpochEntry(3, 45)][: 1 + (end_offset > 45)]
            last = {number % 3: number for number in range(end_offset)}
            assert {each.producer_id: each.last_offset for each in state.producers} == last
            assert {each.producer_id: each.last_sequence for each in state.producers} == {
                producer_id: offset // 3 for producer_id, offset in last.items()
            }

    run(body)


def test_a_transaction_that_is_open_at_the_place_is_open_for_the_follower(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        log, now_ms = tiered.log, tiered.host.clock.time_ms()
        send(log, 0, b"a" * 100, producer_id=7, is_transactional=True, timestamp_ms=now_ms)
        await fill(tiered, 1, 15)
        log.append_as_leader(end_marker(ControlRecordType.ABORT, now_ms), 0, origin=AppendOrigin.COORDINATOR)
        await fill(tiered, 16, 90)
        await tier(tiered)
        assert tiered.cache.segments()[0].end_offset < 14
        for end_offset in range(1, 30):
            state = await tiered.reads.auxiliary_state(log, 0, end_offset - 1)
            assert state is not None
            (producer,) = state.producers
            assert producer.transaction_first_offset == (0 if end_offset <= 15 else -1)
        second = tiered.cache.segments()[1]
        store = open_store(tiered.host.files, tiered.settings.url)
        store.delete([object_name(second, ObjectKind.LOG)])
        assert await tiered.reads.auxiliary_state(log, 0, second.end_offset), "nothing is read that a snapshot tells"

    run(body)


def test_producers_are_found_over_copies_that_overlap() -> None:
    cache = cache_of(segment(1, 0, 9), segment(2, 5, 14))
    first, second = cache.segments()
    history = [EpochEntry(0, 0)]
    assert plan_producers(cache, history, second, 15) == ProducersPlan(second, [])
    plan = plan_producers(cache, history, second, 12)
    assert plan.snapshot is None
    assert plan.parts == [ReplayedPart(first, 5), ReplayedPart(second, 12)]
