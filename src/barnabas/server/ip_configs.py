"""The quotas of addresses as `/config/ips` has them (KIP-612), for an address, the name of a host, or `<default>`.

Read and followed with the other dynamic configs. A value that is none is logged, and the quota stays as it was. The
name of a host is looked up when its quota is read, and stands for its first address, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    CONFIG_PATH,
    DEFAULT_ENTITY,
    ConfigEntityType,
    EntityConfig,
    config_type_path,
    desanitize,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.quotas.connection_rates import UNLIMITED

if TYPE_CHECKING:
    from barnabas.coordination.ports import Store
    from barnabas.quotas.connection_rates import ConnectionRates

CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
_IPS: Final = ConfigEntityType.IPS.value
_READ_AT_ONCE: Final = 256


class IpConfigs:
    """Keeps the quotas of addresses."""

    def __init__(
        self,
        store: Store,
        rates: ConnectionRates,
        address_of: Callable[[str], Awaitable[str | None]],
        logger: logging.Logger,
    ) -> None:
        """`address_of` gives the address of a host, or None for a name that nobody knows."""
        self._store = store
        self._rates = rates
        self._address_of = address_of
        self._logger = logger
        self._addresses: dict[str, str | None] = {}
        """Whose quotas are set, by the names of their znodes."""

    async def reload(self) -> None:
        """Reads all. Raises CoordinationError; what was read before stays then."""
        (names,) = await self._store.get_children_names_of_many([config_type_path(ConfigEntityType.IPS)])
        if isinstance(names, NoNodeError):
            names = []
        if isinstance(names, CoordinationError):
            raise names
        await self._read([*names, *self._addresses.keys() - set(names)])

    async def read(self, entity_paths: Iterable[str]) -> None:
        """Reads those of these entities that are addresses. Raises CoordinationError."""
        parts = [path.split("/") for path in entity_paths]
        await self._read([part[1] for part in parts if len(part) == 2 and part[0] == _IPS and part[1]])

    async def _read(self, names: list[str]) -> None:
        for start in range(0, len(names), _READ_AT_ONCE):
            some = names[start : start + _READ_AT_ONCE]
            paths = [f"{CONFIG_PATH}/{_IPS}/{name}" for name in some]
            for name, path, found in zip(some, paths, await self._store.get_many(paths), strict=True):
                if isinstance(found, NoNodeError):
                    await self._take(name, None)
                elif isinstance(found, CoordinationError):
                    raise found
                else:
                    try:
                        text = EntityConfig.decode(found.data, path).config.get(CONNECTION_CREATION_RATE)
                    except LayoutError as error:
                        self._logger.error("Quotas are ignored: %s", error)  # noqa: TRY400 - who wrote it is at fault
                    else:
                        await self._take(name, text)

    async def _take(self, name: str, text: str | None) -> None:
        if text is None:
            if name in self._addresses:
                self._rates.limit_address(self._addresses.pop(name), None)
            return
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(UNLIMITED)) and int(text) <= UNLIMITED):
            self._logger.error("%s of %s is no quota, and ignored: %r", CONNECTION_CREATION_RATE, name, text)
            return
        address: str | None = None
        if name != DEFAULT_ENTITY:
            address = self._addresses.get(name) or await self._address_of(desanitize(name))
            if address is None:
                self._logger.error("The quota of %s is ignored: nobody knows its address", name)
                return
        self._addresses[name] = address
        self._rates.limit_address(address, int(text))
