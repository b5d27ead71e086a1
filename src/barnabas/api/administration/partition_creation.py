"""Gives topics more partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from barnabas.api.administration.guarded_writes import (
    ATTEMPTS,
    ONE_ZNODE,
    READ_CONTROLLER,
    answer_of,
    as_kafka_error,
    controller_check,
    guarded,
    may_be_tried_again,
)
from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.administration.topic_creation import (
    PARTITIONS_PER_REQUEST_MAX,
    Admit,
    admit_all,
    alive_brokers,
    check_fits_one_znode,
    first_ones,
)
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.controller.topic_assignment import (
    BrokerRack,
    assign_replicas_in_steps,
    check_assignable,
    check_topic_name,
)
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import PARTITIONS_PER_STEP, ReplicaAssignment, TopicAssignment, topic_path
from barnabas.coordination.operations import GetData, SetData
from barnabas.coordination.ports import Store
from barnabas.kernel.host import Host
from barnabas.kernel.steps import StepRunner, Steps
from barnabas.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """How many partitions a topic is to have; `assignment` has the replicas of each new one, or is None to let the
    broker choose.
    """

    topic: str
    partition_count: int
    assignment: Sequence[Sequence[int]] | None = None


class PartitionCreator:
    """Adds partitions to topics, on the controller."""

    def __init__(
        self,
        host: Host,
        store: Store,
        metadata: MetadataCache,
        broker_configs: BrokerConfigs,
        controller: ControllerStatus,
        logger: logging.Logger,
        steps: StepRunner,
    ) -> None:
        self._steps = steps
        self._random = host.random
        self._store = store
        self._metadata = metadata
        self._broker_id = broker_configs.broker_id
        self._controller = controller
        self._logger = logger

    async def create(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool, admit: Admit = admit_all
    ) -> dict[str, int | KafkaError]:
        """Adds partitions; returns by topic how many there are now, or why none were added. `admit` is asked last, and
        none are added where it refuses."""
        outcomes: dict[str, int | KafkaError] = {}
        for more in wanted:
            try:
                if self._controller.is_topic_queued_for_deletion(more.topic):
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
                outcomes[more.topic] = await self._create(more, admit, validate_only=validate_only)
            except KafkaError as error:
                outcomes[more.topic] = error.with_traceback(None)
            except CoordinationError as error:
                outcomes[more.topic] = as_kafka_error(
                    error,
                    self._logger,
                    f"Adding partitions to topic {more.topic}, {more.partition_count} in all,",
                    ONE_ZNODE,
                )
        return outcomes

    async def _create(self, more: MorePartitions, admit: Admit, *, validate_only: bool) -> int:
        """Raises `KafkaError` and `CoordinationError`."""
        try:
            check_topic_name(more.topic)  # what is not one may not be the name of a znode either
        except KafkaError as error:
            raise _not_there(more.topic) from error
        path = topic_path(more.topic)
        outcome: object = None
        written: Mapping[int, ReplicaAssignment] | None = None
        for _attempt in range(ATTEMPTS):
            *controller, found = await self._store.submit([*READ_CONTROLLER, GetData(path)])
            check = controller_check(controller, broker_id=self._broker_id)
            if isinstance(found, NoNodeError):
                raise _not_there(more.topic)
            data, stat = answer_of(found)
            existing = await self._steps.run(_decode(data, path))
            if existing.partitions == written:
                return more.partition_count  # the answer to the write was lost
            planned = await self._steps.run(self._plan(more, existing, len(data or b"")))
            if validate_only:
                return more.partition_count
            refusal = admit(more.topic, len(planned))
            if refusal is not None:
                raise refusal
            grown = TopicAssignment(
                {**existing.partitions, **planned}, existing.topic_id, existing.version, existing.extra
            )
            written = grown.partitions
            self._logger.info("Adding partitions to topic %s: %s", more.topic, first_ones(planned))
            encoded = await self._steps.run(grown.encode_in_steps())
            [outcome] = await self._store.submit([guarded(check, [SetData(path, encoded, stat.version)])])
            if not may_be_tried_again(outcome):
                answer_of(outcome)
                return more.partition_count
        answer_of(outcome)
        return more.partition_count

    def _plan(
        self, more: MorePartitions, existing: TopicAssignment, existing_bytes: int
    ) -> Steps[Mapping[int, ReplicaAssignment]]:
        """The new partitions. Raises `KafkaError`."""
        topic, count = more.topic, len(existing.partitions)
        if any(each.adding_replicas or each.removing_replicas for each in existing.partitions.values()):
            raise KafkaError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS, f"A partition reassignment is in progress for the topic '{topic}'."
            )
        if more.partition_count < count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {count} partitions, which is higher than the requested {more.partition_count}.",
            )
        if more.partition_count == count:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partitions.")
        if more.partition_count > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"A topic can have {PARTITIONS_PER_REQUEST_MAX} partitions at most."
            )
        first = existing.partitions.get(0)
        if first is None or not first.replicas:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Partition 0 of topic '{topic}' has no replicas.")
        brokers = alive_brokers(self._metadata)
        if more.assignment is not None:
            replicas = _check_assignment(more, count, len(first.replicas), brokers)
            return {count + index: ReplicaAssignment(tuple(each)) for index, each in enumerate(replicas)}
        start = next((index for index, each in enumerate(brokers) if each.broker_id >= first.replicas[0]), 0)
        added, factor = more.partition_count - count, len(first.replicas)
        check_assignable(brokers, added, factor)
        what = f"Adding partitions to topic {topic}, {more.partition_count} in all,"
        check_fits_one_znode(what, existing_bytes, added, factor, brokers, first=count)
        assigned = yield from assign_replicas_in_steps(
            brokers,
            added,
            factor,
            self._random,
            start_index=start,
            first_partition=count,
        )
        planned: dict[int, ReplicaAssignment] = {}
        for position, (number, chosen) in enumerate(assigned.items(), start=1):
            planned[number] = ReplicaAssignment(chosen)
            if not position % PARTITIONS_PER_STEP:
                yield
        return planned


def _not_there(topic: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")


def _decode(data: bytes | None, path: str) -> Steps[TopicAssignment]:
    try:
        return (yield from TopicAssignment.decode_in_steps(data, path))
    except LayoutError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None


def _check_assignment(
    more: MorePartitions, count: int, replication_factor: int, brokers: Sequence[BrokerRack]
) -> Sequence[Sequence[int]]:
    """Raises `KafkaError` (INVALID_REPLICA_ASSIGNMENT), in Kafka's words."""
    assignment = more.assignment or ()
    known = {broker.broker_id for broker in brokers}
    unknown = sorted({broker_id for replicas in assignment for broker_id in replicas} - known)
    complaint = None
    if unknown:
        complaint = f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}."
    elif len(assignment) != more.partition_count - count:
        complaint = (
            f"Increasing the number of partitions by {more.partition_count - count} but {len(assignment)} "
            "assignments provided."
        )
    for number, replicas in enumerate(assignment, start=count):
        if complaint is None and not replicas:
            complaint = f"Cannot have replication factor of 0 for partition id {number}."
        if complaint is None and len(set(replicas)) < len(replicas):
            named = ", ".join(map(str, replicas))
            complaint = f"Duplicate brokers not allowed in replica assignment: {named} for partition id {number}."
    uneven = {
        number: len(each) for number, each in enumerate(assignment, start=count) if len(each) != replication_factor
    }
    if complaint is None and uneven:
        complaint = (
            f"Inconsistent replication factor between partitions, partition 0 has {replication_factor} while "
            f"partitions [{', '.join(map(str, uneven))}] have replication factors "
            f"[{', '.join(map(str, uneven.values()))}], respectively."
        )
    if complaint is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)
    return assignment
