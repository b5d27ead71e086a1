"""`barnabas.serving.delete_records`: requests of many partitions that wait."""

from __future__ import annotations

import logging
from typing import Any, cast

from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.purgatory import Purgatory
from barnabas.kernel.timers import Timers
from barnabas.serving.delete_records import DeleteOutcome, Outcomes, RecordDeletions
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import HandDrivenLoop

LOGGER = logging.getLogger("tests.deletions")
NAMES = [TopicPartition("flights", number) for number in range(50)]


class Led:
    """A partition whose follower has not deleted anything yet."""

    def __init__(self) -> None:
        self.low_watermark = 0

    def leader_log(self) -> None: ...

    def delete_records(self, offset: int) -> int:
        return self.low_watermark


class Partitions:
    """The partitions of a broker, which counts how often it is asked for one."""

    def __init__(self) -> None:
        self.led = {name: Led() for name in NAMES}
        self.looks = 0

    def get_partition(self, name: TopicPartition) -> Led:
        self.looks += 1
        if name not in self.led:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")
        return self.led[name]


class World:
    def __init__(self) -> None:
        self.loop = HandDrivenLoop()
        self.partitions = Partitions()
        self.purgatory: Purgatory[Any] = Purgatory("DeleteRecords", Timers(self.loop.as_loop), LOGGER)
        self.done: list[Outcomes] = []
        deletions = RecordDeletions(cast("Any", self.partitions), self.purgatory, MetricsRegistry(lambda: 0.0), LOGGER)
        deletions.delete(dict.fromkeys(NAMES, 3), 1000, self.done.append)
        self.partitions.looks = 0


def test_looks_at_each_partition_when_it_changes_and_not_at_all_the_others() -> None:
    world = World()
    for name in NAMES:
        world.partitions.led[name].low_watermark = 2
        world.purgatory.check_and_complete(name)
        world.partitions.led[name].low_watermark = 3
        assert not world.done
        world.purgatory.check_and_complete(name)
        world.purgatory.check_and_complete(name)
    assert world.done == [dict.fromkeys(NAMES, DeleteOutcome(ErrorCode.NONE, 3))]
    assert world.partitions.looks == 2 * len(NAMES)
    assert world.purgatory.delayed == 0


def test_what_is_led_elsewhere_or_not_through_in_time_has_its_error() -> None:
    world = World()
    del world.partitions.led[NAMES[0]]
    world.partitions.led[NAMES[1]].low_watermark = 4
    for name in NAMES:
        world.purgatory.check_and_complete(name)
    assert not world.done
    world.loop.advance_to(2)
    (outcomes,) = world.done
    assert outcomes[NAMES[0]].code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert outcomes[NAMES[1]] == (ErrorCode.NONE, 4)
    assert {outcomes[name] for name in NAMES[2:]} == {DeleteOutcome(ErrorCode.REQUEST_TIMED_OUT, 0)}
