"""A broker for the differential test of Produce and Fetch, as it is or with plain decode, handle and encode alone; its
controller; and all that can be seen of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from barnabas.api.registry import Handler
from barnabas.kernel.host import Host
from barnabas.leader.wake_ups import WakeUps
from barnabas.log.partition.log_config import LogConfig
from barnabas.network.connection import ServerConnection
from barnabas.quotas.client_quotas import QuotaEntity
from barnabas.security.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from barnabas.testing.profile import ClockProfile, DiskProfile, LoopProfile, OffloadProfile, Profile
from barnabas.testing.simulated_disk import FaultRule, SimulatedDisk
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
)
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import BROKER, PORTS, DataBroker, batch
from tests.unit.log.verified import verified

STEADY: Final = Profile(
    loop=LoopProfile(tick_seconds=(1e-9, 1e-9), callback_seconds=0.0, wake_seconds=(0.0, 0.0)),
    disk=DiskProfile(
        sync_seconds=(1e-3, 1e-3),
        read_seconds=(0.0, 0.0),
        change_seconds=(0.0, 0.0),
        short_write_probability=0.0,
        short_read_probability=0.0,
        uncached_probability=0.0,
    ),
    offload=OffloadProfile(dispatch_seconds=(1e-4, 1e-4), compute_seconds=(1e-4, 1e-4)),
    clock=ClockProfile(offset_seconds=(0.0, 0.0), drift_ppm=(0.0, 0.0)),
)
"""Nothing takes time but what is awaited: both brokers do the same at the same millisecond, in however many turns."""
DIRECTORIES: Final = ("/logs-1", "/logs-2", "/logs-3", "/logs-4")
THREE: Final = (1, 2, 3)
_DURING_DELETE: Final = -2
_COORDINATOR_EPOCH: Final = 1
_CONTROLLER_SECONDS: Final = 1.07
"""Until AlterPartition is answered: at no moment at which anything is sent."""
_QUOTA_SECONDS: Final = 0.71137
"""Windows of quotas end at no moment of a step, where a turn of the loop more or less, a nanosecond, would tell."""


@dataclass
class Topic:
    """One topic, as the controller has it."""

    partitions: int
    replicas: tuple[int, ...]
    config: LogConfig
    generation: int = 0
    """How often it was created."""
    exists: bool = True


def topics() -> dict[str, Topic]:
    """Those that a story begins with."""
    return {
        "flights": Topic(3, THREE, LogConfig()),
        "ships": Topic(2, THREE, LogConfig(min_insync_replicas=2, flush_messages=3)),
        "trains": Topic(2, (1,), LogConfig(message_timestamp_type="LogAppendTime", segment_bytes=16_384)),
        "zipped": Topic(1, (1,), LogConfig(compression_type="lz4", message_bytes_max=30_000)),
        "__consumer_offsets": Topic(1, (1,), LogConfig()),
    }


class PlainHandler:
    """A handler without its fast path."""

    def __init__(self, handler: Handler) -> None:
        self.api_key = handler.api_key
        self.versions = handler.versions
        self.handle = handler.handle
        self.error_response = handler.error_response


class PlainConnection(ServerConnection):
    """A connection that learns no fast path."""

    __slots__ = ()

    @property
    def fast_path(self) -> None:
        return None

    @fast_path.setter
    def fast_path(self, _: object) -> None:
        """It stays without."""


def make_plain(broker: DataBroker, change: Callable[[Any], object] | None = None) -> None:
    """From now on every request is decoded, handled by its handler and encoded, one by one; `change` is called with
    each response before that.
    """
    handlers: Any = broker.calls.registry.handlers
    for key in (ApiKey.PRODUCE, ApiKey.FETCH):
        handlers[key] = PlainHandler(handlers[key])
    broker.calls.connection_type = PlainConnection
    if change is not None:
        dispatcher: Any = broker.calls.dispatcher
        encode = dispatcher._encode

        def change_and_encode(context: Any, message: Any, codes: Any) -> Any:
            change(message)
            return encode(context, message, codes)

        dispatcher._encode = change_and_encode


def wake_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches several partitions hears of the changes of one tick in the order of the partitions' names: that
    of appends by different connections may be any.
    """
    run = WakeUps.run

    def run_in_order(wake_ups: WakeUps) -> None:
        changed = sorted(wake_ups._changed, key=lambda partition: partition.topic_partition)
        wake_ups._changed = dict.fromkeys(changed)
        run(wake_ups)

    monkeypatch.setattr(WakeUps, "run", run_in_order)


def counted_entropy(host: Host) -> Host:
    """The host with entropy that is the same however much of it others use: session ids are drawn of it."""
    drawn = random.Random(7)
    return dataclasses.replace(host, entropy=drawn.randbytes)


class World:
    """A broker, and what happens to it beside requests."""

    def __init__(self, broker: DataBroker, disk: SimulatedDisk, chance: random.Random) -> None:
        self.broker = broker
        self.chance = chance
        self.topics = topics()
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        """Leader and leader epoch of each partition."""
        self.is_disk_to_fail = False
        """The next write to one of the directories fails."""
        self.recent: deque[TopicPartition] = deque(maxlen=2)
        """Where something has happened last: of interest for what is sent next."""
        self._disk = disk
        self._partition_epoch = 0
        self.limited: set[str] = set()
        """Users that have a quota."""
        self.aborted: dict[TopicPartition, None] = {}
        """Where a transaction was aborted."""
        self._transactions: dict[TopicPartition, int] = {}
        self._next_producer_id = 10_000
        broker.isr_changes._sender = self
        for quotas in (broker.throttles.produce, broker.throttles.fetch):
            quotas._limits = quotas._limits._replace(window_seconds=_QUOTA_SECONDS)
        broker.authorize()
        for name in self.topics:
            self.create(name)

    # What is asked about it.

    def some(self, count: int) -> list[TopicPartition]:
        """So many of the partitions, mostly one where something has happened last, or that lacks replicas."""
        found = self.chance.sample(self.partitions(), count)
        hosted = self.broker.replicas.partitions
        lacking = [name for name in self.partitions() if name in hosted and hosted[name].is_under_min_isr]
        what = self.chance.random()
        if self.recent and what < 0.5:
            found[0] = self.chance.choice(self.recent)
        elif lacking and what < 0.8:
            found[0] = self.chance.choice(lacking)
        return found

    def partitions(self, *, replicated: bool = False) -> list[TopicPartition]:
        """All that a client may know of; with `replicated` those that have followers."""
        return [
            TopicPartition(name, number)
            for name, topic in self.topics.items()
            for number in range(topic.partitions)
            if not replicated or len(topic.replicas) > 1
        ]

    def is_led(self, topic_partition: TopicPartition) -> bool:
        """Whether a good batch for it is appended."""
        partition = self.broker.replicas.find_partition(topic_partition)
        return (
            partition is not None
            and partition.is_leader
            and self.topics[topic_partition.topic].exists
            and topic_partition.topic != "__consumer_offsets"
            and not self.is_disk_to_fail
        )

    def may_write(self, principal: str, topic_partition: TopicPartition) -> bool:
        return self.broker.access.may_write(principal, "127.0.0.1", topic_partition.topic)

    def topic_id(self, name: str) -> bytes:
        topic = self.topics.get(name)
        return f"{name[:10]}-{topic.generation if topic else 0}".encode().ljust(16, b"\x01")

    # The controller's part.

    def lead(self, topic_partition: TopicPartition, leader: int, leader_epoch: int, isr: Sequence[int]) -> None:
        """Metadata first, then LeaderAndIsr, as a controller sends them."""
        name, number = topic_partition
        topic = self.topics[name]
        self.leaders[topic_partition] = leader, leader_epoch
        self._partition_epoch += 1
        self.broker.tell_metadata(
            {topic_partition: (leader, leader_epoch, isr, topic.replicas)}, {name: self.topic_id(name)}
        )
        state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(
            partition_index=number,
            controller_epoch=1,
            leader=leader,
            leader_epoch=leader_epoch,
            isr=list(isr),
            partition_epoch=self._partition_epoch,
            replicas=list(topic.replicas),
            is_new=leader_epoch == 0,
        )
        self.broker.replicas.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_id=2,
                controller_epoch=1,
                broker_epoch=1,
                type=1,
                topic_states=[
                    LeaderAndIsrRequest.LeaderAndIsrTopicState(
                        topic_name=name, topic_id=self.topic_id(name), partition_states=[state]
                    )
                ],
                live_leaders=[
                    LeaderAndIsrRequest.LeaderAndIsrLiveLeader(
                        broker_id=broker, host_name=f"host-{broker}", port=PORTS[broker]
                    )
                    for broker in PORTS
                ],
            ),
            7,
        )

    def create(self, name: str) -> None:
        """Makes the topic, or makes it anew with another id."""
        topic = self.topics[name]
        topic.exists = True
        topic.generation += 1
        self.broker.configs[name] = topic.config
        for number in range(topic.partitions):
            self.lead(TopicPartition(name, number), BROKER, 0, topic.replicas)

    def elect(self, topic_partition: TopicPartition | None = None) -> str:
        """The partition, or some, has another leader, or the same in another epoch."""
        topic_partition = topic_partition or self.chance.choice(self.partitions())
        self.recent.append(topic_partition)
        topic = self.topics[topic_partition.topic]
        if not topic.exists:
            return "nothing to elect"
        leader = self.chance.choice((1, 1, 2, 3)) if len(topic.replicas) > 1 else 1
        if self.leaders[topic_partition][0] != BROKER:
            leader = BROKER
        _, epoch = self.leaders[topic_partition]
        self.lead(topic_partition, leader, epoch + self.chance.choice((1, 1, 2)), topic.replicas)
        return f"{topic_partition} is led by {leader}"

    def change_isr(self) -> str:
        """The controller takes followers out of the ISR of some partition, or has others there."""
        topic_partition = self.chance.choice(self.partitions(replicated=True))
        self.recent.append(topic_partition)
        leader, epoch = self.leaders[topic_partition]
        if not self.topics[topic_partition.topic].exists or leader != BROKER:
            return "no ISR to change"
        isr = self.chance.choice(((1,), (1,), (1, 2), THREE))
        self.lead(topic_partition, leader, epoch + 1, isr)
        return f"the ISR of {topic_partition} is {isr}"

    async def send_in_version(
        self, _key: ApiKey, _low: int, high: int, make: Callable[[int], AlterPartitionRequest]
    ) -> tuple[AlterPartitionResponse, int]:
        """Answers AlterPartition, some steps later: the ISR is as the leader wants it."""
        request = make(high)
        await asyncio.sleep(_CONTROLLER_SECONDS)
        response = AlterPartitionResponse()
        for topic in request.topics:
            confirmed = AlterPartitionResponse.TopicData(topic_name=topic.topic_name, topic_id=topic.topic_id)
            for partition in topic.partitions:
                self._partition_epoch += 1
                confirmed.partitions.append(
                    AlterPartitionResponse.PartitionData(
                        partition_index=partition.partition_index,
                        leader_id=BROKER,
                        leader_epoch=partition.leader_epoch,
                        isr=[member.broker_id for member in partition.new_isr_with_epochs],
                        partition_epoch=self._partition_epoch,
                    )
                )
            response.topics.append(confirmed)
        return response, high

    def change_min_isr(self) -> str:
        name = self.chance.choice(("flights", "ships"))
        self.recent.append(TopicPartition(name, 0))
        topic = self.topics[name]
        topic.config = dataclasses.replace(topic.config, min_insync_replicas=self.chance.choice((1, 2, 2, 3)))
        self.broker.configs[name] = topic.config
        for topic_partition, partition in self.broker.replicas.partitions.items():
            if topic_partition.topic == name and partition.log is not None:
                partition.log.reconfigure(topic.config)
        return f"min.insync.replicas of {name} is {topic.config.min_insync_replicas}"

    def announce_deletion(self, name: str) -> str:
        """The controller tells of it, and has not had the replicas deleted yet."""
        topic = self.topics[name]
        topic.exists = False
        self.broker.tell_metadata(
            {
                TopicPartition(name, number): (_DURING_DELETE, 0, topic.replicas, topic.replicas)
                for number in range(topic.partitions)
            },
            {name: self.topic_id(name)},
        )
        return f"{name} is to be deleted"

    async def delete(self, name: str) -> str:
        state = StopReplicaRequest.StopReplicaTopicState(
            topic_name=name,
            partition_states=[
                StopReplicaRequest.StopReplicaPartitionState(
                    partition_index=number, leader_epoch=_DURING_DELETE, delete_partition=True
                )
                for number in range(self.topics[name].partitions)
            ],
        )
        for number in range(self.topics[name].partitions):
            self._transactions.pop(TopicPartition(name, number), None)
        request = StopReplicaRequest(controller_id=2, controller_epoch=1, broker_epoch=1, topic_states=[state])
        await self.broker.replicas.stop_replicas(request)
        return f"{name} is deleted"

    # What else happens.

    def change_rights(self) -> str:
        """Some client may not do something any more, or may again. Where no rule is, everybody may do everything."""
        chance, rules = self.chance, self.broker.rules
        denying = rules.patterns()
        if denying and chance.random() < 0.6:
            pattern = chance.choice(denying)
            rules.replace(pattern, ())
            return f"there is no rule for {pattern.name} any more"
        name = chance.choice(("flights", "ships", "trains", "zipped"))
        pattern = chance.choice(
            (
                ResourcePattern(ResourceType.TOPIC, name),
                ResourcePattern(ResourceType.TOPIC, name[:2], PatternType.PREFIXED),
                ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME),
                ResourcePattern(ResourceType.TRANSACTIONAL_ID, "transaction"),
            )
        )
        whose = chance.choice(("User:producer-0", "User:producer-1", "User:consumer", "User:consumer", "User:*"))
        what = AclOperation.ALL if whose != "User:*" else chance.choice((AclOperation.READ, AclOperation.WRITE))
        if pattern.resource_type is ResourceType.CLUSTER:
            whose, what = "User:broker", AclOperation.CLUSTER_ACTION
        where = chance.choice(("*", "127.0.0.1", "127.0.0.1", "10.0.0.1"))
        rules.replace(
            pattern,
            {
                AccessControlEntry("User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW),
                AccessControlEntry(whose, where, what, AclPermissionType.DENY),
            },
        )
        return f"{whose} at {where} may not {what.name} {pattern.name}"

    def change_quota(self) -> str:
        """Somebody may produce or fetch so many bytes a second only, or as many as he wants again; while nothing waits,
        since the fast path counts what was let in by the quota of then.
        """
        if self.broker.replicas.produce_purgatory.delayed or self.broker.replicas.fetch_purgatory.delayed:
            return "no quota is changed"
        chance, throttles = self.chance, self.broker.throttles
        kind, quotas, user = chance.choice(
            (
                ("produce", throttles.produce, "producer-0"),
                ("produce", throttles.produce, "producer-1"),
                ("produce", throttles.produce, "producer-3"),
                ("fetch", throttles.fetch, "consumer"),
                ("fetch", throttles.fetch, "broker"),
            )
        )
        rate = chance.choice((None, 50.0, 50.0, 1_000.0))
        quotas.set(QuotaEntity(user, None), rate)
        self.limited.discard(user)
        if rate is not None:
            self.limited.add(user)
        return f"{user} may {kind} {rate} bytes a second"

    def break_disk(self) -> str:
        """The next write to a log of some directory fails, and takes the directory offline."""
        directory = self.chance.choice(DIRECTORIES[:2])
        number = self.chance.choice((errno.EIO, errno.ENOSPC))
        self._disk.fault_rules.append(FaultRule(frozenset(("write",)), f"{directory}/*.log", number, times=1))
        self.is_disk_to_fail = True
        return f"{directory} is to fail with {errno.errorcode[number]}"

    def look_at_disk(self) -> None:
        """Whether the directory that was to fail has done so. Then all that was in it has changed, in any order: the
        one that is written ahead of the others, or not.
        """
        was_to_fail, self.is_disk_to_fail = self.is_disk_to_fail, any(rule.times for rule in self._disk.fault_rules)
        if was_to_fail and not self.is_disk_to_fail:
            for session in self.broker.sessions.sessions.values():
                in_order = sorted(session.candidates, key=lambda item: item.topic_partition)
                session._candidates = dict.fromkeys(in_order)

    def evict_session(self) -> str:
        """Some fetch session makes room for another: whoever has it may have a request parked, or another under way."""
        sessions = self.broker.sessions
        if not sessions.sessions:
            return "no session is evicted"
        session_id = self.chance.choice(list(sessions.sessions))
        sessions._remove(sessions.sessions[session_id])
        return f"session {session_id} is evicted"

    def expire_followers(self) -> None:
        """What the broker does in the background: followers that lag leave the ISR."""
        for partition in self.broker.replicas.partitions.values():
            partition.in_sync.expire()

    def delete_records(self) -> str:
        topic_partition = self.chance.choice(self.partitions())
        try:
            low = self.broker.replicas.get_partition(topic_partition).delete_records(-1)
        except KafkaError as error:
            return f"records of {topic_partition} are not deleted: {error.code}"
        return f"{topic_partition} begins at {low}"

    def transact(self) -> str:
        """A transaction begins in some partition, or the one that is open there is aborted or committed; or both."""
        begun = list(self._transactions)
        if begun and self.chance.random() < 0.7:
            return self._begin_or_end(self.chance.choice(begun))
        topic_partition = self.chance.choice(self.partitions())
        what = self._begin_or_end(topic_partition)
        return f"{what}, {self._begin_or_end(topic_partition)}" if self.chance.random() < 0.6 else what

    def _begin_or_end(self, topic_partition: TopicPartition) -> str:
        partition = self.broker.replicas.find_partition(topic_partition)
        if partition is None or not partition.is_leader:
            return "no transaction"
        producer_id = self._transactions.pop(topic_partition, None)
        try:
            if producer_id is None:
                producer_id = self._transactions[topic_partition] = self._next_producer_id
                self._next_producer_id += 1
                records = batch(
                    b"in doubt", producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
                )
                with verified(partition.leader_log().producers, producer_id):
                    partition.append(bytearray(records), required_acks=1, produce_version=9)
                return f"a transaction in {topic_partition}"
            kind = self.chance.choice((ControlRecordType.ABORT, ControlRecordType.ABORT, ControlRecordType.COMMIT))
            marker = EndTransactionMarker(kind, _COORDINATOR_EPOCH)
            end = end_transaction_batch(marker, timestamp_ms=1, producer_id=producer_id, producer_epoch=0)
            if kind is ControlRecordType.ABORT:
                self.aborted[topic_partition] = None
            partition.append(end, required_acks=1, produce_version=None, origin=AppendOrigin.COORDINATOR)
        except KafkaError as error:
            return f"no transaction in {topic_partition}: {error.code}"
        return f"{kind.name} in {topic_partition}"

    # What is seen of it.

    def state(self) -> list[tuple[str, object]]:
        """Partitions, followers, producers, sessions, and how many wait."""
        replicas = self.broker.replicas
        return [
            *((f"{name}", _partition_state(partition)) for name, partition in sorted(replicas.partitions.items())),
            ("offline", sorted(replicas.offline_partitions)),
            *(("session", _session_state(session)) for session in self.broker.sessions.sessions.values()),
            # Producers of one tick wait together, or each by itself.
            ("waiting", (replicas.fetch_purgatory.delayed, replicas.produce_purgatory.delayed > 0)),
            ("queued", self.broker.calls.queue.queued),
        ]

    def files(self) -> dict[str, bytes]:
        """All files of the logs, byte by byte."""
        found: dict[str, bytes] = {}
        places = [(path, self._disk.find(path)) for path in DIRECTORIES]
        while places:
            path, node = places.pop()
            if node is None:
                continue
            if node.entries is None:
                found[path] = bytes(node.content)
            else:
                places += [(f"{path}/{name}", entry) for name, entry in node.entries.items()]
        return found


def _partition_state(partition: Any) -> list[object]:
    log = partition.log
    if log is not None:
        for follower in partition.followers:  # what their sessions know is taken over before it is needed, or now
            follower.observe(log.log_end_offset)
    return [
        partition.topic_partition,
        (partition.leader_id, partition.leader_epoch, partition.is_leader, partition.isr),
        log
        and (
            log.high_watermark,
            log.log_end_offset,
            log.log_start_offset,
            log.last_stable_offset,
            [entry.__repr__() for entry in log.producers.snapshot()],
        ),
        [
            (
                follower.broker_id,
                follower.broker_epoch,
                follower.log_end_offset,
                follower.log_start_offset,
                follower.fetch_leader_end_offset,
                follower.in_maximal_isr,
                follower.clock is None,
            )
            for follower in partition.followers
        ],
    ]


def _session_state(session: Any) -> list[object]:
    return [
        (session.session_id, session.epoch, session.follower_id, len(session), len(session.parked)),
        [
            (
                item.topic_partition,
                item.fetch_offset,
                item.max_bytes,
                item.leader_epoch,
                item.last_fetched_epoch,
                item.log_start_offset,
                item.sent_high_watermark,
                item.sent_log_start_offset,
            )
            for item in session.candidates
        ],
    ]
