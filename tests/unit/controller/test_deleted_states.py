"""State znodes that somebody deletes: the partition goes on where it was, in a new leader epoch.

Kafka elects nobody until the controller changes, and then begins anew in epoch 0, with whoever is alive as in sync.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.settings import VERSIONS_PER_READING
from barnabas.coordination.errors import NoAuthError
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, IsrChange
from barnabas.coordination.layout.topics import partition_path, partition_state_path, partitions_path, topic_path
from barnabas.coordination.operations import Create, Multi, SetData
from barnabas.wire.errors import ErrorCode
from barnabas.wire.sentinels import LEADER_DURING_DELETE, NO_LEADER
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.term_harness import CrashError, CrashingShell, Terms, WatchedStore
from tests.unit.leader.partition_setting import BrokerSetting

T0 = TopicPartition("t", 0)
STATE = partition_state_path(*T0)
ABOVE = (STATE, partition_path(*T0), partitions_path("t"))


def with_topic() -> Terms:
    """In sync are 1 and 2; 3 has lagged."""
    terms = Terms(1, 2, 3)
    terms.create("t", (3, 1, 2))
    terms.elect()
    terms.settle()
    terms.stop_broker(3)
    terms.settle()
    terms.start_broker(3)
    terms.settle()
    assert known(terms).isr == (1, 2)
    return terms


def known(terms: Terms) -> LeaderAndIsr:
    found = terms.state("t")
    assert found is not None
    return found


def delete(terms: Terms, paths: tuple[str, ...]) -> None:
    for path in paths:
        terms.store.remove(path)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_election_goes_by_what_the_controller_knows(depth: int) -> None:
    terms = with_topic()
    before = known(terms)
    delete(terms, ABOVE[:depth])
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2,))
    assert known(terms).leader_epoch > before.leader_epoch
    told = [request.message for request in terms.sent("LEADER_AND_ISR") if request.broker_id == 2]
    assert told[-1].topic_states[0].partition_states[0].leader_epoch == known(terms).leader_epoch  # type: ignore[attr-defined]


def test_a_leaders_change_of_its_isr_makes_it_again() -> None:
    terms = with_topic()
    before = known(terms)
    delete(terms, (STATE,))
    assert terms.propose(T0, 1, 2, 3, state=before) is ErrorCode.INVALID_UPDATE_VERSION
    assert (known(terms).leader, known(terms).isr) == (1, (1, 2))
    assert known(terms).leader_epoch > before.leader_epoch
    assert terms.propose(T0, 1, 2, 3) is ErrorCode.NONE
    assert known(terms).isr == (1, 2, 3)


def write_isr_itself(terms: Terms, *isr: int) -> LeaderAndIsr:
    """The leader, of inter.broker.protocol.version 2.6, writes ISRs, and has not announced them yet."""
    terms.write_isrs_themselves(known(terms).leader)
    for _ in range(5):
        terms.store.put_data(STATE, dataclasses.replace(known(terms), isr=isr).to_znode().encode())
    return known(terms)


def test_a_leader_that_writes_isrs_itself_is_all_that_is_certainly_in_sync() -> None:
    terms = with_topic()
    written = write_isr_itself(terms, 1)
    delete(terms, (STATE,))
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (NO_LEADER, (1,))
    terms.start_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))
    # It knows versions of which the controller has not heard.
    assert known(terms).partition_epoch > written.partition_epoch


def test_a_leader_that_writes_isrs_itself_has_it_made_again_by_announcing_that_it_is_gone() -> None:
    terms = with_topic()
    terms.write_isrs_themselves(1)
    before = known(terms)
    delete(terms, (STATE,))
    terms.store.put_data(f"{ISR_CHANGES_PATH}/isr_change_0000000001", IsrChange((T0,)).encode())
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))
    assert terms.term.must_read_again
    terms.run(terms.term.read_again())
    assert known(terms).leader_epoch > before.leader_epoch
    told = [request.message for request in terms.sent("LEADER_AND_ISR") if request.broker_id == 1]
    assert told[-1].topic_states[0].partition_states[0].leader_epoch == known(terms).leader_epoch  # type: ignore[attr-defined]


def test_a_leader_asks_again_while_a_state_is_not_made_again() -> None:
    terms = with_topic()
    terms.store.znodes[STATE] = (terms.store.znodes[STATE][0], 100_000)
    terms.elect()
    before = known(terms)
    held = terms.store.znodes.pop(STATE)
    # After INVALID_UPDATE_VERSION it would wait to be told, which nobody does.
    assert terms.propose(T0, 1, 2, 3, state=before) is ErrorCode.UNKNOWN_SERVER_ERROR
    terms.store.znodes[STATE] = held
    assert terms.propose(T0, 1, 2, 3, state=before) is ErrorCode.NONE


def test_the_next_controller_goes_by_what_its_broker_was_told() -> None:
    terms = with_topic()
    before = known(terms)
    terms.told[T0] = before
    delete(terms, (STATE,))
    terms.elect()
    terms.settle()
    # Who may have started anew since cannot be seen any more: only the member that registered first stays.
    assert (known(terms).leader, known(terms).isr) == (1, (1,))
    assert known(terms).leader_epoch > before.leader_epoch
    assert terms.term.context.partition_state(T0) is PartitionState.ONLINE


def told_before_it_shrank() -> Terms:
    """The leader, 2, is alone in sync; the next controller's broker has heard of all three. 1 registered first."""
    terms = Terms(1, 2, 3)
    terms.create("t", (2, 1, 3))
    terms.elect()
    terms.settle()
    terms.told[T0] = known(terms)
    assert terms.propose(T0, 2) is ErrorCode.NONE
    delete(terms, (STATE,))
    return terms


def test_the_leader_stays_where_its_controller_has_not_heard_who_left_the_isr() -> None:
    terms = told_before_it_shrank()
    terms.elect()
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2,))


def test_a_leader_that_may_have_started_anew_does_not() -> None:
    terms = told_before_it_shrank()
    terms.stop_broker(2)
    terms.start_broker(2)
    terms.elect()
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))


def test_brokers_that_know_of_more_versions_than_their_next_controller_obey_it() -> None:
    terms = with_topic()
    before = terms.told[T0] = known(terms)
    later = before.partition_epoch + 100
    delete(terms, (STATE,))
    terms.elect()
    terms.settle()
    requests: list[Any] = [request.message for request in terms.sent("LEADER_AND_ISR") if request.broker_id == 1]
    (state,) = requests[-1].topic_states[0].partition_states
    assert (state.leader_epoch > before.leader_epoch, state.partition_epoch < later) == (True, True)
    leader = BrokerSetting(1)
    leader.lead(before.leader_epoch, (1,), later)
    leader.partition.become_leader(state, lambda: leader.log.as_log)
    assert (leader.partition.leader_epoch, leader.partition.partition_epoch) == (
        state.leader_epoch,
        state.partition_epoch,
    )


def test_a_partition_does_not_begin_anew_where_its_state_had_too_many_versions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    terms = with_topic()
    terms.told[T0] = dataclasses.replace(known(terms), partition_epoch=100_000)
    delete(terms, (STATE,))
    terms.elect()
    terms.settle()
    assert terms.state("t") is None
    assert terms.term.context.partition_state(T0) is PartitionState.OFFLINE
    assert f"{STATE} is gone, and is not made again" in caplog.text


def test_a_partition_of_which_no_controller_ever_told_is_new() -> None:
    terms = with_topic()
    delete(terms, (STATE,))
    terms.elect()
    terms.settle()
    assert (known(terms).leader_epoch, known(terms).isr) == (0, (3, 1, 2))


def test_a_state_that_somebody_makes_again_gets_a_later_version_than_brokers_know() -> None:
    terms = with_topic()
    assert terms.propose(T0, 1, 2, 3) is ErrorCode.NONE
    assert terms.propose(T0, 1, 2) is ErrorCode.NONE
    before = known(terms)
    delete(terms, (STATE,))
    terms.store.put_data(STATE, before.to_znode().encode())
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2,))
    assert known(terms).partition_epoch > before.partition_epoch


def test_the_next_controller_ends_what_another_had_begun_to_make_again() -> None:
    heard, begun = 200, 0
    for step in range(1, 100):
        terms = with_topic()
        before = terms.told[T0] = dataclasses.replace(known(terms), partition_epoch=heard)
        delete(terms, (STATE,))
        try:
            terms.elect(crash_at=step)
        except CrashError:
            found = terms.state("t")
            begun += found is not None and found.partition_epoch < heard
            terms.elect()
            terms.settle()
            assert known(terms).partition_epoch > heard
            assert (known(terms).leader, known(terms).isr) == (1, (1,))
            assert known(terms).leader_epoch > before.leader_epoch
        else:
            break
    assert begun


def test_the_next_controller_trusts_one_member_of_a_state_that_somebody_has_made_again() -> None:
    terms = with_topic()
    before = terms.told[T0] = dataclasses.replace(known(terms), partition_epoch=20)
    delete(terms, (STATE,))
    terms.store.put_data(STATE, before.to_znode().encode())
    terms.elect()
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))
    assert known(terms).partition_epoch > before.partition_epoch


def test_a_topic_in_deletion_gets_no_state_back() -> None:
    terms = with_topic()
    before = known(terms)
    terms.told[T0] = LeaderAndIsr(LEADER_DURING_DELETE, before.leader_epoch, before.isr, before.controller_epoch)
    terms.delete("t")
    delete(terms, ABOVE)
    terms.elect()
    terms.settle()
    assert topic_path("t") not in terms.store.znodes


def test_a_topic_that_is_gone_altogether_gets_no_state_back() -> None:
    terms = with_topic()
    delete(terms, (*ABOVE, topic_path("t")))
    terms.stop_broker(1)
    terms.settle()
    assert terms.state("t") is None
    assert topic_path("t") not in terms.store.znodes


@pytest.mark.parametrize("heard", [9_983, 9_984, 9_990, 9_999, 19_975])
def test_a_piece_ends_where_the_next_reading_sees_that_it_is_one(heard: int) -> None:
    """Of the last 16 versions brokers may know, and their controller does not."""
    terms = with_topic()
    terms.told[T0] = dataclasses.replace(known(terms), partition_epoch=heard)
    delete(terms, (STATE,))
    terms.elect()
    for _ in range(3):
        terms.run(terms.term.read_again())
    assert not terms.term.has_more_to_write
    assert known(terms).partition_epoch >= heard + 16
    said = [line.message for line in terms.shell.lines if "somebody has" in line.message]
    assert len(said) == 1, "it is said again of each piece"
    assert "deleted the state of t-0" in said[0]


MANY = [TopicPartition("t", number) for number in range(3)]
HEARD = dict(zip(MANY, (6_000, 6_000, 300), strict=True))
"""Versions of which each broker has heard: all of the states take more writes than one reading may do."""


def with_large_versions(before_takeover: Callable[[], object] = lambda: None) -> Terms:
    """A controller that has just taken over, and found no state of the three that its broker was told of."""
    terms = Terms(1, 2, 3)
    terms.create("t", *[(1, 2, 3)] * len(MANY))
    terms.elect()
    terms.settle()
    for partition in MANY:
        found = terms.state(*partition)
        assert found is not None
        terms.told[partition] = dataclasses.replace(found, partition_epoch=HEARD[partition])
        terms.store.remove(partition_state_path(*partition))
    terms.store.performed.clear()
    before_takeover()
    terms.elect()
    return terms


def versions_written(terms: Terms) -> int:
    """Since the last call."""
    writes = [each for each in terms.store.performed if isinstance(each, Multi)]
    count = sum(isinstance(part, SetData) for each in writes for part in each.operations)
    terms.store.performed.clear()
    return count


def made_again(terms: Terms) -> list[TopicPartition]:
    states = {partition: terms.state(*partition) for partition in MANY}
    return [
        partition
        for partition, state in states.items()
        if state is not None and state.partition_epoch > HEARD[partition]
    ]


def goes_on(terms: Terms) -> bool:
    return terms.term.has_more_to_write


def test_states_of_very_many_versions_are_made_again_a_piece_at_a_time() -> None:
    terms = with_large_versions()
    assert VERSIONS_PER_READING - 100 < versions_written(terms) <= VERSIONS_PER_READING
    # What takes the fewest writes comes first.
    assert made_again(terms) == [MANY[0], MANY[2]]
    assert goes_on(terms)
    # Who asks for one has it not made on the way: a leader waits to be told.
    assert terms.propose(MANY[1], 1, 2, state=terms.told[MANY[1]]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert versions_written(terms) == 0
    terms.run(terms.term.read_again())
    assert made_again(terms) == MANY
    assert not goes_on(terms)
    terms.run(terms.term.read_again())
    assert not terms.term.must_read_again
    for partition in MANY:
        state = terms.state(*partition)
        assert state is not None
        assert (state.leader, state.isr) == (1, (1,))
        assert state.leader_epoch > terms.told[partition].leader_epoch
        assert terms.term.context.partition_state(partition) is PartitionState.ONLINE


def test_nobody_is_told_of_a_state_that_is_made_again_only_in_part() -> None:
    terms = with_large_versions()
    told = [state for sent in terms.shell.sent("LEADER_AND_ISR").values() for state in sent]
    assert set(told) == {MANY[0], MANY[2]}
    terms.stop_broker(1)
    terms.settle()
    assert {terms.term.context.partition_state(partition) for partition in MANY} == {PartitionState.OFFLINE}
    terms.run(terms.term.read_again())
    states = [terms.state(*partition) for partition in MANY]
    assert [state.isr for state in states if state is not None] == [(1,)] * 3
    terms.start_broker(1)
    terms.settle()
    terms.run(terms.term.read_again())
    assert {terms.term.context.partition_state(partition) for partition in MANY} == {PartitionState.ONLINE}


def test_states_that_may_not_be_written_take_no_others_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come first each time, as they take fewer writes, and all that one reading may do is allotted to them."""
    monkeypatch.setitem(HEARD, MANY[2], 6_100)
    write = WatchedStore._perform
    refused: set[str] = set()

    def perform(store: WatchedStore, operation: Any) -> Any:
        if isinstance(operation, Create) and operation.path in refused:
            raise NoAuthError(operation.path)
        return write(store, operation)

    monkeypatch.setattr(WatchedStore, "_perform", perform)
    terms = with_large_versions(lambda: refused.update(partition_state_path(*partition) for partition in MANY[:2]))
    for _ in range(2):
        terms.run(terms.term.read_again())
    assert made_again(terms) == [MANY[2]]
    assert not goes_on(terms)


def test_a_state_of_more_versions_than_one_reading_writes_is_made_again_by_several() -> None:
    terms = with_topic()
    heard = 3 * VERSIONS_PER_READING
    terms.told[T0] = dataclasses.replace(known(terms), partition_epoch=heard)
    delete(terms, (STATE,))
    terms.elect()
    readings = 0
    while goes_on(terms):
        terms.run(terms.term.read_again())
        readings += 1
    terms.run(terms.term.read_again())
    assert readings == 3
    assert known(terms).partition_epoch > heard
    assert terms.term.context.partition_state(T0) is PartitionState.ONLINE


@pytest.mark.parametrize("steps", range(1, 40, 3))
def test_the_next_controller_goes_on_where_another_has_ended_between_two_pieces(steps: int) -> None:
    terms = with_large_versions()
    terms.shell = CrashingShell(terms.store, steps)
    with contextlib.suppress(CrashError):
        terms.run(terms.term.read_again())
    terms.elect()
    for _ in range(3):
        terms.run(terms.term.read_again())
    assert made_again(terms) == MANY
    assert {terms.term.context.partition_state(partition) for partition in MANY} == {PartitionState.ONLINE}


def test_a_topic_that_is_deleted_meanwhile_is_not_written_on() -> None:
    terms = with_large_versions()
    terms.delete("t")
    terms.settle()
    terms.run(terms.term.read_again())
    assert not goes_on(terms)


def test_a_state_that_may_not_be_read_is_neither_new_nor_gone() -> None:
    terms = with_topic()
    before = known(terms)
    terms.store.faults[STATE] = NoAuthError(STATE)
    terms.elect()
    assert terms.term.context.partition_state(T0) is PartitionState.OFFLINE
    assert terms.term.must_read_again
    del terms.store.faults[STATE]
    terms.run(terms.term.read_again())
    assert terms.term.context.partition_state(T0) is PartitionState.ONLINE
    assert known(terms).isr == before.isr
