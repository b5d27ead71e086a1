"""What the controller asks in many pieces stops where the broker registers anew, or another controller speaks."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.api.leader_and_isr import LeaderAndIsrHandler
from barnabas.api.stop_replica import StopReplicaHandler
from barnabas.api.update_metadata import UpdateMetadataHandler
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.replicas.replica_setting import Setting, in_setting

TOPIC = "flights"
PARTITIONS = 2_500
"""Some pieces of either request."""


def deletion() -> StopReplicaRequest:
    states = [
        StopReplicaRequest.StopReplicaPartitionState(partition_index=number, leader_epoch=-2, delete_partition=True)
        for number in range(PARTITIONS)
    ]
    topic = StopReplicaRequest.StopReplicaTopicState(topic_name=TOPIC, partition_states=states)
    return StopReplicaRequest(controller_id=1, controller_epoch=1, broker_epoch=10, topic_states=[topic])


def metadata() -> UpdateMetadataRequest:
    states = [
        UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=number, leader=1, isr=[1], replicas=[1])
        for number in range(PARTITIONS)
    ]
    topic = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name=TOPIC, partition_states=states)
    return UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=10, topic_states=[topic])


def a_new_controller_speaks(setting: Setting) -> None:
    setting.manager.become_leader_or_follower(LeaderAndIsrRequest(controller_id=2, controller_epoch=2), 7)


@pytest.mark.parametrize("happens", ["nothing", "a new registration", "a new controller"])
def test_deletions_stop_when_they_become_stale(happens: str) -> None:
    async def test(setting: Setting) -> None:
        epoch = SimpleNamespace(broker=10)
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        for partition in partitions:
            setting.log_manager.add(partition)
        delete_logs = setting.log_manager.delete_logs

        async def delete(some: Any) -> None:
            await delete_logs(some)
            if happens == "a new registration":
                epoch.broker = 11
            elif happens == "a new controller":
                a_new_controller_speaks(setting)

        setting.log_manager.delete_logs = delete  # type: ignore[method-assign, assignment]
        handler = StopReplicaHandler(setting.manager, lambda: epoch.broker)
        code = ErrorCode.NONE
        try:
            code = ErrorCode.for_code(
                (await handler.handle(cast("Any", SimpleNamespace(authorizer=None)), deletion())).error_code
            )
        except KafkaError as error:
            code = error.code
        left = sum(partition in setting.log_manager.logs for partition in partitions)
        if happens == "nothing":
            assert (code, left) == (ErrorCode.NONE, 0)
        else:
            stale = happens == "a new registration"
            assert code is (ErrorCode.STALE_BROKER_EPOCH if stale else ErrorCode.STALE_CONTROLLER_EPOCH)
            assert 0 < left < PARTITIONS

    in_setting(test)


@pytest.mark.parametrize("happens", ["nothing", "a new registration", "a new controller"])
def test_metadata_that_becomes_stale_before_its_last_step_is_not_taken_over(happens: str) -> None:
    async def test(setting: Setting) -> None:
        epoch = SimpleNamespace(broker=10)
        handler = UpdateMetadataHandler(setting.manager, lambda: epoch.broker)
        steps = handler.handle(cast("Any", SimpleNamespace(authorizer=None)), metadata())
        next(steps)
        if happens == "a new registration":
            epoch.broker = 11
        elif happens == "a new controller":
            a_new_controller_speaks(setting)
        code = ErrorCode.NONE
        try:
            for _ in steps:
                pass
        except KafkaError as error:
            code = error.code
        expected = {
            "a new registration": ErrorCode.STALE_BROKER_EPOCH,
            "a new controller": ErrorCode.STALE_CONTROLLER_EPOCH,
        }
        assert code is expected.get(happens, ErrorCode.NONE)
        assert (TOPIC in setting.manager._metadata_cache.image.topics) is (happens == "nothing")

    in_setting(test)


def test_few_logs_are_made_in_a_step() -> None:
    """Each takes some milliseconds of the processor where others write to the same disk."""

    async def test(setting: Setting) -> None:
        states = [
            LeaderAndIsrRequest.LeaderAndIsrPartitionState(partition_index=number, leader=1, isr=[1], replicas=[1])
            for number in range(105)
        ]
        topic = LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name=TOPIC, partition_states=states)
        request = LeaderAndIsrRequest(controller_id=1, controller_epoch=1, broker_epoch=10, topic_states=[topic])
        configs = SimpleNamespace(unknown=lambda _topics: ())
        handler = LeaderAndIsrHandler(setting.manager, lambda: 10, cast("Any", configs))
        steps = cast("Any", handler.handle(cast("Any", SimpleNamespace(authorizer=None, api_version=7)), request))
        made = [len(setting.log_manager.logs)]
        for _ in steps:
            made.append(len(setting.log_manager.logs))
        made.append(len(setting.log_manager.logs))
        assert made[-1] == len(states)
        assert max(after - before for before, after in pairwise(made)) <= 10

    in_setting(test)
