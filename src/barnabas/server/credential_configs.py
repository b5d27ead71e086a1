"""The SCRAM credentials of users as `/config/users` has them, read and followed with the other dynamic configs.

What such a znode says may be a secret, so it is in no message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    DEFAULT_ENTITY,
    ConfigEntityType,
    EntityConfig,
    config_path,
    config_type_path,
    desanitize,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.kernel.turns import yield_to_loop

if TYPE_CHECKING:
    from barnabas.coordination.ports import Store
    from barnabas.security.scram_credentials import ScramCredentials

_READ_PER_TURN: Final = 256


class CredentialConfigs:
    """Keeps `ScramCredentials` as ZooKeeper has them."""

    def __init__(self, store: Store, credentials: ScramCredentials, logger: logging.Logger) -> None:
        self._store = store
        self._credentials = credentials
        self._logger = logger

    async def reload(self) -> None:
        """Reads all. Raises CoordinationError; what was read until then counts, and the rest stays as it was."""
        (names,) = await self._store.get_children_names_of_many([config_type_path(ConfigEntityType.USERS)])
        if isinstance(names, NoNodeError):
            names = []
        if isinstance(names, CoordinationError):
            raise names
        self._credentials.retain(await self._read(names))

    async def read(self, entity_paths: Iterable[str]) -> None:
        """Reads those of these entities that are users. Raises CoordinationError."""
        parts = [path.split("/") for path in entity_paths]
        # A longer path is of the quotas that a user's clients have.
        await self._read([part[1] for part in parts if part[0] == ConfigEntityType.USERS.value and len(part) == 2])

    async def _read(self, names: Sequence[str]) -> set[str]:
        """The credentials of users (sanitized); returns whose. A user whose znode cannot be read cannot log in."""
        read: set[str] = set()
        users = [name for name in names if name != DEFAULT_ENTITY]
        for start in range(0, len(users), _READ_PER_TURN):
            if start:
                await yield_to_loop()
            some = users[start : start + _READ_PER_TURN]
            paths = [config_path(ConfigEntityType.USERS, name) for name in some]
            for name, path, found in zip(some, paths, await self._store.get_many(paths), strict=True):
                data = None
                if isinstance(found, CoordinationError):
                    if not isinstance(found, NoNodeError):
                        raise found
                else:
                    data = found.data
                try:
                    configs = EntityConfig.decode(data, path).config
                except LayoutError:
                    self._logger.error("The user %s cannot log in: its znode is no config", name)  # noqa: TRY400
                    configs = {}
                user = desanitize(name)
                self._credentials.set(user, configs)
                read.add(user)
        return read
