"""Remote storage of one broker, where it is told to have it (KIP-405)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.config.broker_config import BrokerConfig
from barnabas.config.settings import take
from barnabas.leader.partition import Partition
from barnabas.server.errors import BrokerStartError
from barnabas.server.logins import login_at_brokers
from barnabas.server.shared_services import SharedServices
from barnabas.tiered.metadata_topic import MetadataTopic
from barnabas.tiered.remote_log_manager import RemoteLogManager
from barnabas.tiered.remote_metrics import RemoteMetrics
from barnabas.tiered.remote_quotas import RemoteQuotas
from barnabas.tiered.remote_reads import RemoteReads
from barnabas.tiered.settings import TieredSettings
from barnabas.tiered.storage import StorageConfigError, open_store
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.cluster.broker_configs import BrokerConfigs
    from barnabas.cluster.metadata_cache import MetadataCache
    from barnabas.config.derived import Values
    from barnabas.link.tls_end import TlsEnd

_AT_RUN_TIME: Final = (
    "remote.fetch.max.wait.ms",
    "remote.log.index.file.cache.total.size.bytes",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.fetch.max.bytes.per.second",
)


class RemoteComponents:
    """The readers, and the manager that copies and deletes."""

    def __init__(
        self,
        shared: SharedServices,
        config: BrokerConfig,
        broker_id: int,
        metadata_cache: MetadataCache,
        partitions: Callable[[], Iterable[Partition]],
        tls: TlsEnd | None,
    ) -> None:
        """`partitions` are those that the broker hosts, and `tls` is how connections to other brokers are secured.
        Raises BrokerStartError for a storage that cannot be used.
        """
        settings = take(TieredSettings, config.values)
        try:
            open_store(shared.host.files, settings.url, settings.options)
        except StorageConfigError as error:
            raise BrokerStartError(str(error)) from error
        listener = config.listeners.inter_broker
        logger = shared.logs.logger("kafka.log.remote.RemoteLogManager")
        topic = MetadataTopic(
            shared.host,
            shared.timers,
            settings,
            lambda: tuple(f"{node.host}:{node.port}" for node in metadata_cache.image.nodes(listener)),
            shared.logs.logger(
                "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
            ),
            login_at_brokers(config, listener),
            lambda: None if tls is None else tls.context,
        )
        metrics = RemoteMetrics(shared.metrics)
        quotas = self._quotas = RemoteQuotas(shared.timers, shared.host.loop.time, settings)
        metrics.show(quotas)
        self.reads = RemoteReads(shared.host, shared.timers, settings, topic, quotas.fetch, logger, metrics.fetched)
        self.manager = RemoteLogManager(
            shared.host, shared.timers, broker_id, settings, topic, self.reads, partitions, quotas.copy, metrics, logger
        )

    def follow_configs(self, configs: BrokerConfigs) -> None:
        """Takes what Kafka takes at run time."""
        configs.follow(_AT_RUN_TIME, self._reconfigure)

    def _reconfigure(self, values: Values) -> None:
        settings = take(TieredSettings, values)
        self._quotas.limit(settings)
        self.reads.reconfigure(settings)

    def leadership_changed(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        """For the replica manager."""
        self.manager.leadership_changed(became_leader, became_follower)

    def replicas_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        """For the replica manager."""
        self.manager.replicas_stopped(stopped)
