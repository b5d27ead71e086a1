"""Makes the components of one broker and connects them. Only this file knows all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.api.authentication import Authentication
from barnabas.api.dispatch import Dispatcher
from barnabas.api.internal_log import ReplicatedInternalLog
from barnabas.api.request_traces import RequestTraces
from barnabas.api.traced_dispatch import TracedDispatcher
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.leadership_changes import LeadershipChanges
from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.config.broker_config import BrokerConfig
from barnabas.config.derived import zookeeper_connection_timeout_ms
from barnabas.config.kafka_versions import is_at_least
from barnabas.config.settings import take
from barnabas.controller.controller import Controller
from barnabas.controller.ports import ControllerPorts
from barnabas.controller.protocol import controller_protocol
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.told_leadership import ToldLeadership
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.follower.fetch_protocol import FetchProtocol, fetch_protocol
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.tracing import Sampler
from barnabas.leader.alter_partition import DefaultAlterPartitionManager
from barnabas.leader.isr_changes import AlterPartitionManager
from barnabas.leader.partition import Partition
from barnabas.leader.zk_alter_partition import ZkAlterPartitionManager
from barnabas.link.connection import LinkContext
from barnabas.link.connector import Connector
from barnabas.link.handshakes import Handshakes
from barnabas.link.limits import LinkLimits
from barnabas.link.login import LinkLogin
from barnabas.network.config import NetworkConfig
from barnabas.network.server import NetworkServer
from barnabas.replicas.replica_manager import ReplicaManager
from barnabas.server.authorization import Authorization
from barnabas.server.broker_channels import BrokerChannels, MarkersToBrokers, MetadataLeaders, VerificationToBrokers
from barnabas.server.cluster_identity import Identity
from barnabas.server.config import LifecycleSettings, TracesSettings
from barnabas.server.connections import BrokerLinks, ControlLinks
from barnabas.server.controller_channel import ControllerChannel
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.coordinator_components import ChannelAllocator, CoordinatorComponents
from barnabas.server.delegation_tokens import BrokerTokens, login_of_token
from barnabas.server.errors import BrokerStartError
from barnabas.server.features import FinalizedFeatureCache
from barnabas.server.handlers import HandlerParts, Handlers
from barnabas.server.listeners import link_limits, outgoing_settings
from barnabas.server.log_failures import LogFailures
from barnabas.server.logins import listener_logins, login_at_brokers, uses_bearer_tokens
from barnabas.server.registration import Registration
from barnabas.server.shared_services import SharedServices
from barnabas.server.storage import Storage
from barnabas.server.tls import BrokerTls, Sides
from barnabas.server.tls_exchange import TlsExchange
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.serving.transaction_verification import TransactionVerifier
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.link.tls_end import TlsEnd
    from barnabas.server.bearer_tokens import BearerTokens
    from barnabas.server.remote_components import RemoteComponents

Step = tuple[str, Callable[[], Awaitable[object]]]

_RESPONSE_BYTES_MAX: Final = 2**31 - 1
"""Responses are as large as this broker has asked for, and one batch more."""
_VERSION_OF_ALTER_PARTITION: Final = "2.7-IV2"
_VERSION_OF_MARKERS_1: Final = "2.8-IV0"
"""Of version 1 of WriteTxnMarkers."""


class BrokerComponents:
    """Made when the broker's id is known and its logs are loaded."""

    def __init__(
        self,
        shared: SharedServices,
        config: BrokerConfig,
        identity: Identity,
        session: CoordinationSession,
        storage: Storage,
        payload: Callable[[], BrokerRegistration],
        network: NetworkConfig,
        tls: Sides,
    ) -> None:
        """`payload` is what the broker registers with; `tls` what `read_tls` has made of `config`."""
        self.shared = shared
        self.config = config
        self.identity = identity
        self.session = session
        self.storage = storage
        host, logs = shared.host, shared.logs
        idle_ms_max = link_limits(config).idle_ms_max
        self._links = LinkContext.of(
            host.loop,
            shared.timers,
            LinkLimits(frame_bytes_max=_RESPONSE_BYTES_MAX, idle_ms_max=idle_ms_max),
            logs.logger("org.apache.kafka.clients.NetworkClient"),
            tick=shared.tick,
            pool=shared.pool,
        )
        self.metadata_cache = MetadataCache(identity.broker_id, logs.logger("state.change.logger"))
        self.metadata_cache.add_listener(self._metadata_changed)
        self.leadership_changes = LeadershipChanges(host.clock)
        self.metadata_cache.add_listener(self.leadership_changes.see)
        self.told_of_cluster: asyncio.Future[None] = host.loop.create_future()
        """Done when a controller has sent this broker its metadata."""
        self.registration = Registration(
            session, identity.broker_id, payload, host.loop, logs.logger("kafka.zk.KafkaZkClient")
        )
        self.features = FinalizedFeatureCache(
            host.loop, session, logs.logger("kafka.server.FinalizedFeatureChangeListener")
        )
        self.tls = self._make_tls(tls)
        self.controller_channel = self._channel("forwarding")
        self.alter_partition_channel = self._channel("alter-partition", learns_versions=True)
        self._broker_channels = self._channels_to_brokers()
        self.remote = self._remote()
        self.authorization = Authorization.of(shared, config, session)
        self.tokens = BrokerTokens.of(shared, config, session)
        self.bearer_tokens = self._make_bearer_tokens()
        self.replica_manager = self._replica_manager()
        self.controller = self._controller()
        self.acknowledgements = Acknowledgements(
            storage.log_manager.write_queue, self.replica_manager.produce_purgatory, host.loop.time
        )
        self.coordinators = self._coordinators()
        self.verifier = self._verifier()
        self.handlers = self._handlers()
        self.replica_manager.on_leadership_change = self._leadership_changed
        self.replica_manager.on_stop = self._replicas_stopped
        self.dispatcher = self._dispatcher()
        self.network = self._network(network)
        self.log_failures = LogFailures(identity.broker_id, session, host.loop, timers=shared.timers, logs=logs)
        self.replica_manager.on_directory_failed = self.log_failures.announce
        storage.on_directory_offline = self.replica_manager.log_directory_failed
        storage.on_unclean_election_enabled = self.controller.enable_topic_unclean_leader_election
        self._follow_sessions()
        self._follow_configs(storage.broker_configs)

    def _dispatcher(self) -> Dispatcher:
        shared, authentication = self.shared, self._authentication()
        if self.tls is not None:
            self.tls.logins = authentication.counts
        make: Callable[..., Dispatcher] = Dispatcher
        traces = shared.traces
        if traces is not None:
            per_second = take(TracesSettings, self.config.values).requests_per_second
            sampler = Sampler(shared.host.loop.time, per_second)
            make = partial(TracedDispatcher, RequestTraces(traces, sampler, shared.host.clock))
        return make(
            shared.host,
            self.handlers.registry,
            shared.logs.logger("kafka.server.KafkaApis"),
            shared.metrics,
            steps=shared.steps,
            authorizer=None if self.authorization is None else self.authorization.authorizer,
            authentication=authentication,
            throttles=self.storage.client_throttles,
        )

    def _network(self, network: NetworkConfig) -> NetworkServer:
        shared = self.shared
        return NetworkServer(
            shared.host,
            shared.timers,
            network,
            self.dispatcher,
            shared.logs.logger("kafka.network.SocketServer"),
            shared.metrics,
            tick=shared.tick,
            pool=shared.pool,
            rates=self.storage.connection_rates,
        )

    def broker_epoch(self) -> int:
        """The epoch of the present registration; -1 before the first."""
        return self.registration.broker_epoch

    async def authorize(self) -> None:
        """Reads who may do what, and the delegation tokens, and follows both from then on, and fetches the keys that
        sign other tokens; to be called before any request can come.
        """
        if self.authorization is not None:
            await self.session.until_connected(self.authorization.changes.start)
        if self.tokens is not None:
            await self.session.until_connected(self.tokens.changes.start)
        if self.bearer_tokens is not None:
            await self.bearer_tokens.start()

    async def start(self) -> None:
        """Starts what the controller's first request needs."""
        await self.coordinators.start()
        self.replica_manager.start()
        # Those of logs that were deleted before a crash go, before others are made under their names.
        await self.replica_manager.checkpoint_high_watermarks()

    async def register(self) -> None:
        """Registers the broker, and has the controller stand for election; raises the errors of the registration."""
        await self.registration.register()
        # Nothing is awaited from here on: a session that ends now ends after everybody listens.
        self.coordinators.broker_registered()
        self.features.start()
        self.session.add_session_listener(self.features)
        self.session.add_session_listener(self.controller)
        if self.tokens is not None:
            self.tokens.start_checks(lambda: self.controller.is_active)
        self.controller.start(self.session)
        if self.remote is not None:
            self.remote.manager.start()

    def _authentication(self) -> Authentication:
        shared = self.shared
        return Authentication(
            shared.host.loop,
            shared.timers,
            listener_logins(
                self.config,
                self.storage.scram_credentials.find,
                shared.host.entropy,
                partial(login_of_token, self.tokens),
                None if self.bearer_tokens is None else self.bearer_tokens.exchanges,
            ),
            time_ms=shared.host.clock.time_ms,
            elapsed=shared.host.clock.stopwatch,
            failure_delay_ms=self.config.values["connection.failed.authentication.delay.ms"],
            logger=shared.logs.logger("org.apache.kafka.common.network.Selector"),
            metrics=shared.metrics,
        )

    def _follow_sessions(self) -> None:
        """Makes those follow the ends of sessions who have not set their first watch yet: it goes with any session that
        ends, also while the broker starts.
        """
        for follower in (self.authorization, self.tokens):
            if follower is not None:
                self.session.add_session_listener(follower.changes)

    def _make_tls(self, sides: Sides) -> BrokerTls | None:
        shared = self.shared
        if not sides:
            return None
        handshakes = Handshakes(shared.host.loop, shared.timers, shared.host.offload)
        logger = shared.logs.logger("org.apache.kafka.common.security.ssl.SslFactory")
        tls = BrokerTls(self.config, sides, shared.host.files, handshakes, shared.metrics, logger)
        exchange, configs = TlsExchange(tls, shared), self.storage.broker_configs
        configs.follow_whole(exchange)
        exchange.follow_files(configs.config)
        if configs.config is not self.config:  # they have changed while keys and certificates were read
            exchange.take(configs.config)
        return tls

    @property
    def tls_of_listeners(self) -> Mapping[str, TlsEnd]:
        """How listeners are secured, by name; those that are plain are not among them."""
        return {} if self.tls is None else self.tls.listeners

    def _follow_configs(self, configs: BrokerConfigs) -> None:
        """Makes the components follow dynamic configs."""
        bound = self.config.listeners.bound
        configs.follow(
            ["unclean.leader.election.enable"],
            lambda values: self.controller.reconfigure(
                unclean_leader_election_enable=values["unclean.leader.election.enable"]
            ),
        )
        configs.follow(
            ["num.replica.fetchers"],
            lambda values: self.replica_manager.resize_fetchers(values["num.replica.fetchers"]),
        )
        if self.remote is not None:
            self.remote.follow_configs(configs)
        configs.follow_throttle("replica.alter.log.dirs.io.max.bytes.per.second", self.replica_manager.limit_log_moves)
        configs.follow(
            ["max.connections", "max.connections.per.ip"],
            lambda values: self.network.limit_connections(
                values["max.connections"],
                values["max.connections.per.ip"],
                {
                    each.listener_name: configs.config.of_listener(each.listener_name, "max.connections")
                    for each in bound
                },
            ),
        )

    def stopping(self, drain_ms: float) -> list[Step]:
        """The components to stop before the logs, in order."""
        remote: list[Step] = [] if self.remote is None else [("remote storage", self.remote.manager.stop)]
        return [
            *remote,
            ("the dynamic configs", self.storage.dynamic_configs.stop),
            *([] if self.authorization is None else [("the ACLs", self.authorization.changes.stop)]),
            *([] if self.tokens is None else [("the delegation tokens", self.tokens.stop)]),
            *([] if self.bearer_tokens is None else [("the keys of tokens", self.bearer_tokens.stop)]),
            ("the creation of topics", self.handlers.auto_topic_creation.stop),
            ("the coordinators", self.coordinators.stop),
            ("the verification of transactions", self.verifier.stop),
            ("the network", lambda: self.network.close(drain_ms)),
            ("the requests", self.dispatcher.close),
            ("the replica manager", self.replica_manager.stop),
            ("the channels to other brokers", self._close_channels),
            ("the features", self.features.stop),
            ("the reports of failed directories", self.log_failures.stop),
        ]

    @property
    def is_known_to_controller(self) -> bool:
        """Whether a controller is known, and has told this broker of itself."""
        image = self.metadata_cache.image
        return image.controller_id is not None and image.is_alive(self.identity.broker_id)

    async def known_to_controller(self) -> None:
        """Waits until a controller is known, and has told this broker of itself."""
        if self.is_known_to_controller:
            return
        known: asyncio.Future[None] = self.shared.host.loop.create_future()

        def look(_change: MetadataChange) -> None:
            if self.is_known_to_controller and not known.done():
                known.set_result(None)

        self.metadata_cache.add_listener(look)
        await known

    def others_alive(self) -> bool:
        """Whether any other live broker is known."""
        return any(broker_id != self.identity.broker_id for broker_id in self.metadata_cache.image.brokers)

    def _leadership_changed(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        followers = {follower.broker_id for partition in became_leader for follower in partition.followers}
        self.handlers.fetch_sessions.call_followers(followers)
        self.coordinators.leadership_changed(became_leader, became_follower)
        if self.remote is not None:
            self.remote.leadership_changed(became_leader, became_follower)

    def _replicas_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        self.coordinators.replicas_stopped(stopped)
        if self.remote is not None:
            self.remote.replicas_stopped(stopped)

    def _remote(self) -> RemoteComponents | None:
        if not self.config.values["remote.log.storage.system.enable"]:
            return None
        # With our own client behind it, which no other broker needs.
        from barnabas.server.remote_components import RemoteComponents

        return RemoteComponents(
            self.shared,
            self.config,
            self.identity.broker_id,
            self.metadata_cache,
            lambda: self.replica_manager.partitions.values(),  # noqa: PLW0108 - it is made after this
            self._tls_at(self.config.listeners.inter_broker),
        )

    def _channel(self, name: str, *, learns_versions: bool = False) -> ControllerChannel:
        settings = take(LifecycleSettings, self.config.values)
        return ControllerChannel(
            name,
            self._connector(self.config.listeners.for_controller),
            metadata=self.metadata_cache,
            listener_name=self.config.listeners.for_controller,
            request_timeout_ms=settings.request_timeout_ms,
            logger=self.shared.logs.logger("kafka.server.NodeToControllerChannelManager"),
            learns_versions=learns_versions,
        )

    def _connector(self, listener_name: str) -> Connector:
        """How others' listeners of that name are reached, from which this broker logs in as itself."""
        return Connector(
            self._links,
            self.shared.host.random,
            str(self.identity.broker_id),
            outgoing_settings(self.config),
            self._login_at(listener_name),
            self._tls_at(listener_name),
        )

    def _make_bearer_tokens(self) -> BearerTokens | None:
        if not uses_bearer_tokens(self.config):
            return None
        from barnabas.server.bearer_tokens import BearerTokens  # with HTTP behind it

        return BearerTokens(self.shared)

    def _login_at(self, listener_name: str) -> LinkLogin | None:
        """Who this broker is at others' listeners of that name."""
        login = login_at_brokers(self.config, listener_name)
        return None if login is None else LinkLogin.of(login, self.shared.host, self.shared.timers)

    def _tls_at(self, listener_name: str) -> TlsEnd | None:
        """How connections to others' listeners of that name are secured."""
        return None if self.tls is None else self.tls.to_brokers.get(listener_name)

    def _channels_to_brokers(self) -> BrokerChannels:
        return BrokerChannels(
            self._connector(self.config.listeners.inter_broker),
            metadata=self.metadata_cache,
            listener_name=self.config.listeners.inter_broker,
            request_timeout_ms=self.config.values["request.timeout.ms"],
        )

    def _coordinators(self) -> CoordinatorComponents:
        broker_id, reader = self.identity.broker_id, self.storage.log_manager.reader
        return CoordinatorComponents(
            self.shared,
            self.config,
            broker_id,
            self.session,
            ReplicatedInternalLog(self.replica_manager, self.acknowledgements, reader),
            ChannelAllocator(broker_id, self.broker_epoch, self.controller_channel),
            MetadataLeaders(self.metadata_cache),
            MarkersToBrokers(self._broker_channels, 1 if self._speaks(_VERSION_OF_MARKERS_1) else 0),
            self.metadata_cache,
            self._broker_channels,
        )

    def _verifier(self) -> TransactionVerifier:
        configs = self.storage.broker_configs
        leaders = MetadataLeaders(self.metadata_cache)
        return TransactionVerifier(
            VerificationToBrokers(self._broker_channels, leaders, self.coordinators.transactions),
            lambda: bool(configs.values["transaction.partition.verification.enable"]),
            self.shared.host.loop,
            self.shared.steps,
            self.shared.metrics,
            self.shared.logs.logger("kafka.server.AddPartitionsToTxnManager"),
        )

    def _speaks(self, version: str) -> bool:
        """Whether brokers speak to each other as that version does, or newer ones."""
        return is_at_least(str(self.config.values["inter.broker.protocol.version"]), version)

    def _replica_manager(self) -> ReplicaManager:
        shared = self.shared
        return ReplicaManager(
            self.identity.broker_id,
            shared.host,
            timers=shared.timers,
            scheduler=shared.scheduler,
            tick=shared.tick,
            metrics=shared.metrics,
            logs=shared.logs,
            settings=take(ReplicaSettings, self.config.values),
            log_manager=self.storage.log_manager,
            log_config=self.storage.log_configs.log_config,
            metadata_cache=self.metadata_cache,
            inter_broker_listener_name=self.config.listeners.inter_broker,
            isr_changes=self._isr_changes(),
            connections=BrokerLinks(self._connector(self.config.listeners.inter_broker)),
            broker_epoch=self.broker_epoch,
            protocol=self._fetch_protocol(),
            follower_quota=self.storage.throttles.follower,
            remote=None if self.remote is None else self.remote.reads,
        )

    def _fetch_protocol(self) -> FetchProtocol:
        try:
            return fetch_protocol(str(self.config.values["inter.broker.protocol.version"]))
        except ValueError as error:
            raise BrokerStartError(f"{error}: raise it at every broker of the cluster first") from None

    def _isr_changes(self) -> AlterPartitionManager:
        """Leaders ask the controller for changes of ISRs, or below 2.7 write them themselves."""
        shared, broker_id = self.shared, self.identity.broker_id
        if self._speaks(_VERSION_OF_ALTER_PARTITION):
            return DefaultAlterPartitionManager(
                broker_id,
                self.alter_partition_channel,
                loop=shared.host.loop,
                timers=shared.timers,
                broker_epoch=self.broker_epoch,
                logger=shared.logs.logger("kafka.server.DefaultAlterPartitionManager"),
            )
        return ZkAlterPartitionManager(
            broker_id,
            self.session,
            loop=shared.host.loop,
            timers=shared.timers,
            logger=shared.logs.logger("kafka.server.ZkAlterPartitionManager"),
        )

    def _handlers(self) -> Handlers:
        return Handlers(
            HandlerParts(
                shared=self.shared,
                config=self.config,
                identity=self.identity,
                session=self.session,
                storage=self.storage,
                metadata_cache=self.metadata_cache,
                leadership_changes=self.leadership_changes,
                told_of_cluster=self.told_of_cluster,
                registration=self.registration,
                features=self.features,
                controller_channel=self.controller_channel,
                replica_manager=self.replica_manager,
                acknowledgements=self.acknowledgements,
                controller=self.controller,
                coordinators=self.coordinators,
                verifier=self.verifier,
                remote=None if self.remote is None else self.remote.reads,
                authorization=self.authorization,
                tokens=self.tokens,
            )
        )

    def _controller(self) -> Controller:
        values, listeners = self.config.values, self.config.listeners
        shared = self.shared
        links = ControlLinks(self._connector(listeners.for_controller), shared.steps)
        settings = ControllerSettings(
            broker_id=self.identity.broker_id,
            inter_broker_listener_name=listeners.inter_broker,
            unclean_leader_election_enable=values["unclean.leader.election.enable"],
            # By then a broker that died with the former controller has lost its session, and may register again.
            unclean_election_delay_ms=values["zookeeper.session.timeout.ms"],
            leader_recovery_supported=is_at_least(str(values["inter.broker.protocol.version"]), "3.2-IV0"),
            control_plane_listener_name=listeners.control_plane,
            delete_topic_enable=values["delete.topic.enable"],
            request_timeout_ms=values["controller.socket.timeout.ms"],
            zookeeper_connection_timeout_ms=zookeeper_connection_timeout_ms(values),
            auto_leader_rebalance_enable=values["auto.leader.rebalance.enable"],
            leader_imbalance_check_interval_ms=values["leader.imbalance.check.interval.seconds"] * 1000,
            leader_imbalance_per_broker_percentage=values["leader.imbalance.per.broker.percentage"],
            protocol=controller_protocol(str(values["inter.broker.protocol.version"])),
        )
        return Controller(
            shared.host,
            settings,
            ControllerPorts(
                self.registration,
                links,
                self.features,
                ToldLeadership(self.metadata_cache),
                lambda: self.replica_manager.controller_epoch,
                self._elected,
            ),
            timers=shared.timers,
            logs=shared.logs,
            metrics=shared.metrics,
            traces=shared.traces,
        )

    def _elected(self) -> None:
        if self.tokens is not None:
            self.tokens.elected()

    async def _close_channels(self) -> None:
        self.controller_channel.close()
        self.alter_partition_channel.close()
        self._broker_channels.close()

    def _metadata_changed(self, change: MetadataChange) -> None:
        if not self.told_of_cluster.done():
            self.told_of_cluster.set_result(None)
        self.coordinators.metadata_changed(change)
        gone = {partition.topic for partition in (*change.deleted, *change.forgotten)} - change.image.topics.keys()
        if gone:
            self.storage.log_configs.forget(sorted(gone))
            self.storage.throttles.forget(gone)
            self.handlers.topic_metrics.remove(sorted(gone))
