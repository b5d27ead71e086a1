"""The metadata cache: applies the controller's UpdateMetadata requests, and swaps the image."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.cluster.image import Broker, MetadataImage, PartitionMetadata, TopicMetadata
from barnabas.config.listeners import SecurityProtocol
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.steps import Steps, at_once
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.messages import UpdateMetadataRequest
from barnabas.wire.sentinels import LEADER_DURING_DELETE
from barnabas.wire.topics import TopicPartition

FULL: Final = 2
"""The type of a request that names every topic and partition (KIP-866)."""
PARTITIONS_PER_STEP: Final = 1_000
_SHARED_LISTS_MAX: Final = 10_000
"""How many lists of replicas are remembered to be shared; more than that many different ones are rare."""
_SHARED_STATES_MAX: Final = 2_000
"""Likewise of states of partitions, of which many are equal where few brokers lead many."""


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """What an UpdateMetadata request changed."""

    previous: MetadataImage
    image: MetadataImage
    changed: tuple[TopicPartition, ...]
    """Partitions that are new or have another state."""
    deleted: tuple[TopicPartition, ...]
    """Partitions whose topic is being deleted, known before or not, and those of a topic whose name another has now."""
    forgotten: tuple[TopicPartition, ...] = ()
    """Partitions that a full request does not name. That does not mean that they were deleted: their data must stay."""

    @property
    def brokers_changed(self) -> bool:
        return self.previous.brokers != self.image.brokers

    @property
    def controller_changed(self) -> bool:
        return self.previous.controller_id != self.image.controller_id


class MetadataCache:
    """The present image of one broker, and the listeners to its changes.

    A request costs in proportion to what it names, but for one copy of the table of topics when it names any.
    """

    def __init__(self, broker_id: int, logger: logging.Logger) -> None:
        """`logger` is `state.change.logger`."""
        self.image = MetadataImage()
        """Swapped whole. Take it once per request."""
        self._broker_id = broker_id
        self._logger = logger
        self._listeners: list[Callable[[MetadataChange], object]] = []
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._shared_states: dict[PartitionMetadata, PartitionMetadata] = {}

    def add_listener(self, listener: Callable[[MetadataChange], object]) -> None:
        """`listener(change)` is called after each swap; one that raises is logged and harms no other."""
        self._listeners.append(listener)

    def apply(self, request: UpdateMetadataRequest) -> MetadataChange:
        """Takes over a request of any version. The caller checks that its controller is not deposed.

        All brokers that are not named are gone. Topics that are not named stay as they are, unless the request is a
        full one: this broker was away, and has not heard of their deletion. A partition with the leader -2 is
        forgotten, with its last partition the topic, and with a topic that comes with another id all that was known of
        its namesake.
        """
        return at_once(self.apply_in_steps(request, lambda: None))

    def apply_in_steps(self, request: UpdateMetadataRequest, check: Callable[[], object]) -> Steps[MetadataChange]:
        """Like `apply`, for requests of many partitions. The image is swapped in the last step, after `check()`, which
        raises if the controller may not speak any more; where another request was taken over meanwhile, the work begins
        again on what that one left.
        """
        while True:
            previous = self.image
            change = yield from self._change(previous, request)
            check()
            if self.image is previous:
                break
        self.image = change.image
        self._log(request, change)
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:
                self._logger.exception("%r failed to take over new metadata", listener)
        return change

    def _change(self, previous: MetadataImage, request: UpdateMetadataRequest) -> Steps[MetadataChange]:
        """The image after the request."""
        topics: Mapping[str, TopicMetadata] = previous.topics
        names_by_id: Mapping[bytes, str] = previous.names_by_id
        changed: list[TopicPartition] = []
        deleted: dict[TopicPartition, None] = {}
        named = list(_topic_states(request))
        gone = (yield from _not_named(topics, named)) if request.type == FULL else []
        if named or gone:
            next_topics = dict(topics)
            _forget(next_topics, gone)
            counted = itertools.count(1)
            for name, topic_id, states in named:
                yield from self._apply_topic(next_topics, name, topic_id, states, changed, deleted, counted)
            touched = dict.fromkeys((*(name for name, _, _ in named), *(partition.topic for partition in gone)))
            names_by_id = _names_by_id(previous, next_topics, touched)
            topics = next_topics
        image = MetadataImage(
            brokers=self._brokers(request),
            topics=topics,
            names_by_id=names_by_id,
            controller_id=request.controller_id if request.controller_id >= 0 else None,
            controller_epoch=request.controller_epoch,
        )
        return MetadataChange(previous, image, tuple(changed), tuple(deleted), tuple(gone))

    def _apply_topic(
        self,
        topics: dict[str, TopicMetadata],
        name: str,
        topic_id: Uuid,
        states: Iterable[UpdateMetadataRequest.UpdateMetadataPartitionState],
        changed: list[TopicPartition],
        deleted: dict[TopicPartition, None],
        counted: Iterator[int],
    ) -> Steps[None]:
        known = topics.get(name)
        partitions = {} if known is None else dict(known.partitions)
        if known is not None and ZERO_UUID not in (known.topic_id, topic_id) and known.topic_id != topic_id:
            deleted.update(dict.fromkeys(TopicPartition(name, number) for number in partitions))
            partitions = {}
        last = max(partitions, default=-1)
        in_order = True
        for state in states:
            if not next(counted) % PARTITIONS_PER_STEP:
                yield
            number = state.partition_index
            topic_partition = TopicPartition(name, number)
            if state.leader == LEADER_DURING_DELETE:
                partitions.pop(number, None)
                deleted[topic_partition] = None
                continue
            deleted.pop(topic_partition, None)
            metadata = self._partition(state)
            before = partitions.get(number)
            if before == metadata:
                continue
            if before is None:
                in_order = in_order and number > last
                last = max(last, number)
            partitions[number] = metadata
            changed.append(topic_partition)
        if not in_order:
            partitions = dict(sorted(partitions.items()))
        if partitions:
            topics[name] = TopicMetadata(name, topic_id, partitions)
        else:
            topics.pop(name, None)

    def _partition(self, state: UpdateMetadataRequest.UpdateMetadataPartitionState) -> PartitionMetadata:
        made = PartitionMetadata(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=self._share(state.isr),
            replicas=self._share(state.replicas),
            offline_replicas=self._share(state.offline_replicas),
            partition_epoch=state.zk_version,
            controller_epoch=state.controller_epoch,
        )
        if len(self._shared_states) >= _SHARED_STATES_MAX:
            self._shared_states.clear()
        return self._shared_states.setdefault(made, made)

    def _share(self, broker_ids: list[int]) -> tuple[int, ...]:
        """The list as a tuple, one for all partitions with the same brokers."""
        if len(self._shared) >= _SHARED_LISTS_MAX:
            self._shared.clear()
        made = tuple(broker_ids)
        return self._shared.setdefault(made, made)

    def _brokers(self, request: UpdateMetadataRequest) -> Mapping[int, Broker]:
        previous = self.image.brokers
        brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        if brokers == previous:
            return previous
        own = brokers.get(self._broker_id)
        if own is not None:
            for broker in brokers.values():
                if broker.endpoints.keys() != own.endpoints.keys():
                    self._logger.error(
                        "Listeners are not identical across brokers: broker %d has %s, broker %d has %s",
                        *(own.broker_id, sorted(own.endpoints), broker.broker_id, sorted(broker.endpoints)),
                    )
        return brokers

    def _log(self, request: UpdateMetadataRequest, change: MetadataChange) -> None:
        if change.changed or change.deleted or change.forgotten:
            self._logger.info(
                "Add %d partitions and deleted %d partitions from metadata cache in response to UpdateMetadata request "
                "sent by controller %d epoch %d",
                *(len(change.changed), len(change.deleted) + len(change.forgotten)),
                *(request.controller_id, request.controller_epoch),
            )


def _topic_states(
    request: UpdateMetadataRequest,
) -> Iterator[tuple[str, Uuid, Iterable[UpdateMetadataRequest.UpdateMetadataPartitionState]]]:
    """Name, id and partitions of each topic, of which requests before version 5 name each with its partition."""
    for topic in request.topic_states:
        topic_id = topic.topic_id
        yield topic.topic_name, topic_id if isinstance(topic_id, Uuid) else Uuid(topic_id), topic.partition_states
    grouped: dict[str, list[UpdateMetadataRequest.UpdateMetadataPartitionState]] = {}
    for state in request.ungrouped_partition_states:
        grouped.setdefault(state.topic_name, []).append(state)
    for name, states in grouped.items():
        yield name, ZERO_UUID, states


def _not_named(
    topics: Mapping[str, TopicMetadata],
    named: Iterable[tuple[str, Uuid, Iterable[UpdateMetadataRequest.UpdateMetadataPartitionState]]],
) -> Steps[list[TopicPartition]]:
    """The known partitions that a request does not name."""
    numbers: dict[str, set[int]] = {}
    left = PARTITIONS_PER_STEP
    for name, _, states in named:
        some = numbers.setdefault(name, set())
        before = len(some)
        some.update(state.partition_index for state in states)
        left -= len(some) - before
        if left <= 0:
            yield
            left = PARTITIONS_PER_STEP
    gone: list[TopicPartition] = []
    for name, topic in topics.items():
        some = numbers.get(name, set())
        gone += [TopicPartition(name, number) for number in topic.partitions if number not in some]
        left -= len(topic.partitions)
        if left <= 0:
            yield
            left = PARTITIONS_PER_STEP
    return gone


def _forget(topics: dict[str, TopicMetadata], gone: Iterable[TopicPartition]) -> None:
    numbers: dict[str, set[int]] = {}
    for partition in gone:
        numbers.setdefault(partition.topic, set()).add(partition.partition)
    for name, some in numbers.items():
        topic = topics[name]
        rest = {number: known for number, known in topic.partitions.items() if number not in some}
        if rest:
            topics[name] = TopicMetadata(name, topic.topic_id, rest)
        else:
            del topics[name]


def _names_by_id(
    previous: MetadataImage, topics: Mapping[str, TopicMetadata], names: Iterable[str]
) -> Mapping[bytes, str]:
    """The previous table with the ids of these topics as they are now; the same table where none moved."""
    removed: list[Uuid] = []
    added: dict[bytes, str] = {}
    for name in names:
        topic = topics.get(name)
        before, after = previous.topic_id(name), ZERO_UUID if topic is None else topic.topic_id
        if before != after:
            removed.append(before)
            if after != ZERO_UUID:
                added[after] = name
    if not removed:
        return previous.names_by_id
    table = dict(previous.names_by_id)
    for topic_id in removed:
        table.pop(topic_id, None)
    table.update(added)
    return table


def _broker(broker: UpdateMetadataRequest.UpdateMetadataBroker) -> Broker:
    endpoints = {}
    for endpoint in broker.endpoints:
        protocol = SecurityProtocol(endpoint.security_protocol).name
        name = endpoint.listener or protocol  # before version 3 a listener has its protocol's name
        endpoints[name] = BrokerEndpoint(name, endpoint.host, endpoint.port, protocol)
    if not broker.endpoints and broker.v0_host:
        endpoints["PLAINTEXT"] = BrokerEndpoint("PLAINTEXT", broker.v0_host, broker.v0_port, "PLAINTEXT")
    return Broker(broker.id, endpoints, broker.rack or None)
