"""A broker's surroundings for tests of single partitions: a clock that is told the time, and a controller that answers
when it is told to."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from barnabas.kernel.metrics import Meter
from barnabas.leader.isr_changes import IsrAnswer, IsrChange, OnAnswer
from barnabas.leader.isr_expansion_retries import Reconsidered
from barnabas.leader.partition import Partition
from barnabas.leader.partition_context import PartitionContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.leader.memory_log import MemoryLog

PARTITION = TopicPartition("flights", 0)
LAG_MAX_SECONDS = 30.0


class Asked(NamedTuple):
    """A change of an ISR that a leader asked for."""

    change: IsrChange
    answer: OnAnswer


class WokenPartitions:
    """Instead of `WakeUps`: counts."""

    def __init__(self) -> None:
        self.count = 0
        self.grown_count = 0

    def add(self, _partition: Partition) -> None:
        self.count += 1

    def add_grown(self, _partition: Partition) -> None:
        self.grown_count += 1


class BrokerSetting:
    """One broker's partition, and what it depends on."""

    def __init__(self, broker_id: int = 1, *, min_insync_replicas: int = 1) -> None:
        self.now = 1000.0
        self.alive = {1, 2, 3, 4}
        self.asked: list[Asked] = []
        self.noted: list[tuple[Reconsidered, float]] = []
        self.woken = WokenPartitions()
        self.log = MemoryLog(PARTITION, min_insync_replicas=min_insync_replicas)
        logger = logging.getLogger("barnabas.tests.replication")
        self.context = PartitionContext(
            broker_id=broker_id,
            now=lambda: self.now,
            lag_max_seconds=LAG_MAX_SECONDS,
            is_alive=lambda broker: broker in self.alive,
            alter_partition=lambda change, answer: self.asked.append(Asked(change, answer)),
            reconsider_later=lambda in_sync, since: self.noted.append((in_sync, since)),
            wake_ups=self.woken,  # type: ignore[arg-type]
            expands=Meter(lambda: self.now),
            shrinks=Meter(lambda: self.now),
            failed_updates=Meter(lambda: self.now),
            logger=logger,
            state_changes=logger,
        )
        self.partition = Partition(PARTITION, self.context)

    def lead(self, leader_epoch: int = 0, isr: tuple[int, ...] = (1, 2, 3), partition_epoch: int = 0) -> bool:
        return self.partition.become_leader(
            leader_and_isr(self.context.broker_id, leader_epoch, isr, partition_epoch), lambda: self.log.as_log
        )

    def follow(self, leader: int, leader_epoch: int = 0, partition_epoch: int = 0) -> bool:
        return self.partition.become_follower(
            leader_and_isr(leader, leader_epoch, (leader,), partition_epoch), lambda: self.log.as_log
        )

    def append(self, *values: object, acks: int = -1) -> Any:
        records: Any = list(values)
        return self.partition.append(records, required_acks=acks, produce_version=None)

    def fetch(self, follower_id: int, offset: int, *, log_start_offset: int = 0, broker_epoch: int = -1) -> None:
        """A follower fetches from an offset, now."""
        self.partition.update_follower(
            follower_id,
            fetch_offset=offset,
            log_start_offset=log_start_offset,
            leader_end_offset=self.log.log_end_offset,
            now=self.now,
            broker_epoch=broker_epoch,
        )

    def answer(self, error: ErrorCode = ErrorCode.NONE, *, isr: tuple[int, ...] | None = None) -> None:
        """The controller answers the change that was asked for first."""
        change, answer = self.asked.pop(0)
        answer(
            IsrAnswer(error, change.leader_epoch, change.partition_epoch + 1, tuple(change.isr) if isr is None else isr)
        )


def leader_and_isr(
    leader: int,
    leader_epoch: int,
    isr: tuple[int, ...],
    partition_epoch: int = 0,
    replicas: tuple[int, ...] = (1, 2, 3),
) -> LeaderAndIsrRequest.LeaderAndIsrPartitionState:
    return LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        partition_index=PARTITION.partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=list(isr),
        partition_epoch=partition_epoch,
        replicas=list(replicas),
    )
