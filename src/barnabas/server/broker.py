"""A broker: started and stopped in the order of Apache Kafka's, in ZooKeeper mode.

    broker = Broker(config, host, logs)
    await broker.start()
    await broker.ready()
    ...
    await broker.stop()

Start: log directories locked; metrics and health shown; session with ZooKeeper; the cluster's id; the directories'
`meta.properties`; the broker's own id; dynamic configs; logs loaded; every room made and bound to the others; listeners
bound, so that real ports are known; registration; the controller stands for election; and only then data requests are
handled. Stop: the controller moves this broker's leaders away, then everything goes down in the reverse direction, the
logs after whatever appends to them, the session and the metrics last. Source: KafkaServer of Apache Kafka 3.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from barnabas.config.broker_config import BrokerConfig
from barnabas.config.settings import take
from barnabas.coordination.errors import CoordinationError, SessionExpiredError
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.logs import Logs
from barnabas.kernel.long_turns import LongTurns
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.system_errors import reason
from barnabas.kernel.tracing import Traces
from barnabas.log.directories.directory_files import LogDirectoryLockedError
from barnabas.log.manager.log_manager import NoLogDirectoryError
from barnabas.log.manager.start_up import DuplicateLogError
from barnabas.server.cluster_identity import Identity, generate_broker_id, join_cluster
from barnabas.server.components import BrokerComponents
from barnabas.server.config import LifecycleSettings, MetricsSettings
from barnabas.server.coordination_session import CoordinationSession, measure_session
from barnabas.server.empty_directories import replicas_of, what_is_missing
from barnabas.server.errors import BrokerStartError
from barnabas.server.lifecycle import BROKER, BrokerEvent, BrokerState, ControlledShutdown
from barnabas.server.listeners import advertised_endpoints, broker_registration, listener_configs, network_config
from barnabas.server.log_directories import LogDirectories, read_log_directories, write_log_directories
from barnabas.server.logins import check_logins, load_libraries, uses_bearer_tokens
from barnabas.server.metrics_access import metrics_access
from barnabas.server.metrics_endpoint import MetricsEndpoint
from barnabas.server.remote_storage import load_remote_storage
from barnabas.server.shared_services import SharedServices
from barnabas.server.storage import Storage
from barnabas.server.tls import Sides, read_tls, uses_tls
from barnabas.server.zookeeper_access import coordination_settings, secured_settings
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.sentinels import NO_EPOCH

Answer = TypeVar("Answer")

DRAIN_MS: Final = 500.0
"""How long requests in flight may take when the broker stops."""
STEP_SECONDS_MAX: Final = 30.0
"""How long one step of the stop may take; the next one follows in any case."""


class Broker:
    """One broker on one host; made, started and stopped once."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        logs: Logs,
        *,
        on_alarm: Callable[[str], object] = lambda _text: None,
        process: Callable[[], bytes] | None = None,
        traces: Traces | None = None,
    ) -> None:
        """`on_alarm` is called with what a person must read before the broker serves; the log has it too. `process`
        gives more samples to a scrape: those of the process. Without `traces` nothing is traced.
        """
        self.config = config
        self.host = host
        self.state = BrokerState.NOT_RUNNING
        self.failure: asyncio.Future[str] = host.loop.create_future()
        """Done with the reason when the broker cannot go on: its owner stops it then."""
        self.endpoints: tuple[BrokerEndpoint, ...] = ()
        """The endpoints that it advertises, with real ports."""
        self.metrics_port: int | None = None
        self.alarms: list[str] = []
        """The texts that `on_alarm` was called with."""
        self._on_alarm = on_alarm
        self._shared = SharedServices.on(host, logs, traces)
        self.long_turns = LongTurns(host.loop.time, logs.logger("barnabas.loop"), self.metrics)
        """Counts turns that held the loop too long; fed by the runner of the broker on a real loop."""
        self._logger = logs.logger("kafka.server.KafkaServer")
        self._session = CoordinationSession(
            host, coordination_settings(config), logs.logger("kafka.zookeeper.ZooKeeperClient")
        )
        measure_session(self._session, self.metrics)
        self._settings = take(LifecycleSettings, config.values)
        self._storage: Storage | None = None
        self._components: BrokerComponents | None = None
        self._endpoint = MetricsEndpoint(
            host,
            self.metrics,
            self._shared.steps,
            logs.logger("barnabas.metrics"),
            process,
            not_ready=lambda: self.not_ready,
        )
        self._stopping: asyncio.Task[None] | None = None
        self.metrics.gauge(MetricName("kafka.server", "KafkaServer", "BrokerState"), lambda: self.state)

    @property
    def metrics(self) -> MetricsRegistry:
        return self._shared.metrics

    @property
    def broker_id(self) -> int:
        return self.components.identity.broker_id

    @property
    def cluster_id(self) -> str:
        return self.components.identity.cluster_id

    @property
    def components(self) -> BrokerComponents:
        """The broker's components. Raises RuntimeError before they exist."""
        if self._components is None:
            raise RuntimeError("the broker has not started yet")
        return self._components

    @property
    def start_progress(self) -> tuple[int, str]:
        """A number that grows as the start progresses, and the present long step in words, or empty."""
        if self.state is not BrokerState.RECOVERY or self._storage is None:
            return int(self.state), ""
        load = self._storage.log_manager.start_up
        return int(self.state) + load.work_done, f"{load.logs_loaded} of {load.logs_found} logs are loaded"

    @property
    def not_ready(self) -> str:
        """What is missing until clients can be served, in words; empty when nothing is. A broker that lost ZooKeeper
        serves what it has, and is ready.
        """
        if self.state is BrokerState.RUNNING:
            return "" if self.components.is_known_to_controller else "no controller has taken this broker in yet"
        name = self.state.name.lower().replace("_", " ")
        return f"{name}, {self.start_progress[1]}" if self.start_progress[1] else name

    async def start(self) -> None:
        """Returns when the broker serves.

        Raises BrokerStartError; `stop` takes down what was started, also after a cancellation.
        """
        self._advance(BrokerEvent.STARTED)
        self._logger.info("Starting")
        for notice in self.config.notices:
            self._logger.warning("%s", notice.text)
        try:
            await self._start()
        except (LogDirectoryLockedError, NoLogDirectoryError, DuplicateLogError) as error:
            raise BrokerStartError(str(error)) from error
        except CoordinationError as error:
            raise BrokerStartError(f"ZooKeeper refuses what this broker needs: {error}") from error

    async def ready(self) -> None:
        """Returns when a controller is known and has taken this broker in: a client can produce, a group can form."""
        await self.components.known_to_controller()
        self._logger.info("Ready as broker %d", self.broker_id)

    async def stop(self) -> None:
        """Stops in order, from whatever state. Bounded; never raises, but logs. Later calls wait for the first."""
        if self._stopping is None:
            self._stopping = self.host.loop.create_task(self._stop(), name="shutdown")
        await asyncio.shield(self._stopping)

    # Start.

    async def _start(self) -> None:
        if uses_bearer_tokens(self.config):
            await load_libraries(self.host)
        has_all_in_its_file = self.config.values["password.encoder.secret"] is None
        if has_all_in_its_file:  # else ZooKeeper may have the keys and logins of its listeners
            check_logins(self.config, self.host.files)
            await self._read_tls()
        settings = secured_settings(self.config, self.host.files)
        self._session.secure(settings, makes_secure=self.config.values["zookeeper.set.acl"])
        self._storage = storage = Storage(self._shared, self.config, self._fail)
        storage.log_manager.open_directories()
        await self._show_metrics()
        paths = tuple(directory.path for directory in storage.log_manager.live_directories)
        directories, _ = await asyncio.gather(read_log_directories(self.host, paths), self._session.connect())
        identity = await self._identify(directories)
        if directories.are_empty and not storage.log_manager.offline_directories:
            await self._again(lambda: self._say_what_is_missing(identity.broker_id, paths))
        storage.follow_configs(self._session, identity.broker_id)
        # Before its first watch: it goes with any session that ends, also while the broker starts.
        self._session.add_session_listener(storage.dynamic_configs)
        directories, _ = await asyncio.gather(
            write_log_directories(self.host, directories, identity.broker_id, identity.cluster_id),
            self._again(lambda: self._session.until_connected(storage.dynamic_configs.start)),
        )
        storage.mark_directories(directories)
        self._advance(BrokerEvent.LOGS_LOADING)
        await storage.load()
        # With what is set dynamically, as everything that is made from here on.
        self.config = config = storage.broker_configs.for_rooms()
        network = await network_config(config, self.host)
        await load_remote_storage(config, self.host)
        if not has_all_in_its_file:
            check_logins(config, self.host.files)
        tls = await self._read_tls()
        self._components = components = BrokerComponents(
            self._shared, config, identity, self._session, storage, self._payload, network, tls
        )
        # Before a client can connect, who would have to wait too.
        await self._again(components.registration.vacant)
        await self._again(components.authorize)
        await self._listen(components)
        await self._again(components.start)
        await self._again(components.register)
        self._advance(BrokerEvent.SERVING)
        self._shared.tick.go_on()
        self._logger.info("Broker %d of cluster %s started", identity.broker_id, identity.cluster_id)

    async def _read_tls(self) -> Sides:
        """Raises BrokerStartError."""
        if not uses_tls(self.config):
            return {}
        return await self.host.offload(OffloadKind.CPU, read_tls, self.config, self.host.files)

    async def _identify(self, directories: LogDirectories) -> Identity:
        cluster_id = await self._again(lambda: join_cluster(self._session, self.host.entropy))
        self._logger.info("Cluster ID = %s", cluster_id)
        directories.check(cluster_id, self.config.broker_id)
        stored = directories.stored_broker_id()
        if self.config.broker_id >= 0:
            return Identity(self.config.broker_id, cluster_id)
        if stored is not None:
            return Identity(stored, cluster_id)
        reserved = self._settings.reserved_broker_id_max
        generated = await self._again(lambda: generate_broker_id(self._session, reserved))
        self._logger.info("Generated the broker id %d", generated)
        return Identity(generated, cluster_id)

    async def _say_what_is_missing(self, broker_id: int, paths: tuple[str, ...]) -> None:
        replicas = await self._session.until_connected(lambda: replicas_of(self._session, broker_id))
        if replicas:
            text = what_is_missing(paths, broker_id, replicas)
            self._logger.error("%s", text)
            self.alarms.append(text)
            self._on_alarm(text)

    async def _listen(self, components: BrokerComponents) -> None:
        """Binds the listeners. Requests are handled when everything else is ready; those of the controller at once."""
        self._shared.tick.hold()
        try:
            ports = await components.network.listen(listener_configs(self.config, components.tls_of_listeners))
        except OSError as error:
            raise BrokerStartError(
                f"{error.strerror}. Choose another address or port in listeners (barnabas up: --host and --port)"
            ) from error
        self.endpoints = advertised_endpoints(self.config, ports, self.host.name)

    async def _show_metrics(self) -> None:
        """Early, so that whoever looks sees how the start goes."""
        metrics = take(MetricsSettings, self.config.values)
        if metrics.port >= 0:
            access = metrics_access(metrics, self._shared)
            try:
                self.metrics_port = await self._endpoint.start(metrics.host, metrics.port, access)
            except OSError as error:
                place = f"{metrics.host}:{metrics.port}"
                raise BrokerStartError(
                    f"the metrics endpoint cannot be bound to {place}: {reason(error)}. Choose another --metrics-port"
                ) from error

    def _payload(self) -> BrokerRegistration:
        return broker_registration(self.config, self.endpoints, self.host.clock.time_ms())

    async def _again(self, step: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeats a step of the start whenever the session was over before it was done."""
        while True:
            try:
                return await step()
            except SessionExpiredError:
                self._logger.warning("The session expired during the start; going on with the next one")
                await self._session.connected()

    # Stop.

    async def _stop(self) -> None:
        components = self._components
        if self.state is BrokerState.RUNNING and components is not None:
            self._advance(BrokerEvent.ASKED_TO_STOP)
            components.replica_manager.begin_controlled_shutdown()
            await self._step("the controlled shutdown", lambda: self._move_leaders_away(components))
            self._advance(BrokerEvent.LEADERS_MOVED)
        elif self.state in {BrokerState.STARTING, BrokerState.RECOVERY}:
            self._advance(BrokerEvent.ABANDONED)
        else:
            return
        # A broker that goes down must not register again, nor be elected, should its session end meanwhile.
        await self._session.make_no_more()
        if components is not None:
            for name, step in components.stopping(DRAIN_MS):
                await self._step(name, step)
        scheduler = self._shared.scheduler
        await self._step("the scheduler", lambda: scheduler.stop(STEP_SECONDS_MAX * 1000 / 2))
        if self._storage is not None:
            storage, epoch = self._storage, NO_EPOCH if components is None else components.registration.broker_epoch
            await self._step("the logs", lambda: storage.close(epoch))
        if components is not None:
            await self._step("the controller", components.controller.stop)
        await self._step("the session", self._session.close)
        await self._step("the metrics", self._endpoint.stop)
        self._shared.timers.close()
        self._advance(BrokerEvent.STOPPED)
        self._logger.info("Stopped")

    async def _move_leaders_away(self, components: BrokerComponents) -> None:
        """Controlled shutdown. Does not wait for the controller when ZooKeeper is out of reach, since it cannot move
        anything then.
        """
        loop = self.host.loop
        moving = loop.create_task(self._controlled_shutdown(components).run(), name="controlled-shutdown")
        cut_off = loop.create_task(self._session.out_of_reach(), name="controlled-shutdown-cut-off")
        try:
            await asyncio.wait([moving, cut_off], return_when=asyncio.FIRST_COMPLETED)
            if moving.done():
                moving.result()
            else:
                self._logger.warning(
                    "ZooKeeper is out of reach: shutting down although this broker may lead partitions"
                )
        finally:
            moving.cancel()
            cut_off.cancel()
            await asyncio.gather(moving, cut_off, return_exceptions=True)

    def _controlled_shutdown(self, components: BrokerComponents) -> ControlledShutdown:
        return ControlledShutdown(
            components.identity.broker_id,
            lambda: components.registration.broker_epoch,
            str(self.config.values["inter.broker.protocol.version"]),
            self._settings,
            components.controller_channel,
            components.others_alive,
            self._shared.timers,
            self._logger,
        )

    async def _step(self, name: str, step: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(STEP_SECONDS_MAX * 4 if name == "the controlled shutdown" else STEP_SECONDS_MAX):
                await step()
        except TimeoutError:
            self._logger.error("Stopping %s took too long; going on without", name)  # noqa: TRY400 - no trace helps
        except Exception:
            self._logger.exception("Stopping %s failed", name)

    def _advance(self, event: BrokerEvent) -> None:
        self.state = BROKER.advance("this broker", self.state, event)

    def _fail(self, reason: str) -> None:
        self._logger.critical("%s", reason)
        if not self.failure.done():
            self.failure.set_result(reason)
