"""The handlers of every API that this broker answers, each with what it uses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from barnabas.api.add_offsets_to_txn import AddOffsetsToTxnHandler
from barnabas.api.add_partitions_to_txn import AddPartitionsToTxnHandler
from barnabas.api.administration.config_alteration import ConfigAlterer
from barnabas.api.administration.leader_waits import LeaderWaits
from barnabas.api.administration.logger_levels import LoggerLevels
from barnabas.api.administration.partition_creation import PartitionCreator
from barnabas.api.administration.quota_alteration import QuotaAlterer, QuotaReader
from barnabas.api.administration.topic_creation import TopicCreator
from barnabas.api.administration.topic_deletion import TopicDeleter
from barnabas.api.administration.topic_waits import TopicWaits
from barnabas.api.allocate_producer_ids import AllocateProducerIdsHandler
from barnabas.api.alter_client_quotas import AlterClientQuotasHandler
from barnabas.api.alter_configs import AlterConfigsHandler
from barnabas.api.alter_partition import AlterPartitionHandler
from barnabas.api.alter_partition_reassignments import AlterPartitionReassignmentsHandler
from barnabas.api.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from barnabas.api.alter_user_scram_credentials import AlterUserScramCredentialsHandler
from barnabas.api.api_versions import ApiVersionsHandler
from barnabas.api.auto_topic_creation import AutoCreationSettings, AutoTopicCreation
from barnabas.api.client_throttles import ConsumerQuotas, MutationQuotas, QuotaAccess
from barnabas.api.consumer_group_describe import ConsumerGroupDescribeHandler
from barnabas.api.consumer_group_heartbeat import ConsumerGroupHeartbeatHandler
from barnabas.api.controlled_shutdown import ControlledShutdownHandler
from barnabas.api.create_acls import CreateAclsHandler
from barnabas.api.create_delegation_token import CreateDelegationTokenHandler
from barnabas.api.create_partitions import CreatePartitionsHandler
from barnabas.api.create_topics import CreateTopicsHandler
from barnabas.api.delete_acls import DeleteAclsHandler
from barnabas.api.delete_groups import DeleteGroupsHandler
from barnabas.api.delete_records import DeleteRecordsHandler
from barnabas.api.delete_topics import DeleteTopicsHandler
from barnabas.api.describe_acls import DescribeAclsHandler
from barnabas.api.describe_client_quotas import DescribeClientQuotasHandler
from barnabas.api.describe_cluster import DescribeClusterHandler
from barnabas.api.describe_configs import DescribeConfigsHandler
from barnabas.api.describe_controller import DescribeControllerHandler
from barnabas.api.describe_delegation_token import DescribeDelegationTokenHandler
from barnabas.api.describe_groups import DescribeGroupsHandler
from barnabas.api.describe_leadership_changes import DescribeLeadershipChangesHandler
from barnabas.api.describe_log_dirs import DescribeLogDirsHandler
from barnabas.api.describe_producers import DescribeProducersHandler
from barnabas.api.describe_transactions import DescribeTransactionsHandler
from barnabas.api.describe_user_scram_credentials import DescribeUserScramCredentialsHandler
from barnabas.api.elect_leaders import ElectLeadersHandler
from barnabas.api.end_txn import EndTxnHandler
from barnabas.api.envelope import EnvelopeHandler
from barnabas.api.expire_delegation_token import ExpireDelegationTokenHandler
from barnabas.api.fetch import FetchHandler
from barnabas.api.find_coordinator import FindCoordinatorHandler
from barnabas.api.heartbeat import HeartbeatHandler
from barnabas.api.incremental_alter_configs import IncrementalAlterConfigsHandler
from barnabas.api.init_producer_id import InitProducerIdHandler
from barnabas.api.join_group import JoinGroupHandler
from barnabas.api.leader_and_isr import LeaderAndIsrHandler
from barnabas.api.leave_group import LeaveGroupHandler
from barnabas.api.list_groups import ListGroupsHandler
from barnabas.api.list_offsets import ListOffsetsHandler
from barnabas.api.list_partition_reassignments import ListPartitionReassignmentsHandler
from barnabas.api.list_transactions import ListTransactionsHandler
from barnabas.api.metadata import MetadataHandler
from barnabas.api.offset_commit import OffsetCommitHandler
from barnabas.api.offset_delete import OffsetDeleteHandler
from barnabas.api.offset_fetch import OffsetFetchHandler
from barnabas.api.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from barnabas.api.produce import ProduceHandler
from barnabas.api.produce_access import AuthorizedAccess
from barnabas.api.registry import Handler, Registry
from barnabas.api.renew_delegation_token import RenewDelegationTokenHandler
from barnabas.api.sasl_authenticate import SaslAuthenticateHandler
from barnabas.api.sasl_handshake import SaslHandshakeHandler
from barnabas.api.stop_replica import StopReplicaHandler
from barnabas.api.sync_group import SyncGroupHandler
from barnabas.api.txn_offset_commit import TxnOffsetCommitHandler
from barnabas.api.update_features import UpdateFeaturesHandler
from barnabas.api.update_metadata import UpdateMetadataHandler
from barnabas.api.write_txn_markers import WriteTxnMarkersHandler
from barnabas.config.settings import take
from barnabas.kernel.host import OffloadKind
from barnabas.kernel.metrics import MetricName
from barnabas.log.directories.offload_with_retry import offload_with_retry
from barnabas.server.listeners import resolves
from barnabas.serving.delete_records import RecordDeletions
from barnabas.serving.fetch import DelayedFetches
from barnabas.serving.fetch_reads import FetchReader
from barnabas.serving.fetch_sessions import FetchSessionCache
from barnabas.serving.leader_throttle import LeaderThrottle
from barnabas.serving.produce import RecordAppends
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.serving.transaction_markers import MarkerAppends
from barnabas.serving.transaction_verification import BatchVerification

if TYPE_CHECKING:
    import asyncio

    from barnabas.cluster.leadership_changes import LeadershipChanges
    from barnabas.cluster.metadata_cache import MetadataCache
    from barnabas.config.broker_config import BrokerConfig
    from barnabas.controller.controller import Controller
    from barnabas.replicas.replica_manager import ReplicaManager
    from barnabas.server.authorization import Authorization
    from barnabas.server.cluster_identity import Identity
    from barnabas.server.controller_channel import ControllerChannel
    from barnabas.server.coordination_session import CoordinationSession
    from barnabas.server.coordinator_components import CoordinatorComponents
    from barnabas.server.delegation_tokens import BrokerTokens
    from barnabas.server.features import FinalizedFeatureCache
    from barnabas.server.registration import Registration
    from barnabas.server.shared_services import SharedServices
    from barnabas.server.storage import Storage
    from barnabas.serving.acknowledgements import Acknowledgements
    from barnabas.serving.remote_fetch import RemoteReader
    from barnabas.serving.transaction_verification import TransactionVerifier


@dataclass(frozen=True, slots=True)
class HandlerParts:
    """The components of a broker that its handlers use."""

    shared: SharedServices
    config: BrokerConfig
    identity: Identity
    session: CoordinationSession
    storage: Storage
    metadata_cache: MetadataCache
    leadership_changes: LeadershipChanges
    told_of_cluster: asyncio.Future[None]
    registration: Registration
    features: FinalizedFeatureCache
    controller_channel: ControllerChannel
    replica_manager: ReplicaManager
    acknowledgements: Acknowledgements
    controller: Controller
    coordinators: CoordinatorComponents
    verifier: TransactionVerifier
    remote: RemoteReader | None = None
    """Of a broker that has remote storage."""
    authorization: Authorization | None = None
    """Of a broker that has an authorizer."""
    tokens: BrokerTokens | None = None
    """Of a broker that has a secret for delegation tokens."""


class Handlers:
    """Makes all handlers of one broker, and what only they need."""

    def __init__(self, components: HandlerParts) -> None:
        self._components = components
        shared = components.shared
        administration = shared.logs.logger("kafka.server.ZkAdminManager")
        self.registry = Registry()
        self.topic_metrics = BrokerTopicMetrics(shared.metrics)
        self.fetch_sessions = FetchSessionCache(
            components.config.values["max.incremental.fetch.session.cache.slots"],
            shared.host.loop.time,
            shared.host.entropy,
            shared.metrics,
        )
        waits = (components.metadata_cache, shared.host.loop, shared.timers, administration)
        self.topic_waits = TopicWaits(*waits)
        self.leader_waits = LeaderWaits(*waits)
        self.topic_creator = TopicCreator(
            shared.host,
            components.session,
            components.metadata_cache,
            components.storage.broker_configs,
            administration,
            shared.steps,
        )
        self.auto_topic_creation = AutoTopicCreation(
            shared.host,
            components.controller,
            self.topic_creator,
            components.controller_channel,
            take(AutoCreationSettings, components.config.values),
            shared.logs.logger("kafka.server.DefaultAutoTopicCreationManager"),
        )
        for purgatory in (self.topic_waits.purgatory, self.leader_waits.purgatory):
            tags = (("delayedOperation", purgatory.name),)
            for name, attribute in (("PurgatorySize", "watched"), ("NumDelayedOperations", "delayed")):
                metric = MetricName("kafka.server", "DelayedOperationPurgatory", name, tags)
                shared.metrics.gauge(metric, partial(getattr, purgatory, attribute))
        self._verification = BatchVerification(components.replica_manager, components.verifier)
        for handler in (
            *self._of_metadata(),
            *self._of_data(),
            *self._of_control(),
            *self._of_groups(),
            *self._of_transactions(),
            *self._of_administration(),
        ):
            self.registry.add(handler)

    def _of_data(self) -> list[Handler]:
        """The APIs of producers, consumers and followers."""
        components, values = self._components, self._components.config.values
        shared = components.shared
        host, metrics = shared.host, shared.metrics
        replicas, log_manager = components.replica_manager, components.storage.log_manager
        logger = shared.logs.logger("kafka.server.KafkaApis")
        offload = partial(offload_with_retry, host, shared.timers, OffloadKind.CPU)
        appends = RecordAppends(replicas, self.topic_metrics, offload, logger)
        # There is one selector of replicas only, which the check of the configs knows by its name.
        selects_by_rack = values["replica.selector.class"] is not None
        throttles = components.storage.client_throttles
        throttle = LeaderThrottle(components.storage.throttles.leader, shared.tick, shared.timers, replicas.wake_ups)
        reader = FetchReader(
            *(replicas, components.metadata_cache, self.topic_metrics, host.loop.time, logger, throttle),
            selects_by_rack=selects_by_rack,
        )
        return [
            ProduceHandler(
                appends,
                components.acknowledgements,
                replicas,
                components.metadata_cache,
                log_manager.write_queue,
                host.loop.time,
                self._verification,
                QuotaAccess(throttles)
                if components.authorization is None
                else AuthorizedAccess(components.authorization.authorizer, QuotaAccess(throttles)),
            ),
            FetchHandler(
                host,
                DelayedFetches(
                    *(reader, replicas.fetch_purgatory, shared.tick, metrics, host.loop),
                    tells_high_watermarks=selects_by_rack,
                ),
                self.fetch_sessions,
                log_manager.reader,
                replicas,
                components.metadata_cache,
                self.topic_metrics,
                logger,
                fetch_bytes_max=values["fetch.max.bytes"],
                throttle=throttle,
                remote=components.remote,
                quotas=ConsumerQuotas(throttles),
            ),
            ListOffsetsHandler(replicas, host.clock, logger, components.remote),
            OffsetForLeaderEpochHandler(replicas),
            DeleteRecordsHandler(
                RecordDeletions(replicas, replicas.delete_records_purgatory, metrics, logger), components.metadata_cache
            ),
            DescribeProducersHandler(replicas, components.metadata_cache),
            WriteTxnMarkersHandler(
                MarkerAppends(replicas, components.acknowledgements, host.clock, values["request.timeout.ms"], logger),
                components.coordinators.groups,
            ),
            DescribeLogDirsHandler(log_manager, replicas, host.files, logger),
            AlterReplicaLogDirsHandler(replicas),
        ]

    def _of_metadata(self) -> list[Handler]:
        """The APIs that every client uses first."""
        components = self._components
        configs, cluster_id = components.storage.broker_configs, components.identity.cluster_id
        return [
            ApiVersionsHandler(self.registry, lambda: components.features.epoch),
            SaslHandshakeHandler(),
            SaslAuthenticateHandler(),
            MetadataHandler(
                components.metadata_cache,
                cluster_id,
                self.auto_topic_creation,
                lambda: configs.values["auto.create.topics.enable"],
                components.told_of_cluster,
            ),
            DescribeClusterHandler(components.metadata_cache, cluster_id),
        ]

    def _of_control(self) -> list[Handler]:
        """The APIs of the controller: its requests to brokers, and those of brokers and people to it."""
        components = self._components

        def broker_epoch() -> int:
            return components.registration.broker_epoch

        return [
            LeaderAndIsrHandler(components.replica_manager, broker_epoch, components.storage.topic_config_loader),
            StopReplicaHandler(components.replica_manager, broker_epoch),
            UpdateMetadataHandler(components.replica_manager, broker_epoch),
            AlterPartitionHandler(components.controller),
            ControlledShutdownHandler(components.controller),
            AllocateProducerIdsHandler(components.controller),
            DescribeControllerHandler(components.controller),
            DescribeLeadershipChangesHandler(components.leadership_changes, components.shared.host.clock),
        ]

    def _of_groups(self) -> list[Handler]:
        """The APIs of group members."""
        components = self._components
        groups, metadata = components.coordinators.groups, components.metadata_cache
        transactions = components.coordinators.transactions
        zookeeper_offsets = components.coordinators.zookeeper_offsets
        consumer = components.coordinators.consumer_protocol
        return [
            FindCoordinatorHandler(metadata, groups, transactions, self.auto_topic_creation),
            JoinGroupHandler(groups),
            SyncGroupHandler(groups),
            HeartbeatHandler(groups),
            LeaveGroupHandler(groups),
            ListGroupsHandler(groups),
            DescribeGroupsHandler(groups),
            DeleteGroupsHandler(groups),
            OffsetCommitHandler(groups, metadata, zookeeper_offsets, components.shared.host.clock),
            OffsetFetchHandler(groups, metadata, zookeeper_offsets),
            OffsetDeleteHandler(groups, metadata),
            ConsumerGroupHeartbeatHandler(groups, consumer.refusal, is_offered=consumer.is_offered),
            ConsumerGroupDescribeHandler(groups, consumer.refusal),
        ]

    def _of_transactions(self) -> list[Handler]:
        """The APIs of idempotent and transactional producers beside Produce."""
        components = self._components
        groups, transactions = components.coordinators.groups, components.coordinators.transactions
        host, metadata = components.shared.host, components.metadata_cache
        return [
            InitProducerIdHandler(components.coordinators.producer_ids, transactions),
            AddPartitionsToTxnHandler(transactions, metadata),
            AddOffsetsToTxnHandler(transactions, groups),
            TxnOffsetCommitHandler(groups, metadata, self._verification, host.clock, host.loop),
            EndTxnHandler(transactions),
            DescribeTransactionsHandler(transactions),
            ListTransactionsHandler(transactions),
        ]

    def _of_administration(self) -> list[Handler]:
        """The APIs of administrators."""
        components = self._components
        host, session, metadata = components.shared.host, components.session, components.metadata_cache
        controller, configs = components.controller, components.storage.broker_configs
        logger = components.shared.logs.logger("kafka.server.ZkAdminManager")
        levels = LoggerLevels(components.shared.logs, components.identity.broker_id, logger)
        alterer = ConfigAlterer(session, metadata, configs, components.storage.passwords, logger)
        waits, mutations = self.topic_waits, MutationQuotas(components.storage.client_throttles)
        acls = components.authorization
        acl_store = None if acls is None else acls.store
        return [
            CreateTopicsHandler(controller, self.topic_creator, waits, configs, mutations),
            DeleteTopicsHandler(
                controller,
                TopicDeleter(session, logger),
                waits,
                metadata,
                mutations,
                is_enabled=components.config.values["delete.topic.enable"],
            ),
            AlterPartitionReassignmentsHandler(controller),
            ListPartitionReassignmentsHandler(controller),
            ElectLeadersHandler(controller, self.leader_waits, metadata),
            UpdateFeaturesHandler(controller),
            EnvelopeHandler(),
            CreatePartitionsHandler(
                controller,
                PartitionCreator(host, session, metadata, configs, controller, logger, components.shared.steps),
                waits,
                mutations,
            ),
            DescribeConfigsHandler(session, metadata, configs, levels, logger),
            DescribeClientQuotasHandler(QuotaReader(session, logger)),
            AlterClientQuotasHandler(QuotaAlterer(session, partial(resolves, host.loop), logger)),
            AlterConfigsHandler(alterer),
            IncrementalAlterConfigsHandler(alterer, levels),
            DescribeAclsHandler(None if acls is None else acls.rules),
            CreateAclsHandler(acl_store),
            DeleteAclsHandler(acl_store),
            DescribeUserScramCredentialsHandler(session, logger),
            AlterUserScramCredentialsHandler(controller, alterer),
            *self._of_tokens(),
        ]

    def _of_tokens(self) -> list[Handler]:
        """The APIs of delegation tokens."""
        tokens = self._components.tokens
        store = None if tokens is None else tokens.store
        return [
            CreateDelegationTokenHandler(store),
            RenewDelegationTokenHandler(store),
            ExpireDelegationTokenHandler(store),
            DescribeDelegationTokenHandler(store),
        ]
