"""The partition state machine on a store in memory: its writes, its requests, what it reports."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from barnabas.controller.effects import ControllerMovedError, Effect, GiveWay
from barnabas.controller.elections import ElectionStrategy
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.partition_znodes import ATTEMPTS_MAX
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.errors import NodeExistsError, SessionExpiredError
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path
from barnabas.wire.topics import LeaderRecoveryState, TopicPartition
from tests.unit.controller.memory_store import EPOCH, LISTENER, Cluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NEW, ONLINE, OFFLINE = PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE
NON_EXISTENT = PartitionState.NON_EXISTENT


def machine_of(cluster: Cluster, *, unclean: bool = False) -> PartitionStateMachine:
    return PartitionStateMachine(cluster.context, ControllerSettings(1, LISTENER, unclean))


def offline(cluster: Cluster, partition: TopicPartition) -> None:
    cluster.context.set_partition_state(partition, OFFLINE)


def test_a_new_partition_is_created_and_led_by_its_first_live_replica() -> None:
    cluster = Cluster(live=(2, 3))
    cluster.assign(A0, 1, 3, 2)
    machine = machine_of(cluster)
    cluster.shell.run(machine.move([A0], NEW))
    assert (cluster.context.partition_state(A0), cluster.store.batches) == (NEW, 0)
    moves = cluster.shell.run(machine.move([A0], ONLINE, ElectionStrategy.OFFLINE))
    assert cluster.store.batches == 1, "each waits for the coordinator's disk"
    expected = LeaderAndIsr(3, 0, (3, 2), EPOCH)
    assert (moves.elected, moves.failed) == ({A0: expected}, {})
    assert cluster.store.leadership(A0) == cluster.context.leadership(A0) == expected
    assert cluster.context.partition_state(A0) is ONLINE
    told = cluster.shell.sent("LEADER_AND_ISR")
    assert {broker: told[broker][A0].is_new for broker in told} == {2: True, 3: True}
    assert set(cluster.shell.sent("UPDATE_METADATA")) == {2, 3}


def test_a_new_partition_without_a_live_replica_stays_new() -> None:
    cluster = Cluster(live=(2,))
    for partition, replica in ((A0, 1), (A1, 2)):
        cluster.assign(partition, replica)
        cluster.context.set_partition_state(partition, NEW)
    moves = cluster.shell.run(machine_of(cluster).move([A0, A1], ONLINE, ElectionStrategy.OFFLINE))
    assert list(moves.elected) == [A1]
    assert str(moves.failed[A0]) == "none of the replicas [1] is alive"
    assert cluster.context.partition_state(A0) is NEW
    assert cluster.store.leadership(A0) is None


def test_a_creation_whose_answer_was_lost_is_recognised() -> None:
    cluster = Cluster()
    for partition in (A0, A1):
        cluster.assign(partition, 1, 2)
        cluster.context.set_partition_state(partition, NEW)
    ours, other = LeaderAndIsr(1, 0, (1, 2), EPOCH), LeaderAndIsr(2, 0, (2,), EPOCH)
    cluster.store.put(A0, ours)
    cluster.store.put(A1, other)
    moves = cluster.shell.run(machine_of(cluster).move([A0, A1], ONLINE))
    assert moves.elected == {A0: ours}
    assert isinstance(moves.failed[A1], NodeExistsError)


@pytest.mark.parametrize("made", [(), ("partitions",), ("partitions", "partitions/0"), ("partitions", "partitions/1")])
def test_znodes_that_another_controller_has_left_do_not_keep_the_others_from_being_made(made: tuple[str, ...]) -> None:
    cluster = Cluster()
    for partition in (A0, A1, B0):
        cluster.assign(partition, 1, 2)
        cluster.context.set_partition_state(partition, NEW)
    for path in made:
        cluster.store.znodes[f"/brokers/topics/a/{path}"] = (None, 0)
    moves = cluster.shell.run(machine_of(cluster).move([A0, A1, B0], ONLINE))
    expected = LeaderAndIsr(1, 0, (1, 2), EPOCH)
    assert (moves.elected, moves.failed) == (dict.fromkeys((A0, A1, B0), expected), {})
    assert [cluster.store.leadership(partition) for partition in (A0, A1, B0)] == [expected] * 3


def test_a_topic_gets_more_partitions() -> None:
    cluster = Cluster()
    cluster.assign(A0, 1, 2)
    cluster.context.set_partition_state(A0, NEW)
    cluster.shell.run(machine_of(cluster).move([A0], ONLINE))
    cluster.assign(A1, 2, 1)
    cluster.context.set_partition_state(A1, NEW)
    before = cluster.store.batches
    moves = cluster.shell.run(machine_of(cluster).move([A1], ONLINE))
    assert list(moves.elected) == [A1]
    assert cluster.store.batches - before == 2, "what is above exists, and costs the others nothing"


def test_a_partition_that_lost_its_leader_gets_another() -> None:
    cluster = Cluster(live=(2, 3))
    cluster.lead(cluster.assign(A0, 1, 2, 3), 1, 1, 3)
    offline(cluster, A0)
    moves = cluster.shell.run(machine_of(cluster).try_online())
    expected = LeaderAndIsr(3, 7, (3,), EPOCH, partition_epoch=4)
    assert moves.elected == {A0: expected}
    assert cluster.store.leadership(A0) == cluster.context.leadership(A0) == expected
    told = cluster.shell.sent("LEADER_AND_ISR")
    assert {broker: (told[broker][A0].leader_epoch, told[broker][A0].is_new) for broker in told} == {
        2: (7, False),
        3: (7, False),
    }
    assert cluster.shell.sent("UPDATE_METADATA")[2][A0].offline_replicas == [1]


def test_an_election_is_decided_anew_when_the_leader_changed_the_isr() -> None:
    cluster = Cluster(live=(2, 3))
    cluster.start_broker(1, version=4)
    cluster.context.remove_live_broker(1)
    cluster.lead(cluster.assign(A0, 1, 2, 3), 1, 1, 2, 3)
    offline(cluster, A0)

    def shrink_once() -> None:
        if cluster.store.batches == 1:  # between the read and the write
            cluster.store.put(A0, LeaderAndIsr(1, 6, (1, 3), 4))

    cluster.store.before_batch = shrink_once
    moves = cluster.shell.run(machine_of(cluster).try_online())
    assert moves.elected == {A0: LeaderAndIsr(3, 7, (3,), EPOCH, partition_epoch=5)}
    assert cluster.store.batches == 4


def test_an_endless_race_ends_and_is_reported() -> None:
    cluster = Cluster(live=(2,))
    known = cluster.lead(cluster.assign(A0, 1, 2), 1, 1, 2)
    offline(cluster, A0)
    cluster.store.before_batch = lambda: cluster.store.put(A0, known)
    moves = cluster.shell.run(machine_of(cluster).move([A0], ONLINE, ElectionStrategy.OFFLINE))
    assert f"before each of {ATTEMPTS_MAX} writes" in str(moves.failed[A0])
    assert cluster.store.batches == 2 * ATTEMPTS_MAX
    assert cluster.context.partition_state(A0) is OFFLINE


@pytest.mark.parametrize(
    ("topic_config", "broker_default", "elected"),
    [
        (None, False, False),
        (None, True, True),
        (b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}', False, True),
        (b'{"version":1,"config":{"unclean.leader.election.enable":"false"}}', True, False),
        (b'{"version":1,"config":{"retention.ms":"7"}}', True, True),
        (b'{"version":1,"config":{"unclean.leader.election.enable":"perhaps"}}', True, False),
        (b"not json", True, False),
    ],
)
def test_unclean_election_is_allowed_by_the_topic_or_the_broker(
    topic_config: bytes | None, broker_default: bool, elected: bool
) -> None:
    cluster = Cluster(live=(2,))
    cluster.lead(cluster.assign(A0, 1, 2), 1, 1)
    offline(cluster, A0)
    if topic_config is not None:
        cluster.store.znodes["/config/topics/a"] = (topic_config, 0)
    machine = machine_of(cluster, unclean=broker_default)
    moves = cluster.shell.run(machine.move([A0], ONLINE, ElectionStrategy.OFFLINE))
    if elected:
        assert moves.unclean == [A0]
        assert moves.elected[A0] == LeaderAndIsr(2, 7, (2,), EPOCH, LeaderRecoveryState.RECOVERING, 4)
    else:
        assert (list(moves.failed), moves.unclean) == ([A0], [])
        assert cluster.context.partition_state(A0) is OFFLINE


@pytest.mark.parametrize(
    ("supported", "state"), [(True, LeaderRecoveryState.RECOVERING), (False, LeaderRecoveryState.RECOVERED)]
)
def test_an_unclean_leader_is_marked_where_all_brokers_know_the_mark(
    supported: bool, state: LeaderRecoveryState
) -> None:
    cluster = Cluster(live=(2,))
    cluster.lead(cluster.assign(A0, 1, 2), 1, 1)
    offline(cluster, A0)
    settings = ControllerSettings(1, LISTENER, True, leader_recovery_supported=supported)
    moves = cluster.shell.run(PartitionStateMachine(cluster.context, settings).try_online())
    assert moves.elected[A0].leader_recovery_state is state


def test_unclean_election_on_demand_asks_no_config() -> None:
    cluster = Cluster(live=(2,))
    cluster.lead(cluster.assign(A0, 1, 2), 1, 1)
    offline(cluster, A0)
    cluster.store.faults["/config/topics/a"] = SessionExpiredError()
    moves = cluster.shell.run(machine_of(cluster).move([A0], ONLINE, ElectionStrategy.OFFLINE_UNCLEAN))
    assert moves.unclean == [A0]


def test_other_strategies_reach_online_partitions() -> None:
    cluster = Cluster()
    for partition in (A0, A1, B0):
        cluster.lead(cluster.assign(partition, 1, 2, 3), 2, 3, 2, 1)
        cluster.context.set_partition_state(partition, ONLINE)
    cluster.context.set_assignment(A1, ReplicaAssignment((3, 1, 2), (3,), (2,)))
    cluster.context.begin_shutdown(2)
    machine = machine_of(cluster)
    leaders: dict[TopicPartition, LeaderAndIsr] = {}
    for partition, strategy in (
        (A0, ElectionStrategy.PREFERRED),
        (A1, ElectionStrategy.REASSIGN),
        (B0, ElectionStrategy.CONTROLLED_SHUTDOWN),
    ):
        leaders |= cluster.shell.run(machine.move([partition], ONLINE, strategy)).elected
    assert {partition: (known.leader, known.isr) for partition, known in leaders.items()} == {
        A0: (1, (3, 2, 1)),
        A1: (3, (3, 2, 1)),
        B0: (1, (3, 1)),
    }


def test_partitions_had_leaders_so_a_strategy_must_be_named() -> None:
    cluster = Cluster()
    cluster.lead(cluster.assign(A0, 1), 1, 1)
    offline(cluster, A0)
    with pytest.raises(ValueError, match="give the strategy"):
        cluster.shell.run(machine_of(cluster).move([A0], ONLINE))


def test_what_the_table_refuses_does_not_stop_the_others() -> None:
    cluster = Cluster()
    cluster.assign(A0, 1)
    cluster.assign(A1, 1)
    cluster.context.set_partition_state(A1, NEW)
    moves = cluster.shell.run(machine_of(cluster).move([A0, A1], ONLINE, ElectionStrategy.OFFLINE))
    assert (list(moves.refused), list(moves.elected)) == ([A0], [A1])
    assert cluster.context.partition_state(A0) is NON_EXISTENT
    assert [line.level for line in cluster.shell.lines[:2]] == [logging.ERROR, logging.INFO]
    assert "partition a-0 from NON_EXISTENT to ONLINE failed" in cluster.shell.lines[0].message
    assert "leader 1, leader epoch 0, in sync [1], partition epoch 0" in cluster.shell.lines[1].message


def test_a_partition_nobody_assigned_cannot_become_new() -> None:
    cluster = Cluster()
    moves = cluster.shell.run(machine_of(cluster).move([A0], NEW))
    assert "a-0 has no assignment" in str(moves.failed[A0])


def test_faults_of_one_partition_are_its_own() -> None:
    cluster = Cluster(live=(2,))
    for partition in (A0, A1, B0):
        cluster.lead(cluster.assign(partition, 1, 2), 1, 1, 2)
        offline(cluster, partition)
    newer = cluster.context.leadership(A1)
    assert newer is not None
    cluster.store.put(A1, dataclasses.replace(newer, controller_epoch=EPOCH + 1))
    del cluster.store.znodes[partition_state_path(*B0)]
    moves = cluster.shell.run(machine_of(cluster).move([A0, A1, B0], ONLINE, ElectionStrategy.OFFLINE))
    assert list(moves.elected) == [A0, B0]
    assert f"the controller of epoch {EPOCH + 1} has written" in str(moves.failed[A1])
    # Somebody has deleted the state of B0: it is made again, and then a leader is elected.
    again = cluster.store.leadership(B0)
    assert again is not None
    assert (again.leader, again.isr, again.leader_epoch) == (2, (2,), moves.elected[A0].leader_epoch + 1)


def test_an_error_of_the_store_is_reported_for_its_partition() -> None:
    cluster = Cluster(live=(2,))
    cluster.lead(cluster.assign(A0, 1, 2), 1, 1, 2)
    offline(cluster, A0)
    fault = cluster.store.faults[partition_state_path(*A0)] = SessionExpiredError()
    moves = cluster.shell.run(machine_of(cluster).move([A0], ONLINE, ElectionStrategy.OFFLINE))
    assert moves.failed == {A0: fault}
    assert cluster.shell.requests == []


@pytest.mark.parametrize("state", [NEW, OFFLINE])
def test_a_deposed_controller_stops_and_sends_nothing(state: PartitionState) -> None:
    cluster = Cluster(live=(2,))
    cluster.assign(A0, 1, 2)
    if state is OFFLINE:
        cluster.lead(A0, 1, 1, 2)
    cluster.context.set_partition_state(A0, state)
    before = cluster.store.leadership(A0)
    cluster.store.znodes[CONTROLLER_EPOCH_PATH] = (b"6", 9)
    with pytest.raises(ControllerMovedError):
        cluster.shell.run(machine_of(cluster).try_online())
    assert cluster.shell.requests == []
    assert cluster.store.leadership(A0) == before


def test_start_up_finds_the_states_and_elects_where_needed() -> None:
    cluster = Cluster(live=(2, 3))
    cluster.assign(A0, 2, 3)
    cluster.lead(cluster.assign(A1, 3, 2), 3, 3, 2)
    cluster.lead(cluster.assign(B0, 1, 3), 1, 1, 3)
    doomed = cluster.assign(TopicPartition("doomed", 0), 1, 2)
    cluster.lead(doomed, 1, 1, 2)
    cluster.context.queue_for_deletion(["doomed"])
    moves = cluster.shell.run(machine_of(cluster).start_up())
    assert {partition: known.leader for partition, known in moves.elected.items()} == {A0: 2, B0: 3}
    assert cluster.context.partition_state(A1) is ONLINE
    assert cluster.context.partition_state(doomed) is OFFLINE
    assert set(cluster.shell.sent("LEADER_AND_ISR")[3]) == {A0, B0}


def test_why_very_many_stay_offline_is_not_gathered() -> None:
    cluster = Cluster(live=(2,))
    cluster.lead(cluster.assign(A0, 1), 1, 1)
    cluster.lead(cluster.assign(A1, 1, 2), 1, 1, 2)
    moves = cluster.shell.run(machine_of(cluster).start_up())
    assert (list(moves.elected), moves.failed) == ([A1], {})
    assert any("none of the replicas [1] is alive" in line.message for line in cluster.shell.lines)
    assert cluster.context.partition_state(A0) is OFFLINE


def test_what_is_tried_in_batches_is_told_of_all_of_them_with_ways_given_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barnabas.controller.partition_state_machine.PARTITIONS_PER_BATCH", 2)
    cluster = Cluster(live=(2,))
    partitions = [TopicPartition("a", number) for number in range(5)]
    for partition in partitions:
        cluster.lead(cluster.assign(partition, 1, 2), 1, 1)
        offline(cluster, partition)
    ways: list[GiveWay] = []
    carry_out = cluster.shell.carry_out

    def counting(effect: Effect) -> Any:
        if isinstance(effect, GiveWay):
            ways.append(effect)
        return carry_out(effect)

    monkeypatch.setattr(cluster.shell, "carry_out", counting)
    moves = cluster.shell.run(machine_of(cluster, unclean=True).try_online())
    assert (list(moves.elected), moves.unclean) == (partitions, partitions)
    assert len(ways) == 2


def test_one_topic_can_be_tried_alone() -> None:
    cluster = Cluster()
    for partition in (A0, B0):
        cluster.assign(partition, 1)
        cluster.context.set_partition_state(partition, NEW)
    assert list(cluster.shell.run(machine_of(cluster).try_online("b")).elected) == [B0]


def test_the_end_of_a_partition_needs_no_write() -> None:
    cluster = Cluster()
    cluster.lead(cluster.assign(A0, 1), 1, 1)
    cluster.context.set_partition_state(A0, ONLINE)
    machine = machine_of(cluster)
    for target in (OFFLINE, NON_EXISTENT):
        cluster.shell.run(machine.move([A0], target))
        assert cluster.context.partition_state(A0) is target
    assert (cluster.store.batches, cluster.shell.requests) == (0, [])
