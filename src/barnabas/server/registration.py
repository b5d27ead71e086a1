"""This broker's ephemeral znode in `/brokers/ids`: made, made again after a session, and never taken from another.

Kafka's rules, and one of our own: a znode that another session holds is most often that of this broker's life before a
crash, so it is waited for until that session must have expired, where Kafka gives up at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from barnabas.coordination.errors import ConnectionLossError, MultiFailedError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.operations import Check, Create, Delete, GetData, SetData
from barnabas.coordination.protocol import CreateMode, Stat, WatcherEvent
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.errors import DuplicateBrokerError

# A server looks for expired sessions once per tick, and a tick is at most half of a session's time-out.
_EXPIRY_FACTOR: Final = 1.5


class Registration:
    """The registration of one broker. `broker_epoch` is that of its latest one, -1 before the first."""

    def __init__(
        self,
        session: CoordinationSession,
        broker_id: int,
        payload: Callable[[], BrokerRegistration],
        loop: asyncio.AbstractEventLoop,
        logger: logging.Logger,
    ) -> None:
        self._session = session
        self._broker_id = broker_id
        self._payload = payload
        self._loop = loop
        self._logger = logger
        self._path = broker_id_path(broker_id)
        self.broker_epoch = -1

    async def register(self) -> int:
        """Registers the broker in the present session; returns its broker epoch, the transaction that made the znode.

        Waits for a znode of another session until that session must have expired; raises DuplicateBrokerError when it
        is still there then, and SessionExpiredError when the present one is over.
        """
        registration = self._payload()
        payload = registration.encode()
        stat = await self._made(payload)
        self.broker_epoch = stat.czxid
        endpoints = ",".join(endpoint.connection_string for endpoint in registration.endpoints)
        self._logger.info(
            "Registered broker %d at %s with %s, broker epoch %d", self._broker_id, self._path, endpoints, stat.czxid
        )
        return stat.czxid

    async def _made(self, payload: bytes) -> Stat:
        """The stat of the znode, when it is ours."""
        deadline: float | None = None
        while True:
            try:
                return await self._create(payload)
            except ConnectionLossError:
                # Whether it happened shows when it is tried again.
                continue
            except MultiFailedError as failure:
                if not isinstance(failure.error, NodeExistsError):
                    raise failure.error from None
            found, deadline = await self._look(payload, deadline)
            if found is not None:
                return found

    async def _create(self, payload: bytes, *before: Delete) -> Stat:
        """Kafka's way: an empty znode, and its content, whose answer has the stat."""
        operations: list[Create | Delete | SetData | Check] = [
            *before,
            Create(self._path, None, mode=CreateMode.EPHEMERAL),
            SetData(self._path, payload, 0),
        ]
        stat: Stat = (await self._session.multi(operations))[-1]
        return stat

    async def _look(self, payload: bytes, deadline: float | None) -> tuple[Stat | None, float | None]:
        """Deals with the znode that is in the way: the stat of ours, else None when it is worth another try.

        Returns also until when another session is waited for.
        """
        changed: asyncio.Future[None] = self._loop.create_future()

        def note(_event: WatcherEvent) -> None:
            if not changed.done():
                changed.set_result(None)

        try:
            found = await self._session.perform(GetData(self._path, note))
        except (NoNodeError, ConnectionLossError):
            return None, deadline
        owner = found.stat.ephemeral_owner
        if owner == self._session.session_id:
            # Made by an attempt whose answer was lost; as a multi, all of it happened.
            return found.stat, deadline
        if self._session.was_ours(owner):
            self._logger.info("Replacing %s of this broker's former session 0x%x", self._path, owner)
            return await self._replace(payload, found.stat.version), deadline
        if deadline is None:
            limit_ms = self._session.session_timeout_ms * _EXPIRY_FACTOR
            deadline = self._loop.time() + limit_ms / 1000
            self._logger.warning(
                "Broker %d is registered already, by session 0x%x. If that is this broker's, from before it was killed,"
                " it ends within its time-out: waiting for that, at most %d ms",
                self._broker_id,
                owner,
                limit_ms,
            )
        if self._loop.time() >= deadline:
            raise DuplicateBrokerError(
                f"Another broker with the id {self._broker_id} is alive (session 0x{owner:x} holds {self._path}): stop"
                " it, or give this broker another broker.id"
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await changed
        return None, deadline

    async def _replace(self, payload: bytes, version: int) -> Stat | None:
        """None when the znode is gone by now, or changed: the next try sees which."""
        try:
            return await self._create(payload, Delete(self._path, version))
        except (ConnectionLossError, MultiFailedError):
            return None
