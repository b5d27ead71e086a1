"""What must hold in every run of a cluster, whatever breaks: pure functions of a `History`.

Each checker returns its findings as sentences, none when all is well. `check_all` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from barnabas.testing.cluster_history import Committed, FinalLog, History, StoredBatch
from barnabas.wire.topics import TopicPartition

Checker = Callable[[History], Iterator[str]]
FINDINGS_MAX: Final = 20
LOADED_SECONDS_MAX: Final = 5.0
"""By then what a new leader has is committed, or its followers have left the ISR."""
STALE_SECONDS_MAX: Final = 15.0
"""How old what a consumer is given may be: a fetch takes that long at most before the client gives it up."""


def check_acknowledged(history: History) -> Iterator[str]:
    """Every acknowledged record is where its acknowledgement says, unless a loss of power may have taken it, or it was
    deleted (`check_deleted`).
    """
    starts = {log.partition: log.log_start_offset for log in _leading_logs(history)}
    places = {log.partition: {stored.record: stored.offset for stored in log.records} for log in _leading_logs(history)}
    for record, acknowledged in history.acknowledged.items():
        found = places.get(acknowledged.partition)
        if found is None:
            yield f"{acknowledged.partition} has no leader's log in the end"
            continue
        offset = found.get(record)
        if offset is not None and acknowledged.offset in {offset, -1}:
            continue
        lowest = max(acknowledged.offset, 0)
        since = history.committed_at(acknowledged.partition, acknowledged.offset, acknowledged.time)
        if history.may_be_lost(acknowledged.partition, lowest, since) or lowest < starts[acknowledged.partition]:
            continue
        place = "is not in the log" if offset is None else f"is at offset {offset}"
        yield (
            f"{record} was acknowledged at {acknowledged.time:.3f} s as offset {acknowledged.offset} of "
            f"{_name(acknowledged.partition)}, and {place}"
        )


def check_order(history: History) -> Iterator[str]:
    """In every log the records of a producer are in the order of sending, none twice, and none that was not sent.

    A leader that a loss of power has made forget a producer takes any batch of it as the first (KIP-360): there, what
    the producer has on its way may change places.
    """
    for log in history.final_logs:
        last: dict[int, tuple[int, int]] = {}
        for stored in log.records:
            record = stored.record
            where = f"offset {stored.offset} of {_name(log.partition)} on broker {log.broker_id}"
            if record is None or history.sent.get(record) != log.partition:
                yield f"{where} has {record}, which nobody sent there"
                continue
            if record in history.never_written:
                yield f"{where} has {record}, which the producer took for surely not written"
            number, offset = last.get(record.producer, (-1, -1))
            if record.number == number:
                yield f"{record} is twice in {_name(log.partition)}: at {offset} and at {stored.offset}"
            elif record.number < number and not history.may_be_lost(log.partition, offset, 0):
                yield f"{where} has {record} behind number {number} of its producer, which is at {offset}"
            last[record.producer] = (record.number, stored.offset)


def check_leaders(history: History) -> Iterator[str]:
    """One broker at most leads in a leader epoch of a partition, or controls in an epoch of the controller."""
    for (partition, epoch), brokers in history.leaders.items():
        if len(brokers) > 1:
            yield f"{_name(partition)} had several leaders in epoch {epoch}: {_since(brokers)}"
    for epoch, brokers in history.controllers.items():
        if len(brokers) > 1:
            yield f"there were several controllers in epoch {epoch}: {_since(brokers)}"


def check_high_watermarks(history: History) -> Iterator[str]:
    """Within one leader epoch, the leader's high watermark never goes back."""
    highest: dict[tuple[TopicPartition, int], int] = {}
    for exposed in history.exposed:
        key = (exposed.partition, exposed.leader_epoch)
        before = highest.get(key, -1)
        if exposed.high_watermark < before:
            yield (
                f"the high watermark of {_name(exposed.partition)} went back from {before} to "
                f"{exposed.high_watermark} in epoch {exposed.leader_epoch} at {exposed.time:.3f} s"
            )
        highest[key] = max(before, exposed.high_watermark)


def check_committed(history: History) -> Iterator[str]:
    """What was below an exposed high watermark never changes, unless a loss of power may have taken it.

    In the order of leader epochs: a leader that has been cut off from the others tells for a while, after its
    successor has begun, what was committed before.
    """
    known: dict[TopicPartition, dict[int, tuple[StoredBatch, float]]] = {}
    for exposed in sorted(history.exposed, key=lambda exposed: (exposed.leader_epoch, exposed.time)):
        batches = known.setdefault(exposed.partition, {})
        seen = {batch.base_offset: batch for batch in exposed.batches}
        for offset, (before, since) in list(batches.items()):
            if not exposed.from_offset <= offset or before.last_offset >= exposed.high_watermark:
                continue
            if seen.get(offset) == before:
                continue
            if not history.may_be_lost(exposed.partition, offset, since):
                yield (
                    f"{_name(exposed.partition)} has at offset {offset} {_batch(seen.get(offset))} at "
                    f"{exposed.time:.3f} s (leader {exposed.broker_id}, epoch {exposed.leader_epoch}); it was "
                    f"{_batch(before)}, committed at {since:.3f} s"
                )
            del batches[offset]
        since = min(exposed.time, history.end_of_epoch(exposed.partition, exposed.leader_epoch))
        for offset, batch in seen.items():
            batches.setdefault(offset, (batch, since))


def check_replicas(history: History) -> Iterator[str]:
    """Any two replicas have the same batches below both their high watermarks."""
    by_partition: dict[TopicPartition, list[FinalLog]] = {}
    for log in history.final_logs:
        by_partition.setdefault(log.partition, []).append(log)
    for partition, logs in by_partition.items():
        first = logs[0]
        for other in logs[1:]:
            end = min(first.high_watermark, other.high_watermark)
            start = max(first.log_start_offset, other.log_start_offset)
            ours = [batch for batch in first.batches if start <= batch.base_offset and batch.last_offset < end]
            theirs = [batch for batch in other.batches if start <= batch.base_offset and batch.last_offset < end]
            if ours != theirs:
                difference = next(
                    (
                        offset
                        for offset in range(max(len(ours), len(theirs)))
                        if ours[offset : offset + 1] != theirs[offset : offset + 1]
                    ),
                    0,
                )
                yield (
                    f"brokers {first.broker_id} and {other.broker_id} disagree on {_name(partition)} below {end}: "
                    f"{_batch(_at(ours, difference))} and {_batch(_at(theirs, difference))}"
                )


def check_consumed(history: History) -> Iterator[str]:
    """Whatever a consumer was given is what the log has there in the end, unless a loss of power may have taken it.

    What it was given may have been fetched, or read from a leader that was none any more, some time before.
    """
    starts = {log.partition: log.log_start_offset for log in _leading_logs(history)}
    logs = {log.partition: {stored.offset: stored.record for stored in log.records} for log in _leading_logs(history)}
    for consumed in history.consumed:
        found = logs.get(consumed.partition, {}).get(consumed.offset)
        if found == consumed.record or consumed.offset < starts.get(consumed.partition, 0):
            continue
        acknowledged = None if consumed.record is None else history.acknowledged.get(consumed.record)
        since = consumed.time - STALE_SECONDS_MAX
        if acknowledged is not None and acknowledged.offset in {consumed.offset, -1}:
            told_at = min(acknowledged.time, consumed.time)
            since = max(since, history.committed_at(consumed.partition, consumed.offset, told_at))
        if history.may_be_lost(consumed.partition, consumed.offset, since):
            continue
        yield (
            f"consumer {consumed.consumer} read {consumed.record} at offset {consumed.offset} of "
            f"{_name(consumed.partition)} at {consumed.time:.3f} s, where the log has {found} in the end"
        )


def check_group_offsets(history: History) -> Iterator[str]:
    """An OffsetFetch returns the offset that was committed before, or a later one.

    A loss of power may take commits, and records: then the group has to go back in the partition.
    """
    commits = sorted(history.committed, key=lambda committed: committed.time)
    for read in history.committed_reads:
        before = [
            committed
            for committed in commits
            if committed.time <= read.asked_at
            and (committed.group, committed.partition) == (read.group, read.partition)
        ]
        if not before:
            continue
        highest = max(before, key=lambda committed: committed.offset)
        if read.offset is not None and read.offset >= highest.offset:
            continue
        if history.is_superseded(read) or history.commits_may_be_lost(highest):
            continue
        yield (
            f"group {read.group} had committed {highest.offset} for {_name(read.partition)} at {highest.time:.3f} s, "
            f"and was told {read.offset} at {read.asked_at:.3f} s"
        )


def check_shown_offsets(history: History) -> Iterator[str]:
    """What an OffsetFetch has shown is in the log in the end: it was committed.

    A coordinator shows all that the log has when it begins, as Kafka's does; that is committed within a while.
    """
    if history.group_offsets is None:
        return
    for read in history.committed_reads:
        if read.offset is None or (read.group, read.partition, read.offset) in history.group_offsets:
            continue
        if read.asked_at - history.has_coordinated_since(read) < LOADED_SECONDS_MAX or history.is_superseded(read):
            continue
        if history.commits_may_be_lost(Committed(read.asked_at, read.group, read.partition, read.offset)):
            continue
        yield (
            f"group {read.group} was told {read.offset} for {_name(read.partition)} at {read.asked_at:.3f} s by broker "
            f"{read.broker_id}, and the log has no such commit"
        )


def check_deleted(history: History) -> Iterator[str]:
    """No log starts behind what somebody wanted to be deleted, or retention may give up."""
    yield from history.unlawful
    for log in history.final_logs:
        allowed = history.deletable.get(log.partition, 0)
        if log.log_start_offset > allowed:
            yield (
                f"{_name(log.partition)} starts at {log.log_start_offset} on broker {log.broker_id}, and only what is "
                f"below {allowed} was to be deleted"
            )


def check_unclean_elections(history: History) -> Iterator[str]:
    """No out-of-sync replica leads while a member of the ISR is registered, or where no config allows it."""
    for election in history.unclean:
        if not history.allows_unclean:
            yield (
                f"broker {election.broker_id}, which was not in sync, was elected for {_name(election.partition)} in "
                f"epoch {election.leader_epoch}, which no config allows"
            )
        elif election.registered:
            yield (
                f"broker {election.broker_id}, which was not in sync, was elected for {_name(election.partition)} in "
                f"epoch {election.leader_epoch}, although {list(election.registered)} of the ISR are registered: "
                f"everything from {election.from_offset} on is lost"
            )


def check_directories(history: History) -> Iterator[str]:
    """No broker leads a partition for long whose log directory has failed."""
    yield from history.led_without_disk


def check_flushed(history: History) -> Iterator[str]:
    """A loss of power takes no more acknowledged records from who had acknowledged them than `flush.messages` lets."""
    yield from history.unflushed


def check_log_moves(history: History) -> Iterator[str]:
    """A replica has one log at any time, wherever it is moved, and no copy is left."""
    yield from history.misplaced


def check_renewed_topic(history: History) -> Iterator[str]:
    """A topic that was made anew under its name has all of its own records and none of the former one."""
    yield from history.mixed_up


def check_compacted(history: History) -> Iterator[str]:
    """A compacted topic has the last value of each key, where it was (`compacted_topic`)."""
    yield from history.badly_compacted


def check_tiered(history: History) -> Iterator[str]:
    """A tiered topic has all of its records, by offset and by time, wherever they are (`tiered_topic`)."""
    yield from history.lost_remotely


def check_tokens(history: History) -> Iterator[str]:
    """Delegation tokens hold as long as they were said to, and no longer; so do rights (`changed_rights`)."""
    yield from history.mistaken


def check_throttled(history: History) -> Iterator[str]:
    """Throttled replicas that are behind get on in turns."""
    yield from history.starved


def check_next_group(history: History) -> Iterator[str]:
    """The members of a group of the consumer protocol have what they are to have (`next_group_ledger`)."""
    yield from history.misassigned


def check_transactions(history: History) -> Iterator[str]:
    """Transactions are all or nothing, whoever looks whenever (`transaction_ledger`)."""
    yield from history.torn


def check_connections(history: History) -> Iterator[str]:
    """Brokers come in where clients have taken all places."""
    yield from history.kept_out


def check_settled(history: History) -> Iterator[str]:
    """After faults have ended, everything comes to rest."""
    yield from history.unsettled


CHECKERS: Final[tuple[Checker, ...]] = (
    check_settled,
    check_leaders,
    check_high_watermarks,
    check_committed,
    check_deleted,
    check_unclean_elections,
    check_directories,
    check_acknowledged,
    check_order,
    check_replicas,
    check_consumed,
    check_group_offsets,
    check_shown_offsets,
    check_flushed,
    check_renewed_topic,
    check_log_moves,
    check_compacted,
    check_tiered,
    check_tokens,
    check_throttled,
    check_transactions,
    check_connections,
    check_next_group,
)


def check_all(history: History) -> list[str]:
    """The findings of all checkers, at most `FINDINGS_MAX` of each."""
    findings: list[str] = []
    for checker in CHECKERS:
        for number, finding in enumerate(checker(history)):
            if number == FINDINGS_MAX:
                findings.append(f"{checker.__name__}: and more")
                break
            findings.append(f"{checker.__name__}: {finding}")
    return findings


def _leading_logs(history: History) -> Iterable[FinalLog]:
    return [log for log in history.final_logs if log.is_leader]


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _since(brokers: dict[int, float]) -> str:
    return ", ".join(f"broker {broker_id} since {since:.3f} s" for broker_id, since in brokers.items())


def _batch(batch: StoredBatch | None) -> str:
    if batch is None:
        return "nothing"
    return f"a batch of {batch.base_offset} to {batch.last_offset} (epoch {batch.leader_epoch}, CRC {batch.crc:#010x})"


def _at(batches: list[StoredBatch], place: int) -> StoredBatch | None:
    return batches[place] if place < len(batches) else None
