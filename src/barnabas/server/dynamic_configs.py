"""Keeps `BrokerConfigs` and `TopicConfigs` as `/config` has them.

All is read at the start and after every expiry of the session; in between, brokers announce each change by a sequential
znode below `/config/changes`, which is heard once and in order. An announcement says only whose configs changed: they
are read then, so that several announcements of one entity cost one read. Announcements older than fifteen minutes are
deleted by whoever sees them, as Kafka's brokers do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES_PATH,
    DEFAULT_ENTITY,
    ConfigChange,
    ConfigEntityType,
    EntityConfig,
    config_path,
    config_type_path,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Delete, GetChildren, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import EventType, WatcherEvent
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import yield_to_loop

ANNOUNCEMENT_KEPT_MS: Final = 15 * 60 * 1000
_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_RETRY_MS: Final = 1000


class DynamicConfigs:
    """Reads and follows `/config/brokers` and `/config/topics`.

    `on_unclean_election_enabled` is called with a topic whose config allows unclean elections, whenever that was
    announced: the active controller may then have a partition to elect a leader for. Quotas and credentials below
    `/config` are not followed yet.
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
    ) -> None:
        self._host = host
        self._store = store
        self._broker_configs = broker_configs
        self._topic_configs = topic_configs
        self._timers = timers
        self._logger = logger
        self._on_unclean_election_enabled = on_unclean_election_enabled
        self._heard = -1
        self._announced_ms: dict[str, int] = {}
        """When each announcement that is there was made, by name."""
        self._must_reload = True
        self._must_hear = True
        self._is_reading = False
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> None:
        """Reads all dynamic configs and follows them from then on. To be called with a session of which this listens to
        the end, before the rooms take their settings and before the logs are loaded.

        Raises `CoordinationError` when they cannot be read.
        """
        self._is_reading = True
        try:
            await self._reload()
        finally:
            self._is_reading = False
        if self._must_reload or self._must_hear:
            self._wake()

    async def before_new_session(self) -> None:
        """The session is over, and the watch with it. The configs in memory stay."""
        self._must_reload = True

    async def after_new_session(self) -> None:
        """Reads everything again, beside what else a new session brings: announcements may have come and gone."""
        self._must_reload = True
        self._wake()

    async def stop(self) -> None:
        """Stops following changes."""
        self._stopped = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
            self._must_reload = True
            self._wake()

    # Following.

    def _changed(self, event: WatcherEvent) -> None:
        if event.type is EventType.NONE:
            return  # the session is over; `after_new_session` follows
        self._must_hear = True
        self._wake()

    def _wake(self) -> None:
        if not self._is_reading and not self._stopped:
            self._is_reading = True
            self._task = self._host.loop.create_task(self._follow(), name="/config/changes-event-process-thread")

    async def _follow(self) -> None:
        """Reads until there is nothing more to read."""
        try:
            while self._must_reload or self._must_hear:
                if self._must_reload:
                    await self._reload()
                else:
                    await self._hear()
        except CoordinationError as error:
            if self._store.state.is_final or self._stopped:
                return
            self._logger.warning("Config changes cannot be read now; trying again soon: %s", error)
            self._must_reload = True
            self._timers.call_after(_RETRY_MS, self._wake)
        except Exception:
            self._logger.exception("Following the config changes failed; trying again soon")
            self._must_reload = True
            self._timers.call_after(_RETRY_MS, self._wake)
        finally:
            self._is_reading = False

    async def _reload(self) -> None:
        """Reads all announcements without heeding them, and then everything that they could be about."""
        self._must_reload = self._must_hear = False
        try:
            self._heard = -1
            self._announced_ms.clear()
            await self._new_announcements()
            await self._read_brokers({DEFAULT_ENTITY, str(self._broker_configs.broker_id)})
            await self._read_topics(await self._configured_topics())
            await self._purge()
        except CoordinationError:
            self._must_reload = True
            raise

    async def _hear(self) -> None:
        """Reads the configs that were announced since the last time."""
        self._must_hear = False
        brokers: dict[str, None] = {}
        topics: dict[str, None] = {}
        for change in await self._new_announcements():
            entity_type, _, name = change.entity_path.partition("/")
            if entity_type == ConfigEntityType.BROKERS.value:
                brokers[name] = None
            elif entity_type == ConfigEntityType.TOPICS.value:
                topics[name] = None
        await self._read_brokers(brokers)
        await self._read_topics(list(topics))
        for topic in topics:
            overrides = self._topic_configs.overrides(topic)
            if _UNCLEAN_ELECTION in overrides and self._topic_configs.values(topic)[_UNCLEAN_ELECTION]:
                self._on_unclean_election_enabled(topic)
        await self._purge()

    async def _new_announcements(self) -> list[ConfigChange]:
        """The announcements that were not heard yet, in order; the watch is set again."""
        names = (await self._store.perform(GetChildren(CONFIG_CHANGES_PATH, self._changed))).names
        by_number = {number: name for name in names if (number := _number_of(name)) is not None}
        self._announced_ms = {name: ms for name, ms in self._announced_ms.items() if name in by_number.values()}
        new = {number: by_number[number] for number in sorted(by_number) if number > self._heard}
        paths = [f"{CONFIG_CHANGES_PATH}/{name}" for name in new.values()]
        changes: list[ConfigChange] = []
        for path, name, found in zip(paths, new.values(), await self._store.get_many(paths), strict=True):
            if isinstance(found, NoNodeError):
                continue  # purged meanwhile
            if isinstance(found, CoordinationError):
                raise found
            self._announced_ms[name] = found.stat.ctime_ms
            try:
                changes.append(ConfigChange.decode(found.data, path))
            except LayoutError as error:
                self._logger.error("The announcement of a config change is ignored: %s", error)  # noqa: TRY400 - theirs
        self._heard = max(new, default=self._heard)
        return changes

    async def _purge(self) -> None:
        oldest_ms = self._host.clock.time_ms() - ANNOUNCEMENT_KEPT_MS
        obsolete = [name for name, made_ms in self._announced_ms.items() if made_ms < oldest_ms]
        for name in obsolete:
            del self._announced_ms[name]
        # Others do the same: one that is gone already is no error, and one that stays is somebody else's next time.
        await self._store.submit([Delete(f"{CONFIG_CHANGES_PATH}/{name}") for name in obsolete])

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
                self._broker_configs.set_broker(texts)
            while self._topic_configs.tell_some():
                await yield_to_loop()

    async def _read_topics(self, names: list[str]) -> None:
        for name, found in zip(names, await self._read(ConfigEntityType.TOPICS, names), strict=True):
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
            self._logger.error("Dynamic configs are ignored: %s", error)  # noqa: TRY400 - who wrote it is at fault
            return None


def _number_of(name: str) -> int | None:
    """The number of an announcement; None for any other znode."""
    digits = name.removeprefix(CONFIG_CHANGE_PREFIX)
    return int(digits) if digits != name and digits.removeprefix("-").isdecimal() else None
