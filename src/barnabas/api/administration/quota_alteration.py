"""Changes quotas in ZooKeeper, announces each change, and reads what is set."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.api.administration.guarded_writes import (
    ATTEMPTS,
    READ_CONTROLLER,
    answer_of,
    as_kafka_error,
    controller_check,
    guarded,
    may_be_tried_again,
)
from barnabas.api.administration.quota_entities import (
    CLIENT_ID,
    CLIENTS_PATH,
    INT_MAX,
    IP,
    IPS_PATH,
    LONG_MAX,
    USER,
    USERS_PATH,
    Parts,
    QuotaPath,
    parts_of,
    quota_path,
)
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    CONFIG_PATH,
    DEFAULT_ENTITY,
    ConfigChange,
    EntityConfig,
    config_change_path,
    user_clients_path,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import (
    Create,
    Delete,
    Exists,
    GetChildrenNames,
    GetData,
    Operation,
    SetData,
    ZnodeData,
)
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.turns import yield_to_loop
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.coordination.ports import Store

Changes = Mapping[str, float | None]
"""The value of each quota that is changed; None where it is removed."""
_EPSILON: Final = 1e-6
_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7
"""Doubles between them are written without an exponent."""
_READ_PER_TURN: Final = 512
_SCRAM: Final = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
"""What users have beside quotas in the same znode."""


class QuotaAlterer:
    """Changes the quotas of one entity at a time, as all brokers may; each of them hears of it from ZooKeeper.

    Of two changes at once none is lost, which Kafka's brokers do not promise. What has no quota any more is deleted
    with the znodes above it that nothing else needs.
    """

    def __init__(self, store: Store, resolves: Callable[[str], Awaitable[bool]], logger: logging.Logger) -> None:
        """`await resolves(name)` says whether an address or a host's name is known."""
        self._store = store
        self._resolves = resolves
        self._logger = logger

    async def alter(self, parts: Parts, changes: Changes, *, validate_only: bool) -> None:
        """Raises `KafkaError`. Credentials, which are in the same znode, are none of it: whoever may change quotas may
        not take a user's login away, as he may in Kafka by removing a quota of their name.
        """
        path = quota_path(parts)
        address = parts.get(IP)
        if address is not None and not await self._resolves(address):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{address} is not a valid IP or resolvable host.")
        texts = {key: _text(path, key, value) for key, value in changes.items()}
        if validate_only:
            return
        what = f"Changing the quotas of {path.entity}"
        try:
            outcome: object = None
            for _attempt in range(ATTEMPTS):
                outcome = await self._try_to_alter(path, texts)
                if not may_be_tried_again(outcome):
                    break
            answer_of(outcome)
        except CoordinationError as error:
            raise as_kafka_error(error, self._logger, what) from None

    async def _try_to_alter(self, path: QuotaPath, texts: Mapping[str, str | None]) -> object:
        """Reads, changes and writes; returns the outcome of the write."""
        reads: list[Operation[Any]] = [GetData(path.znode), GetChildrenNames(path.znode), *map(Exists, path.parents)]
        found_epoch, found_controller, found, children, *parents = await self._store.submit((*READ_CONTROLLER, *reads))
        check = controller_check((found_epoch, found_controller))
        existing = None if isinstance(found, NoNodeError) else answer_of(found)
        before = _decode(existing, path.znode)
        config = dict(before.config)
        for key, text in texts.items():
            if text is None:
                config.pop(key, None)
            else:
                config[key] = text
        unknown = [key for key in config if key not in path.quotas and not (_has_scram(path) and key in _SCRAM)]
        if unknown:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"{path.znode} has configs that are none of it: {', '.join(unknown)}"
            )
        writes: list[Create | SetData | Delete] = []
        has_children = not isinstance(children, NoNodeError) and bool(answer_of(children))
        if config or has_children:
            self._logger.info("Updating the quotas of %s: %s", path.entity, sorted(set(config) - _SCRAM))
            data = EntityConfig(config, extra=before.extra).encode()
            if existing is None:
                writes += [
                    Create(parent)
                    for parent, stat in zip(path.parents, parents, strict=True)
                    if isinstance(stat, NoNodeError) or answer_of(stat) is None
                ]
                writes.append(Create(path.znode, data))
            else:
                writes.append(SetData(path.znode, data, existing.stat.version))
        elif existing is not None:
            self._logger.info("Deleting %s, which has no quotas any more", path.entity)
            writes.append(Delete(path.znode, existing.stat.version))
            writes += await self._emptied(path)
        announcement = Create(
            config_change_path(), ConfigChange(path.entity).encode(), mode=CreateMode.PERSISTENT_SEQUENTIAL
        )
        [outcome] = await self._store.submit([guarded(check, [*writes, announcement])])
        return outcome

    async def _emptied(self, path: QuotaPath) -> list[Delete]:
        """The deletions of what is empty above a user's client id whose quotas go: a child that is made meanwhile makes
        the whole write fail, and it is tried again."""
        if not path.parents:
            return []
        user, clients = path.parents
        found, names, siblings = await self._store.submit(
            [GetData(user), GetChildrenNames(user), GetChildrenNames(clients)]
        )
        if len(answer_of(siblings)) > 1:
            return []
        data = answer_of(found)
        if len(answer_of(names)) > 1 or _decode(data, user).config:
            return [Delete(clients)]
        return [Delete(clients), Delete(user, data.stat.version)]


class QuotaReader:
    """Reads what is set, as Kafka answers DescribeClientQuotas: from ZooKeeper, each time."""

    def __init__(self, store: Store, logger: logging.Logger) -> None:
        self._store = store
        self._logger = logger

    async def read(
        self, matches: Callable[[Parts], bool], *, with_clients: bool, with_ips: bool
    ) -> list[tuple[Parts, dict[str, float]]]:
        """The entities that match and have quotas. Raises `KafkaError`."""
        try:
            entities: list[str] = []
            for number, entity in enumerate(await self._entities(with_clients=with_clients, with_ips=with_ips), 1):
                if matches(parts_of(entity)):
                    entities.append(entity)
                if not number % _READ_PER_TURN:
                    await yield_to_loop()
            outcomes = await self._store.get_many([f"{CONFIG_PATH}/{entity}" for entity in entities])
            found: list[tuple[Parts, dict[str, float]]] = []
            for start in range(0, len(entities), _READ_PER_TURN):
                end = start + _READ_PER_TURN
                found += self._read(entities[start:end], outcomes[start:end])
                await yield_to_loop()
            return found
        except CoordinationError as error:
            raise as_kafka_error(error, self._logger, "Reading quotas") from None

    def _read(self, entities: Sequence[str], outcomes: Sequence[Any]) -> Iterator[tuple[Parts, dict[str, float]]]:
        for entity, outcome in zip(entities, outcomes, strict=True):
            if isinstance(outcome, NoNodeError):
                continue
            parts = parts_of(entity)
            try:
                texts = EntityConfig.decode(answer_of(outcome).data, f"{CONFIG_PATH}/{entity}").config
                values = {key: float(texts[key]) for key in quota_path(parts).quotas if key in texts}
            except (LayoutError, ValueError) as error:
                why = "its znode is no config" if isinstance(error, LayoutError) else error
                self._logger.error("The quotas of %s cannot be read: %s", entity, why)  # noqa: TRY400 - not ours
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the quotas of {entity} cannot be read") from None
            if values:
                yield parts, values

    async def _entities(self, *, with_clients: bool, with_ips: bool) -> list[str]:
        """The paths below `/config` of everything that may have quotas."""
        found: list[str] = []
        if with_clients:
            users, clients = await self._children([USERS_PATH, CLIENTS_PATH])
            found += [f"users/{user}" for user in users]
            found += [f"clients/{client}" for client in clients]
            of_users = await self._children([user_clients_path(user) for user in users])
            for user, names in zip(users, of_users, strict=True):
                found += [f"users/{user}/clients/{name}" for name in names]
        if with_ips:
            [addresses] = await self._children([IPS_PATH])
            found += [f"ips/{address}" for address in addresses]
        return found

    async def _children(self, paths: list[str]) -> list[list[str]]:
        outcomes = await self._store.get_children_names_of_many(paths)
        return [[] if isinstance(outcome, NoNodeError) else sorted(answer_of(outcome)) for outcome in outcomes]


def _has_scram(path: QuotaPath) -> bool:
    """Whether an entity is a user by name, whose znode has credentials too."""
    return path.entity.startswith("users/") and not path.parents and not path.entity.endswith(f"/{DEFAULT_ENTITY}")


def _decode(found: ZnodeData | None, path: str) -> EntityConfig:
    """Raises `KafkaError`, which shows nothing of what the znode says: a user's may be a credential."""
    try:
        return EntityConfig.decode(None if found is None else found.data, path)
    except LayoutError:
        cannot = f"{path} cannot be read: it should be JSON, with a config of names and texts"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, cannot) from None


def _text(path: QuotaPath, key: str, value: float | None) -> str | None:
    """A value as its znode has it, None for what is removed. Raises `KafkaError` (INVALID_REQUEST)."""
    kind = path.quotas.get(key)
    if key in _SCRAM or (kind is None and value is not None):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    if value is None:
        return None
    if not value >= 0 or (kind is float and math.isinf(value)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Configuration {key} must be a number of at least 0, not {value}")
    if kind is float:
        return _double_text(value)
    highest, name = (INT_MAX, "INT") if IP in parts_of(path.entity) else (LONG_MAX, "LONG")
    whole = int(min(value + _EPSILON, float(highest)))
    whole = min(whole, highest)
    if not abs(whole - value) <= _EPSILON:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Configuration {key} must be a {name} value")
    return str(whole)


def _double_text(value: float) -> str:
    """As Java writes a double, `12.5` or `1.0E8`."""
    from decimal import Decimal  # for brokers that are told such values

    text = repr(float(value))
    if value == 0 or _PLAIN_FROM <= value < _PLAIN_BELOW:
        return text
    _, digits, exponent = Decimal(text).normalize().as_tuple()
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{first}.{rest or '0'}E{int(exponent) + len(digits) - 1}"


def describes(parts: Mapping[str, str | None], wanted: Mapping[str, tuple[bool, str | None]], *, strict: bool) -> bool:
    """Whether an entity is asked for: `wanted` has the type, whether any name will do, and the name otherwise."""
    for entity_type in (USER, CLIENT_ID, IP):
        component = wanted.get(entity_type)
        if component is None:
            if strict and entity_type in parts:
                return False
        elif entity_type not in parts or not (component[0] or parts[entity_type] == component[1]):
            return False
    return True
