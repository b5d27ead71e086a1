"""Keeps `BrokerConfigs` and `TopicConfigs` as `/config` has them.

All is read at the start and after every expiry of the session; in between, brokers announce each change by a sequential
znode below `/config/changes`, which is heard once and in order. An announcement says only whose configs changed: they
are read then, so that several announcements of one entity cost one read (`coordination.announcements`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.coordination.announcements import AnnouncedChanges, Source
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES_PATH,
    DEFAULT_ENTITY,
    ConfigChange,
    ConfigEntityType,
    EntityConfig,
    config_change_path,
    config_path,
    config_type_path,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Create, Multi, SetData, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop
from barnabas.security.password_encoder import PasswordEncoderError
from barnabas.security.stored_passwords import Opened, StoredPasswords
from barnabas.server.credential_configs import CredentialConfigs
from barnabas.server.ip_configs import IpConfigs
from barnabas.server.quota_configs import QuotaConfigs

_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_TOPICS_AT_ONCE: Final = 512
"""Each takes some 20 us."""
_SOURCES: Final = (Source(CONFIG_CHANGES_PATH, CONFIG_CHANGE_PREFIX, ConfigChange.decode),)


class DynamicConfigs(AnnouncedChanges[ConfigChange]):
    """Reads and follows `/config/brokers` and `/config/topics`; and the quotas of clients, by `quota_configs`, and
    of addresses, by `ip_configs`, and where listeners ask for credentials those, by `credential_configs`. What
    `passwords` cannot decode of the broker's own is left out.

    `on_unclean_election_enabled` is called with a topic whose config allows unclean elections, whenever that was
    announced: the active controller may then have a partition to elect a leader for.

    To be started before the rooms take their settings and before the logs are loaded.
    """

    def __init__(
        self,
        host: Host,
        store: Store,
        broker_configs: BrokerConfigs,
        topic_configs: TopicConfigs,
        *,
        timers: Timers,
        logger: logging.Logger,
        on_unclean_election_enabled: Callable[[str], None],
        passwords: StoredPasswords,
        quota_configs: QuotaConfigs,
        ip_configs: IpConfigs | None = None,
        credential_configs: CredentialConfigs | None = None,
    ) -> None:
        thread = "/config/changes-event-process-thread"
        super().__init__(host, store, self, _SOURCES, "Config changes", timers=timers, logger=logger, thread=thread)
        self._broker_configs = broker_configs
        self._topic_configs = topic_configs
        self._passwords = passwords
        self._quota_configs = quota_configs
        self._ip_configs = ip_configs
        self._on_unclean_election_enabled = on_unclean_election_enabled
        self._credential_configs = credential_configs

    async def prefetch(self, topics: Iterable[str]) -> None:
        """Reads the configs of these topics, so that logs can be made for them at once.

        Raises nothing. What cannot be read is logged, and stays as it is known, or at the broker's defaults; the
        session that failed is followed by a new one, and that by reading all again.
        """
        names = list(topics)
        try:
            await self._read_topics(names)
        except CoordinationError as error:
            self._logger.warning("Configs of the topics %s cannot be read now: %s", ", ".join(names), error)
            self.read_again()

    # Following: `coordination.announcements.Reader`.

    async def create_paths(self) -> None:
        """The broker has made them all by now."""

    async def load(self) -> None:
        """Reads everything that announcements could be about."""
        await self._read_brokers({DEFAULT_ENTITY, str(self._broker_configs.broker_id)})
        await self._read_topics(await self._configured_topics())
        await self._quota_configs.reload()
        if self._ip_configs is not None:
            await self._ip_configs.reload()
        if self._credential_configs is not None:
            await self._credential_configs.reload()

    async def refresh(self, changes: Iterable[ConfigChange]) -> None:
        """Reads the configs that were announced."""
        brokers: dict[str, None] = {}
        topics: dict[str, None] = {}
        others: dict[str, None] = {}
        for change in changes:
            entity_type, _, name = change.entity_path.partition("/")
            if entity_type == ConfigEntityType.BROKERS.value:
                brokers[name] = None
            elif entity_type == ConfigEntityType.TOPICS.value:
                topics[name] = None
            else:
                others[change.entity_path] = None
        await self._read_brokers(brokers)
        await self._read_topics(list(topics))
        await self._quota_configs.read(others)
        if self._ip_configs is not None:
            await self._ip_configs.read(others)
        if self._credential_configs is not None:
            await self._credential_configs.read(others)
        for topic in topics:
            overrides = self._topic_configs.overrides(topic)
            if _UNCLEAN_ELECTION in overrides and self._topic_configs.values(topic)[_UNCLEAN_ELECTION]:
                self._on_unclean_election_enabled(topic)

    # Reading.

    async def _configured_topics(self) -> list[str]:
        (found,) = await self._store.get_children_names_of_many([config_type_path(ConfigEntityType.TOPICS)])
        if isinstance(found, NoNodeError):
            return []
        if isinstance(found, CoordinationError):
            # Taken for none, every topic would be at the broker's defaults, and lose what these do not retain.
            raise found
        return sorted(found)

    async def _read_brokers(self, names: Iterable[str]) -> None:
        ours = [name for name in (DEFAULT_ENTITY, str(self._broker_configs.broker_id)) if name in names]
        for name, found in zip(ours, await self._read(ConfigEntityType.BROKERS, ours), strict=True):
            texts = self._texts(ConfigEntityType.BROKERS, name, found)
            if texts is None:
                continue
            if name == DEFAULT_ENTITY:
                self._broker_configs.set_cluster_default(texts)
            else:
                opened = await self._passwords.opened(texts)
                if opened.by_old_secret and found is not None:
                    await self._encode_anew(name, found, opened)
                self._broker_configs.set_broker(opened.clear)
            while self._topic_configs.tell_some():
                await yield_to_loop()

    async def _encode_anew(self, name: str, found: ZnodeData, opened: Opened) -> None:
        """Writes what the old secret has opened, encoded with the present one. What stands in the way is logged: the
        old one opens them still.
        """
        path = config_path(ConfigEntityType.BROKERS, name)
        names = ", ".join(sorted(opened.by_old_secret))
        try:
            texts = {**await self._passwords.encoded(opened.clear, opened), **opened.sealed}
            entity = EntityConfig(texts, extra=EntityConfig.decode(found.data, path).extra)
            change = ConfigChange(f"{ConfigEntityType.BROKERS.value}/{name}").encode()
            announcement = Create(config_change_path(), change, mode=CreateMode.PERSISTENT_SEQUENTIAL)
            [outcome] = await self._store.submit(
                [Multi((SetData(path, entity.encode(), found.stat.version), announcement))]
            )
            if isinstance(outcome, CoordinationError):
                raise outcome
        except (PasswordEncoderError, CoordinationError) as error:
            self._logger.warning("Dynamic password configs %s cannot be encoded anew now: %s", names, error)
        else:
            self._logger.info("Dynamic password configs %s are encoded with the present secret now", names)

    async def _read_topics(self, names: list[str]) -> None:
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            some = names[start : start + _TOPICS_AT_ONCE]
            for name, found in zip(some, await self._read(ConfigEntityType.TOPICS, some), strict=True):
                if found is None:
                    self._topic_configs.set_missing(name)
                    continue
                texts = self._texts(ConfigEntityType.TOPICS, name, found)
                if texts is not None:
                    self._topic_configs.set(name, texts, found.stat.mzxid)

    async def _read(self, entity_type: ConfigEntityType, names: list[str]) -> list[ZnodeData | None]:
        """The znodes of these entities, None where there is none. Raises CoordinationError."""
        found: list[ZnodeData | None] = []
        for outcome in await self._store.get_many([config_path(entity_type, name) for name in names]):
            if isinstance(outcome, NoNodeError):
                found.append(None)
            elif isinstance(outcome, CoordinationError):
                raise outcome
            else:
                found.append(outcome)
        return found

    def _texts(self, entity_type: ConfigEntityType, name: str, found: ZnodeData | None) -> Mapping[str, str] | None:
        """What a znode says; nothing where there is none; None, which is logged, for one that cannot be read."""
        if found is None:
            return {}
        try:
            return EntityConfig.decode(found.data, config_path(entity_type, name)).config
        except LayoutError as error:
            # What it says of a broker's may be a secret.
            what = error if entity_type is ConfigEntityType.TOPICS else f"{error.path} cannot be read"
            self._logger.error("Dynamic configs are ignored: %s", what)  # noqa: TRY400 - who wrote it is at fault
            return None
