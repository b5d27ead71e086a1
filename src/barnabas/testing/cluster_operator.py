"""Somebody who does things to a simulated cluster: with ZooKeeper's client what nobody should, with ours what operators
do. Each thing is a process of its own on a machine of its own, which tries until it has done it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.client.admin import Admin
from barnabas.coordination.client import Client as StoreClient
from barnabas.coordination.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.session_settings import ClientSettings
from barnabas.testing.secured_users import store_login
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedProcess
    from barnabas.testing.simulation import Simulation

GARBAGE: Final = b'{"version": 1, "spoiled'
_CONNECT_MS: Final = 4_000
_PAUSE_SECONDS: Final = 0.5
_ATTEMPTS_MAX: Final = 60
_logger: Final = logging.getLogger("barnabas.simulated.operator")

Answer = TypeVar("Answer")


def _no_other() -> None:
    """What was there is put back."""


class Operator:
    """`is_busy` until everything that was asked for has been done or given up."""

    def __init__(self, simulation: Simulation, users: Users, coordinator: str) -> None:
        """`coordinator` is host:port of the coordinator."""
        self._simulation = simulation
        self._users = users
        login = store_login() if users.load.is_secured else None
        self._settings = ClientSettings(coordinator, session_timeout_ms=10_000, login=login)
        self._count = 0
        self._processes: list[SimulatedProcess] = []

    @property
    def is_busy(self) -> bool:
        self._processes = [process for process in self._processes if not process.ended]
        return bool(self._processes)

    def delete_znode(self, path: str, on_deleted: Callable[[], object]) -> None:
        """Deletes a znode, if it is there."""

        async def delete(store: StoreClient) -> None:
            with contextlib.suppress(NoNodeError):
                await store.delete(path)
                on_deleted()

        self.start(lambda host: self._with_store(host, delete))

    def create_znode(self, path: str, data: bytes) -> None:
        """Makes a znode, if there is none."""

        async def create(store: StoreClient) -> None:
            with contextlib.suppress(NodeExistsError):
                await store.create(path, data)

        self.start(lambda host: self._with_store(host, create))

    def spoil_znode(self, path: str, former: Callable[[], bytes | None] = _no_other) -> Callable[[], None]:
        """Writes garbage into a znode; returns what puts back what was there, or what `former` gives then, unless
        somebody has written it since.

        Both come in this order, however long the first one takes.
        """
        before: list[bytes | None] = []

        async def spoil(store: StoreClient) -> None:
            with contextlib.suppress(NoNodeError, BadVersionError):
                found = await store.get_data(path)
                if found.data != GARBAGE:
                    before[:] = [found.data]
                    await store.set_data(path, GARBAGE, found.stat.version)

        async def mend(store: StoreClient) -> None:
            with contextlib.suppress(NoNodeError, BadVersionError):
                found = await store.get_data(path)
                if found.data == GARBAGE and before:
                    other = former()
                    await store.set_data(path, before[0] if other is None else other, found.stat.version)

        spoiling = self.start(lambda host: self._with_store(host, spoil))

        async def mend_behind(host: Host) -> None:
            while not spoiling.ended:
                await _sleep(host, _PAUSE_SECONDS)
            await self._with_store(host, mend)

        return lambda: _nothing(self.start(mend_behind))

    def administer(self, action: Callable[[Admin], Awaitable[None]]) -> None:
        """Does something with an admin client, again and again until it succeeds or is refused."""

        async def run(host: Host) -> None:
            for _ in range(_ATTEMPTS_MAX):
                async with self._users.client(host) as client, Admin(client) as admin:
                    try:
                        await action(admin)
                    except KafkaError as error:
                        if not error.code.retriable:
                            return
                    except self._users.failures as error:
                        _logger.info("%s", error)
                    else:
                        return
                await _sleep(host, _PAUSE_SECONDS)

        self.start(run)

    def start(self, main: Callable[[Host], Awaitable[None]]) -> SimulatedProcess:
        """Whatever else somebody does, as a process of its own."""

        async def run(host: Host) -> None:
            await main(host)

        self._count += 1
        process = self._simulation.machine("operator").start(run, name=f"{self._count}")
        self._processes.append(process)
        return process

    async def _with_store(self, host: Host, action: Callable[[StoreClient], Awaitable[Answer]]) -> Answer | None:
        """Does it in a session, and in another one where that ends; None where it does not come about."""
        for _ in range(_ATTEMPTS_MAX):
            store = StoreClient(host, self._settings, logger=_logger)
            try:
                await store.connect(_CONNECT_MS)
                return await action(store)
            except CoordinationError as error:
                _logger.info("%s", error)
                await _sleep(host, _PAUSE_SECONDS)
            finally:
                await store.close()
        return None


async def _sleep(host: Host, seconds: float) -> None:
    slept = host.loop.create_future()
    handle = host.loop.call_later(seconds, slept.set_result, None)
    try:
        await slept
    finally:
        handle.cancel()


def _nothing(_: object) -> None:
    """Whatever it is, nobody wants it."""
