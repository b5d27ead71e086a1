"""The data side of a broker, with real logs and replicas; controller, leaders and followers are the tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from barnabas.api.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from barnabas.api.api_versions import ApiVersionsHandler
from barnabas.api.client_throttles import ClientThrottles, ConsumerQuotas, QuotaAccess
from barnabas.api.delete_records import DeleteRecordsHandler
from barnabas.api.describe_cluster import DescribeClusterHandler
from barnabas.api.describe_log_dirs import DescribeLogDirsHandler
from barnabas.api.describe_producers import DescribeProducersHandler
from barnabas.api.fetch import FetchHandler
from barnabas.api.list_offsets import ListOffsetsHandler
from barnabas.api.metadata import MetadataHandler
from barnabas.api.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from barnabas.api.produce import ProduceHandler
from barnabas.api.produce_access import AuthorizedAccess
from barnabas.api.produce_pipeline import ProduceQuota
from barnabas.api.write_txn_markers import WriteTxnMarkersHandler
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.logs import Logs
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import StepRunner
from barnabas.leader.alter_partition import DefaultAlterPartitionManager
from barnabas.leader.partition import Partition
from barnabas.log.directories.offload_with_retry import offload_with_retry
from barnabas.log.manager.log_manager import LogManager
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.timestamp_lookup import ListedOffset
from barnabas.quotas.replication_quota import ReplicationQuota
from barnabas.quotas.settings import ClientQuotaSettings, ControllerQuotaSettings, ReplicationQuotaSettings
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.security.acl_rules import AclRules
from barnabas.security.authorizer import Authorizer
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.serving.delete_records import RecordDeletions
from barnabas.serving.fetch import DelayedFetches
from barnabas.serving.fetch_reads import FetchReader
from barnabas.serving.fetch_sessions import FetchSessionCache
from barnabas.serving.leader_throttle import LeaderThrottle
from barnabas.serving.produce import RecordAppends
from barnabas.serving.remote_fetch import RemoteFetch, RemoteRecords
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.serving.transaction_markers import MarkerAppends
from barnabas.serving.transaction_verification import BatchVerification, TransactionVerifier
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    LeaderAndIsrRequest,
    ProduceRequest,
    ProduceResponse,
    UpdateMetadataRequest,
)
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.support.writes import WRITES
from tests.unit.api.calling import Caller, Calls

BROKER = 1
CLUSTER_ID = "a-cluster-of-tests"
PORTS = {1: 9092, 2: 9093, 3: 9094}


class Nowhere:
    """The controller and the leaders of other partitions: they never answer."""

    async def send(self, *_: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    async def ready(self, *_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def send_in_version(self, *_: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    def connect(self, *_: Any) -> Nowhere:
        return self

    def start(self, *_: Any) -> None:
        """Nobody answers."""

    def start_encoded(self, *_: Any) -> None:
        """Nobody answers."""

    def close(self) -> None:
        """Nothing is open."""


FETCH_BYTES_MAX = 55 * 1024 * 1024
"""`fetch.max.bytes`, by default."""


class Creation:
    """Makes no topics, but notes who was to be made."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.enabled = True

    async def create_topics(self, names: Any) -> dict[str, ErrorCode]:
        self.asked += names
        return dict.fromkeys(self.asked, ErrorCode.LEADER_NOT_AVAILABLE)


MARKER_TIMEOUT_MS = 30_000


class Groups:
    """The group coordinator, told of transactions that end in `__consumer_offsets`."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, bool]] = []
        self.waiting: list[Callable[[], object]] = []

    def complete_transaction(
        self, partition_index: int, producer_id: int, on_done: Callable[[], object], *, is_commit: bool
    ) -> None:
        self.told.append((partition_index, producer_id, is_commit))
        self.waiting.append(on_done)


class Access:
    """What tests say of who may produce what, and how fast; of others what `quotas` say."""

    def __init__(self, quotas: QuotaAccess) -> None:
        self.authorizer: Authorizer | None = None
        """Asked besides."""
        self._quotas = quotas
        self._changes = 0
        self.denied: set[tuple[str, str]] = set()
        self.delay_ms: dict[str | None, int] = {}
        self.counted_bytes = 0

    def deny(self, principal: str, topic: str) -> None:
        self.denied.add((principal, topic))
        self._changes += 1

    def allow(self, principal: str, topic: str) -> None:
        self.denied.remove((principal, topic))
        self._changes += 1

    def limit(self, client_id: str, delay_ms: int) -> None:
        self.delay_ms[client_id] = delay_ms
        self._changes += 1

    @property
    def epoch(self) -> int:
        return self._changes + self._quotas.epoch + (0 if self.authorizer is None else self.authorizer.epoch)

    def place_of(self, address: str) -> str:
        return address

    def may_write(self, principal: str, place: str, topic: str) -> bool:
        authorizer = self.authorizer
        if authorizer is not None and not AuthorizedAccess(authorizer, self._quotas).may_write(principal, place, topic):
            return False
        return (principal, topic) not in self.denied and (place, topic) not in self.denied

    def quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        if client_id in self.delay_ms:
            return Quota(self, self.delay_ms[client_id])
        return self._quotas.quota(principal, client_id)


class Quota:
    """Always exceeded."""

    def __init__(self, access: Access, delay_ms: int) -> None:
        self._access = access
        self._delay_ms = delay_ms

    def throttle_ms(self, size_bytes: int) -> int:
        self._access.counted_bytes += size_bytes
        return self._delay_ms

    def begin(self) -> None:
        """Time is not limited."""

    def end(self) -> None:
        """Time is not limited."""


class Coordinator:
    """The coordinator of all transactions, as the leader of a partition asks it."""

    def __init__(self) -> None:
        self.is_asked = True
        """transaction.partition.verification.enable"""
        self.is_alive = True
        self.codes: dict[TopicPartition, ErrorCode] = {}
        """What it says of partitions that are not in the transaction."""
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.answers = asyncio.Event()
        """Not before this is set."""
        self.answers.set()
        self.failure: Exception | None = None

    def coordinator(self, transactional_id: str) -> int | None:
        assert transactional_id
        return 1 if self.is_alive else None

    async def send(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
        assert broker_id == 1
        self.asked.append(request)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        response = AddPartitionsToTxnResponse
        return response(
            results_by_transaction=[
                response.AddPartitionsToTxnResult(
                    transactional_id=asked.transactional_id,
                    topic_results=[
                        response.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                response.AddPartitionsToTxnPartitionResult(
                                    partition_index=number,
                                    partition_error_code=self.codes.get(
                                        TopicPartition(topic.name, number), ErrorCode.NONE
                                    ),
                                )
                                for number in topic.partitions
                            ],
                        )
                        for topic in asked.topics
                    ],
                )
                for asked in request.transactions
            ]
        )


class PlayedRemote:
    """Remote storage. It is `serving.remote_fetch.RemoteReader`."""

    def __init__(self) -> None:
        self.asked: list[RemoteFetch] = []
        self.answer: RemoteRecords | Exception = RemoteRecords(b"", None)
        self.listed: ListedOffset | None = None

    async def read(self, fetch: RemoteFetch) -> RemoteRecords:
        self.asked.append(fetch)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def find_timestamp(self, log: PartitionLog, timestamp_ms: int) -> ListedOffset | None:
        await asyncio.sleep(0)
        return self.listed


class DataBroker:
    """Broker 1 of a cluster of three."""

    def __init__(
        self,
        host: Host,
        directories: Sequence[str],
        fetch_bytes_max: int,
        *,
        is_rack_aware: bool = False,
        writes: str = WRITES,
    ) -> None:
        """`is_rack_aware` by `replica.selector.class`; `writes` is `barnabas.log.dir.writes`."""
        self.is_rack_aware = is_rack_aware
        self.calls = calls = Calls(host)
        logs = Logs("broker-1", host.clock, logging.NullHandler())
        self.scheduler = Scheduler(host.loop, calls.timers, calls.logger)
        self.configs: dict[str, LogConfig] = {}
        self.metadata = MetadataCache(BROKER, calls.logger)
        self.log_manager = LogManager(
            host,
            LogSettings(directory_patience_ms=0, directory_writes=writes),
            directories=directories,
            timers=calls.timers,
            scheduler=self.scheduler,
            tick=calls.tick,
            metrics=calls.metrics,
            logs=logs,
        )
        nowhere = Nowhere()
        self.isr_changes = DefaultAlterPartitionManager(
            BROKER, nowhere, loop=host.loop, timers=calls.timers, broker_epoch=lambda: 1, logger=calls.logger
        )
        self.replicas = ReplicaManager(
            BROKER,
            host,
            timers=calls.timers,
            scheduler=self.scheduler,
            tick=calls.tick,
            metrics=calls.metrics,
            logs=logs,
            settings=ReplicaSettings(),
            log_manager=self.log_manager,
            log_config=lambda topic: self.configs.get(topic, LogConfig()),
            metadata_cache=self.metadata,
            inter_broker_listener_name="PLAINTEXT",
            isr_changes=self.isr_changes,
            connections=nowhere,
            broker_epoch=lambda: 1,
        )
        self.log_manager.on_directory_offline = self.replicas.log_directory_failed
        self.creation = Creation()
        self.told: asyncio.Future[None] = host.loop.create_future()
        self.topic_metrics = BrokerTopicMetrics(calls.metrics)
        self.sessions = FetchSessionCache(2, host.loop.time, host.entropy, calls.metrics)
        self.throttles = ClientThrottles(
            ClientQuotaSettings(), ControllerQuotaSettings(), host.loop.time, host.clock.stopwatch
        )
        calls.dispatcher.throttles = self.throttles
        self.access = Access(QuotaAccess(self.throttles))
        self.groups = Groups()
        self.coordinator = Coordinator()
        self.remote = PlayedRemote()
        self.verifier = TransactionVerifier(
            *(self.coordinator, lambda: self.coordinator.is_asked, host.loop, StepRunner(host.loop)),
            *(calls.metrics, calls.logger),
        )
        self.leader_quota = ReplicationQuota(ReplicationQuotaSettings(), host.loop.time)
        self.rules = AclRules(allow_everyone_if_no_acl_found=True)
        self._add_handlers(host, fetch_bytes_max)

    def authorize(self) -> None:
        """From now on `rules` hold."""
        authorizer = self.access.authorizer = Authorizer(self.rules, self.calls.logger)
        self.calls.dispatcher.authorizer = authorizer

    def _add_handlers(self, host: Host, fetch_bytes_max: int) -> None:
        calls, replicas, metadata, metrics = self.calls, self.replicas, self.metadata, self.topic_metrics
        write_queue = self.log_manager.write_queue
        now = host.loop.time
        produces, fetches = replicas.produce_purgatory, replicas.fetch_purgatory
        throttle = LeaderThrottle(self.leader_quota, calls.tick, calls.timers, replicas.wake_ups)
        reader = FetchReader(
            replicas, metadata, metrics, now, calls.logger, throttle, selects_by_rack=self.is_rack_aware
        )
        self.fetches = DelayedFetches(
            reader, fetches, calls.tick, calls.metrics, host.loop, tells_high_watermarks=self.is_rack_aware
        )
        offload = partial(offload_with_retry, host, calls.timers, OffloadKind.CPU)
        appends = RecordAppends(replicas, metrics, offload, calls.logger)
        deletions = RecordDeletions(replicas, replicas.delete_records_purgatory, calls.metrics, calls.logger)
        acknowledgements = Acknowledgements(write_queue, produces, now)
        for handler in (
            ApiVersionsHandler(calls.registry),
            ProduceHandler(
                appends,
                acknowledgements,
                replicas,
                metadata,
                write_queue,
                now,
                BatchVerification(replicas, self.verifier),
                self.access,
            ),
            FetchHandler(
                host,
                self.fetches,
                self.sessions,
                self.log_manager.reader,
                replicas,
                metadata,
                metrics,
                calls.logger,
                fetch_bytes_max=fetch_bytes_max,
                throttle=throttle,
                remote=self.remote,
                quotas=ConsumerQuotas(self.throttles),
            ),
            ListOffsetsHandler(replicas, host.clock, calls.logger, self.remote),
            OffsetForLeaderEpochHandler(replicas),
            MetadataHandler(metadata, CLUSTER_ID, self.creation, lambda: self.creation.enabled, self.told),
            DescribeClusterHandler(metadata, CLUSTER_ID),
            DeleteRecordsHandler(deletions, metadata),
            DescribeProducersHandler(replicas, metadata),
            WriteTxnMarkersHandler(
                MarkerAppends(replicas, acknowledgements, host.clock, MARKER_TIMEOUT_MS, calls.logger), self.groups
            ),
            DescribeLogDirsHandler(self.log_manager, replicas, host.files, calls.logger),
            AlterReplicaLogDirsHandler(replicas),
        ):
            calls.registry.add(handler)

    async def start(self, *, is_told: bool) -> None:
        self.log_manager.open_directories()
        await self.log_manager.load(lambda _: LogConfig())
        self.tell_metadata({})
        if is_told:
            self.told.set_result(None)

    async def stop(self) -> None:
        await self.calls.dispatcher.close()
        await self.replicas.stop()
        await self.log_manager.close()
        await self.scheduler.stop(1000)
        self.calls.timers.close()

    # The controller's part.

    def tell_metadata(
        self,
        partitions: Mapping[TopicPartition, tuple[int, int, Sequence[int], Sequence[int]]],
        topic_ids: Mapping[str, bytes] | None = None,
        alive: Sequence[int] = (1, 2, 3),
    ) -> None:
        """`partitions`: leader, leader epoch, ISR, replicas."""
        topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState] = {}
        for (topic, number), (leader, leader_epoch, isr, replicas) in partitions.items():
            state = topics.setdefault(
                topic,
                UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name=topic, topic_id=(topic_ids or {}).get(topic, topic_id(topic)), partition_states=[]
                ),
            )
            state.partition_states.append(
                UpdateMetadataRequest.UpdateMetadataPartitionState(
                    partition_index=number,
                    controller_epoch=1,
                    leader=leader,
                    leader_epoch=leader_epoch,
                    isr=list(isr),
                    zk_version=leader_epoch,
                    replicas=list(replicas),
                )
            )
        self.replicas.update_metadata(
            UpdateMetadataRequest(
                controller_id=2,
                controller_epoch=1,
                broker_epoch=1,
                topic_states=list(topics.values()),
                live_brokers=[
                    UpdateMetadataRequest.UpdateMetadataBroker(
                        id=broker,
                        endpoints=[
                            UpdateMetadataRequest.UpdateMetadataEndpoint(
                                port=PORTS[broker], host=f"host-{broker}", listener="PLAINTEXT", security_protocol=0
                            )
                        ],
                        rack=f"rack-{broker}",
                    )
                    for broker in alive
                ],
            )
        )

    def lead(
        self,
        topic: str,
        number: int = 0,
        *,
        leader: int = BROKER,
        leader_epoch: int = 0,
        isr: Sequence[int] = (BROKER,),
        replicas: Sequence[int] = (BROKER,),
        config: LogConfig | None = None,
    ) -> Partition:
        """The controller makes `leader` lead a partition; this broker has a replica."""
        if config is not None:
            self.configs[topic] = config
        partition = TopicPartition(topic, number)
        self.tell_metadata({partition: (leader, leader_epoch, isr, replicas)})
        response = self.replicas.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_id=2,
                controller_epoch=1,
                broker_epoch=1,
                type=1,
                topic_states=[
                    LeaderAndIsrRequest.LeaderAndIsrTopicState(
                        topic_name=topic,
                        topic_id=topic_id(topic),
                        partition_states=[
                            LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                                partition_index=number,
                                controller_epoch=1,
                                leader=leader,
                                leader_epoch=leader_epoch,
                                isr=list(isr),
                                partition_epoch=leader_epoch,
                                replicas=list(replicas),
                                is_new=leader_epoch == 0,
                            )
                        ],
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
        codes = [state.error_code for topic_state in response.topics for state in topic_state.partition_errors]
        assert (response.error_code, codes) == (0, [0])
        return self.replicas.get_partition(partition)

    # A client's part.

    def connect(self, client_id: str | None = "tests") -> Caller:
        return self.calls.connect(client_id=client_id)

    async def written(self) -> None:
        """Returns when what was appended in former turns is in the files, and who waited for that has been told."""
        for partition in self.replicas.partitions.values():
            if partition.log is not None:
                await partition.log.wait_written()
        for _ in range(3):
            await asyncio.sleep(0)

    async def produce(self, topic: str, *values: bytes, number: int = 0, acks: int = 1, **options: Any) -> int:
        """Appends one batch; returns its first offset."""
        response = await self.connect().call(produce_request(topic, batch(*values, **options), number, acks), 9)
        return produced(response).base_offset


@asynccontextmanager
async def data_broker(
    host: Host,
    *directories: str,
    is_told: bool = True,
    fetch_bytes_max: int = FETCH_BYTES_MAX,
    is_rack_aware: bool = False,
    writes: str = WRITES,
) -> AsyncIterator[DataBroker]:
    """Runs until the block ends."""
    broker = DataBroker(host, directories, fetch_bytes_max, is_rack_aware=is_rack_aware, writes=writes)
    await broker.start(is_told=is_told)
    try:
        yield broker
    finally:
        await broker.stop()


def topic_id(topic: str) -> bytes:
    """Every topic has an id that follows from its name."""
    return topic.encode().ljust(16, b"\x01")[:16]


def batch(
    *values: bytes,
    timestamp_ms: int = 1_700_000_000_000,
    compression: CompressionType = CompressionType.NONE,
    **options: Any,
) -> bytes:
    """One batch as a producer sends it."""
    builder = RecordBatchBuilder(compression=Compression(compression), **options)
    for value in values:
        builder.append(timestamp_ms, None, value)
    return bytes(builder.build())


def produce_request(
    topic: str, records: bytes | None, number: int = 0, acks: int = 1, timeout_ms: int = 30_000
) -> ProduceRequest:
    """A request for one partition."""
    data = ProduceRequest.PartitionProduceData(index=number, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )


def produced(response: ProduceResponse) -> ProduceResponse.PartitionProduceResponse:
    """The only partition of a response."""
    ((partition,),) = ([*topic.partition_responses] for topic in response.responses)
    return partition
