"""A controller in a cluster of an older inter.broker.protocol.version: what it writes, and which answers it reads."""

from __future__ import annotations

import pytest

from barnabas.controller.effects import BrokerRequest
from barnabas.controller.features import FeatureUpdate, UpgradeType
from barnabas.controller.protocol import controller_protocol
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.coordination.layout.topics import TopicAssignment, topic_path
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrResponse, StopReplicaRequest
from barnabas.wire.stopped_partitions import stopped_partitions
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import LISTENER
from tests.unit.controller.term_harness import CONTROLLER, Terms

T0 = TopicPartition("t", 0)


def terms_of(protocol: str, *broker_ids: int) -> Terms:
    settings = ControllerSettings(CONTROLLER, LISTENER, protocol=controller_protocol(protocol))
    return Terms(*broker_ids, settings=settings)


def with_topic(protocol: str) -> Terms:
    terms = terms_of(protocol, 1, 2)
    terms.create("t", (1, 2), topic_id=False)
    terms.elect()
    terms.settle()
    return terms


@pytest.mark.parametrize(("protocol", "has_id"), [("2.7", False), ("2.8-IV0", True), ("3.9", True)])
def test_a_topic_gets_an_id_where_the_cluster_knows_ids(protocol: str, has_id: bool) -> None:
    terms = with_topic(protocol)
    written = TopicAssignment.decode(terms.store.znodes[topic_path("t")][0], topic_path("t"))
    assert (written.topic_id is not None, terms.term.context.topic_id("t") is not None) == (has_id, has_id)


@pytest.mark.parametrize(
    ("protocol", "status", "version"),
    [
        ("2.6", FeatureStatus.DISABLED, 1),
        ("2.7-IV0", FeatureStatus.ENABLED, 1),
        ("3.2", FeatureStatus.ENABLED, 1),
        ("3.3-IV0", FeatureStatus.ENABLED, 2),
    ],
)
def test_the_znode_of_features_is_that_of_the_protocol(protocol: str, status: FeatureStatus, version: int) -> None:
    terms = terms_of(protocol, 1)
    terms.elect()
    made = FinalizedFeatures.decode(terms.store.znodes[FEATURE_PATH][0])
    assert made == FinalizedFeatures(status, {}, version)
    # Nobody keeps a version of what is disabled, so that none can be waited for.
    assert terms.shell.features == ([0] if status is FeatureStatus.ENABLED else [])
    terms.store.put_data(FEATURE_PATH, FinalizedFeatures(FeatureStatus.ENABLED, {"some.feature": 3}, 2).encode())
    terms.elect()
    kept = {"some.feature": 3} if status is FeatureStatus.ENABLED else {}
    changed = FinalizedFeatures.decode(terms.store.znodes[FEATURE_PATH][0])
    assert changed == FinalizedFeatures(status, kept, version)


def test_no_feature_is_finalized_before_there_are_features() -> None:
    terms = terms_of("2.6", 1)
    terms.elect()
    with pytest.raises(KafkaError, match=r"2\.7 or newer") as refused:
        terms.run(terms.term.update_features([FeatureUpdate("f", 0, UpgradeType.SAFE_DOWNGRADE)], validate_only=False))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_failed_log_directory_is_understood_by_the_names_of_topics() -> None:
    terms = with_topic("2.7")
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    error = LeaderAndIsrResponse.LeaderAndIsrPartitionError(
        topic_name="t", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR
    )
    terms.run(terms.term.leader_and_isr_answered(1, epoch, LeaderAndIsrResponse(partition_errors=[error])))
    assert terms.term.context.offline_log_dir_partitions(1) == {T0}
    leadership = terms.term.context.leadership(T0)
    assert leadership is not None
    assert leadership.leader == 2
    error.error_code = ErrorCode.NONE
    terms.run(terms.term.leader_and_isr_answered(1, epoch, LeaderAndIsrResponse(partition_errors=[error])))
    assert terms.term.context.offline_log_dir_partitions(1) == frozenset()


def test_a_failed_log_directory_of_a_topic_that_is_gone_is_not_that_of_the_next_one_of_its_name() -> None:
    terms = with_topic("2.7")
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    error = LeaderAndIsrResponse.LeaderAndIsrPartitionError(
        topic_name="gone", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR
    )
    terms.run(terms.term.leader_and_isr_answered(1, epoch, LeaderAndIsrResponse(partition_errors=[error])))
    terms.create("gone", (1, 2), topic_id=False)
    terms.settle()
    known = terms.state("gone")
    assert known is not None
    assert known.isr == (1, 2)


@pytest.mark.parametrize("protocol", ["2.3", "2.5", "2.6", "3.9"])
def test_a_topic_is_deleted_once_all_have_deleted_it(protocol: str) -> None:
    terms = with_topic(protocol)
    fails = True
    asked: list[int] = []

    def answer(request: BrokerRequest, _partition: TopicPartition) -> ErrorCode:
        assert isinstance(request.message, StopReplicaRequest)
        if any(stopped.delete for stopped in stopped_partitions(request.message)):
            asked.append(request.broker_id)
        return ErrorCode.KAFKA_STORAGE_ERROR if fails and request.broker_id == 2 else ErrorCode.NONE

    terms.answers = answer
    terms.store.put_data(delete_topic_path("t"), b"")
    terms.settle()
    assert (sorted(asked), topic_path("t") in terms.store.znodes) == ([1, 2], True)
    fails = False
    terms.elect()
    terms.settle()
    assert (sorted(asked[2:]), topic_path("t") in terms.store.znodes) == ([1, 2], False)
