"""`barnabas.testing.checkers`: each accepts a good history, and catches the violation it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.testing import checkers
from barnabas.testing.checkers import Checker, check_all
from barnabas.testing.cluster_history import (
    Acknowledged,
    Committed,
    CommittedRead,
    Consumed,
    ExposedHighWatermark,
    FinalLog,
    Forgot,
    History,
    RecordId,
    StoredBatch,
    StoredRecord,
    UncleanElection,
)
from barnabas.wire.topics import TopicPartition

EVENTS = TopicPartition("events", 0)
RECORDS = [RecordId(1, number) for number in range(6)]
BATCHES = tuple(StoredBatch(offset, offset + 1, 0, 100 + offset) for offset in (0, 2, 4))


def final_log(broker_id: int, *records: RecordId, leads: bool = False, high_watermark: int = 6) -> FinalLog:
    stored = tuple(StoredRecord(offset, record) for offset, record in enumerate(records or RECORDS))
    return FinalLog(broker_id, EVENTS, leads, high_watermark, stored, BATCHES)


def exposed(
    time: float, high_watermark: int, *batches: StoredBatch, epoch: int = 0, start: int = 0
) -> ExposedHighWatermark:
    return ExposedHighWatermark(time, 1, EVENTS, epoch, high_watermark, start, batches)


def good_history() -> History:
    """Six records in three batches, sent by one producer, all acknowledged, read and committed."""
    history = History()
    history.sent = dict.fromkeys(RECORDS, EVENTS)
    history.acknowledged = {record: Acknowledged(EVENTS, record.number, 1.0 + record.number) for record in RECORDS}
    history.leaders = {(EVENTS, 0): {1: 0.5}, (EVENTS, 1): {2: 8.0}}
    history.controllers = {1: {1: 0.1}, 2: {2: 7.5}}
    history.exposed = [
        exposed(2.0, 2, BATCHES[0]),
        exposed(5.0, 6, *BATCHES[1:], start=2),
        exposed(9.0, 4, *BATCHES[:2], epoch=1),
        exposed(9.5, 6, BATCHES[2], epoch=1, start=4),
    ]
    history.consumed = [Consumed(3.0 + record.number, 1, EVENTS, record.number, record) for record in RECORDS]
    history.committed = [Committed(5.0, "readers", EVENTS, 3), Committed(9.0, "readers", EVENTS, 6)]
    history.committed_reads = [
        CommittedRead(1.0, "readers", EVENTS, None, 2),
        CommittedRead(6.0, "readers", EVENTS, 3, 2),
        CommittedRead(8.9, "readers", EVENTS, 6, 2),
        CommittedRead(10.0, "readers", EVENTS, 6, 2),
    ]
    history.final_logs = [final_log(1), final_log(2, leads=True), final_log(3, high_watermark=4)]
    return history


def findings(checker: Checker, history: History) -> list[str]:
    return list(checker(history))


def test_a_good_history_has_no_findings() -> None:
    assert check_all(good_history()) == []


def test_an_empty_history_has_no_findings() -> None:
    assert check_all(History()) == []


def lose_the_last_record(history: History) -> None:
    """In all logs, so that only its acknowledgement knows of it."""
    history.final_logs = [replace(log, records=log.records[:-1]) for log in history.final_logs]


def test_an_acknowledged_record_that_is_missing_is_found() -> None:
    history = good_history()
    lose_the_last_record(history)
    (finding,) = findings(checkers.check_acknowledged, history)
    assert "number=5" in finding
    assert "is not in the log" in finding


def test_an_acknowledged_record_at_another_offset_is_found() -> None:
    history = good_history()
    history.acknowledged[RECORDS[2]] = Acknowledged(EVENTS, 1, 3.0)
    (finding,) = findings(checkers.check_acknowledged, history)
    assert "is at offset 2" in finding


def test_an_acknowledgement_without_an_offset_is_met_anywhere() -> None:
    history = good_history()
    history.acknowledged[RECORDS[2]] = Acknowledged(EVENTS, -1, 3.0)
    assert findings(checkers.check_acknowledged, history) == []


def test_a_partition_without_a_leader_in_the_end_is_found() -> None:
    history = good_history()
    history.final_logs = [replace(log, is_leader=False) for log in history.final_logs]
    assert "has no leader's log" in findings(checkers.check_acknowledged, history)[0]


@pytest.mark.parametrize(
    ("event", "is_excused"),
    [
        (Forgot(9.0, 2, EVENTS, 5, in_isr=True, leader_epoch=0), True),
        (Forgot(9.0, 2, EVENTS, 6, in_isr=True, leader_epoch=0), False),  # it had kept the record
        (Forgot(9.0, 2, EVENTS, 5, in_isr=False, leader_epoch=0), False),  # it had to catch up before it counted
        (Forgot(4.9, 2, EVENTS, 5, in_isr=True, leader_epoch=0), False),  # before the record was committed
        (Forgot(5.9, 2, EVENTS, 5, in_isr=True, leader_epoch=0), True),  # after that; its acknowledgement was under way
        (Forgot(9.0, 2, TopicPartition("events", 1), 5, in_isr=True, leader_epoch=0), False),
    ],
)
def test_only_a_forgetful_member_of_the_isr_excuses_a_loss(event: Forgot, is_excused: bool) -> None:
    history = good_history()
    lose_the_last_record(history)
    history.forgot = [event]
    assert (findings(checkers.check_acknowledged, history) == []) is is_excused


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([*RECORDS[:3], RECORDS[2], *RECORDS[4:]], "is twice in events-0: at 2 and at 3"),
        ([*RECORDS[:2], RECORDS[3], RECORDS[2], *RECORDS[4:]], "behind number 3 of its producer, which is at 2"),
        ([*RECORDS[:5], RecordId(9, 0)], "which nobody sent there"),
    ],
)
def test_duplicates_disorder_and_strangers_are_found_on_any_replica(records: list[RecordId], message: str) -> None:
    history = good_history()
    history.final_logs[2] = final_log(3, *records)
    found = findings(checkers.check_order, history)
    assert any(message in finding for finding in found), found


def test_what_a_leader_has_forgotten_may_come_in_another_order_but_not_twice() -> None:
    history = good_history()
    history.final_logs[2] = final_log(3, *RECORDS[:2], RECORDS[3], RECORDS[2], *RECORDS[4:])
    history.forgot = [Forgot(0.5, 2, EVENTS, 3, in_isr=True, leader_epoch=0)]
    assert len(findings(checkers.check_order, history)) == 1, "that was kept"
    history.forgot = [Forgot(0.5, 2, EVENTS, 2, in_isr=True, leader_epoch=0)]
    assert findings(checkers.check_order, history) == []
    history.final_logs[2] = final_log(3, *RECORDS[:3], RECORDS[2], *RECORDS[4:])
    assert len(findings(checkers.check_order, history)) == 1


def test_records_of_two_producers_may_be_mixed() -> None:
    history = good_history()
    other = [RecordId(2, 0), RecordId(2, 1)]
    history.sent |= dict.fromkeys(other, EVENTS)
    history.final_logs = [final_log(1, RECORDS[0], other[0], RECORDS[1], other[1])]
    assert findings(checkers.check_order, history) == []


def test_a_record_that_surely_was_not_written_is_found_in_the_log() -> None:
    history = good_history()
    history.never_written.add(RECORDS[3])
    assert len(findings(checkers.check_order, history)) == 3, "once per replica"


def test_a_record_in_another_partition_than_it_was_sent_to_is_found() -> None:
    history = good_history()
    history.sent[RECORDS[3]] = TopicPartition("events", 1)
    assert "which nobody sent there" in findings(checkers.check_order, history)[0]


def test_two_leaders_of_one_epoch_are_found() -> None:
    history = good_history()
    history.leaders[EVENTS, 1] = {2: 8.0, 3: 8.5}
    (finding,) = findings(checkers.check_leaders, history)
    assert finding == "events-0 had several leaders in epoch 1: broker 2 since 8.000 s, broker 3 since 8.500 s"


def test_two_controllers_of_one_epoch_are_found() -> None:
    history = good_history()
    history.controllers[2] = {2: 7.5, 3: 7.6}
    assert "several controllers in epoch 2" in findings(checkers.check_leaders, history)[0]


def test_a_high_watermark_that_goes_back_within_an_epoch_is_found_and_a_new_epochs_is_not() -> None:
    history = good_history()
    assert history.exposed[2].high_watermark < history.exposed[1].high_watermark, "of another epoch"
    history.exposed.append(exposed(9.9, 5, epoch=1, start=6))
    (finding,) = findings(checkers.check_high_watermarks, history)
    assert "went back from 6 to 5 in epoch 1" in finding


@pytest.mark.parametrize(
    "seen",
    [
        (BATCHES[0], StoredBatch(2, 3, 0, 999)),  # other bytes
        (BATCHES[0], StoredBatch(2, 3, 1, 102)),  # written in another epoch
        (BATCHES[0],),  # gone
    ],
)
def test_a_change_below_an_exposed_high_watermark_is_found(seen: tuple[StoredBatch, ...]) -> None:
    history = good_history()
    history.exposed[2] = exposed(9.0, 4, *seen, epoch=1)
    (finding,) = findings(checkers.check_committed, history)
    assert "events-0 has at offset 2" in finding
    history.forgot = [Forgot(8.0, 2, EVENTS, 2, in_isr=True, leader_epoch=0)]
    assert findings(checkers.check_committed, history) == []


def test_a_log_whose_beginning_was_not_looked_at_again_has_not_changed() -> None:
    history = good_history()
    history.exposed = [*history.exposed[:2], exposed(9.0, 6, BATCHES[2], epoch=1, start=4)]
    assert findings(checkers.check_committed, history) == []


def test_what_is_above_the_new_leaders_high_watermark_is_judged_later() -> None:
    history = good_history()
    history.exposed[3] = exposed(9.5, 6, StoredBatch(4, 5, 1, 777), epoch=1, start=4)
    (finding,) = findings(checkers.check_committed, history)
    assert "at 9.500 s" in finding


def test_a_leader_that_was_cut_off_may_tell_what_its_successor_has_lost_and_written_anew() -> None:
    history = good_history()
    history.exposed = [
        exposed(9.0, 6, *BATCHES, epoch=1),
        exposed(9.5, 4, BATCHES[0], StoredBatch(2, 3, 0, 999)),
    ]
    (finding,) = findings(checkers.check_committed, history)
    assert "events-0 has at offset 2" in finding
    # The leader of epoch 1 began at 8.0: what was lost before that cannot have been committed later in epoch 0.
    history.forgot = [Forgot(7.9, 2, EVENTS, 2, in_isr=True, leader_epoch=0)]
    assert len(findings(checkers.check_committed, history)) == 1
    history.forgot = [Forgot(8.1, 2, EVENTS, 2, in_isr=True, leader_epoch=0)]
    assert findings(checkers.check_committed, history) == []
    # Whoever was elected for epoch 1 before that one, and has lost it, had it in epoch 0.
    history.forgot = [Forgot(7.9, 2, EVENTS, 2, in_isr=True, leader_epoch=1)]
    assert findings(checkers.check_committed, history) == []


@pytest.mark.parametrize(("leader_epoch", "is_excused"), [(0, False), (1, True)])
@pytest.mark.parametrize("checker", [checkers.check_acknowledged, checkers.check_consumed])
def test_what_a_leader_that_was_cut_off_tells_was_committed_in_its_epoch(
    checker: checkers.Checker, leader_epoch: int, is_excused: bool
) -> None:
    """Its successor was elected, lost its power, and came back before the old one told of the record."""
    history = good_history()
    record = RecordId(1, 6)
    history.acknowledged[record] = Acknowledged(EVENTS, 6, 7.0)
    history.consumed.append(Consumed(7.1, 2, EVENTS, 6, record))
    history.exposed.append(exposed(7.04, 7, StoredBatch(6, 6, 0, 107), start=6))
    history.forgot = [Forgot(6.9, 2, EVENTS, 6, in_isr=True, leader_epoch=leader_epoch)]
    assert (findings(checker, history) == []) is is_excused


def test_replicas_that_disagree_below_both_high_watermarks_are_found() -> None:
    history = good_history()
    other = (BATCHES[0], StoredBatch(2, 3, 0, 999), BATCHES[2])
    history.final_logs[2] = replace(history.final_logs[2], batches=other)
    found = findings(checkers.check_replicas, history)
    assert len(found) == 1
    assert "brokers 1 and 3 disagree on events-0 below 4" in found[0]


def test_replicas_may_differ_above_the_lower_high_watermark() -> None:
    history = good_history()
    history.final_logs[2] = replace(history.final_logs[2], batches=BATCHES[:2])
    assert findings(checkers.check_replicas, history) == []


def test_a_record_that_was_read_and_is_not_there_in_the_end_is_found() -> None:
    history = good_history()
    history.consumed.append(Consumed(9.0, 2, EVENTS, 6, RecordId(1, 6)))
    (finding,) = findings(checkers.check_consumed, history)
    assert "where the log has None in the end" in finding
    history.forgot = [Forgot(9.5, 2, EVENTS, 6, in_isr=True, leader_epoch=0)]
    assert findings(checkers.check_consumed, history) == []


@pytest.mark.parametrize(
    ("acknowledged_at", "acknowledged_as", "forgot_at", "is_excused"),
    [
        (None, 6, 20.0, True),
        (None, 6, 4.0, False),
        (18.0, 6, 17.0, False),
        (18.0, -1, 17.0, False),
        (18.0, 4, 17.0, True),  # written anew, after the loss
        (18.0, 6, 19.0, True),
        (30.0, 6, 31.0, True),
    ],
)
def test_what_a_consumer_was_given_may_have_been_on_its_way_when_it_was_lost(
    acknowledged_at: float | None, acknowledged_as: int, forgot_at: float, is_excused: bool
) -> None:
    history = good_history()
    record = RecordId(1, 6)
    history.consumed.append(Consumed(25.0, 2, EVENTS, 6, record))
    if acknowledged_at is not None:
        history.acknowledged[record] = Acknowledged(EVENTS, acknowledged_as, acknowledged_at)
    history.forgot = [Forgot(forgot_at, 2, EVENTS, 6, in_isr=True, leader_epoch=0)]
    assert (findings(checkers.check_consumed, history) == []) is is_excused


@pytest.mark.parametrize("told", [None, 2])
def test_a_group_offset_that_goes_back_is_found(told: int | None) -> None:
    history = good_history()
    history.committed_reads.append(CommittedRead(10.0, "readers", EVENTS, told, 2))
    (finding,) = findings(checkers.check_group_offsets, history)
    assert f"had committed 6 for events-0 at 9.000 s, and was told {told}" in finding
    history.forgot = [Forgot(9.5, 2, TopicPartition("__consumer_offsets", 1), 0, in_isr=True, leader_epoch=0)]
    assert findings(checkers.check_group_offsets, history) == []


def test_offsets_of_other_groups_and_partitions_are_their_own() -> None:
    history = good_history()
    history.committed_reads += [
        CommittedRead(10.0, "others", EVENTS, None, 2),
        CommittedRead(10.0, "readers", TopicPartition("events", 1), None, 2),
    ]
    assert findings(checkers.check_group_offsets, history) == []


def test_a_coordinator_that_was_superseded_may_tell_what_it_knew() -> None:
    history = good_history()
    history.offsets_partition = TopicPartition("__consumer_offsets", 1)
    history.leaders |= {(history.offsets_partition, 3): {1: 0.5}, (history.offsets_partition, 4): {2: 8.8}}
    history.committed_reads.append(CommittedRead(10.0, "readers", EVENTS, 3, 1))
    assert findings(checkers.check_group_offsets, history) == []
    history.committed_reads.append(CommittedRead(10.0, "readers", EVENTS, 3, 2))
    assert len(findings(checkers.check_group_offsets, history)) == 1


@pytest.mark.parametrize(
    ("event", "is_excused"),
    [
        (Forgot(9.5, 2, TopicPartition("__consumer_offsets", 1), 0, in_isr=True, leader_epoch=0), True),
        # Before the commit.
        (Forgot(8.0, 2, TopicPartition("__consumer_offsets", 1), 0, in_isr=True, leader_epoch=0), False),
        (Forgot(8.0, 2, EVENTS, 5, in_isr=True, leader_epoch=0), True),  # the consumer had not noticed yet
        (Forgot(8.0, 2, EVENTS, 6, in_isr=True, leader_epoch=0), False),
        (Forgot(9.5, 2, EVENTS, 5, in_isr=False, leader_epoch=0), False),
    ],
)
def test_what_excuses_a_group_offset_that_goes_back(event: Forgot, is_excused: bool) -> None:
    history = good_history()
    history.committed_reads.append(CommittedRead(10.0, "readers", EVENTS, 4, 2))
    history.forgot = [event]
    assert (findings(checkers.check_group_offsets, history) == []) is is_excused
    history.excuses_losses = False
    assert len(findings(checkers.check_group_offsets, history)) == 1


def test_nothing_is_excused_where_one_member_of_every_isr_was_kept() -> None:
    history = good_history()
    lose_the_last_record(history)
    history.forgot = [Forgot(9.0, 2, EVENTS, 5, in_isr=True, leader_epoch=0)]
    history.excuses_losses = False
    assert len(findings(checkers.check_acknowledged, history)) == 1


def test_what_did_not_come_to_rest_is_a_finding() -> None:
    history = good_history()
    history.unsettled.append("not every partition has a leader")
    assert check_all(history) == ["check_settled: not every partition has a leader"]


def test_an_offset_that_was_shown_and_is_not_in_the_log_is_a_finding() -> None:
    history = good_history()
    history.offsets_partition = TopicPartition("__consumer_offsets", 0)
    history.leaders[history.offsets_partition, 0] = {2: 1.0}
    history.committed_reads.append(CommittedRead(10.0, "readers", EVENTS, 9, 2))
    history.group_offsets = {(read.group, read.partition, read.offset or 0) for read in history.committed_reads}
    assert findings(checkers.check_shown_offsets, history) == []
    history.group_offsets.discard(("readers", EVENTS, 9))
    assert len(findings(checkers.check_shown_offsets, history)) == 1
    history.leaders[history.offsets_partition, 0] = {2: 6.0}
    assert findings(checkers.check_shown_offsets, history) == [], "it may have loaded what was not committed"


def test_what_power_took_and_what_was_mixed_up_are_findings() -> None:
    history = good_history()
    history.unflushed.append("broker 1 has lost it")
    history.mixed_up.append("that is of the former topic")
    history.misassigned.append("that has two owners")
    history.misplaced.append("broker 1 has it twice")
    history.badly_compacted.append("a key has lost its value")
    history.lost_remotely.append("a record is nowhere")
    assert check_all(history) == [
        "check_flushed: broker 1 has lost it",
        "check_renewed_topic: that is of the former topic",
        "check_log_moves: broker 1 has it twice",
        "check_compacted: a key has lost its value",
        "check_tiered: a record is nowhere",
        "check_next_group: that has two owners",
    ]


def test_findings_are_bounded() -> None:
    history = good_history()
    history.unsettled = ["again"] * 1_000
    assert len(check_all(history)) == checkers.FINDINGS_MAX + 1


def test_a_record_is_known_by_its_value() -> None:
    assert RecordId.of_value(RecordId(3, 14).value()) == RecordId(3, 14)
    for value in (None, b"", b"3", b"a:1", b"3:", b"3:-1"):
        assert RecordId.of_value(value) is None


@pytest.mark.parametrize(("time", "offset", "is_excused"), [(9.0, 5, True), (9.0, 6, False), (4.9, 5, False)])
def test_an_unclean_election_excuses_what_its_leader_lacked(time: float, offset: int, is_excused: bool) -> None:
    history = good_history()
    history.excuses_losses = False
    lose_the_last_record(history)
    history.unclean = [UncleanElection(time, 2, EVENTS, 1, offset, ())]
    assert (findings(checkers.check_acknowledged, history) == []) is is_excused
    assert findings(checkers.check_unclean_elections, history) == []


def test_an_unclean_election_beside_a_registered_member_of_the_isr_is_found() -> None:
    history = good_history()
    history.unclean = [UncleanElection(9.0, 2, EVENTS, 1, 5, (3,))]
    (finding,) = findings(checkers.check_unclean_elections, history)
    assert "although [3] of the ISR are registered" in finding


def test_what_was_to_be_deleted_may_be_gone_and_nothing_else() -> None:
    history = good_history()
    history.final_logs = [replace(log, records=log.records[3:], log_start_offset=3) for log in history.final_logs]
    assert findings(checkers.check_acknowledged, history) == []
    assert findings(checkers.check_consumed, history) == []
    assert len(findings(checkers.check_deleted, history)) == 3
    history.note_deletion(EVENTS, 3)
    history.note_deletion(EVENTS, 2)
    assert findings(checkers.check_deleted, history) == []


def test_what_retention_must_not_delete_is_found() -> None:
    history = good_history()
    history.unlawful = ["events-0 kept too little"]
    assert findings(checkers.check_deleted, history) == ["events-0 kept too little"]


def test_a_deleted_topic_of_offsets_excuses_earlier_commits_only() -> None:
    history = good_history()
    history.committed_reads = [CommittedRead(9.5, "readers", EVENTS, None, 2)]
    assert len(findings(checkers.check_group_offsets, history)) == 1
    history.offsets_deleted_at = [8.0]
    assert len(findings(checkers.check_group_offsets, history)) == 1
    history.offsets_deleted_at = [9.2]
    assert findings(checkers.check_group_offsets, history) == []


def test_an_unclean_election_that_no_config_allows_is_found() -> None:
    history = good_history()
    history.allows_unclean = False
    history.unclean = [UncleanElection(9.0, 2, EVENTS, 1, 5, ())]
    (finding,) = findings(checkers.check_unclean_elections, history)
    assert "which no config allows" in finding


def test_a_leader_without_its_disk_is_found() -> None:
    history = good_history()
    history.led_without_disk = ["broker 1 has led events-0 without a log"]
    assert findings(checkers.check_directories, history) == history.led_without_disk
