"""What a broker has heard of a partition counts for the topic of that id only."""

from __future__ import annotations

import logging

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.told_leadership import ToldLeadership
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.messages import UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition

TOPIC_ID, OTHER_ID = Uuid(b"t" * 16), Uuid(b"u" * 16)
T0 = TopicPartition("t", 0)


def told(topic_id: Uuid) -> ToldLeadership:
    cache = MetadataCache(1, logging.getLogger("test"))
    state = UpdateMetadataRequest.UpdateMetadataPartitionState(
        partition_index=0, controller_epoch=4, leader=2, leader_epoch=7, isr=[2, 3], zk_version=9, replicas=[1, 2, 3]
    )
    topic = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
    cache.apply(UpdateMetadataRequest(controller_id=1, controller_epoch=4, topic_states=[topic]))
    return ToldLeadership(cache)


def test_tells_what_was_told_last() -> None:
    of_topic = told(TOPIC_ID)(T0.topic, TOPIC_ID)
    assert of_topic is not None
    assert of_topic(T0.partition) == LeaderAndIsr(2, 7, (2, 3), 4, partition_epoch=9)


def test_tells_nothing_of_what_may_be_another_topic() -> None:
    assert told(TOPIC_ID)("t", OTHER_ID) is None
    assert told(TOPIC_ID)("t", None) is None
    assert told(ZERO_UUID)("t", ZERO_UUID) is None


def test_tells_nothing_of_what_is_not_known() -> None:
    of_topic = told(TOPIC_ID)("t", TOPIC_ID)
    assert of_topic is not None
    assert of_topic(1) is None
    assert told(TOPIC_ID)("u", TOPIC_ID) is None
