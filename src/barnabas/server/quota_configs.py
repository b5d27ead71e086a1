"""The quotas of clients as `/config` has them: below `users`, `clients`, and `users/USER/clients`, for a name or for
`<default>`.

Read and followed with the other dynamic configs. A value that is none is logged, and the quota stays as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    CONFIG_PATH,
    DEFAULT_ENTITY,
    ConfigEntityType,
    EntityConfig,
    config_type_path,
    desanitize,
    user_clients_path,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.kernel.turns import yield_to_loop
from barnabas.quotas.client_quotas import DEFAULT, Name, QuotaEntity

if TYPE_CHECKING:
    from barnabas.coordination.ports import Store
    from barnabas.quotas.client_quotas import ClientQuotas

_LOOKED_AT_PER_TURN: Final = 1024
"""Quotas and accounts, each of which takes some microseconds."""
_USERS: Final = ConfigEntityType.USERS.value
_CLIENTS: Final = ConfigEntityType.CLIENTS.value


class QuotaConfigs:
    """Keeps the quotas of a broker's clients."""

    def __init__(self, store: Store, quotas: Mapping[str, ClientQuotas[Any]], logger: logging.Logger) -> None:
        """`quotas` by the name of their config."""
        self._store = store
        self._quotas = quotas
        self._logger = logger
        self._known: set[str] = set()
        """The entities that have quotas, as their paths below `/config`."""
        self._looked_at = 0
        """In this turn, about."""

    async def reload(self) -> None:
        """Reads all quotas. Raises CoordinationError; what was read before stays then."""
        paths = [config_type_path(ConfigEntityType.USERS), config_type_path(ConfigEntityType.CLIENTS)]
        users, clients = await self._children(paths)
        of_users = await self._children([user_clients_path(user) for user in users])
        found = [f"{_USERS}/{user}" for user in users]
        found += [f"{_CLIENTS}/{client}" for client in clients]
        found += [
            f"{_USERS}/{user}/{_CLIENTS}/{client}"
            for user, names in zip(users, of_users, strict=True)
            for client in names
        ]
        await self.read([*found, *self._known.difference(found)])

    async def read(self, entity_paths: Iterable[str]) -> None:
        """Reads the quotas of these entities, of what is none nothing. Raises CoordinationError."""
        entities: dict[str, QuotaEntity] = {}
        for path in entity_paths:
            entity = entity_of(path)
            if entity is not None:
                entities[path] = entity
            await self._count(1)
        outcomes = await self._store.get_many([f"{CONFIG_PATH}/{path}" for path in entities])
        for (path, entity), outcome in zip(entities.items(), outcomes, strict=True):
            if isinstance(outcome, NoNodeError):
                await self._take(path, entity, {})
            elif isinstance(outcome, CoordinationError):
                raise outcome
            else:
                try:
                    texts = EntityConfig.decode(outcome.data, f"{CONFIG_PATH}/{path}").config
                except LayoutError as error:
                    # A user's has keys of its credentials too.
                    shown: object = error if not path.startswith(f"{_USERS}/") else f"{path} is no config"
                    self._logger.error("Quotas are ignored: %s", shown)  # noqa: TRY400 - who wrote it is at fault
                else:
                    await self._take(path, entity, texts)

    async def _children(self, paths: list[str]) -> list[list[str]]:
        found: list[list[str]] = []
        for outcome in await self._store.get_children_names_of_many(paths):
            if isinstance(outcome, NoNodeError):
                found.append([])
            elif isinstance(outcome, CoordinationError):
                raise outcome  # taken for none, nobody would be limited
            else:
                found.append(sorted(outcome))
        return found

    async def _take(self, path: str, entity: QuotaEntity, texts: Mapping[str, str]) -> None:
        has_any = not self._quotas.keys().isdisjoint(texts)
        if has_any:
            self._known.add(path)
        for key, quotas in self._quotas.items():
            text = texts.get(key)
            if text is None:
                await self._count(1 + quotas.set(entity, None))
                continue
            try:
                bound = float(text)
            except ValueError:
                bound = -1.0
            if not bound >= 0:
                self._logger.error("%s of %s is no quota, and ignored: %r", key, path, text)
                continue
            await self._count(1 + quotas.set(entity, bound))
        if not has_any:
            self._known.discard(path)

    async def _count(self, looked_at: int) -> None:
        """Gives way to the loop after so many quotas and accounts that take long together."""
        self._looked_at += looked_at
        if self._looked_at >= _LOOKED_AT_PER_TURN:
            self._looked_at = 0
            await yield_to_loop()


def entity_of(path: str) -> QuotaEntity | None:
    """Whose the configs at this path below `/config` are; None for what has no quotas."""
    match path.split("/"):
        case ["users", user] if user:
            return QuotaEntity(_name(user), None)
        case ["clients", client] if client:
            return QuotaEntity(None, _name(client))
        case ["users", user, "clients", client] if user and client:
            return QuotaEntity(_name(user), _name(client))
    return None


def _name(sanitized: str) -> Name:
    return DEFAULT if sanitized == DEFAULT_ENTITY else desanitize(sanitized)
