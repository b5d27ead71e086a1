"""`barnabas.coordinators.transaction`: whatever fails and in whatever order, a transaction has one outcome."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from barnabas.coordinators.transaction.records import Transaction
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples
from tests.unit.coordinators.transaction.transaction_world import SHARD, TransactionWorld

E, ON, PC, PA, CC, CA, D, F = TransactionState
OUTCOME = {PC: True, CC: True, PA: False, CA: False}
NAMES = st.sampled_from(["x", "y"])
WAYS = st.sampled_from(["", "", "", "held", "late", "refused"])
"""What becomes of the appends that a request makes at once."""
PAUSES = st.sampled_from([0, 5, 5, 20])
FATES = st.sampled_from(["", "", "down", "leaderless", "refuses", "answers in vain", "leaves out"])


class Transactions(RuleBasedStateMachine):
    """Producers, one coordinator after the other over a log that refuses appends, commits some of them late, and loses
    with its leader what is not committed; and leaders of partitions that come and go. Each partition is in one
    transaction only, so that what it is told is told of that one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = TransactionWorld(abort_interval_ms=1_000, id_expiration_ms=8_000, expiry_interval_ms=2_000)
        self.world.brokers.on_marker = self.check_marker
        self.world.log.on_append = self.check_append
        self.clients: list[tuple[str, Producer]] = []
        self.added: dict[tuple[str, Producer], set[int]] = {}
        self.partitions = 0
        self.prepared: dict[str, Transaction] = {}
        """The decided transaction of each id that is not complete, as the log has it."""
        self.acknowledged: dict[int, bool] = {}
        """Partitions whose producer was told that their transaction has ended, and how."""
        self.faults: list[str] = []
        """What was seen where an exception would be taken for a broker's."""
        self.world.ids.start()
        self.world.elect()
        for name in ("x", "y"):
            self.clients.append((name, self.world.begun(name, 3_000)))

    # What must hold.

    def expect(self, is_so: bool, what: str) -> None:
        if not is_so:
            self.faults.append(what)

    @invariant()
    def nothing_was_wrong(self) -> None:
        assert not self.faults

    def check_marker(self, producer: Producer, is_commit: bool) -> None:
        of_producer = [
            found
            for found in self.world.log.latest(is_committed=True).values()
            if found is not None and Producer(found.producer_id, found.producer_epoch) == producer
        ]
        due = [PC if is_commit else PA]
        self.expect([found.state for found in of_producer] == due, "a marker before its record, or after its end")

    def check_append(self) -> None:
        """A complete record is appended only when all partitions of the transaction are told."""
        for name, found in self.world.log.latest().items():
            if found is None:
                continue
            if found.state in (PC, PA):
                self.prepared[name] = found
            elif found.state in (CC, CA) and name in self.prepared:
                told = self.world.brokers.markers
                for partition in self.prepared.pop(name).partitions:
                    outcomes = {is_commit for _, is_commit, _ in told.get(partition, ())}
                    self.expect(outcomes == {OUTCOME[found.state]}, "a partition that was not told, or otherwise")

    def committed(self, name: str) -> Transaction | None:
        return self.world.log.latest(is_committed=True).get(name)

    def in_the_way(self, way: str) -> tuple[bool, ErrorCode | None]:
        log = self.world.log
        before = log.holds_back, log.refusal
        log.holds_back = log.holds_back or way in ("held", "late")
        log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS if way == "refused" else log.refusal
        return before

    def go_on(self, way: str, before: tuple[bool, ErrorCode | None], pause_ms: int) -> None:
        self.world.log.holds_back, self.world.log.refusal = before
        if way == "late":
            self.appends_time_out()
        self.world.pass_ms(pause_ms)

    # What happens.

    @rule(name=NAMES, pick=st.integers(0, 3), resumes=st.booleans(), way=WAYS, pause_ms=PAUSES)
    def init(self, name: str, pick: int, resumes: bool, way: str, pause_ms: int) -> None:
        known = [producer for other, producer in self.clients if other == name]
        expected = known[-1 - pick % len(known)] if known and resumes else None

        def told(code: ErrorCode, producer: Producer) -> None:
            if code is ErrorCode.NONE:
                found = self.committed(name)
                self.expect(
                    found is not None
                    and found.state is E
                    and Producer(found.producer_id, found.producer_epoch) == producer,
                    "a producer that is not in the log",
                )
                self.clients.append((name, producer))

        before = self.in_the_way(way)
        self.world.coordinator.init_producer_id(name, 3_000, expected, told)
        self.go_on(way, before, pause_ms)

    @rule(pick=st.integers(0, 2), way=WAYS, pause_ms=PAUSES)
    def add(self, pick: int, way: str, pause_ms: int) -> None:
        name, producer = client = self.clients[-1 - pick % len(self.clients)]
        self.partitions += 1
        partition = TopicPartition("t", self.partitions)

        def added(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                found = self.committed(name)
                self.expect(found is not None and partition in found.partitions, "a partition that is not in the log")
                self.added.setdefault(client, set()).add(partition.partition)

        before = self.in_the_way(way)
        self.world.coordinator.add_partitions(name, producer, {partition}, added)
        self.go_on(way, before, pause_ms)

    @rule(pick=st.integers(0, 2), is_commit=st.booleans(), way=WAYS, pause_ms=PAUSES)
    def end(self, pick: int, is_commit: bool, way: str, pause_ms: int) -> None:
        name, producer = client = self.clients[-1 - pick % len(self.clients)]

        def ended(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                found = self.committed(name)
                self.expect(found is not None and OUTCOME.get(found.state) is is_commit, "an outcome not in the log")
                for number in self.added.pop(client, ()):
                    self.acknowledged[number] = is_commit

        before = self.in_the_way(way)
        self.world.coordinator.end(name, producer, ended, is_commit=is_commit)
        self.go_on(way, before, pause_ms)

    @rule(passed_ms=st.sampled_from([5, 50, 1_500, 5_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.world.pass_ms(passed_ms)

    @rule(broker_id=st.integers(0, 2), fate=FATES)
    def a_broker_changes(self, broker_id: int, fate: str) -> None:
        self.world.brokers.fates[broker_id] = fate

    @rule()
    def appends_wait(self) -> None:
        self.world.log.holds_back = True

    @rule()
    def appends_time_out(self) -> None:
        self.world.log.release(ErrorCode.REQUEST_TIMED_OUT)

    @rule(is_refused=st.booleans())
    def appends_are_refused(self, is_refused: bool) -> None:
        self.world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS if is_refused else None

    @rule()
    def all_is_committed(self) -> None:
        self.world.log.holds_back = False
        self.world.log.commit()

    @rule(kept=st.integers(0, 3), is_killed=st.booleans(), is_slow=st.booleans())
    def another_leads(self, kept: int, is_killed: bool, is_slow: bool) -> None:
        """With some records that are not committed, which they become at once, or when `all_is_committed`."""
        log = self.world.log
        self.world.resign()
        log.lose_behind(min(log.committed_end + kept, log.end_offsets.get(SHARD, 0)))
        self.prepared = {name: found for name, found in log.latest().items() if found and found.state in (PC, PA)}
        if is_killed:
            self.world.stop_broker()
            self.world.begin()
            self.world.ids.start()
        log.holds_back = is_slow
        if not is_slow:
            log.commit()
        self.world.elect()

    def teardown(self) -> None:
        """All is well in the end: every transaction ends, in each of its partitions, and only in one way."""
        try:
            self.world.brokers.fates.clear()
            self.world.log.refusal = None
            self.all_is_committed()
            self.world.pass_ms(15_000)
            assert not self.faults
            for found in self.world.log.latest(is_committed=True).values():
                assert found is None or found.state in (E, CC, CA)
            for markers in self.world.brokers.markers.values():
                assert len({is_commit for _, is_commit, _ in markers}) == 1
            for number, is_commit in self.acknowledged.items():
                assert self.world.brokers.markers[TopicPartition("t", number)][0][1] is is_commit
        finally:
            self.world.close()


Transactions.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestTransactions = Transactions.TestCase
