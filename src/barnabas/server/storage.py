"""The log directories of a broker, and the configs that their logs follow."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from barnabas.api.client_throttles import ClientThrottles
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.config.broker_config import BrokerConfig
from barnabas.config.derived import Values
from barnabas.config.settings import take, taken_keys
from barnabas.coordination.ports import Store
from barnabas.kernel.system_errors import reason
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.manager.log_manager import LogManager
from barnabas.log.partition.log_config import LogSettings
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings, ControllerQuotaSettings
from barnabas.security.password_encoder import PasswordEncoderSettings
from barnabas.security.scram_credentials import ScramCredentials
from barnabas.security.stored_passwords import StoredPasswords
from barnabas.server.client_quota_metrics import client_quota_metrics
from barnabas.server.config import OWN_KEYS
from barnabas.server.credential_configs import CredentialConfigs
from barnabas.server.dynamic_configs import DynamicConfigs
from barnabas.server.errors import BrokerStartError
from barnabas.server.ip_configs import IpConfigs
from barnabas.server.listeners import address_of
from barnabas.server.log_directories import LogDirectories
from barnabas.server.logins import uses_scram
from barnabas.server.quota_configs import QuotaConfigs
from barnabas.server.replication_throttles import ReplicationThrottles
from barnabas.server.shared_services import SharedServices
from barnabas.server.topic_log_configs import TopicLogConfigs

_TOPICS_SHOWN: Final = 5


class TopicConfigLoader:
    """Reads configs of topics that are new to the broker. It is `api.control_requests.TopicConfigLoader`."""

    def __init__(self, topic_configs: TopicConfigs, dynamic_configs: DynamicConfigs) -> None:
        self._topic_configs = topic_configs
        self._dynamic_configs = dynamic_configs

    def unknown(self, topics: Iterable[str]) -> list[str]:
        """The topics whose configs are not in memory."""
        return [topic for topic in topics if not self._topic_configs.knows(topic)]

    async def prefetch(self, topics: Iterable[str]) -> None:
        """Reads the configs of these topics; does not raise."""
        await self._dynamic_configs.prefetch(topics)


class Storage:
    """The log manager, and the dynamic configs below it: what must be there before any partition is.

    Use, in this order: `log_manager.open_directories()`, `follow_configs`, `await dynamic_configs.start()`,
    `mark_directories`, `await load()`, ..., `await close()`.
    """

    def __init__(self, shared: SharedServices, config: BrokerConfig, on_failure: Callable[[str], object]) -> None:
        """`on_failure` is told why, when no log directory is left."""
        self._shared = shared
        self._config = config
        self._on_failure = on_failure
        self._logger = shared.logs.logger("kafka.server.LogDirFailureChannel")
        self._is_loaded = False
        self.on_directory_offline: Callable[[LogDirectory], object] = lambda _directory: None
        """Called with each directory that fails from now on."""
        self.on_unclean_election_enabled: Callable[[str], None] = lambda _topic: None
        """Called with each topic whose config begins to allow unclean elections."""
        self.log_manager = LogManager(
            shared.host,
            take(LogSettings, config.values),
            # As written where they are absolute; the simulator's host has no directory to be relative to.
            directories=[os.path.abspath(path) for path in dict.fromkeys(config.log_dirs)],
            timers=shared.timers,
            scheduler=shared.scheduler,
            tick=shared.tick,
            metrics=shared.metrics,
            logs=shared.logs,
            on_directory_offline=self._directory_offline,
        )

    def follow_configs(self, store: Store, broker_id: int) -> None:
        """Makes what holds the configs, now that it is known whose they are."""
        shared = self._shared
        self.broker_configs = BrokerConfigs(
            self._config,
            broker_id=broker_id,
            own_keys=OWN_KEYS,
            logger=shared.logs.logger("kafka.server.DynamicBrokerConfig"),
        )
        self.broker_configs.follow(
            [key.name for key in taken_keys(LogSettings)],
            lambda values: self.log_manager.take_settings(take(LogSettings, values)),
        )
        self.passwords = StoredPasswords(
            shared.host,
            PasswordEncoderSettings.of(self._config.values),
            shared.logs.logger("kafka.server.DynamicBrokerConfig"),
        )
        logger = shared.logs.logger("kafka.server.ZkConfigManager")
        self.topic_configs = TopicConfigs(self.broker_configs, logger, tells_in_pieces=True)
        self.log_configs = TopicLogConfigs(self.topic_configs, self.log_manager)
        self.throttles = ReplicationThrottles(
            self.broker_configs, self.topic_configs, shared.metrics, shared.host.loop.time
        )
        now = shared.host.loop.time
        values = self.broker_configs.values
        self.client_throttles = ClientThrottles(
            take(ClientQuotaSettings, values), take(ControllerQuotaSettings, values), now, shared.host.clock.stopwatch
        )
        self.connection_rates = ConnectionRates(take(ClientQuotaSettings, values))
        self._follow_connection_rates()
        shared.metrics.add_source(partial(client_quota_metrics, self.client_throttles))
        self.scram_credentials = ScramCredentials(shared.logs.logger("kafka.security.CredentialProvider"))
        self.dynamic_configs = DynamicConfigs(
            shared.host,
            store,
            self.broker_configs,
            self.topic_configs,
            timers=shared.timers,
            logger=logger,
            on_unclean_election_enabled=self._unclean_election_enabled,
            passwords=self.passwords,
            ip_configs=IpConfigs(store, self.connection_rates, partial(address_of, shared.host.loop), logger),
            quota_configs=QuotaConfigs(store, self.client_throttles.by_config, logger),
            credential_configs=self._credential_configs(store, logger),
        )

        self.topic_config_loader = TopicConfigLoader(self.topic_configs, self.dynamic_configs)

    def _follow_connection_rates(self) -> None:
        """Has the bounds of the broker and of each listener follow the configs."""
        configs, rates, key = self.broker_configs, self.connection_rates, "max.connection.creation.rate"

        def take_bounds(values: Values) -> None:
            rates.limit_broker(values[key])
            for endpoint in configs.config.listeners.bound:
                name = endpoint.listener_name
                rates.limit_listener(name, configs.config.of_listener(name, "max.connection.creation.rate"))

        configs.follow([key], take_bounds)

    def _credential_configs(self, store: Store, logger: logging.Logger) -> CredentialConfigs | None:
        return CredentialConfigs(store, self.scram_credentials, logger) if uses_scram(self._config) else None

    def mark_directories(self, directories: LogDirectories) -> None:
        """Takes over what `meta.properties` says of each directory, and which ones could not be read or written."""
        for directory in self.log_manager.live_directories:
            error = directories.failed.get(directory.path)
            if error is not None:
                self.log_manager.fail_directory(directory, error)
                continue
            properties = directories.usable.get(directory.path)
            directory.uuid = None if properties is None else properties.directory_id

    async def load(self) -> None:
        """Loads every log with its topic's configs, and starts the tasks on them. Raises BrokerStartError."""
        if not self.log_manager.settings.remote_storage_system_enable:
            self._check_that_none_is_tiered()
        self.log_manager.default_config = self.log_configs.default()
        await self.log_manager.load(self.log_configs.log_config)
        self._is_loaded = True
        self.log_manager.start()

    def _check_that_none_is_tiered(self) -> None:
        """Without remote storage a log would start where its local part does, and the rest would be given up."""
        tiered = self.topic_configs.topics_with("remote.storage.enable", "true")
        if tiered:
            shown = ", ".join(sorted(tiered)[:_TOPICS_SHOWN])
            raise BrokerStartError(
                f"{len(tiered)} topics have remote.storage.enable=true ({shown}): set"
                " remote.log.storage.system.enable=true, or delete them before tiered storage is switched off"
            )

    async def close(self, broker_epoch: int) -> None:
        """Leaves the directories, as after a clean stop where they were loaded."""
        if self._is_loaded:
            await self.log_manager.close(broker_epoch)
        else:
            self.log_manager.abandon()

    def _unclean_election_enabled(self, topic: str) -> None:
        self.on_unclean_election_enabled(topic)

    def _directory_offline(self, directory: LogDirectory) -> None:
        self.on_directory_offline(directory)
        if not self.log_manager.live_directories:
            self._on_failure(
                f"Every log directory is offline, the last one was {directory.path} ({_why(directory.error)}): free"
                " space or repair the disk, then start the broker again"
            )


def _why(error: Exception | None) -> str:
    return reason(error) if isinstance(error, OSError) else str(error)
