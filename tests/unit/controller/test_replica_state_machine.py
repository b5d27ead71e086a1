"""The replica state machine on a store in memory: its writes, its requests, what it reports."""

from __future__ import annotations

import dataclasses

import pytest

from barnabas.controller.effects import ControllerMovedError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_znodes import ATTEMPTS_MAX
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.errors import SessionExpiredError
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import EPOCH, LISTENER, Cluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def machine_of(cluster: Cluster) -> ReplicaStateMachine:
    return ReplicaStateMachine(cluster.context, ControllerSettings(1, LISTENER))


def put(cluster: Cluster, partition: TopicPartition, broker_id: int, state: ReplicaState) -> PartitionReplica:
    replica = PartitionReplica(partition, broker_id)
    cluster.context.set_replica_state(replica, state)
    return replica


@pytest.fixture
def cluster() -> Cluster:
    """a-0 on 1, 2, 3, all in sync, led by 1."""
    made = Cluster()
    made.lead(made.assign(A0, 1, 2, 3), 1, 1, 2, 3)
    return made


def test_a_new_replica_is_told_to_make_its_log(cluster: Cluster) -> None:
    cluster.start_broker(4)
    replica = PartitionReplica(A0, 4)
    moves = cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.NEW))
    assert moves.moved == [replica]
    told = cluster.shell.sent("LEADER_AND_ISR")
    assert {broker: told[broker][A0].is_new for broker in told} == {4: True}
    assert set(cluster.shell.sent("UPDATE_METADATA")) == {1, 2, 3, 4}
    cluster.shell.requests.clear()
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.ONLINE))
    assert cluster.context.assignment(A0).replicas == (1, 2, 3, 4)
    assert cluster.shell.requests == []


def test_a_leader_cannot_be_new_and_a_partition_without_leader_needs_no_request(cluster: Cluster) -> None:
    cluster.assign(A1, 2)
    leader, other = PartitionReplica(A0, 1), PartitionReplica(A1, 2)
    moves = cluster.shell.run(machine_of(cluster).move([leader, other], ReplicaState.NEW))
    assert (list(moves.failed), moves.moved) == ([leader], [other])
    assert cluster.context.replica_state(leader) is ReplicaState.NON_EXISTENT
    assert cluster.shell.requests == []


@pytest.mark.parametrize("state", [ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE])
def test_a_replica_that_is_back_is_told_who_leads(cluster: Cluster, state: ReplicaState) -> None:
    replica = put(cluster, A0, 2, state)
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.ONLINE))
    assert cluster.context.replica_state(replica) is ReplicaState.ONLINE
    (state_sent,) = cluster.shell.sent("LEADER_AND_ISR")[2].values()
    assert (state_sent.leader, state_sent.leader_epoch, state_sent.is_new) == (1, 6, False)
    assert cluster.store.batches == 0


def test_a_follower_that_goes_leaves_the_isr(cluster: Cluster) -> None:
    replica = put(cluster, A0, 2, ReplicaState.ONLINE)
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    expected = LeaderAndIsr(1, 7, (1, 3), EPOCH, partition_epoch=4)
    assert cluster.store.leadership(A0) == cluster.context.leadership(A0) == expected
    assert set(cluster.shell.sent("LEADER_AND_ISR")) == {1, 3}
    stop = cluster.shell.sent("STOP_REPLICA")
    assert {broker: (stop[broker][A0].leader_epoch, stop[broker][A0].delete_partition) for broker in stop} == {
        2: (6, False)
    }


def test_a_leader_that_goes_leaves_nobody_leading(cluster: Cluster) -> None:
    replica = put(cluster, A0, 1, ReplicaState.ONLINE)
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert cluster.store.leadership(A0) == LeaderAndIsr(-1, 7, (2, 3), EPOCH, partition_epoch=4)


def test_the_last_in_sync_stays_in_the_isr(cluster: Cluster) -> None:
    cluster.lead(A0, 1, 1, epoch=9)
    replica = put(cluster, A0, 1, ReplicaState.ONLINE)
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert cluster.store.leadership(A0) == LeaderAndIsr(-1, 10, (1,), EPOCH, partition_epoch=5)


def test_all_replicas_of_a_partition_can_go_in_one_call_and_each_may_lead_again(cluster: Cluster) -> None:
    replicas = [put(cluster, A0, broker, ReplicaState.ONLINE) for broker in (1, 2, 3)]
    moves = cluster.shell.run(machine_of(cluster).move(replicas, ReplicaState.OFFLINE))
    assert moves.moved == replicas
    assert cluster.store.leadership(A0) == LeaderAndIsr(-1, 7, (1, 2, 3), EPOCH, partition_epoch=4)


def test_several_replicas_go_in_one_epoch(cluster: Cluster) -> None:
    replicas = [put(cluster, A0, broker, ReplicaState.ONLINE) for broker in (1, 2)]
    cluster.shell.run(machine_of(cluster).move(replicas, ReplicaState.OFFLINE))
    assert cluster.store.leadership(A0) == LeaderAndIsr(-1, 7, (3,), EPOCH, partition_epoch=4)
    assert set(cluster.shell.sent("LEADER_AND_ISR")) == {3}


def test_what_is_offline_already_is_not_written_again(cluster: Cluster) -> None:
    known = cluster.lead(A0, -1, 1, 2)
    replicas = [put(cluster, A0, broker, ReplicaState.OFFLINE) for broker in (1, 2)]
    moves = cluster.shell.run(machine_of(cluster).move(replicas, ReplicaState.OFFLINE))
    assert (moves.moved, cluster.store.leadership(A0)) == (replicas, known)


def test_a_replica_out_of_sync_changes_no_epoch(cluster: Cluster) -> None:
    known = cluster.lead(A0, 1, 1, 3)
    replica = put(cluster, A0, 2, ReplicaState.ONLINE)
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert cluster.store.leadership(A0) == known
    assert cluster.context.leadership(A0) == known.by_controller(EPOCH)
    assert set(cluster.shell.sent("LEADER_AND_ISR")) == {1, 3}


def test_replicas_of_a_topic_that_is_deleted_stop_and_nobody_is_told_to_follow(cluster: Cluster) -> None:
    cluster.context.queue_for_deletion(["a"])
    replica = put(cluster, A0, 2, ReplicaState.ONLINE)
    machine = machine_of(cluster)
    cluster.shell.run(machine.move([replica], ReplicaState.OFFLINE))
    assert cluster.shell.sent("LEADER_AND_ISR") == {}
    cluster.shell.run(machine.move([replica], ReplicaState.DELETION_STARTED))
    stop = cluster.shell.sent("STOP_REPLICA")[2][A0]
    assert (stop.leader_epoch, stop.delete_partition) == (-2, True)
    cluster.shell.run(machine.move([replica], ReplicaState.DELETION_SUCCESSFUL))
    assert cluster.context.replicas_in("a", ReplicaState.DELETION_SUCCESSFUL) == (replica,)
    cluster.shell.run(machine.move([replica], ReplicaState.NON_EXISTENT))
    assert cluster.context.assignment(A0) == ReplicaAssignment((1, 3))


def test_a_partition_that_never_had_a_leader_is_only_announced(cluster: Cluster) -> None:
    cluster.assign(A1, 2)
    replica = put(cluster, A1, 2, ReplicaState.NEW)
    moves = cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert (moves.moved, cluster.store.batches) == ([replica], 0)
    assert set(cluster.shell.sent("UPDATE_METADATA")) == {1, 2, 3}


def test_a_removal_is_decided_anew_when_the_leader_changed_the_isr(cluster: Cluster) -> None:
    cluster.start_broker(1, version=4)

    def shrink_once() -> None:
        if cluster.store.batches == 1:  # between the read and the write
            cluster.store.put(A0, LeaderAndIsr(1, 6, (1, 2), 4))

    cluster.store.before_batch = shrink_once
    replica = put(cluster, A0, 2, ReplicaState.ONLINE)
    cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert cluster.store.leadership(A0) == LeaderAndIsr(1, 7, (1,), EPOCH, partition_epoch=5)


def test_an_endless_race_ends_and_is_reported(cluster: Cluster) -> None:
    known = cluster.context.leadership(A0)
    assert known is not None
    cluster.store.before_batch = lambda: cluster.store.put(A0, known)
    replica = put(cluster, A0, 2, ReplicaState.ONLINE)
    moves = cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert f"before each of {ATTEMPTS_MAX} writes" in str(moves.failed[replica])
    assert cluster.context.replica_state(replica) is ReplicaState.ONLINE


def test_faults_of_one_replica_are_its_own(cluster: Cluster) -> None:
    doomed = TopicPartition("doomed", 0)
    for partition in (A1, B0, doomed):
        cluster.lead(cluster.assign(partition, 1, 2), 1, 1, 2)
    cluster.context.queue_for_deletion(["doomed"])
    newer = cluster.context.leadership(A1)
    assert newer is not None
    cluster.store.put(A1, dataclasses.replace(newer, controller_epoch=EPOCH + 1))
    for partition in (B0, doomed):
        del cluster.store.znodes[partition_state_path(*partition)]
    fault = cluster.store.faults[partition_state_path(*A0)] = SessionExpiredError()
    replicas = {partition: put(cluster, partition, 2, ReplicaState.ONLINE) for partition in (A0, A1, B0, doomed)}
    moves = cluster.shell.run(machine_of(cluster).move(replicas.values(), ReplicaState.OFFLINE))
    assert {*moves.moved} == {replicas[B0], replicas[doomed]}
    assert moves.failed[replicas[A0]] is fault
    assert f"the controller of epoch {EPOCH + 1} has written" in str(moves.failed[replicas[A1]])
    # Somebody has deleted the state of B0: it is made again, and then the replica leaves the ISR.
    again = cluster.store.leadership(B0)
    assert again is not None
    assert (again.leader, again.isr) == (1, (1,))
    assert cluster.store.leadership(doomed) is None


def test_what_the_table_refuses_does_not_stop_the_others(cluster: Cluster) -> None:
    deleted = put(cluster, A0, 1, ReplicaState.DELETION_SUCCESSFUL)
    back = put(cluster, A0, 2, ReplicaState.OFFLINE)
    moves = cluster.shell.run(machine_of(cluster).move([deleted, back], ReplicaState.ONLINE))
    assert (list(moves.refused), moves.moved) == ([deleted], [back])
    assert "replica a-0 on broker 1 from DELETION_SUCCESSFUL to ONLINE failed" in cluster.shell.lines[0].message


def test_a_deposed_controller_stops_and_sends_nothing(cluster: Cluster) -> None:
    cluster.store.znodes[CONTROLLER_EPOCH_PATH] = (b"6", 9)
    replica = put(cluster, A0, 2, ReplicaState.ONLINE)
    before = cluster.store.leadership(A0)
    with pytest.raises(ControllerMovedError):
        cluster.shell.run(machine_of(cluster).move([replica], ReplicaState.OFFLINE))
    assert (cluster.shell.requests, cluster.store.leadership(A0)) == ([], before)


def test_start_up_tells_the_live_and_takes_the_dead_out(cluster: Cluster) -> None:
    cluster.context.remove_live_broker(3)
    cluster.shell.run(machine_of(cluster).start_up())
    states = {replica.broker_id: cluster.context.replica_state(replica) for replica in cluster.context.replicas_of("a")}
    assert states == {1: ReplicaState.ONLINE, 2: ReplicaState.ONLINE, 3: ReplicaState.OFFLINE}
    assert cluster.store.leadership(A0) == LeaderAndIsr(1, 7, (1, 2), EPOCH, partition_epoch=4)
    assert [(request.api_key.name, request.broker_id) for request in cluster.shell.requests] == 2 * [
        ("LEADER_AND_ISR", 1),
        ("LEADER_AND_ISR", 2),
        ("UPDATE_METADATA", 1),
        ("UPDATE_METADATA", 2),
    ]
