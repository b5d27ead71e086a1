"""Changes dynamic configs of topics, brokers and users, and announces each change."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.api.administration.guarded_writes import (
    ATTEMPTS,
    READ_CONTROLLER,
    answer_of,
    as_kafka_error,
    controller_check,
    guarded,
    may_be_tried_again,
)
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.describing import is_sensitive
from barnabas.config.key_table import broker_keys, topic_keys
from barnabas.config.keys import ConfigKey, ConfigType
from barnabas.config.topic_config import TopicConfigError, check_topic_configs
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    DEFAULT_ENTITY,
    ConfigChange,
    ConfigEntityType,
    EntityConfig,
    config_change_path,
    config_path,
    config_type_path,
    sanitize,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import topic_path
from barnabas.coordination.operations import Create, Exists, GetData, SetData, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import CreateMode
from barnabas.security.password_encoder import PasswordEncoderError
from barnabas.security.stored_passwords import Opened, Sealed, StoredPasswords, is_stored_password
from barnabas.wire.errors import ErrorCode, KafkaError

_OPENED_SECONDS_MAX: Final = 25.0
"""Clients wait for 30 seconds."""
Texts = Mapping[str, str]
Keys = Mapping[str, ConfigKey[Any]]
Edit = Callable[[Texts, Keys], dict[str, str]]
"""From the configs that an entity has and the keys that it may have, those that it is to have. Raises `KafkaError`."""
Change = Callable[[Texts], Awaitable[dict[str, str]]]
"""From what an entity's znode has, what is to be written. Raises `KafkaError`."""


class ConfigOperation(enum.IntEnum):
    """What IncrementalAlterConfigs does with one config (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One change; `value` is None only for DELETE."""

    name: str
    operation: ConfigOperation
    value: str | None


class ConfigAlterer:
    """Changes the configs of topics, brokers and users in ZooKeeper; every broker, this one too, hears of it there.

    Of two changes at once none is lost: what was read is compared when it is written, which Kafka's brokers do not do.
    """

    def __init__(
        self,
        store: Store,
        metadata: MetadataCache,
        broker_configs: BrokerConfigs,
        passwords: StoredPasswords,
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._broker_configs = broker_configs
        self._passwords = passwords
        self._logger = logger
        self._one_of_brokers = asyncio.Lock()
        """Those of brokers are looked at for long (`check_whole`): of many at once all but the first would be written
        too late, and looked at again each time, until they give up.
        """

    async def alter_topic(self, topic: str, edit: Edit, *, validate_only: bool) -> None:
        """Changes a topic's configs. Raises `KafkaError`."""
        if not topic:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if topic not in self._metadata.image.topics:
            edit({}, topic_keys())  # what is wrong with the edit itself is told first
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")

        async def change(existing: Texts) -> dict[str, str]:
            changed = edit(existing, topic_keys())
            try:
                check_topic_configs(changed, self._broker_configs.values, existing)
            except TopicConfigError as error:
                # As Kafka has it, which says so of values only.
                what = f"Invalid config value for resource ConfigResource(type=TOPIC, name='{topic}'): "
                message = f"{what if error.is_of_value else ''}{error}"
                raise KafkaError(ErrorCode.INVALID_CONFIG, message) from None
            return changed

        await self._alter(ConfigEntityType.TOPICS, topic, change, validate_only=validate_only)

    async def alter_broker(self, broker_name: str, edit: Edit, *, validate_only: bool) -> None:
        """Changes the dynamic configs of this broker, or of all brokers where `broker_name` is empty. Passwords are
        written encrypted; those that cannot be decoded stay as they are, unless `edit` names them.

        Raises `KafkaError`; INVALID_REQUEST when it is the name of another broker.
        """
        check_broker_name(broker_name, self._broker_configs.broker_id)
        known = self._broker_configs.layers.known
        of_one_broker = bool(broker_name)

        async def checked(changed: Texts) -> None:
            self._broker_configs.check(changed, of_one_broker=of_one_broker)
            await self._broker_configs.check_whole(changed, of_one_broker=of_one_broker)

        async def change_all(existing: Texts) -> dict[str, str]:
            changed = edit(existing, known)
            await checked(changed)
            if any(is_stored_password(name) and text != existing.get(name) for name, text in changed.items()):
                raise _invalid(broker_name, "Password config can be defined only at broker level")
            return changed

        async def change_one(existing: Texts) -> dict[str, str]:
            before = await self._opened(existing)
            changed = edit({**before.clear, **before.sealed}, known)
            sealed = {name: text for name, text in changed.items() if isinstance(text, Sealed)}
            clear = {name: text for name, text in changed.items() if name not in sealed}
            await checked(clear)
            try:
                await self._passwords.check(clear)
                written = clear if validate_only else await self._passwords.encoded(clear, before)
            except PasswordEncoderError as error:
                raise _invalid(broker_name, str(error)) from None
            return {**written, **sealed}

        entity, change = (broker_name, change_one) if of_one_broker else (DEFAULT_ENTITY, change_all)
        async with self._one_of_brokers:
            await self._alter(ConfigEntityType.BROKERS, entity, change, validate_only=validate_only)

    async def _opened(self, existing: Texts) -> Opened:
        """Raises `KafkaError` (REQUEST_TIMED_OUT) where that takes longer than clients wait."""
        try:
            async with asyncio.timeout(_OPENED_SECONDS_MAX):
                return await self._passwords.opened(existing)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "The passwords that there are take long to be decoded: try again later."
            ) from None

    async def alter_user(self, user: str, credentials: Mapping[str, str | None]) -> None:
        """Sets a user's SCRAM credentials, by mechanism, and deletes those that are None; quotas and others stay.

        Raises `KafkaError`; RESOURCE_NOT_FOUND when one that is to be deleted does not exist, and nothing is changed.
        """

        async def change(existing: Texts) -> dict[str, str]:
            if any(text is None and mechanism not in existing for mechanism, text in credentials.items()):
                raise KafkaError(
                    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                )
            kept = {name: text for name, text in existing.items() if name not in credentials}
            return kept | {name: text for name, text in credentials.items() if text is not None}

        await self._alter(ConfigEntityType.USERS, sanitize(user), change, validate_only=False)

    async def _alter(
        self,
        entity_type: ConfigEntityType,
        name: str,
        change: Change,
        *,
        validate_only: bool,
    ) -> None:
        what = f"Changing the configs of {entity_type.value}/{name}"
        try:
            outcome: object = None
            for _attempt in range(ATTEMPTS):
                outcome = await self._try_to_alter(entity_type, name, change, validate_only=validate_only)
                if not may_be_tried_again(outcome):
                    break
            answer_of(outcome)
        except CoordinationError as error:
            raise as_kafka_error(error, self._logger, what) from None
        except KafkaError as error:
            self._logger.info("%s is refused: %s", what, error)
            raise

    async def _try_to_alter(
        self,
        entity_type: ConfigEntityType,
        name: str,
        change: Change,
        *,
        validate_only: bool,
    ) -> object:
        """Reads, changes and writes; returns the outcome of the write, None when nothing was to be written."""
        path = config_path(entity_type, name)
        must_exist = (Exists(topic_path(name)),) if entity_type is ConfigEntityType.TOPICS else ()
        found_epoch, found_controller, found, *topic_stat = await self._store.submit(
            (*READ_CONTROLLER, GetData(path), *must_exist)
        )
        if topic_stat and answer_of(topic_stat[0]) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        existing = None if isinstance(found, NoNodeError) else answer_of(found)
        before = _decode(existing, path)
        changed = await change(before.config)
        if validate_only:
            return None
        check = controller_check((found_epoch, found_controller))
        self._logger.info("Updating %s/%s with new configuration: %s", entity_type.value, name, _shown(changed))
        entity = EntityConfig(changed, extra=before.extra)
        announced_path = config_change_path()
        write = (
            Create(path, entity.encode()) if existing is None else SetData(path, entity.encode(), existing.stat.version)
        )
        announcement = Create(
            announced_path,
            ConfigChange(f"{entity_type.value}/{name}").encode(),
            mode=CreateMode.PERSISTENT_SEQUENTIAL,
        )
        [outcome] = await self._store.submit([guarded(check, [write, announcement])])
        return outcome


def check_broker_name(broker_name: str, broker_id: int) -> None:
    """Whether a resource of type broker is this one, or all (""). Raises `KafkaError` (INVALID_REQUEST)."""
    if not broker_name:
        return
    try:
        named = int(broker_name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {broker_name}") from None
    if named != broker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {broker_id}, but received {broker_name}"
        )


def edited(edits: Sequence[ConfigEdit], existing: Texts, keys: Keys) -> dict[str, str]:
    """The configs after single changes. Raises `KafkaError` (INVALID_CONFIG) for a list operation on another type."""
    configs = dict(existing)
    for edit in edits:
        if edit.operation is ConfigOperation.DELETE or edit.value is None:
            configs.pop(edit.name, None)
        elif edit.operation is ConfigOperation.SET:
            configs[edit.name] = edit.value
        else:
            configs[edit.name] = _edited_list(edit, edit.value, configs, keys)
    return configs


def _edited_list(edit: ConfigEdit, value: str, configs: Texts, keys: Keys) -> str:
    key = keys.get(edit.name)
    if key is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {edit.name}")
    if key.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Config value {edit.operation.name.lower()} is not allowed for config key: {edit.name}",
        )
    text = configs.get(edit.name)
    if text is None:
        text = key.format(key.default) or ""
    entries = text.split(",") if text else []
    named = value.split(",")
    if edit.operation is ConfigOperation.APPEND:
        entries += [entry for entry in named if entry not in entries]
    else:
        for entry in named:
            if entry in entries:
                entries.remove(entry)
    return ",".join(entries)


def _decode(existing: ZnodeData | None, path: str) -> EntityConfig:
    try:
        return EntityConfig.decode(None if existing is None else existing.data, path)
    except LayoutError as error:
        message = str(error)
        if not path.startswith(config_type_path(ConfigEntityType.TOPICS)):  # what it says may be a secret
            message = f"{path} cannot be read: it should be JSON, with a config of names and texts"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message) from None


def _invalid(broker_name: str, why: str) -> KafkaError:
    """As Kafka has it."""
    resource = f"ConfigResource(type=BROKER, name='{broker_name}')"
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid config value for resource {resource}: {why}")


def _shown(configs: Texts) -> str:
    """For the log, without secrets; a topic has none."""
    keys = {**broker_keys(), **topic_keys()}
    return ", ".join(f"{name}={'[hidden]' if is_sensitive(name, keys) else text}" for name, text in configs.items())
