"""`barnabas.api.internal_log`: when a coordinator is told that its records are committed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.api.internal_log import ReplicatedInternalLog
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.serving.test_acknowledgements import PlayedPartition, Setting

TIMEOUT_MS = 5


class LedPartition(PlayedPartition):
    """One that a coordinator appends to."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(0)
        self.leader_epoch = 3
        self.setting = setting
        self.has_enough = True
        setting.partitions[0] = self

    def leader_log(self) -> PlayedPartition:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self

    def append(self, _batch: memoryview, **_options: Any) -> Any:
        self.end += 2
        return SimpleNamespace(first_offset=self.end - 2, last_offset=self.end - 1)

    def is_replicated(self, required_offset: int) -> ErrorCode | None:
        code = super().is_replicated(required_offset)
        return code if code or code is None or self.has_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class Appended:
    """One append that has timed out."""

    def __init__(self) -> None:
        self.setting = Setting()
        self.partition = LedPartition(self.setting)
        replicas = SimpleNamespace(get_partition=lambda _partition: self.partition)
        self.log = ReplicatedInternalLog(cast("Any", replicas), self.setting.acknowledgements, cast("Any", None))
        self.told: list[ErrorCode] = []
        self.told_late: list[ErrorCode] = []
        self.base_offset = self.log.start_append(
            self.partition.topic_partition, 3, bytearray(1), timeout_ms=TIMEOUT_MS, on_done=self._told
        )
        for _ in range(TIMEOUT_MS):
            assert not self.told
            self.setting.pass_ms()
        assert self.told == [ErrorCode.REQUEST_TIMED_OUT]

    def _told(self, code: ErrorCode) -> None:
        """As a shard does: within the time-out's own turn."""
        self.told.append(code)
        self.log.when_committed(self.partition.topic_partition, 3, self.base_offset, self.told_late.append)


@pytest.mark.parametrize("has_enough", [True, False])
def test_what_is_committed_late_is_told_once(has_enough: bool) -> None:
    appended = Appended()
    for _ in range(100):
        appended.setting.pass_ms()
    assert not appended.told_late
    appended.partition.has_enough = has_enough
    appended.setting.move(0, by=2)
    appended.setting.move(0, by=2)
    assert appended.told_late == [ErrorCode.NONE], "the high watermark has passed it, however few are in sync by now"
    assert appended.told == [ErrorCode.REQUEST_TIMED_OUT]


def test_who_leads_no_more_is_not_told_that_it_is_committed() -> None:
    appended = Appended()
    appended.setting.move(0, is_leader=False)
    appended.setting.move(0, by=2, is_leader=True)
    assert appended.told_late == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    appended.partition.is_leader = False
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        appended.log.when_committed(appended.partition.topic_partition, 3, 0, appended.told_late.append)


def test_a_broker_that_stops_leaves_nobody_waiting() -> None:
    appended = Appended()
    for operation in appended.setting.purgatory.close():
        operation.force_complete()
    assert appended.told_late == [ErrorCode.REQUEST_TIMED_OUT]
