"""This broker's ephemeral znode in `/brokers/ids`: made, made again after a session, and never taken from another.

Kafka's rules, and one of our own: a znode that another session holds is most often that of this broker's life before a
crash, so it is waited for until that session must have expired, where Kafka gives up at once. Servers that restart or
elect give every session its whole time-out again, so only a connection without a break tells that it must have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.coordination.errors import ConnectionLossError, MultiFailedError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.operations import Check, Create, Delete, GetData, SetData, ZnodeData
from barnabas.coordination.protocol import CreateMode, Stat, WatcherEvent
from barnabas.coordination.session_state import SessionState
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.errors import DuplicateBrokerError
from barnabas.wire.sentinels import NO_EPOCH

# A server looks for expired sessions once per tick, and a tick is at most half of a session's time-out.
_EXPIRY_FACTOR: Final = 1.5


class _Patience(NamedTuple):
    """How long to wait for another session's znode, and in which of our connections that was logged."""

    connection: int
    deadline: float


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
        self.broker_epoch = NO_EPOCH
        self._connections = 0
        session.add_state_listener(self._state_changed)

    async def vacant(self) -> None:
        """Waits while another session holds the znode, until that session must have expired.

        Raises DuplicateBrokerError when it is still there then, and SessionExpiredError when the present one is over.
        """
        patience: _Patience | None = None
        while True:
            changed = _Change(self._loop)
            found = await self._session.until_connected(lambda: self._read(changed))  # noqa: B023 - awaited here
            if found is None or self._is_ours(found):
                return
            patience = await self._wait(found, changed, patience)

    async def register(self) -> int:
        """Registers the broker in the present session; returns its broker epoch, the transaction that made the znode.

        Waits for a znode of another session, and raises, as `vacant`.
        """
        registration = self._payload()
        stat = await self._made(registration.encode())
        self.broker_epoch = stat.czxid
        endpoints = ",".join(endpoint.connection_string for endpoint in registration.endpoints)
        self._logger.info(
            "Registered broker %d at %s with %s, broker epoch %d", self._broker_id, self._path, endpoints, stat.czxid
        )
        return stat.czxid

    async def _made(self, payload: bytes) -> Stat:
        """The stat of the znode, if it is ours."""
        patience: _Patience | None = None
        while True:
            try:
                return await self._create(payload)
            except ConnectionLossError:
                # Whether it happened shows when it is tried again.
                continue
            except MultiFailedError as failure:
                if not isinstance(failure.error, NodeExistsError):
                    raise failure.error from None
            changed = _Change(self._loop)
            try:
                found = await self._read(changed)
                if found is None:
                    continue
                if found.stat.ephemeral_owner == self._session.session_id:
                    # Made by an attempt whose answer was lost; as a multi, all of it happened.
                    return found.stat
                if self._is_ours(found):
                    return await self._replace(payload, found)
                patience = await self._wait(found, changed, patience)
            except (ConnectionLossError, MultiFailedError):
                # The next try sees what has become of it.
                continue

    async def _create(self, payload: bytes, *before: Delete) -> Stat:
        """Kafka's way: an empty znode, and its content, whose answer has the stat."""
        operations: list[Create | Delete | SetData | Check] = [
            *before,
            Create(self._path, None, mode=CreateMode.EPHEMERAL),
            SetData(self._path, payload, 0),
        ]
        stat: Stat = (await self._session.multi(operations))[-1]
        return stat

    async def _replace(self, payload: bytes, found: ZnodeData) -> Stat:
        self._logger.info("Replacing %s of this broker's former session 0x%x", self._path, found.stat.ephemeral_owner)
        return await self._create(payload, Delete(self._path, found.stat.version))

    async def _read(self, changed: _Change) -> ZnodeData | None:
        try:
            return await self._session.perform(GetData(self._path, changed.note))
        except NoNodeError:
            return None

    def _is_ours(self, found: ZnodeData) -> bool:
        owner = found.stat.ephemeral_owner
        return owner == self._session.session_id or self._session.was_ours(owner)

    async def _wait(self, found: ZnodeData, changed: _Change, patience: _Patience | None) -> _Patience:
        """Waits for another session's znode to change, as long as patience lasts, which it returns; past it raises."""
        owner = found.stat.ephemeral_owner
        if patience is None or patience.connection != self._connections:
            limit_ms = self._session.session_timeout_ms * _EXPIRY_FACTOR
            patience = _Patience(self._connections, self._loop.time() + limit_ms / 1000)
            self._logger.warning(
                "Broker %d is registered already, by session 0x%x. If that is this broker's, from before it was killed,"
                " it ends within its time-out: waiting for that, at most %d ms",
                self._broker_id,
                owner,
                limit_ms,
            )
        if self._loop.time() >= patience.deadline:
            raise DuplicateBrokerError(
                f"Another broker with the id {self._broker_id} is alive (session 0x{owner:x} holds {self._path}): stop"
                " it, or give this broker another broker.id"
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(patience.deadline):
                await changed.happened
        return patience

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._connections += 1


class _Change:
    """A watch on the znode."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.happened: asyncio.Future[None] = loop.create_future()

    def note(self, _event: WatcherEvent) -> None:
        if not self.happened.done():
            self.happened.set_result(None)
