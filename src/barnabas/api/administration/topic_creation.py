"""Makes topics: checks what was asked for, spreads the replicas, and writes the znodes that the controller watches."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from barnabas.api.administration.guarded_writes import (
    ATTEMPTS,
    ONE_ZNODE,
    READ_CONTROLLER,
    answer_of,
    as_kafka_error,
    controller_check,
    guarded,
    may_be_tried_again,
    too_large_for_one_znode,
)
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.kafka_versions import is_at_least
from barnabas.config.topic_config import TopicConfigError, check_topic_configs
from barnabas.controller.topic_assignment import (
    BrokerRack,
    assign_replicas_in_steps,
    check_assignable,
    check_manual_assignment_in_steps,
    check_topic_name,
)
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import (
    TOPICS_PATH,
    ReplicaAssignment,
    TopicAssignment,
    least_assignment_bytes,
    topic_path,
)
from barnabas.coordination.operations import Check, Create, Exists, GetChildrenNames, GetData, Multi, SetData, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import REQUEST_BYTES_MAX
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import StepRunner, Steps
from barnabas.wire.errors import ErrorCode, KafkaError

BROKER_DEFAULT: Final = -1
PARTITIONS_PER_REQUEST_MAX: Final = 100_000
"""More do not fit into one znode of a topic, and would keep the broker from everything else meanwhile."""
_TOPIC_IDS_SINCE: Final = "2.8-IV0"
_PLANNED_PER_TURN: Final = 64
_TOPICS_AT_A_TIME: Final = 128
_NAMES_PER_TURN: Final = 8192
_SHOWN_MAX: Final = 100
_PARTITIONS_PER_TURN: Final = 8192


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic as it was asked for. `assignment` has the replicas of each partition, by its number and in the order of
    preference; without it, the broker chooses for so many partitions and replicas, -1 being its default.
    """

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignment: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic as it is, or was, made. `topic_id` is None where brokers are too old for ids."""

    name: str
    topic_id: Uuid | None
    assignment: Mapping[int, tuple[int, ...]]
    configs: Mapping[str, str]
    flaw: KafkaError | None = None
    """Why it cannot be made even where its name is free."""

    @property
    def replication_factor(self) -> int:
        return len(self.assignment[0])


Outcome = PlannedTopic | KafkaError
Admit = Callable[[str, int], KafkaError | None]
"""Why a topic may not be given so many partitions now, by a quota; None where it may. It is asked again for a write
that is tried again."""


def admit_all(_topic: str, _partition_count: int) -> KafkaError | None:
    """Without a quota."""
    return None


class TopicCreator:
    """Makes topics, on the controller."""

    def __init__(
        self,
        host: Host,
        store: Store,
        metadata: MetadataCache,
        broker_configs: BrokerConfigs,
        logger: logging.Logger,
        steps: StepRunner,
    ) -> None:
        self._steps = steps
        self._random: random.Random = host.random
        self._entropy = host.entropy
        self._store = store
        self._metadata = metadata
        self._broker_configs = broker_configs
        self._logger = logger

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, admit: Admit = admit_all
    ) -> dict[str, Outcome]:
        """Makes the topics, which must have different names; returns by name what was made, or why not.

        `validate_only` checks only. Nothing is made that `admit` refuses, which is asked last. When this returns, the
        topics are in ZooKeeper; leaders come later.
        """
        outcomes = await self._steps.run(self._plan_all(topics))
        pending = [outcome for outcome in outcomes.values() if isinstance(outcome, PlannedTopic)]
        for attempt in range(ATTEMPTS):
            if not pending:
                break
            pending = await self._attempt(
                pending, outcomes, admit, validate_only=validate_only, is_last=attempt == ATTEMPTS - 1
            )
        for position, (name, outcome) in enumerate(outcomes.items()):
            if position % _PLANNED_PER_TURN == _PLANNED_PER_TURN - 1:
                await self._steps.turn()
            if isinstance(outcome, KafkaError):
                self._logger.info("Topic %s is not created: %s", name, outcome)
            elif not validate_only:
                self._logger.info(
                    "Created topic %s: assignment %s, configs %s", name, first_ones(outcome.assignment), outcome.configs
                )
        return outcomes

    # What was asked for.

    def _plan_all(self, topics: Sequence[NewTopic]) -> Steps[dict[str, Outcome]]:
        outcomes: dict[str, Outcome] = {}
        room = PARTITIONS_PER_REQUEST_MAX
        for position, topic in enumerate(topics):
            if position % _PLANNED_PER_TURN == _PLANNED_PER_TURN - 1:
                yield
            try:
                planned = yield from self._plan(topic, room)
            except KafkaError as error:
                outcomes[topic.name] = error.with_traceback(None)
            else:
                outcomes[topic.name] = planned
                room -= len(planned.assignment)
        return outcomes

    def _plan(self, topic: NewTopic, room: int) -> Steps[PlannedTopic]:
        """What can be said without ZooKeeper. Raises `KafkaError`."""
        if topic.name in self._metadata.image.topics:
            raise _exists(topic.name)
        configs: dict[str, str] = {}
        for name, value in topic.configs.items():
            if value is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
            configs[name] = value
        assignment = yield from self._assign(topic, room)
        check_topic_name(topic.name)
        has_id = is_at_least(self._broker_configs.values["inter.broker.protocol.version"], _TOPIC_IDS_SINCE)
        return PlannedTopic(
            topic.name,
            Uuid.generate(self._entropy) if has_id else None,
            assignment,
            configs,
            (yield from self._flaw(assignment if topic.assignment else None, configs)),
        )

    def _flaw(
        self, manual: Mapping[int, tuple[int, ...]] | None, configs: Mapping[str, str]
    ) -> Steps[KafkaError | None]:
        """What forbids a topic only if nothing in ZooKeeper does."""
        try:
            if manual is not None:
                yield from check_manual_assignment_in_steps(manual)
            check_topic_configs(configs, self._broker_configs.values)
        except KafkaError as error:
            return error
        except TopicConfigError as error:
            return KafkaError(ErrorCode.INVALID_CONFIG, str(error))
        return None

    def _assign(self, topic: NewTopic, room: int) -> Steps[Mapping[int, tuple[int, ...]]]:
        asked = (topic.partition_count, topic.replication_factor)
        if topic.assignment:
            if asked != (BROKER_DEFAULT, BROKER_DEFAULT):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Both numPartitions or replicationFactor and replicasAssignments were set. "
                    "Both cannot be used at the same time.",
                )
            manual = {number: tuple(replicas) for number, replicas in topic.assignment}
            if len(manual) < len(topic.assignment):
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned twice.")
            _check_room(len(manual), room)
            return manual
        values = self._broker_configs.values
        partition_count = int(values["num.partitions"]) if asked[0] == BROKER_DEFAULT else asked[0]
        factor = int(values["default.replication.factor"]) if asked[1] == BROKER_DEFAULT else asked[1]
        _check_room(partition_count, room)
        brokers = alive_brokers(self._metadata)
        check_assignable(brokers, partition_count, factor)
        check_topic_name(topic.name)
        what = f"Creating topic {topic.name} with {partition_count} partitions"
        check_fits_one_znode(what, 0, partition_count, factor, brokers)
        return (yield from assign_replicas_in_steps(brokers, partition_count, factor, self._random))

    # What there is, and the writes.

    async def _attempt(
        self,
        pending: list[PlannedTopic],
        outcomes: dict[str, Outcome],
        admit: Admit,
        *,
        validate_only: bool,
        is_last: bool,
    ) -> list[PlannedTopic]:
        """Reads what there is and makes what can be made; returns what must be tried again.

        So many topics at a time: each part of them is looked up anew, beside the controller's epoch that its writes
        are guarded by, and only the names that others collide with are kept.
        """
        again: list[PlannedTopic] = []
        names: MetricNames | None = None
        for start in range(0, len(pending), _TOPICS_AT_A_TIME):
            if start:
                await self._steps.turn()
            some = pending[start : start + _TOPICS_AT_A_TIME]
            try:
                if names is None and any(_may_collide(topic.name) for topic in pending):
                    names = await self._existing_names()
                check, possible = await self._look(some, outcomes, names)
            except CoordinationError as error:
                failure = as_kafka_error(error, self._logger, "Creating topics")
                outcomes.update({topic.name: failure for topic in pending[start:]})
                return again
            except KafkaError as error:
                outcomes.update({topic.name: error for topic in pending[start:]})
                return again
            if not validate_only:
                possible = _admitted(possible, outcomes, admit)
                again += await self._write(check, possible, outcomes, is_last=is_last)
        return again

    async def _write(
        self,
        check: Check,
        possible: Sequence[tuple[PlannedTopic, bool]],
        outcomes: dict[str, Outcome],
        *,
        is_last: bool,
    ) -> list[PlannedTopic]:
        """Makes what nothing forbids; returns what must be tried again."""
        writes = await self._steps.run(self._all_writes(check, possible))
        again: list[PlannedTopic] = []
        for (topic, _), outcome in zip(possible, await self._store.submit(writes), strict=True):
            if not isinstance(outcome, CoordinationError):
                continue
            if may_be_tried_again(outcome) and not is_last:
                again.append(topic)
            else:
                what = f"Creating topic {topic.name} with {len(topic.assignment)} partitions"
                outcomes[topic.name] = as_kafka_error(outcome, self._logger, what, ONE_ZNODE)
        return again

    async def _existing_names(self) -> MetricNames:
        """The names that there are. Raises `CoordinationError`."""
        [found] = await self._store.submit([GetChildrenNames(TOPICS_PATH)])
        names = MetricNames()
        for position, name in enumerate([] if isinstance(found, NoNodeError) else answer_of(found)):
            if position % _NAMES_PER_TURN == _NAMES_PER_TURN - 1:
                await self._steps.turn()
            names.add(name)
        return names

    async def _look(
        self, pending: Sequence[PlannedTopic], outcomes: dict[str, Outcome], names: MetricNames | None
    ) -> tuple[Check, list[tuple[PlannedTopic, bool]]]:
        """The topics that nothing forbids, each with whether it has configs already; the others fail. `names` gets what
        is possible, for those that come after; it is None where none can collide.

        Raises `CoordinationError`, and `KafkaError` when this broker is not the controller.
        """
        reads: list[Any] = [*READ_CONTROLLER]
        for topic in pending:
            config = config_path(ConfigEntityType.TOPICS, topic.name)
            reads += [GetData(topic_path(topic.name)), Exists(delete_topic_path(topic.name)), Exists(config)]
        found = await self._store.submit(reads)
        check = controller_check(found[:2], broker_id=self._broker_configs.broker_id)
        possible: list[tuple[PlannedTopic, bool]] = []
        for position, topic in enumerate(pending):
            existing, deletion, config_stat = found[2 + 3 * position : 5 + 3 * position]
            if not isinstance(existing, NoNodeError) and _is_ours(topic, answer_of(existing)):
                continue
            if answer_of(deletion) is not None:
                outcomes[topic.name] = KafkaError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' is marked for deletion."
                )
                continue
            if not isinstance(existing, NoNodeError):
                outcomes[topic.name] = _exists(topic.name)
                continue
            colliding = names.colliding_with(topic.name) if names is not None else ()
            if colliding:
                outcomes[topic.name] = KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic '{topic.name}' collides with existing topics: {', '.join(colliding)}",
                )
                continue
            if topic.flaw is not None:
                outcomes[topic.name] = topic.flaw
                continue
            if names is not None:
                names.add(topic.name)
            possible.append((topic, answer_of(config_stat) is not None))
        return check, possible

    def _all_writes(self, check: Check, possible: Sequence[tuple[PlannedTopic, bool]]) -> Steps[list[Multi]]:
        writes: list[Multi] = []
        partition_count = 0
        for topic, has_config in possible:
            writes.append((yield from self._writes(check, topic, has_config=has_config)))
            partition_count += len(topic.assignment)
            if partition_count >= _PARTITIONS_PER_TURN:
                partition_count = 0
                yield
        return writes

    def _writes(self, check: Check, topic: PlannedTopic, *, has_config: bool) -> Steps[Multi]:
        """The configs, and after them the topic, which brokers make logs for."""
        path = config_path(ConfigEntityType.TOPICS, topic.name)
        configs = EntityConfig(topic.configs).encode()
        partitions: dict[int, ReplicaAssignment] = {}
        for position, (number, replicas) in enumerate(topic.assignment.items(), start=1):
            partitions[number] = ReplicaAssignment(replicas)
            if not position % _PARTITIONS_PER_TURN:
                yield
        assignment = yield from TopicAssignment(partitions, topic.topic_id).encode_in_steps()
        made_path = topic_path(topic.name)
        return guarded(
            check,
            [
                SetData(path, configs) if has_config else Create(path, configs),
                Create(made_path, assignment),
            ],
        )


class MetricNames:
    """Names of topics, by what they are called in the names of metrics, where a dot is an underscore."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, name: str) -> None:
        self._names.setdefault(name.replace(".", "_"), []).append(name)

    def colliding_with(self, name: str) -> list[str]:
        """In order, and the first ones of very many."""
        others = self._names.get(name.replace(".", "_"), ())
        return sorted([other for other in others if other != name][:_SHOWN_MAX])


def alive_brokers(metadata: MetadataCache) -> list[BrokerRack]:
    """The brokers that replicas may go to, by id."""
    brokers = metadata.image.brokers
    return [BrokerRack(broker_id, brokers[broker_id].rack) for broker_id in sorted(brokers)]


def first_ones(partitions: Mapping[int, object]) -> str:
    """For the log: as they are, or the first of very many."""
    if len(partitions) <= _SHOWN_MAX:
        return str(partitions)
    return f"{dict(islice(partitions.items(), _SHOWN_MAX))} and {len(partitions) - _SHOWN_MAX} more"


def check_fits_one_znode(
    what: str, existing_bytes: int, partition_count: int, factor: int, brokers: Sequence[BrokerRack], first: int = 0
) -> None:
    """Refuses, before anything is computed, what can be seen not to fit beside what is there; the coordinator would
    refuse it after all had been. Raises `KafkaError` (INVALID_REQUEST).
    """
    id_bytes = min((len(str(broker.broker_id)) for broker in brokers), default=1)
    size = existing_bytes + least_assignment_bytes(first, partition_count, factor * (id_bytes + 1) - 1)
    if size > REQUEST_BYTES_MAX:
        raise too_large_for_one_znode(f"{what} takes at least {size} bytes", REQUEST_BYTES_MAX, ONE_ZNODE)


def _is_ours(topic: PlannedTopic, existing: ZnodeData) -> bool:
    """Whether the topic was made by an attempt of ours whose answer was lost."""
    try:
        made = TopicAssignment.decode(existing.data, topic_path(topic.name))
    except LayoutError:
        return False
    return topic.topic_id is not None and made.topic_id == topic.topic_id


def _check_room(partition_count: int, room: int) -> None:
    if partition_count > room:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"One request can create {PARTITIONS_PER_REQUEST_MAX} partitions at most: ask for fewer.",
        )


def _may_collide(name: str) -> bool:
    return "." in name or "_" in name


def _exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _admitted(
    possible: Sequence[tuple[PlannedTopic, bool]], outcomes: dict[str, Outcome], admit: Admit
) -> list[tuple[PlannedTopic, bool]]:
    """Those that the quota lets pass; the others fail."""
    admitted = []
    for topic, has_config in possible:
        refusal = admit(topic.name, len(topic.assignment))
        if refusal is None:
            admitted.append((topic, has_config))
        else:
            outcomes[topic.name] = refusal
    return admitted
