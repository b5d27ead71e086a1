"""`barnabas.coordinators.transaction.transactions`: each request in each state, and all of them in any order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from barnabas.coordinators.transaction.records import Transaction, read_value, transaction_key, transaction_value
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import NO_PRODUCER, Decision, Producer, Transactions
from barnabas.kernel.steps import at_once
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples

E, ON, PC, PA, CC, CA, D, F = TransactionState
RECORDED = (E, ON, PC, PA, CC, CA)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = Producer(5, 3)
NONE, CONCURRENT, INVALID = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
EPOCH_MAX = 32_767


def in_state(state: TransactionState, *, epoch: int = 3, is_pending: bool = False) -> Transactions:
    partitions = frozenset({T0}) if state in (ON, PC, PA) else frozenset()
    transaction = Transaction(5, epoch, 100, state, partitions, -1 if state is E else 10, 10)
    transactions = Transactions()
    if is_pending:
        transactions.replay_appended("x", transaction, NO_PRODUCER)
    else:
        at_once(transactions.replay(transaction_key("x"), transaction_value(transaction)))
    return transactions


def outcome(decide: Callable[[], Decision | None]) -> TransactionState | ErrorCode:
    """The state that is decided, or what the client is told."""
    try:
        decision = decide()
    except KafkaError as error:
        return error.code
    return NONE if decision is None else decision.transaction.state


def init(
    transactions: Transactions, expected: Producer | None = None, new_producer_id: int | None = None, name: str = "x"
) -> Decision:
    return transactions.init_producer_id(
        name, timeout_ms=100, expected=expected, new_producer_id=new_producer_id, now_ms=20
    )


def append(transactions: Transactions, decision: Decision) -> None:
    transactions.replay_appended("x", decision.transaction, decision.previous)
    transactions.committed("x")


@pytest.mark.parametrize(
    ("state", "initialized", "added", "committed", "aborted"),
    [
        (E, E, ON, INVALID, INVALID),
        (ON, PA, ON, PC, PA),
        (PC, CONCURRENT, CONCURRENT, CONCURRENT, INVALID),
        (PA, CONCURRENT, CONCURRENT, INVALID, CONCURRENT),
        (CC, E, ON, CC, INVALID),
        (CA, E, ON, INVALID, CA),
    ],
)
def test_each_request_in_each_state(
    state: TransactionState,
    initialized: TransactionState | ErrorCode,
    added: TransactionState | ErrorCode,
    committed: TransactionState | ErrorCode,
    aborted: TransactionState | ErrorCode,
) -> None:
    requests = in_state(state)
    assert outcome(lambda: init(requests)) is initialized
    assert outcome(lambda: requests.add_partitions("x", ME, {T1}, 20)) is added
    assert outcome(lambda: requests.end("x", ME, is_commit=True, now_ms=20)) is committed
    assert outcome(lambda: requests.end("x", ME, is_commit=False, now_ms=20)) is aborted
    assert requests.are_markers_due("x") is (state in (PC, PA))
    completed = {PC: CC, PA: CA}.get(state, INVALID)
    assert outcome(lambda: requests.complete("x", 20)) is completed
    assert (requests.is_timed_out("x", 110), requests.is_timed_out("x", 111)) == (False, state is ON)
    assert (requests.is_expired("x", 50, 59), requests.is_expired("x", 50, 60)) == (False, state in (E, CC, CA))


@pytest.mark.parametrize("state", RECORDED)
def test_a_pending_id_is_left_alone_and_strangers_are_told_first(state: TransactionState) -> None:
    pending = in_state(state, is_pending=True)
    assert outcome(lambda: init(pending, Producer(9, 9))) is CONCURRENT
    for is_commit in (True, False):
        assert outcome(lambda: pending.end("x", ME, is_commit=is_commit, now_ms=20)) is CONCURRENT  # noqa: B023
    assert outcome(lambda: pending.add_partitions("x", ME, {T0}, 20)) is CONCURRENT
    assert outcome(lambda: pending.complete("x", 20)) is INVALID
    assert not pending.are_markers_due("x")
    assert not pending.is_timed_out("x", 10_000)
    assert not pending.is_expired("x", 0, 10_000)
    for who, code in (
        (Producer(6, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Producer(5, 2), ErrorCode.PRODUCER_FENCED),
        (Producer(5, 4), ErrorCode.PRODUCER_FENCED),
    ):
        assert outcome(lambda: pending.end("x", who, is_commit=True, now_ms=20)) is code  # noqa: B023
        assert outcome(lambda: pending.add_partitions("x", who, {T0}, 20)) is code  # noqa: B023
    assert outcome(lambda: pending.end("y", ME, is_commit=True, now_ms=20)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_while_the_tombstone_is_on_its_way_clients_ask_again() -> None:
    transactions = in_state(CC)
    transactions.replay_appended("x", None, NO_PRODUCER)
    assert outcome(lambda: transactions.add_partitions("x", ME, {T0}, 20)) is CONCURRENT
    assert outcome(lambda: transactions.end("x", ME, is_commit=True, now_ms=20)) is CONCURRENT
    assert outcome(lambda: init(transactions)) is CONCURRENT
    transactions.committed("x")
    assert outcome(lambda: transactions.end("x", ME, is_commit=True, now_ms=20)) is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


@pytest.mark.parametrize("state", RECORDED)
def test_open_and_decided_ones_are_known_and_all_are_given_back(state: TransactionState) -> None:
    transactions = in_state(state)
    assert transactions.open_ids == (["x"] if state is ON else [])
    assert transactions.prepared_ids == (["x"] if state in (PC, PA) else [])
    assert len(transactions) == 1
    assert list(transactions.emptied()) == []
    assert (len(transactions), transactions.open_ids, transactions.prepared_ids) == (0, [], [])


def test_partitions_are_verified_when_they_are_committed() -> None:
    transactions = in_state(ON)
    decision = transactions.add_partitions("x", ME, {T1}, 20)
    assert decision is not None
    transactions.replay_appended("x", decision.transaction, decision.previous)
    before = transactions.verification("x", ME)
    assert [before(T0), before(T1)] == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    transactions.committed("x")
    after = transactions.verification("x", ME)
    assert [after(T0), after(T1)] == [NONE, NONE]
    assert before(T1) is ErrorCode.TRANSACTION_ABORTABLE, "an answer is of one moment"
    assert outcome(lambda: transactions.add_partitions("x", ME, {T0, T1}, 20)) is NONE
    with pytest.raises(KafkaError):
        in_state(PC).verification("x", ME)


def test_a_repeated_init_gets_what_the_first_one_got() -> None:
    transactions = in_state(CC)
    append(transactions, init(transactions, ME))
    assert init(transactions, ME).transaction.producer_epoch == 4
    append(transactions, init(transactions))  # another producer
    assert outcome(lambda: init(transactions, ME)) is ErrorCode.PRODUCER_FENCED
    assert outcome(lambda: init(transactions, Producer(6, 5))) is ErrorCode.PRODUCER_FENCED


def test_an_id_without_epochs_left_gets_another_producer_id() -> None:
    transactions = in_state(CA, epoch=EPOCH_MAX - 1)
    last = Producer(5, EPOCH_MAX - 1)
    assert transactions.needs_producer_id("x", last)
    append(transactions, init(transactions, last, 8))
    assert not transactions.needs_producer_id("x", last)
    repeated = init(transactions, last).transaction
    assert (repeated.producer_id, repeated.producer_epoch) == (8, 0)


def test_the_last_epoch_can_be_fenced_and_the_one_behind_it_not() -> None:
    assert in_state(ON, epoch=EPOCH_MAX - 1).fence("x", 20).transaction.producer_epoch == EPOCH_MAX
    assert outcome(lambda: in_state(ON, epoch=EPOCH_MAX).fence("x", 20)) is ErrorCode.UNKNOWN_SERVER_ERROR


IDS = st.sampled_from(["x", "y"])
OUTCOME = {PC: "commit", CC: "commit", PA: "abort", CA: "abort"}


class Coordinator(RuleBasedStateMachine):
    """One coordinator after the other over one log that refuses appends, and commits some of them late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, bytes | None]] = []
        self.live = Transactions()
        self.clients: dict[tuple[str, Producer], bool] = {}
        """Those that were given out, and whether a later one of their id was given out or written since."""
        self.uncommitted: dict[str, int] = {}
        self.next_id = 0
        self.now_ms = 0

    def write(self, name: str, decision: Decision | None, fate: str, *, is_fence: bool = False) -> bool:
        """Whether the record was committed in time."""
        if decision is None or fate == "refused":
            return False
        value = transaction_value(decision.transaction)
        self.log.append((name, value))
        self.live.replay_appended(name, decision.transaction, decision.previous)
        self.uncommitted[name] = len(self.log)
        for known in self.clients:
            written = (decision.transaction.producer_id, decision.transaction.producer_epoch)
            if known[0] == name and (is_fence or known[1] != written):
                self.clients[known] = True
        if fate == "committed":
            self.settle(name)
        return fate == "committed"

    def settle(self, name: str) -> None:
        self.uncommitted.pop(name, None)
        self.live.committed(name)

    fates = st.sampled_from(["committed", "committed", "in doubt", "refused"])

    @rule(name=IDS, fate=fates, pick=st.integers(0, 3), resumes=st.booleans())
    def init(self, name: str, fate: str, pick: int, resumes: bool) -> None:
        known = [producer for other, producer in self.clients if other == name]
        expected = known[-1 - pick % len(known)] if known and resumes else None
        is_new = self.live.needs_producer_id(name, expected)
        self.next_id += is_new
        with contextlib.suppress(KafkaError):
            decision = self.live.init_producer_id(
                name,
                timeout_ms=5,
                expected=expected,
                new_producer_id=self.next_id if is_new else None,
                now_ms=self.now_ms,
            )
            is_fence = decision.transaction.state is PA
            if self.write(name, decision, fate, is_fence=is_fence) and decision.transaction.state is E:
                producer = Producer(decision.transaction.producer_id, decision.transaction.producer_epoch)
                self.clients[name, producer] = False

    @rule(pick=st.integers(0, 50), fate=fates, action=st.sampled_from(["add", "commit", "abort"]))
    def act(self, pick: int, fate: str, action: str) -> None:
        if not self.clients:
            return
        name, producer = list(self.clients)[-1 - pick % len(self.clients)]
        try:
            if action == "add":
                decision = self.live.add_partitions(name, producer, {TopicPartition("t", pick % 3)}, self.now_ms)
            else:
                decision = self.live.end(name, producer, is_commit=action == "commit", now_ms=self.now_ms)
        except KafkaError:
            return
        assert not self.clients[name, producer], "a zombie was let in"
        self.write(name, decision, fate)

    @rule(name=IDS, fate=fates)
    def send_markers(self, name: str, fate: str) -> None:
        if self.live.are_markers_due(name):
            assert name not in self.uncommitted, "markers of an outcome that is not committed"
            self.write(name, self.live.complete(name, self.now_ms), fate)

    @rule(name=IDS)
    def late(self, name: str) -> None:
        self.settle(name)

    @rule(fate=fates, passed_ms=st.integers(1, 10))
    def time_passes(self, fate: str, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for name in [name for name in self.live.ids if self.live.is_timed_out(name, self.now_ms)]:
            self.write(name, self.live.fence(name, self.now_ms), fate, is_fence=True)

    @rule(name=IDS, fate=fates)
    def expire(self, name: str, fate: str) -> None:
        if self.live.get(name) is None or not self.live.is_expired(name, 30, self.now_ms) or fate == "refused":
            return
        self.log.append((name, None))
        self.live.replay_appended(name, None, NO_PRODUCER)
        self.uncommitted[name] = len(self.log)
        self.clients = {known: True for known in self.clients if known[0] == name} | {
            known: is_old for known, is_old in self.clients.items() if known[0] != name
        }
        if fate == "committed":
            self.settle(name)

    @rule()
    def fail_over(self) -> None:
        self.live = self.loaded()
        self.uncommitted.clear()

    def loaded(self) -> Transactions:
        loaded = Transactions()
        for name, value in self.log:
            at_once(loaded.replay(transaction_key(name), value))
        return loaded

    @invariant()
    def durable_state_is_what_a_load_finds(self) -> None:
        loaded = self.loaded()
        assert {name: self.live.get(name) for name in self.live.ids} == {name: loaded.get(name) for name in loaded.ids}

    @invariant()
    def outcomes_stay_and_epochs_never_go_down(self) -> None:
        for name in ("x", "y"):
            history = [read_value(value) for other, value in self.log if other == name and value is not None]
            for before, after in itertools.pairwise(history):
                if before.producer_id == after.producer_id:
                    assert after.producer_epoch >= before.producer_epoch
                if before.state in (PC, PA):
                    assert OUTCOME.get(after.state) == OUTCOME[before.state]


Coordinator.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestCoordinator = Coordinator.TestCase
