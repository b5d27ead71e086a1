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

_READ_PER_TURN: Final = 256
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
        entities = {path: entity for path in entity_paths if (entity := entity_of(path)) is not None}
        outcomes = await self._store.get_many([f"{CONFIG_PATH}/{path}" for path in entities])
        for number, ((path, entity), outcome) in enumerate(zip(entities.items(), outcomes, strict=True), start=1):
            if not number % _READ_PER_TURN:
                await yield_to_loop()
            if isinstance(outcome, NoNodeError):
                self._take(path, entity, {})
            elif isinstance(outcome, CoordinationError):
                raise outcome
            else:
                try:
                    self._take(path, entity, EntityConfig.decode(outcome.data, f"{CONFIG_PATH}/{path}").config)
                except LayoutError as error:
                    # A user's has keys of its credentials too.
                    shown: object = error if not path.startswith(f"{_USERS}/") else f"{path} is no config"
                    self._logger.error("Quotas are ignored: %s", shown)  # noqa: TRY400 - who wrote it is at fault

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

    def _take(self, path: str, entity: QuotaEntity, texts: Mapping[str, str]) -> None:
        has_any = False
        for key, quotas in self._quotas.items():
            text = texts.get(key)
            if text is None:
                quotas.set(entity, None)
                continue
            has_any = True
            try:
                bound = float(text)
            except ValueError:
                bound = -1.0
            if not bound >= 0:
                self._logger.error("%s of %s is no quota, and ignored: %r", key, path, text)
                continue
            quotas.set(entity, bound)
        if has_any:
            self._known.add(path)
        else:
            self._known.discard(path)


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
