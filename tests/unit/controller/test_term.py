"""The events of a term but deletion: taking over, brokers, topics, partitions, requests and responses."""

from __future__ import annotations

import pytest

from barnabas.controller.broker_requests import FULL
from barnabas.controller.effects import ChangeChannels, ControllerMovedError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.coordination.layout.brokers import BrokerRegistration, VersionRange, broker_id_path
from barnabas.coordination.layout.cluster import (
    FEATURE_PATH,
    PRODUCER_ID_BLOCK_PATH,
    FeatureStatus,
    FinalizedFeatures,
    ProducerIdBlock,
)
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.notifications import (
    ISR_CHANGES_PATH,
    LOG_DIR_EVENTS_PATH,
    IsrChange,
    LogDirEvent,
    log_dir_event_path,
)
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, topic_path
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrRequest, LeaderAndIsrResponse, UpdateMetadataRequest
from barnabas.wire.sentinels import NO_LEADER
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import LISTENER
from tests.unit.controller.term_harness import CrashError, Terms

T0 = TopicPartition("t", 0)


def with_topic(*replicas: tuple[int, ...], brokers: tuple[int, ...] = (1, 2, 3)) -> Terms:
    terms = Terms(*brokers)
    terms.elect()
    terms.create("t", *(replicas or ((1, 2, 3),)))
    terms.settle()
    terms.shell.requests.clear()
    terms.shell.channels.clear()
    terms._answered = 0
    return terms


def known(terms: Terms, partition: int = 0) -> LeaderAndIsr:
    state = terms.state("t", partition)
    assert state is not None
    return state


# Taking over.


def test_a_new_cluster_gets_its_features_and_brokers_learn_of_each_other() -> None:
    terms = Terms(1, 2)
    terms.elect()
    written = FinalizedFeatures.decode(terms.store.znodes[FEATURE_PATH][0])
    assert written == FinalizedFeatures(FeatureStatus.ENABLED, {})
    assert terms.shell.features == [0]
    assert [channels.opened for channels in terms.shell.channels] == [
        tuple(terms.term.context.live_or_shutting_down_brokers.values())
    ]
    first = {request.broker_id: request.message for request in terms.shell.requests}
    assert list(first) == [1, 2]
    for message in first.values():
        assert isinstance(message, UpdateMetadataRequest)
        assert (message.type, [broker.id for broker in message.live_brokers]) == (FULL, [1, 2])


def test_features_of_an_old_version_are_rewritten_and_their_levels_kept() -> None:
    terms = Terms(1)
    old = FinalizedFeatures(FeatureStatus.ENABLED, {"some.feature": 3}, version=1)
    terms.store.znodes[FEATURE_PATH] = (old.encode(), 4)
    terms.elect()
    data, version = terms.store.znodes[FEATURE_PATH]
    assert FinalizedFeatures.decode(data) == FinalizedFeatures(FeatureStatus.ENABLED, {"some.feature": 3})
    assert (version, terms.shell.features) == (5, [5])
    terms.elect()
    assert terms.store.znodes[FEATURE_PATH][1] == 5


def test_features_that_were_disabled_are_dropped() -> None:
    terms = Terms(1)
    terms.store.znodes[FEATURE_PATH] = (FinalizedFeatures(FeatureStatus.DISABLED, {"some.feature": 3}).encode(), 0)
    terms.elect()
    written = FinalizedFeatures.decode(terms.store.znodes[FEATURE_PATH][0])
    assert written == FinalizedFeatures(FeatureStatus.ENABLED, {})


def test_a_broker_that_lacks_a_finalized_feature_is_not_counted() -> None:
    terms = Terms(1)
    terms.store.znodes[FEATURE_PATH] = (FinalizedFeatures(FeatureStatus.ENABLED, {"some.feature": 3}).encode(), 0)
    for broker_id, most in ((2, 2), (3, 3)):
        registration = BrokerRegistration(
            (BrokerEndpoint(LISTENER, "h", 1, LISTENER),), 0, features={"some.feature": VersionRange(1, most)}
        )
        terms.store.put_data(broker_id_path(broker_id), registration.encode())
    terms.elect()
    assert terms.term.context.live_brokers == (3,)


def test_notifications_from_before_are_dropped() -> None:
    terms = Terms(1)
    terms.store.znodes[f"{ISR_CHANGES_PATH}/isr_change_0"] = (IsrChange((T0,)).encode(), 0)
    terms.store.znodes[f"{LOG_DIR_EVENTS_PATH}/log_dir_event_0"] = (LogDirEvent(2).encode(), 0)
    terms.elect()
    assert terms.store.children(ISR_CHANGES_PATH) == terms.store.children(LOG_DIR_EVENTS_PATH) == []


def test_a_topic_without_id_gets_one() -> None:
    terms = Terms(1)
    terms.create("t", (1,), topic_id=False)
    terms.elect()
    written = TopicAssignment.decode(terms.store.znodes[topic_path("t")][0], topic_path("t"))
    assert written.topic_id is not None
    assert terms.term.context.topic_id("t") == written.topic_id
    terms.settle()
    assert known(terms).leader == 1


def test_znodes_that_cannot_be_read_harm_no_others(caplog: pytest.LogCaptureFixture) -> None:
    terms = Terms(1, 2)
    terms.store.put_data(broker_id_path(3), b"{")
    terms.store.put_data(topic_path("bad"), b"[]")
    terms.create("t", (1, 2))
    terms.elect()
    terms.settle()
    assert (terms.term.context.live_brokers, terms.term.context.topics) == ((1, 2), ("t",))
    assert known(terms).leader == 1
    assert "Ignoring broker 3" in caplog.text
    assert "Ignoring topic bad" in caplog.text


def test_a_deposed_controller_writes_nothing() -> None:
    terms = with_topic()
    terms.store.put_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(9))
    before = known(terms)
    terms.stop_broker(1)
    terms.events.clear()
    with pytest.raises(ControllerMovedError):
        terms.run(terms.term.brokers_changed())
    assert known(terms) == before
    assert terms.sent("LEADER_AND_ISR") == []


def test_the_reassignment_of_another_controller_is_taken_up() -> None:
    terms = Terms(1, 2)
    data = TopicAssignment({0: ReplicaAssignment((3, 1, 2), (3,), (1,))}, terms.new_topic_id()).encode()
    terms.store.put_data(topic_path("t"), data)
    terms.elect()
    terms.settle()
    assert terms.store.znodes[topic_path("t")][0] == data
    assert known(terms).isr == (1, 2)
    sent = terms.sent("LEADER_AND_ISR")[-1].message
    assert isinstance(sent, LeaderAndIsrRequest)
    state = sent.topic_states[0].partition_states[0]
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ([3, 1, 2], [3], [1])
    terms.start_broker(3)
    terms.settle()
    terms.propose(T0, 1, 2, 3)
    assert terms.assignment("t") == ReplicaAssignment((3, 2))
    assert terms.refusals() == []


# Topics.


def test_a_new_topic_gets_leaders_and_everybody_hears_of_it() -> None:
    terms = with_topic((1, 2), (2, 3))
    assert [known(terms, number) for number in (0, 1)] == [LeaderAndIsr(1, 0, (1, 2), 1), LeaderAndIsr(2, 0, (2, 3), 1)]
    assert terms.refusals() == []


def effects_of_creation() -> int:
    terms = Terms(1, 2, 3)
    terms.elect()
    before = terms.shell.carried_out
    terms.create("t", (1, 2, 3), (2, 3, 1))
    terms.settle()
    return terms.shell.carried_out - before


@pytest.mark.parametrize("step", range(1, effects_of_creation() + 1))
def test_a_crash_at_any_step_of_a_creation_is_made_good_by_the_next_controller(step: int) -> None:
    terms = Terms(1, 2, 3)
    terms.elect()
    terms.shell.crash_at = terms.shell.carried_out + step
    terms.create("t", (1, 2, 3), (2, 3, 1))
    with pytest.raises(CrashError):
        terms.settle()
    terms.elect()
    terms.settle()
    assert {(known(terms, number).leader, known(terms, number).isr) for number in (0, 1)} == {
        (1, (1, 2, 3)),
        (2, (2, 3, 1)),
    }
    told = {request.broker_id for request in terms.sent("LEADER_AND_ISR")}
    assert told == {1, 2, 3}
    assert terms.refusals() == []


def test_a_partition_without_live_replica_waits_for_one() -> None:
    terms = with_topic((4, 5))
    assert terms.state("t") is None
    assert terms.term.context.partition_state(T0) is PartitionState.NEW
    terms.start_broker(5)
    terms.settle()
    assert known(terms) == LeaderAndIsr(5, 0, (5,), 1)


def test_partitions_that_are_added_come_online() -> None:
    terms = with_topic((1, 2))
    before = TopicAssignment.decode(terms.store.znodes[topic_path("t")][0], topic_path("t"))
    partitions = {**before.partitions, 1: ReplicaAssignment((3,))}
    terms.store.put_data(topic_path("t"), TopicAssignment(partitions, before.topic_id).encode())
    terms.settle()
    assert known(terms, 1).leader == 3
    assert known(terms, 0).leader_epoch == 0


def test_a_topic_that_vanishes_is_forgotten() -> None:
    terms = with_topic()
    for path in sorted((path for path in terms.store.znodes if "/topics/t" in path), reverse=True):
        terms.store.remove(path)
    terms.settle()
    assert terms.term.context.topics == ()


# Brokers.


def test_the_leadership_of_a_dead_broker_goes_to_the_next_in_sync() -> None:
    terms = with_topic()
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2, 3))
    assert terms.shell.channels == [ChangeChannels((1,), ())]
    assert {request.broker_id for request in terms.sent("LEADER_AND_ISR")} == {2, 3}


def test_the_death_of_a_broker_that_hosts_nothing_is_told_too() -> None:
    terms = with_topic((1, 2))
    terms.stop_broker(3)
    terms.settle()
    told = {
        request.broker_id: [broker.id for broker in request.message.live_brokers]  # type: ignore[attr-defined]
        for request in terms.sent("UPDATE_METADATA")
    }
    assert told == {1: [1, 2], 2: [1, 2]}


def test_the_last_in_sync_leads_again_when_it_is_back() -> None:
    terms = with_topic((1, 2))
    for broker_id in (2, 1):
        terms.stop_broker(broker_id)
        terms.settle()
    assert (known(terms).leader, known(terms).isr) == (NO_LEADER, (1,))
    terms.start_broker(2)
    terms.settle()
    assert known(terms).leader == NO_LEADER
    terms.start_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))
    assert terms.refusals() == []


def test_a_bounced_broker_fails_and_starts() -> None:
    terms = with_topic()
    terms.stop_broker(1)
    terms.start_broker(1)
    terms.settle()
    (channels,) = terms.shell.channels
    assert (channels.closed, [broker.broker_id for broker in channels.opened]) == ((1,), [1])
    assert known(terms).leader == 2
    last = [request for request in terms.sent("LEADER_AND_ISR") if request.broker_id == 1][-1].message
    assert isinstance(last, LeaderAndIsrRequest)
    assert last.broker_epoch == terms.term.context.live_or_shutting_down_brokers[1].epoch
    full = [
        request.broker_id
        for request in terms.sent("UPDATE_METADATA")
        if isinstance(request.message, UpdateMetadataRequest) and request.message.type == FULL
    ]
    assert full == [1]


@pytest.mark.parametrize(("returned", "leader", "isr"), [((1,), 2, (2, 3)), ((1, 2), 3, (3,)), ((3,), 1, (1, 2))])
def test_a_broker_that_started_anew_between_two_controllers_is_neither_leader_nor_in_sync(
    returned: tuple[int, ...], leader: int, isr: tuple[int, ...]
) -> None:
    terms = with_topic()
    before = known(terms)
    terms.watches.end()  # nobody is the controller
    for broker_id in returned:
        terms.stop_broker(broker_id)
        terms.start_broker(broker_id)
    terms.elect()
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (leader, isr)
    assert known(terms).leader_epoch > before.leader_epoch
    assert set(terms.term.context.live_or_shutting_down_brokers) == {1, 2, 3}
    told = {request.broker_id for request in terms.sent("LEADER_AND_ISR")}
    assert told == {1, 2, 3}, "those that are back follow"


def test_where_all_in_sync_have_started_anew_one_of_them_leads_in_a_new_epoch() -> None:
    terms = with_topic()
    before = known(terms)
    terms.watches.end()
    for broker_id in (1, 2, 3):
        terms.stop_broker(broker_id)
        terms.start_broker(broker_id)
    terms.elect()
    terms.settle()
    assert known(terms).leader == 1
    assert known(terms).leader_epoch > before.leader_epoch


def test_a_failover_without_a_restart_elects_nobody() -> None:
    terms = with_topic()
    before = known(terms)
    terms.elect()
    terms.settle()
    assert known(terms) == before


def test_a_new_address_is_told_to_all_and_the_channel_follows_it() -> None:
    terms = with_topic()
    terms.start_broker(2, port=9999)
    terms.settle()
    (channels,) = terms.shell.channels
    assert (channels.closed, channels.opened[0].registration.endpoints[0].port) == ((), 9999)
    assert {request.broker_id for request in terms.sent("UPDATE_METADATA")} == {1, 2, 3}
    terms.shell.requests.clear()
    terms._answered = 0
    terms.start_broker(2, port=9999)
    terms.settle()
    assert terms.shell.requests == []


def test_a_broker_that_shuts_down_gives_up_what_it_leads_and_follows() -> None:
    terms = with_topic((1, 2), (2, 1), (1,))
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    assert terms.run(terms.term.shut_down(1, epoch)) == []
    assert [(known(terms, number).leader, known(terms, number).isr) for number in range(3)] == [
        (2, (2,)),
        (2, (2,)),
        (1, (1,)),
    ]
    assert terms.term.context.live_brokers == (2, 3)
    stops = [request.broker_id for request in terms.sent("STOP_REPLICA")]
    assert set(stops) == {1}
    assert terms.run(terms.term.shut_down(1, -1)) == []


def test_what_nobody_else_can_lead_is_named_to_a_broker_that_shuts_down() -> None:
    terms = with_topic((1, 2))
    terms.stop_broker(2)
    terms.settle()
    assert terms.run(terms.term.shut_down(1, -1)) == [T0]
    assert known(terms).leader == 1


@pytest.mark.parametrize(
    ("broker_id", "epoch", "code"), [(1, 1, ErrorCode.STALE_BROKER_EPOCH), (9, -1, ErrorCode.BROKER_NOT_AVAILABLE)]
)
def test_shutdowns_of_brokers_that_are_not_there_are_refused(broker_id: int, epoch: int, code: ErrorCode) -> None:
    terms = with_topic()
    with pytest.raises(KafkaError) as refused:
        terms.run(terms.term.shut_down(broker_id, epoch))
    assert refused.value.code is code
    assert terms.term.context.shutting_down_brokers == ()


# Other requests and notifications.


def test_isr_changes_that_leaders_announce_are_told_to_all() -> None:
    terms = with_topic()
    terms.write_isrs_themselves(1)
    changed = LeaderAndIsr(1, 0, (1,), 1)
    terms.store.put(T0, changed)
    terms.store.put_data(f"{ISR_CHANGES_PATH}/isr_change_7", IsrChange((T0, TopicPartition("x", 0))).encode())
    terms.settle()
    assert terms.store.children(ISR_CHANGES_PATH) == []
    leadership = terms.term.context.leadership(T0)
    assert leadership == changed.at_version(1)
    assert {request.broker_id for request in terms.sent("UPDATE_METADATA")} == {1, 2, 3}


def test_blocks_of_producer_ids_follow_one_another() -> None:
    terms = Terms(1, 2)
    context = terms.elect().context
    blocks = [
        terms.run(terms.term.allocate_producer_ids(broker_id, context.live_or_shutting_down_brokers[broker_id].epoch))
        for broker_id in (1, 2, 1)
    ]
    assert blocks == [ProducerIdBlock(1, 0, 999), ProducerIdBlock(2, 1000, 1999), ProducerIdBlock(1, 2000, 2999)]
    assert ProducerIdBlock.decode(terms.store.znodes[PRODUCER_ID_BLOCK_PATH][0]) == blocks[-1]


def test_producer_ids_are_for_registered_brokers_and_end_one_day() -> None:
    terms = Terms(1)
    epoch = terms.elect().context.live_or_shutting_down_brokers[1].epoch
    for broker_id, broker_epoch, code in (
        (2, 1, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (1, epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(KafkaError) as refused:
            terms.run(terms.term.allocate_producer_ids(broker_id, broker_epoch))
        assert refused.value.code is code
    last = ProducerIdBlock(1, 2**63 - 1000, 2**63 - 1)
    terms.store.put_data(PRODUCER_ID_BLOCK_PATH, last.encode())
    with pytest.raises(KafkaError, match="used up"):
        terms.run(terms.term.allocate_producer_ids(1, epoch))


def leader_and_isr_response(terms: Terms, code: ErrorCode) -> LeaderAndIsrResponse:
    errors = LeaderAndIsrResponse.LeaderAndIsrTopicError(
        topic_id=terms.term.context.topic_id("t"),  # type: ignore[arg-type]
        partition_errors=[LeaderAndIsrResponse.LeaderAndIsrPartitionError(partition_index=0, error_code=code)],
    )
    return LeaderAndIsrResponse(topics=[errors])


def test_a_replica_in_a_failed_log_directory_goes_offline_and_comes_back() -> None:
    terms = with_topic()
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    terms.run(
        terms.term.leader_and_isr_answered(1, epoch, leader_and_isr_response(terms, ErrorCode.KAFKA_STORAGE_ERROR))
    )
    assert (known(terms).leader, known(terms).isr) == (2, (2, 3))
    assert terms.term.context.offline_log_dir_partitions(1) == {T0}
    terms.run(terms.term.leader_and_isr_answered(1, epoch, leader_and_isr_response(terms, ErrorCode.NONE)))
    assert terms.term.context.offline_log_dir_partitions(1) == frozenset()


def test_a_failed_log_directory_of_a_replica_that_has_been_moved_away_meanwhile_is_nothing_to_the_partition() -> None:
    terms = with_topic()
    terms.start_broker(4)
    terms.settle()
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    late = leader_and_isr_response(terms, ErrorCode.KAFKA_STORAGE_ERROR)
    assert terms.reassign(T0, 2, 3, 4) is None
    terms.propose(T0, 1, 2, 3, 4)
    terms.settle()
    assert terms.assignment("t").replicas == (2, 3, 4)
    terms.run(terms.term.leader_and_isr_answered(1, epoch, late))
    assert terms.refusals() == []
    assert terms.term.context.offline_log_dir_partitions(1) == frozenset()


def test_an_answer_costs_the_same_however_many_replicas_are_offline() -> None:
    terms = with_topic()
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    response = leader_and_isr_response(terms, ErrorCode.NONE)
    lines: list[int] = []
    for count in (5, 5_000):
        terms.term.context.log_dirs_failed(1, [TopicPartition("many", number) for number in range(count)])
        looked_at = 0

        class Counted(TopicPartition):
            def __hash__(self) -> int:
                nonlocal looked_at
                looked_at += 1
                return super().__hash__()

        terms.term.context.log_dirs_failed(1, [Counted("counted", number) for number in range(count)])
        looked_at = 0
        terms.run(terms.term.leader_and_isr_answered(1, epoch, response))
        lines.append(looked_at)
    assert lines == [0, 0]


def test_an_answer_from_a_brokers_former_life_changes_nothing() -> None:
    terms = with_topic()
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    response = leader_and_isr_response(terms, ErrorCode.KAFKA_STORAGE_ERROR)
    terms.run(terms.term.leader_and_isr_answered(1, epoch - 1, response))
    assert known(terms).leader == 1


def announce_log_dir_failure(terms: Terms, data: bytes, number: str = "0000000007") -> None:
    terms.store.put_data(log_dir_event_path(number), data)
    terms.settle()


def asked_of(terms: Terms) -> dict[int, set[TopicPartition]]:
    """The partitions that brokers were sent LeaderAndIsr for."""
    asked: dict[int, set[TopicPartition]] = {}
    for request in terms.sent("LEADER_AND_ISR"):
        assert isinstance(request.message, LeaderAndIsrRequest)
        for topic in request.message.topic_states:
            asked.setdefault(request.broker_id, set()).update(
                TopicPartition(topic.topic_name, state.partition_index) for state in topic.partition_states
            )
    return asked


def test_a_broker_whose_log_directory_failed_is_asked_what_is_offline() -> None:
    terms = with_topic((1, 2, 3), (2, 3), (3, 1))
    before = [known(terms, number) for number in range(3)]
    announce_log_dir_failure(terms, LogDirEvent(1).encode())
    assert asked_of(terms) == {1: {T0, TopicPartition("t", 2)}}
    assert [known(terms, number) for number in range(3)] == before, "nothing changes before it has answered"
    assert terms.store.children(LOG_DIR_EVENTS_PATH) == []


def test_the_answer_to_a_failed_log_directory_elects_others_and_the_next_failure_is_heard_too() -> None:
    terms = with_topic((1, 2, 3), (1, 3))
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    announce_log_dir_failure(terms, LogDirEvent(1).encode())
    terms.run(
        terms.term.leader_and_isr_answered(1, epoch, leader_and_isr_response(terms, ErrorCode.KAFKA_STORAGE_ERROR))
    )
    assert (known(terms).leader, known(terms).isr) == (2, (2, 3))
    assert known(terms, 1).leader == 1
    terms.shell.requests.clear()
    terms._answered = 0
    announce_log_dir_failure(terms, LogDirEvent(1).encode(), "0000000008")
    assert asked_of(terms) == {1: {TopicPartition("t", 1)}}, "not for what is offline already"
    assert terms.store.children(LOG_DIR_EVENTS_PATH) == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"version":1}', b'{"version":1,"broker":"x","event":1}', LogDirEvent(9).encode()]
)
def test_an_announcement_of_nobody_or_of_nothing_is_removed_and_harms_no_other(data: bytes) -> None:
    terms = with_topic()
    terms.store.znodes[log_dir_event_path("0000000001")] = (data, 0)
    announce_log_dir_failure(terms, LogDirEvent(3).encode(), "0000000002")
    assert asked_of(terms) == {3: {T0}}
    assert terms.store.children(LOG_DIR_EVENTS_PATH) == []


def test_a_failed_log_directory_of_a_broker_that_is_gone_brings_nothing_back() -> None:
    terms = with_topic()
    terms.stop_broker(3)
    terms.settle()
    before = known(terms)
    announce_log_dir_failure(terms, LogDirEvent(3).encode())
    assert 3 not in asked_of(terms)
    replica = PartitionReplica(T0, 3)
    assert terms.term.context.replica_state(replica) is ReplicaState.OFFLINE
    assert known(terms) == before


def test_a_new_controller_hears_of_log_directories_that_fail_after_it_took_over() -> None:
    terms = with_topic()
    terms.store.znodes[log_dir_event_path("0000000001")] = (LogDirEvent(2).encode(), 0)
    terms.elect()
    terms.settle()
    assert terms.store.children(LOG_DIR_EVENTS_PATH) == []
    assert set(asked_of(terms)) == {1, 2, 3}, "who takes over asks all"
    terms.shell.requests.clear()
    terms._answered = 0
    announce_log_dir_failure(terms, LogDirEvent(2).encode())
    assert asked_of(terms) == {2: {T0}}
