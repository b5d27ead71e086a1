"""A topic in a simulated cluster that is deleted and made anew under its name, while clients write and read it.

Its name and leader epochs are those of the former one, its id is not. Invariants, checked when the cluster is at rest:
it has every acknowledged record that was sent since it was made; it has none that was acknowledged before the former
one was to be deleted; its replicas agree, and all are in sync (which is asked of every topic). And at any time a
follower that sends the frame of its last request again asks there for what it follows now: one that asks for the former
topic is refused, and so hardly ever told anything wrong, but lags.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.coordination.layout.topics import topic_path
from barnabas.follower.follower_session import Position
from barnabas.follower.repeated_fetch_request import RepeatedFetchRequest
from barnabas.kernel.ids import Uuid
from barnabas.testing.cluster_history import RecordId
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.probes import after, before
from barnabas.testing.single_records import PARTITION_COUNT, make_topic, send_one
from barnabas.wire import codec, headers
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_disk import SimulatedDisk
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.wire.primitives import Buffer

TOPIC: Final = "renewed"
PAUSE_MS: Final = 60.0
DELETE_MS: Final = 30_000
_LOOKING_MS: Final = 200
_ATTEMPTS_MAX: Final = 100


class _Sent(NamedTuple):
    """A record that was acknowledged."""

    partition: TopicPartition
    offset: int
    sent_at: float
    acknowledged_at: float


class RenewedTopic:
    """Who writes, reads, deletes and makes the topic, and what has become of it."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine], directories: Sequence[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._users = users
        self._brokers = brokers
        self._directories = directories
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
        self._acknowledged: dict[RecordId, _Sent] = {}
        self._sent = 0
        self._is_renewing = False
        self._deletion_began_at = 0.0
        self._made_at = 0.0
        self._misdirected: set[TopicPartition] = set()

    # What the users do.

    async def produce(self, host: Host) -> None:
        """Single records with acks=all, until the users are to stop."""
        async with self._users.client(host) as client:
            await make_topic(client, TOPIC, {})
            await asyncio.gather(*(self._send(client, partition) for partition in self._partitions))

    async def _send(self, client: Client, partition: TopicPartition) -> None:
        users, lane = self._users, client.connections.new_lane()
        while users.goes_on():
            await client.timers.sleep(client.host.random.expovariate(1 / PAUSE_MS))
            self._sent += 1
            record, sent_at = RecordId(0, self._sent), users.now()
            told = await send_one(client, lane, partition, record, -1)
            if told is not None:
                self.counts["renewed: acknowledged"] += 1
                self._acknowledged[record] = _Sent(partition, told.offset, sent_at, users.now())

    async def consume(self, host: Host) -> None:
        """Reads from the beginning whatever topic there is, until the users are to stop."""
        users = self._users
        async with users.client(host) as client:
            settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, fetch_wait_ms=1_000)
            async with Consumer(client, settings) as consumer:
                consumer.assign(self._partitions)
                while users.goes_on():
                    try:
                        self.counts["renewed: consumed"] += len(await consumer.poll(1_000))
                    except (ClientError, KafkaError):
                        await client.timers.sleep(_LOOKING_MS)

    async def renew(self, host: Host, happened: Callable[[], None]) -> None:
        """Deletes the topic, and makes it again as soon as that may be; nothing where that goes on already."""
        if self._is_renewing:
            return
        self._is_renewing = True
        try:
            began_at, made_at = self._users.now(), self._made_at
            async with self._users.client(host) as client:
                for _ in range(_ATTEMPTS_MAX):
                    with contextlib.suppress(ClientError, KafkaError):
                        if self._deletion_began_at < began_at:
                            await Admin(client).delete_topics([TOPIC], timeout_ms=DELETE_MS)
                        # While the former one is not gone, this is told that it is there.
                        await Admin(client).create_topics([NewTopic(TOPIC, PARTITION_COUNT, 3)], timeout_ms=DELETE_MS)
                    if self._made_at > made_at:
                        happened()
                        return
                    await client.timers.sleep(_LOOKING_MS)
        finally:
            self._is_renewing = False

    # What is seen of it.

    @contextlib.contextmanager
    def probes(self) -> Iterator[None]:
        """Looks at what the coordinator has of the topic, and at what followers ask for, while this lasts."""
        with (
            before(ZnodeTree, "create", self._creating),
            after(RepeatedFetchRequest, "encoding", self._asking),
        ):
            yield

    def _creating(self, _tree: ZnodeTree, path: str, *_arguments: object, **_keywords: object) -> None:
        if path == topic_path(TOPIC):
            self._made_at = self._users.now()
        elif path == f"/admin/delete_topics/{TOPIC}":
            self._deletion_began_at = self._users.now()

    def _asking(
        self,
        encode: Callable[[int], list[Buffer]],
        repeated: RepeatedFetchRequest,
        session_epoch: int,
        position: Position,
    ) -> None:
        partition = repeated.topic_partition
        self.counts["renewed: asked again"] += partition.topic == TOPIC
        if partition in self._misdirected:
            return
        frame = b"".join(encode(0))
        api_key, version, _, _, body = headers.read_request_header(frame, headers.SIZE_BYTES, len(frame))
        request, _ = codec.request_decoder(api_key, version)(frame, body, len(frame))
        (topic,) = request.topics
        (asked,) = topic.partitions
        found = Position(
            Uuid(topic.topic_id),
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
        )
        if found != position or request.session_epoch != session_epoch:
            self._misdirected.add(partition)
            self._users.history.mixed_up.append(
                f"at {self._users.now():.3f} s a follower of {partition} at {position} asked for {found}"
            )

    def judge(self) -> None:
        """Notes what is wrong with the topic; call it when the cluster is at rest."""
        if self._deletion_began_at <= self._made_at:  # or a late copy of a request has deleted it once more
            self._users.history.mixed_up += self._findings()

    def _findings(self) -> Iterator[str]:
        for partition in self._partitions:
            logs = {broker_id: self._records(machine.disk, partition) for broker_id, machine in self._brokers.items()}
            first_id, first = next(iter(logs.items()))
            name = f"{TOPIC}-{partition.partition}"
            for broker_id, found in logs.items():
                if found != first:
                    yield f"brokers {first_id} and {broker_id} disagree on {name}: {_difference(first, found)}"
            for record, sent in self._acknowledged.items():
                if sent.partition != partition:
                    continue
                if sent.sent_at > self._made_at and first.get(sent.offset) != record:
                    yield (
                        f"{record} was sent to {name} at {sent.sent_at:.3f} s and acknowledged at offset "
                        f"{sent.offset}, where {first.get(sent.offset)} is; the topic was made at {self._made_at:.3f} s"
                    )
                elif sent.acknowledged_at < self._deletion_began_at < self._made_at and record in first.values():
                    yield (
                        f"{record} was acknowledged for {name} at {sent.acknowledged_at:.3f} s, and is in the topic "
                        f"that was made at {self._made_at:.3f} s"
                    )

    def _records(self, disk: SimulatedDisk, partition: TopicPartition) -> dict[int, RecordId | None]:
        return {stored.offset: stored.record for stored in StoredLog(disk, self._directories, partition).records()}


def _difference(one: dict[int, RecordId | None], other: dict[int, RecordId | None]) -> str:
    offset = next(offset for offset in sorted({*one, *other}) if one.get(offset) != other.get(offset))
    return f"at offset {offset} they have {one.get(offset)} and {other.get(offset)}"
