"""`barnabas.coordinators.transaction.coordinator`: requests, failover and time-outs, over a log in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.coordinators.transaction.records import Transaction, transaction_key, transaction_value
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import NO_PRODUCER, Producer
from barnabas.kernel.steps import at_once
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeTransactionsResponse
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.transaction.transaction_world import SHARD, TIMEOUT_MS, TransactionWorld

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
MINUTE_MS = 60_000
T0 = TopicPartition("t", 0)


def state(world: TransactionWorld, name: str = "x") -> TransactionState | None:
    """What the log says."""
    found = world.log.latest().get(name)
    return None if found is None else found.state


def states(world: TransactionWorld, names: list[str]) -> set[TransactionState | None]:
    """What the log says of all of these; reading it takes long."""
    latest = world.log.latest()
    return {None if (found := latest.get(name)) is None else found.state for name in names}


def describe(world: TransactionWorld, name: str) -> DescribeTransactionsResponse.TransactionState:
    (shown,) = at_once(world.coordinator.describe([name]))
    return shown


def test_a_transaction_is_told_in_all_its_partitions_and_is_complete_then(world: TransactionWorld) -> None:
    producer = world.begun()
    assert world.add(producer, 0, 1, 2, 3) == [NONE]
    assert world.end(producer) == [NONE]
    assert state(world) is TransactionState.PREPARE_COMMIT
    assert world.end(producer) == [CONCURRENT]
    world.pass_ms(20)
    assert world.brokers.markers == {TopicPartition("t", n): [(producer, True, 1)] for n in range(4)}
    assert sorted(broker_id for broker_id, _ in world.brokers.requests) == [0, 1, 2]
    assert state(world) is TransactionState.COMPLETE_COMMIT
    assert world.end(producer) == [NONE]
    assert world.end(producer, is_commit=False) == [ErrorCode.INVALID_TXN_STATE]


@pytest.mark.parametrize(
    ("name", "timeout_ms", "code"),
    [
        ("", 1, ErrorCode.INVALID_REQUEST),
        ("", 0, ErrorCode.INVALID_REQUEST),
        ("x", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("x", -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("x", 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_what_is_refused_at_once(world: TransactionWorld, name: str, timeout_ms: int, code: ErrorCode) -> None:
    assert world.init(name, timeout_ms=timeout_ms) == [(code, NO_PRODUCER)]
    if not name:
        assert world.add(Producer(1, 0), 0, name=name) == [code]
        assert world.end(Producer(1, 0), name=name) == [code]
    assert world.log.end_offsets.get(SHARD, 0) == 0


def test_the_longest_time_out_is_taken(world: TransactionWorld) -> None:
    told = world.init(timeout_ms=900_000)
    world.pass_ms(10)
    assert told == [(NONE, Producer(10, 0))]


def test_no_producer_id_no_producer(world: TransactionWorld) -> None:
    world.allocator.is_there = False
    told = world.init()
    world.pass_ms(2_000)
    assert told == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER)]
    assert world.log.end_offsets.get(SHARD, 0) == 0


def test_who_waits_for_a_producer_id_finds_what_happened_meanwhile(world: TransactionWorld) -> None:
    first, second = world.init(), world.init()
    world.pass_ms(20)
    ((code, producer),) = first
    assert (code, producer.epoch) == (NONE, 0)
    assert second == [(NONE, Producer(producer.producer_id, 1))]


def test_nobody_is_answered_before_the_record_is_committed(world: TransactionWorld) -> None:
    producer = world.begun()
    world.log.holds_back = True
    added = world.add(producer, 0)
    assert added == []
    assert world.add(producer, 1) == [CONCURRENT]
    world.log.commit()
    assert added == [NONE]
    ended = world.end(producer)
    world.pass_ms(20)
    assert (ended, world.brokers.requests) == ([], [])
    world.log.commit()
    assert ended == [NONE]
    world.pass_ms(20)
    assert world.brokers.markers == {T0: [(producer, True, 1)]}


def test_an_outcome_in_doubt_is_kept_and_told_when_it_is_committed(world: TransactionWorld) -> None:
    producer = world.begun()
    world.add(producer, 0)
    world.log.holds_back = True
    ended = world.end(producer)
    world.log.release(ErrorCode.REQUEST_TIMED_OUT)
    assert ended == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.pass_ms(TIMEOUT_MS * 2)  # nor is it timed out: the other outcome would be behind this one in the log
    assert world.end(producer, is_commit=False) == [CONCURRENT]
    assert world.init() == [(CONCURRENT, NO_PRODUCER)]
    assert (state(world), world.brokers.requests) == (TransactionState.PREPARE_COMMIT, [])
    world.log.holds_back = False
    world.log.commit()
    world.pass_ms(20)
    assert world.brokers.markers == {T0: [(producer, True, 1)]}
    assert state(world) is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_record_changes_nothing(world: TransactionWorld, refusal: ErrorCode, told: ErrorCode) -> None:
    producer = world.begun()
    world.add(producer, 0)
    world.log.refusal = refusal
    assert world.add(producer, 1) == [told]
    assert world.end(producer) == [told]
    assert world.init() == [(told, NO_PRODUCER)]
    world.log.refusal = None
    assert world.end(producer) == [NONE]
    world.pass_ms(20)
    assert world.brokers.markers == {T0: [(producer, True, 1)]}


def test_a_last_record_that_is_refused_is_appended_later(world: TransactionWorld) -> None:
    names = [f"id-{number}" for number in range(100)]
    for name in names:
        producer = world.begun(name)
        world.add(producer, 0, name=name)
        world.end(producer, name=name)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_ms(3_000)
    assert TransactionState.PREPARE_COMMIT in states(world, names[1:])
    world.log.refusal = None
    world.pass_ms(1_000)
    assert states(world, names) == {TransactionState.COMPLETE_COMMIT}


def test_another_producer_fences_the_first_one_and_aborts_its_transaction(world: TransactionWorld) -> None:
    first = world.begun()
    world.add(first, 0)
    assert world.init() == [(CONCURRENT, NO_PRODUCER)]
    assert world.end(first) == [ErrorCode.PRODUCER_FENCED]
    world.pass_ms(20)
    assert world.brokers.markers == {T0: [(Producer(first.producer_id, 1), False, 1)]}
    assert world.init() == [(NONE, Producer(first.producer_id, 2))]
    assert world.add(first, 1) == [ErrorCode.PRODUCER_FENCED]


def test_the_next_coordinator_goes_on_under_its_own_epoch(world: TransactionWorld) -> None:
    producer, open_one = world.begun(), world.begun("open")
    world.add(producer, 0, 1)
    world.add(open_one, 2, name="open")
    world.brokers.fates = {0: "down", 1: "leaderless"}
    assert world.end(producer) == [NONE]
    world.pass_ms(500)
    world.resign()
    assert world.end(producer) == [ErrorCode.NOT_COORDINATOR]
    asked = len(world.brokers.requests)
    world.pass_ms(5_000)
    assert len(world.brokers.requests) <= asked + 1
    world.brokers.fates.clear()
    world.elect()
    world.pass_ms(20)
    assert world.brokers.markers == {TopicPartition("t", n): [(producer, True, 2)] for n in range(2)}
    assert world.add(open_one, 3, name="open") == [NONE]
    assert world.coordinator.verification("open", open_one)(TopicPartition("t", 2)) is NONE
    with pytest.raises(KafkaError):
        world.coordinator.verification("nobody", open_one)


def test_what_a_coordinator_finds_is_committed_before_it_tells_anybody(world: TransactionWorld) -> None:
    decided, other = world.begun(), world.begun("other")
    world.add(decided, 0)
    world.log.holds_back = True
    told = [*world.end(decided), *world.add(other, 1, name="other")]
    world.resign()
    world.elect()
    world.pass_ms(5_000)
    assert told == []
    assert world.brokers.markers == {}
    # The next leader may lack what these would be told of.
    assert world.add(other, 1, name="other") == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    world.resign()
    world.log.lose_behind(world.log.committed_end)
    world.log.holds_back = False
    world.elect()
    world.pass_ms(20)
    assert world.brokers.markers == {}
    assert world.end(decided, is_commit=False) == [NONE]
    world.pass_ms(20)
    assert world.brokers.markers == {T0: [(decided, False, 3)]}


def test_what_a_coordinator_finds_is_told_as_soon_as_it_is_committed(world: TransactionWorld) -> None:
    producer = world.begun()
    world.add(producer, 0)
    world.log.holds_back = True
    world.end(producer)
    world.resign()
    world.elect()
    assert world.brokers.markers == {}
    world.log.holds_back = False
    world.log.commit()
    world.pass_ms(20)
    assert world.brokers.markers == {T0: [(producer, True, 2)]}
    assert world.end(producer) == [NONE]


def test_a_repeated_end_is_answered_by_who_leads_yet(world: TransactionWorld) -> None:
    producer = world.begun()
    world.add(producer, 0)
    world.end(producer)
    world.pass_ms(20)
    complete = world.log.latest()["x"]
    world.log.holds_back = True
    told = world.end(producer)
    assert told == []
    world.log.commit()
    assert told == [NONE]
    assert world.log.latest()["x"] == complete
    told = world.end(producer)
    world.resign()
    assert told == [ErrorCode.NOT_COORDINATOR]


def test_what_waits_is_answered_when_the_shard_resigns(world: TransactionWorld) -> None:
    producer = world.begun()
    world.log.holds_back = True
    told = world.add(producer, 0)
    world.resign()
    assert told == [ErrorCode.NOT_COORDINATOR]
    world.coordinator.on_deleted(0)
    assert world.init() == [(ErrorCode.NOT_COORDINATOR, NO_PRODUCER)]


def test_while_it_loads_clients_are_told_to_ask_again_and_stopped_it_knows_nobody(world: TransactionWorld) -> None:
    world.begun()
    world.resign()
    world.log.reading.clear()
    world.elect()
    assert world.init() == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_PRODUCER)]
    world.log.reading.set()
    world.pass_ms(20)
    assert world.init() == [(NONE, Producer(10, 1))]
    world.coordinator.place(None)
    assert world.init() == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_PRODUCER)]
    world.stop_broker()
    assert world.init() == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_PRODUCER)]


def test_a_transaction_is_aborted_when_its_time_is_over(world: TransactionWorld) -> None:
    producer = world.begun()
    world.add(producer, 0)
    world.pass_ms(TIMEOUT_MS - 1_000)
    assert state(world) is TransactionState.ONGOING
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_ms(20_000)
    world.log.refusal = None
    assert state(world) is TransactionState.ONGOING
    world.pass_ms(10_100)
    assert world.brokers.markers == {T0: [(Producer(producer.producer_id, 1), False, 1)]}
    assert state(world) is TransactionState.COMPLETE_ABORT
    assert world.end(producer) == [ErrorCode.PRODUCER_FENCED]


@pytest.fixture
def forgetful() -> Iterator[TransactionWorld]:
    """A world in which ids expire after 70 minutes, and that is looked at every 10."""
    made = TransactionWorld(id_expiration_ms=70 * MINUTE_MS, expiry_interval_ms=10 * MINUTE_MS)
    made.elect()
    yield made
    made.close()


def test_ids_without_a_transaction_expire(forgetful: TransactionWorld) -> None:
    world = forgetful
    names = [f"id-{number}" for number in range(600)]
    for name in names:
        world.begun(name)
    open_one = world.begun("open", timeout_ms=900_000)
    world.pass_ms(60 * MINUTE_MS)
    world.begun("id-0")  # comes again
    world.add(open_one, 0, name="open")
    world.log.holds_back = True  # the transaction is aborted by and by, and that is not committed
    world.pass_ms(9 * MINUTE_MS)
    latest = world.log.latest()
    assert all(latest[name] is not None for name in names)
    world.pass_ms(20 * MINUTE_MS)
    found = world.log.latest()
    assert {name for name, record in found.items() if record is not None} == {"id-0", "open"}
    # The tombstones may yet be lost: nobody takes such an id before they are committed.
    assert world.init("id-1") == [(CONCURRENT, NO_PRODUCER)]
    assert describe(world, "id-1").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    world.log.release(ErrorCode.REQUEST_TIMED_OUT)
    assert world.init("id-1") == [(CONCURRENT, NO_PRODUCER)]
    world.log.holds_back = False
    world.log.commit()
    assert world.begun("id-1").epoch == 0
    world.resign()
    world.elect()
    assert describe(world, "id-2").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_tombstones_that_are_refused_come_the_next_time(forgetful: TransactionWorld) -> None:
    world = forgetful
    world.begun()
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_ms(85 * MINUTE_MS)
    assert state(world) is TransactionState.EMPTY
    assert describe(world, "x").transaction_state == "Empty"
    world.log.refusal = None
    world.pass_ms(10 * MINUTE_MS)
    assert state(world) is None


def test_what_there_is_is_described_and_listed(world: TransactionWorld) -> None:
    producer, other = world.begun(), world.begun("y")
    world.pass_ms(50)
    world.add(producer, 0, 1)
    shown = describe(world, "x")
    assert (shown.error_code, shown.transaction_state, shown.producer_id) == (0, "Ongoing", producer.producer_id)
    assert (shown.producer_epoch, shown.transaction_timeout_ms) == (0, TIMEOUT_MS)
    assert shown.transaction_start_time_ms == world.clock.time_ms()
    assert [(topic.topic, sorted(topic.partitions)) for topic in shown.topics] == [("t", [0, 1])]
    assert describe(world, "").error_code == ErrorCode.INVALID_REQUEST
    assert describe(world, "nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def names(ids: list[int], states: list[str], duration_ms: int) -> list[str]:
        answer = at_once(world.coordinator.list_transactions(ids, states, duration_ms))
        assert answer.unknown_state_filters == [name for name in states if name == "Other"]
        return sorted(found.transactional_id for found in answer.transaction_states)

    assert names([], [], -1) == ["x", "y"]
    assert names([other.producer_id], [], -1) == ["y"]
    assert names([], ["Ongoing", "Other"], -1) == ["x"]
    assert names([], ["Other"], -1) == []
    assert names([], [], 0) == ["y"]
    world.pass_ms(10)
    assert names([], [], 9) == ["x", "y"]
    world.resign()
    assert names([], [], -1) == []
    assert describe(world, "x").error_code == ErrorCode.NOT_COORDINATOR
    world.log.reading.clear()
    world.elect()
    loading = at_once(world.coordinator.list_transactions([], [], -1))
    assert loading.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.log.reading.set()
    world.stop_broker()
    stopped = at_once(world.coordinator.list_transactions([], [], -1))
    assert stopped.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_records_that_cannot_be_read_are_left_out() -> None:
    world = TransactionWorld()
    known = Transaction(7, 3, 100, TransactionState.EMPTY, frozenset(), -1, 1)
    builder = RecordBatchBuilder()
    builder.append(1, transaction_key("x"), transaction_value(known))
    builder.append(1, transaction_key("x"), b"\0\x09")
    builder.append(1, None, b"value")
    builder.append(1, b"\0\5later", b"kind of record")
    builder.append(1, transaction_key("gone"), transaction_value(known))
    builder.append(1, transaction_key("gone"), None)
    world.log.write(SHARD, builder.build())
    world.log.commit()
    world.elect()
    assert world.init() == [(NONE, Producer(7, 4))]
    assert sum("left out" in line for line in world.lines) == 2
    assert world.end(Producer(7, 3), name="gone") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    world.close()
