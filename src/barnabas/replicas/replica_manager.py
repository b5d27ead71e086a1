"""The replicas of one broker: what the controller tells of them, and the tasks that look after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from barnabas.follower.fetch_protocol import FetchProtocol
from barnabas.follower.fetcher_context import FetcherContext
from barnabas.follower.fetcher_manager import FetcherManager
from barnabas.follower.log_copier import LogCopier
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.joined_runs import JoinedRuns
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.steps import Steps, at_once, each
from barnabas.kernel.turns import yield_to_loop
from barnabas.leader.isr_changes import AlterPartitionManager
from barnabas.leader.isr_expansion_retries import IsrExpansionRetries
from barnabas.leader.partition import Partition
from barnabas.leader.partition_context import PartitionContext
from barnabas.leader.wake_ups import WakeUps
from barnabas.replicas.controller_fence import ControllerFence
from barnabas.replicas.deletion_fence import DeletionFence
from barnabas.replicas.high_watermark_checkpoint import HighWatermarkCheckpoints
from barnabas.replicas.hosted_replicas import HostedReplicas
from barnabas.replicas.leader_and_isr import requested_partitions, response
from barnabas.replicas.log_moves import LogMoves
from barnabas.replicas.replica_metrics import ReplicaMetrics
from barnabas.replicas.role_changes import RoleChanges
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import StopReplicaResponse
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.stopped_partitions import StoppedPartition, partition_errors, stopped_partitions

if TYPE_CHECKING:
    from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
    from barnabas.follower.ports import LeaderConnections, RemoteStates
    from barnabas.kernel.host import Host
    from barnabas.kernel.logs import Logs
    from barnabas.kernel.metrics import MetricsRegistry
    from barnabas.kernel.scheduler import Scheduler
    from barnabas.kernel.tick import Tick
    from barnabas.kernel.timers import Timers
    from barnabas.log.directories.log_directory import LogDirectory
    from barnabas.log.manager.log_manager import LogManager
    from barnabas.log.partition.log_config import LogConfig
    from barnabas.quotas.replication_quota import ReplicationQuota
    from barnabas.replicas.ports import OnLeadershipChange, OnStop
    from barnabas.wire.messages import (
        LeaderAndIsrRequest,
        LeaderAndIsrResponse,
        StopReplicaRequest,
        UpdateMetadataRequest,
    )
    from barnabas.wire.topics import TopicPartition

_UNLIMITED: Final = float(2**63 - 1)
_STOPPED_AT_ONCE: Final = 50
_EXPIRED_AT_ONCE: Final = 200
_NO_ERRORS: Final[Mapping[TopicPartition, ErrorCode]] = {}


class ReplicaManager:
    """Hosts the partitions of which this broker has a replica.

    All calls are made on the loop. Requests of the controller are applied one after another, each without a break, so
    that nobody sees half of one.
    """

    def __init__(
        self,
        broker_id: int,
        host: Host,
        *,
        timers: Timers,
        scheduler: Scheduler,
        tick: Tick,
        metrics: MetricsRegistry,
        logs: Logs,
        settings: ReplicaSettings,
        log_manager: LogManager,
        log_config: Callable[[str], LogConfig],
        metadata_cache: MetadataCache,
        inter_broker_listener_name: str,
        isr_changes: AlterPartitionManager,
        connections: LeaderConnections,
        broker_epoch: Callable[[], int],
        protocol: FetchProtocol | None = None,
        follower_quota: ReplicationQuota | None = None,
        remote: RemoteStates | None = None,
        on_leadership_change: OnLeadershipChange | None = None,
        on_stop: OnStop | None = None,
        on_directory_failed: Callable[[LogDirectory], object] | None = None,
    ) -> None:
        """`log_config` gives the config of a topic's logs, from memory; `broker_epoch` the present one of this broker;
        `protocol` what is spoken with leaders, by `inter.broker.protocol.version`; `follower_quota` throttles fetching;
        `remote` is there where the broker has remote storage.
        """
        self.offline_partitions: set[TopicPartition] = set()
        """Replicas in log directories that have failed."""
        self.on_leadership_change = on_leadership_change
        self.on_stop = on_stop
        self.on_directory_failed = on_directory_failed
        self._broker_id = broker_id
        self._loop = host.loop
        self._scheduler = scheduler
        self._settings = settings
        self._log_manager = log_manager
        self._metadata_cache = metadata_cache
        self._logger = logs.logger("kafka.server.ReplicaManager")
        self._state_changes = logs.logger("state.change.logger")
        self._partitions: dict[TopicPartition, Partition] = {}
        self._controllers = ControllerFence(self._state_changes)
        self._deleted = DeletionFence()
        self.produce_purgatory, self.fetch_purgatory, self.delete_records_purgatory = (
            Purgatory[DelayedOperation](name, timers, self._logger) for name in ("Produce", "Fetch", "DeleteRecords")
        )
        self._wake_ups = WakeUps(tick, self._purgatories, self._logger)
        self._metrics = self._replica_metrics(metrics, host)
        self._isr_changes = isr_changes
        self._expansion_retries = IsrExpansionRetries(timers, settings.fetch_wait_max_ms)
        fetcher_context = self._fetcher_context(
            timers, logs, broker_epoch, protocol or FetchProtocol(), connections, follower_quota, remote
        )
        self._fetchers = FetcherManager(fetcher_context, settings.fetchers_per_leader, metrics)
        self._checkpoints = HighWatermarkCheckpoints(self._logger)
        self._checkpoints_started = False
        self._checkpoint_runs = {
            directory: JoinedRuns(self._loop, partial(self._write_high_watermarks, directory))
            for directory in log_manager.directories
        }
        self._hosted = HostedReplicas(
            self._partitions, self.offline_partitions, self._partition_context(logs), self._metrics
        )
        self._moves = self._log_moves(timers, logs)
        log_manager.write_queue.on_written = self._log_written
        self._roles = RoleChanges(
            broker_id,
            self._hosted,
            deleted=self._deleted,
            fetchers=self._fetchers,
            checkpoints=self._checkpoints,
            log_manager=log_manager,
            log_config=log_config,
            metadata_cache=metadata_cache,
            listener_name=inter_broker_listener_name,
            logger=self._state_changes,
        )

    def _replica_metrics(self, metrics: MetricsRegistry, host: Host) -> ReplicaMetrics:
        found = ReplicaMetrics(
            metrics, self._partitions.values, lambda: len(self.offline_partitions), host.clock.time_ms, host.loop
        )
        found.add_purgatories(self._purgatories)
        return found

    def _partition_context(self, logs: Logs) -> PartitionContext:
        return PartitionContext(
            broker_id=self._broker_id,
            now=self._loop.time,
            lag_max_seconds=self._settings.lag_time_max_ms / 1000,
            is_alive=self._is_alive,
            alter_partition=self._isr_changes.submit,
            reconsider_later=self._expansion_retries.add,
            wake_ups=self._wake_ups,
            expands=self._metrics.expands,
            shrinks=self._metrics.shrinks,
            failed_updates=self._metrics.failed_updates,
            logger=logs.logger("kafka.cluster.Partition"),
            state_changes=self._state_changes,
        )

    def _fetcher_context(
        self,
        timers: Timers,
        logs: Logs,
        broker_epoch: Callable[[], int],
        protocol: FetchProtocol,
        connections: LeaderConnections,
        quota: ReplicationQuota | None,
        remote: RemoteStates | None,
    ) -> FetcherContext:
        return FetcherContext(
            broker_id=self._broker_id,
            broker_epoch=broker_epoch,
            loop=self._loop,
            timers=timers,
            settings=self._settings,
            protocol=protocol,
            connections=connections,
            write_queue=self._log_manager.write_queue,
            wake_ups=self._wake_ups,
            logger=logs.logger("kafka.server.ReplicaFetcherThread"),
            quota=quota,
            remote=remote,
        )

    def _log_moves(self, timers: Timers, logs: Logs) -> LogMoves:
        moves = LogMoves(
            self._partitions,
            get_partition=self.get_partition,
            log_manager=self._log_manager,
            checkpoints=self._checkpoints,
            logger=self._logger,
        )
        self._copier = LogCopier(
            self._log_manager,
            loop=self._loop,
            timers=timers,
            piece_bytes_max=self._settings.fetch_bytes_max,
            backoff_ms=self._settings.fetch_backoff_ms,
            bytes_per_second=_UNLIMITED,
            on_replaced=moves.replaced,
            logger=logs.logger("kafka.server.ReplicaAlterLogDirsThread"),
        )
        moves.use(self._copier)
        return moves

    # Looking up.

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The replicas that are hosted here, without those of failed log directories."""
        return self._partitions

    @property
    def fetchers(self) -> FetcherManager:
        """Who fetches what this broker follows."""
        return self._fetchers

    @property
    def controller_epoch(self) -> int:
        """The greatest epoch of a controller that was heard of; 0 where none was."""
        return self._controllers.epoch

    @property
    def wake_ups(self) -> WakeUps:
        """Tells those who wait for something in a partition."""
        return self._wake_ups

    def find_partition(self, topic_partition: TopicPartition) -> Partition | None:
        """None if there is no replica here, or if its log directory has failed."""
        return self._partitions.get(topic_partition)

    def get_partition(self, topic_partition: TopicPartition) -> Partition:
        """The partition. Raises KafkaError: KAFKA_STORAGE_ERROR for one in a failed directory, NOT_LEADER_OR_FOLLOWER
        for one that is elsewhere, UNKNOWN_TOPIC_OR_PARTITION for one that is not known at all."""
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            return partition
        if topic_partition in self.offline_partitions:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} is in an offline log directory")
        if self._metadata_cache.image.partition(topic_partition) is not None:
            problem = f"broker {self._broker_id} has no replica of {topic_partition}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, problem)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic_partition} is not known")

    def partition_changed(self, partition: Partition) -> None:
        """Wakes who waits for something in the partition; for whoever changes its log otherwise than through it."""
        self._wake_ups.add(partition)

    # Life.

    def start(self) -> None:
        """Reads the high watermarks and starts the tasks. The logs are loaded, and no request has been served yet."""
        self._checkpoints.load(self._log_manager.live_directories, self._log_manager.get_log)
        # A follower that lags may stay in the ISR for one and a half times replica.lag.time.max.ms.
        self._scheduler.schedule(
            "isr-expiration", self._expire_followers, period_ms=max(1.0, self._settings.lag_time_max_ms / 2)
        )

    async def stop(self) -> None:
        """Ends the fetchers and whatever waits, and writes the high watermarks. The logs are to be closed after it."""
        self._roles.is_stopping = True
        await self._fetchers.close()
        await self._moves.close()
        await self._isr_changes.close()
        self._expansion_retries.close()
        for purgatory in self._purgatories:
            purgatory.complete_all()
        await self.checkpoint_high_watermarks()
        self._metrics.close()

    def resize_fetchers(self, fetchers_per_leader: int) -> None:
        """Takes another `num.replica.fetchers`."""
        self._fetchers.resize(fetchers_per_leader)

    def limit_log_moves(self, bytes_per_second: int) -> None:
        """Takes another `replica.alter.log.dirs.io.max.bytes.per.second`."""
        self._copier.limit(bytes_per_second)

    async def alter_log_directories(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """Moves replicas between the log directories of this broker; as `LogMoves.alter`."""
        return await self._moves.alter(wanted)

    def begin_controlled_shutdown(self) -> None:
        """No fetcher is started any more for partitions that move away."""
        self._roles.is_stopping = True

    # Requests of the controller.

    def become_leader_or_follower(self, request: LeaderAndIsrRequest, version: int) -> LeaderAndIsrResponse:
        """Takes over who leads what. The answer has the outcome of each partition."""
        requested = list(requested_partitions(request))
        if not self._controllers.admits(request):
            return response(requested, _NO_ERRORS, version, ErrorCode.STALE_CONTROLLER_EPOCH)
        started = self._loop.time()
        errors, became_leader, became_follower, went_offline = self._roles.apply(
            requested, is_kraft_controller=request.is_kraft_controller
        )
        self._start_checkpoints()
        self._tell_stopped([(partition.topic_partition, partition.leader_epoch, False) for partition in went_offline])
        if not self._roles.is_stopping:
            self._moves.begin(partition.topic_partition for partition in requested)
        self._tell_leadership(became_leader, became_follower)
        self._state_changes.info(
            "Finished LeaderAndIsr request of %d partitions from controller %d epoch %d in %d ms: %d led, %d followed",
            *(len(requested), request.controller_id, request.controller_epoch, (self._loop.time() - started) * 1000),
            *(len(became_leader), len(became_follower)),
        )
        return response(requested, errors, version, ErrorCode.NONE)

    async def stop_replicas(
        self, request: StopReplicaRequest, check: Callable[[], object] = lambda: None
    ) -> StopReplicaResponse:
        """Stops replicas, and deletes those that the request says; the answer comes when their logs are out of the
        way. Done in pieces, between which the loop has its turns; `check()` raises before a piece that is stale."""
        answer = StopReplicaResponse()
        if not self._controllers.admits(request):
            answer.error_code = ErrorCode.STALE_CONTROLLER_EPOCH
            return answer
        errors: dict[TopicPartition, ErrorCode] = {}
        answer.error_code = await self._stop_in_pieces(request, check, errors)
        # Until then a new replica of the same name would not be safe after a crash. A request that names them again,
        # where this one has become stale or was not answered, waits for that too.
        await self._checkpoint_deletions({each.topic_partition for each in stopped_partitions(request) if each.delete})
        answer.partition_errors = partition_errors(errors)
        return answer

    async def _stop_in_pieces(
        self,
        request: StopReplicaRequest,
        check: Callable[[], object],
        errors: dict[TopicPartition, ErrorCode],
    ) -> ErrorCode:
        get_log = self._log_manager.get_log
        remaining = iter([(stopped, get_log(stopped.topic_partition)) for stopped in stopped_partitions(request)])
        while piece := list(islice(remaining, _STOPPED_AT_ONCE)):
            if errors:
                await yield_to_loop()
                if self._controllers.refuses(request):
                    return ErrorCode.STALE_CONTROLLER_EPOCH
            check()
            stopped: list[StoppedPartition] = []
            for partition, log in piece:
                error = self._refusal_to_stop(partition)
                errors[partition.topic_partition] = error
                # A copy of this request may have been faster, and what is there since is another replica.
                if error is ErrorCode.NONE and get_log(partition.topic_partition) is log:
                    stopped.append(partition)
            self._stop(stopped)
            await self._delete_logs([partition.topic_partition for partition in stopped if partition.delete], errors)
        return ErrorCode.NONE

    def update_metadata(self, request: UpdateMetadataRequest) -> MetadataChange:
        """Takes over what the controller tells of the cluster. Raises KafkaError with STALE_CONTROLLER_EPOCH."""
        return at_once(self.update_metadata_in_steps(request))

    def update_metadata_in_steps(
        self, request: UpdateMetadataRequest, check: Callable[[], object] = lambda: None
    ) -> Steps[MetadataChange]:
        """As `update_metadata`, for requests of many partitions; others see the change from the step on before
        which `check()` raises if the request is meant for this broker no longer.
        """
        self._check(request, check)
        change = yield from self._metadata_cache.apply_in_steps(request, lambda: self._check(request, check))
        self._controllers.admits(request)
        if change.previous.brokers.keys() - change.image.brokers.keys():
            # Deleted records wait for replicas that are alive only, and no fetch will tell of these any more.
            deletions = self.delete_records_purgatory
            yield from each(deletions.check_and_complete, list(deletions.watched_keys))
        returned = change.image.brokers.keys() - change.previous.brokers.keys()
        if returned:
            led = list(self._partitions.values())
            yield from each(lambda partition: partition.in_sync.brokers_returned(returned), led)
        return change

    def _check(self, request: UpdateMetadataRequest, check: Callable[[], object]) -> None:
        check()
        if self._controllers.refuses(request):
            raise KafkaError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller {request.controller_id} speaks in epoch {request.controller_epoch}, which is over",
            )

    def _log_written(self, topic_partition: TopicPartition) -> None:
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.log is not None:
            partition.log_written()

    def log_directory_failed(self, directory: LogDirectory) -> None:
        """Stops serving the replicas of a directory, for the log manager."""
        failed = [
            partition
            for partition in self._partitions.values()
            if partition.log is not None and partition.log.log_directory is directory
        ]
        self._fetchers.remove(partition.topic_partition for partition in failed)
        stopped = [(partition.topic_partition, partition.leader_epoch, False) for partition in failed]
        for partition in failed:
            self._hosted.take_offline(partition)
        self._moves.directory_failed()
        self._tell_stopped(stopped)
        self._logger.warning("Stopped serving %d replicas in directory %s", len(failed), directory.path)
        if self.on_directory_failed is not None:
            self.on_directory_failed(directory)

    def _tell_leadership(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        if self.on_leadership_change is not None and (became_leader or became_follower):
            try:
                self.on_leadership_change(became_leader, became_follower)
            except Exception:
                self._logger.exception("Telling of new leaders and followers failed")

    # Stopping.

    def _refusal_to_stop(self, stopped: StoppedPartition) -> ErrorCode:
        if stopped.topic_partition in self.offline_partitions:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            partition = self._partitions.get(stopped.topic_partition)
            # A replica that is not hosted may have a log all the same, of a topic deleted while this broker was down.
            is_fenced = partition is not None and stopped.is_fenced_by(partition.leader_epoch)
            error = ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            self._state_changes.warning(
                "Ignoring StopReplica (delete=%s) for partition %s at leader epoch %d: %s",
                *(stopped.delete, stopped.topic_partition, stopped.leader_epoch, error.name),
            )
        return error

    def _stop(self, stopped: list[StoppedPartition]) -> None:
        self._moves.stop([partition.topic_partition for partition in stopped])
        self._fetchers.remove(partition.topic_partition for partition in stopped)
        self._fetchers.close_idle()
        for topic_partition, leader_epoch, delete in stopped:
            partition = self._partitions.get(topic_partition)
            log = self._log_manager.get_log(topic_partition)
            if delete and log is not None and log.topic_id is not None:
                known_epoch = NO_EPOCH if partition is None else partition.leader_epoch
                self._deleted.add(topic_partition, log.topic_id, known_epoch, leader_epoch)
            if partition is not None:
                # Who waits is woken: what it waits for may never come.
                self._wake_ups.add(partition)
                if delete:
                    self._hosted.remove(partition)
            if delete:
                self._checkpoints.forget(topic_partition)
            self._state_changes.info(
                "Stopped replica of partition %s at leader epoch %d%s",
                *(topic_partition, leader_epoch, ", to be deleted" if delete else ""),
            )
        self._tell_stopped([(*partition,) for partition in stopped])

    def _tell_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        if self.on_stop is not None and stopped:
            try:
                self.on_stop(stopped)
            except Exception:
                self._logger.exception("Telling of stopped replicas failed")

    async def _delete_logs(self, deleted: list[TopicPartition], errors: dict[TopicPartition, ErrorCode]) -> None:
        logs = [log for log in map(self._log_manager.get_log, deleted) if log is not None]
        for _ in range(len(self._log_manager.directories) + 1):
            live = [log.partition for log in logs if not log.log_directory.is_offline]
            try:
                await self._log_manager.delete_logs(live)
                break
            except KafkaError as failure:  # a directory less; the others' logs are deleted all the same
                self._state_changes.warning("Deleting replicas failed: %s", failure)
        for log in logs:
            if log.log_directory.is_offline:
                errors[log.partition] = ErrorCode.KAFKA_STORAGE_ERROR

    async def _checkpoint_deletions(self, deleted: set[TopicPartition]) -> None:
        high_watermarks = [self._checkpoint_runs[each].run() for each in self._log_manager.told_of_in(deleted)]
        await asyncio.gather(self._log_manager.checkpoint_deletions(deleted), *high_watermarks)

    # Tasks.

    def _expire_followers(self) -> Awaitable[None] | None:
        partitions = list(self._partitions.values())
        for partition in partitions[:_EXPIRED_AT_ONCE]:
            partition.in_sync.expire()
        rest = partitions[_EXPIRED_AT_ONCE:]
        return self._expire_in_later_turns(rest) if rest else None

    async def _expire_in_later_turns(self, partitions: list[Partition]) -> None:
        for number, partition in enumerate(partitions):
            if not number % _EXPIRED_AT_ONCE:
                await yield_to_loop()
            partition.in_sync.expire()

    def _start_checkpoints(self) -> None:
        """Not before the first LeaderAndIsr: until then hardly a partition would be in the files."""
        if not self._checkpoints_started:
            self._checkpoints_started = True
            self._scheduler.schedule(
                "highwatermark-checkpoint",
                self.checkpoint_high_watermarks,
                period_ms=self._settings.high_watermark_checkpoint_interval_ms,
            )

    async def checkpoint_high_watermarks(self) -> None:
        """Writes them, where one has changed or is of no log that is here."""
        live = self._log_manager.live_directories
        await asyncio.gather(*(self._checkpoint_runs[directory].run() for directory in live))

    async def _write_high_watermarks(self, directory: LogDirectory) -> None:
        logs = [partition.log for partition in self._partitions.values() if partition.log is not None]
        await self._checkpoints.write(logs, directory)

    def _is_alive(self, broker_id: int) -> bool:
        return broker_id in self._metadata_cache.image.brokers

    @property
    def _purgatories(self) -> tuple[Purgatory[Any], ...]:
        return self.fetch_purgatory, self.produce_purgatory, self.delete_records_purgatory
