"""Asks the brokers of a new cluster, as a client does, whether it can be used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from barnabas.client.access import Access
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
from barnabas.link.limits import LinkLimits
from barnabas.link.login import LinkLogin
from barnabas.link.outgoing import Outgoing
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FindCoordinatorRequest, ListGroupsRequest, MetadataRequest
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import OFFSETS_TOPIC

_PROBE_EVERY_MS: Final = 10.0
_METADATA_VERSION: Final = 9
_FIND_COORDINATOR_VERSION: Final = 3
_LIST_GROUPS_VERSION: Final = 4
_REQUEST_MS: Final = 5_000
_NO_GROUP: Final = "barnabas-up"
"""An empty group: asked for its coordinator, a broker creates `__consumer_offsets` if it is missing."""

_OPEN: Final = Access()


class ClusterProbe:
    """Asks the brokers at these addresses, `HOST:PORT`."""

    def __init__(self, host: Host, addresses: Sequence[str], access: Access = _OPEN) -> None:
        """`access` is how the brokers let it in."""
        self._host = host
        self._addresses = tuple(addresses)
        self._access = access

    async def until_formed(self) -> None:
        """Waits until every broker knows all brokers and a controller: then topics of any replication can be made."""
        async with self._timers() as timers, asyncio.TaskGroup() as asking:
            for address in self._addresses:
                asking.create_task(self._until_it_knows_all(timers, address))

    async def until_groups_can_form(self, limit_seconds: float) -> bool:
        """Waits until every broker finds a coordinator of groups and has read its own groups, so long at most;
        `__consumer_offsets` is made for it.

        False where that is not so then: a partition may be of brokers that do not run, or very long.
        """
        async with self._timers() as timers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_seconds), asyncio.TaskGroup() as asking:
                    for address in self._addresses:
                        asking.create_task(self._until_it_coordinates(timers, address))
                return True
        return False

    async def has_offsets_topic(self) -> bool:
        """Whether there is a `__consumer_offsets` with partitions. Raises OSError when the broker does not answer."""
        async with self._timers() as timers, self._connection(timers, self._addresses[0]) as connection:
            topics = [MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            response = await connection.send(request, _METADATA_VERSION, _REQUEST_MS)
        return any(topic.partitions for topic in response.topics)

    async def _until_it_knows_all(self, timers: Timers, address: str) -> None:
        async with self._connection(timers, address) as connection:
            while True:
                with contextlib.suppress(OSError, ProtocolError):
                    response = await connection.send(MetadataRequest(topics=[]), _METADATA_VERSION, _REQUEST_MS)
                    if response.controller_id >= 0 and len(response.brokers) >= len(self._addresses):
                        return
                await timers.sleep(_PROBE_EVERY_MS)

    async def _until_it_coordinates(self, timers: Timers, address: str) -> None:
        find = FindCoordinatorRequest(key=_NO_GROUP, key_type=0)
        # A broker hears of what it leads before it hears of leaders, and answers this with an error while it loads any.
        listed = ListGroupsRequest(states_filter=["Dead"])
        async with self._connection(timers, address) as connection:
            for request, version in ((find, _FIND_COORDINATOR_VERSION), (listed, _LIST_GROUPS_VERSION)):
                while not await self._is_answered(connection, request, version):
                    await timers.sleep(_PROBE_EVERY_MS)

    @staticmethod
    async def _is_answered(
        connection: Outgoing, request: FindCoordinatorRequest | ListGroupsRequest, version: int
    ) -> bool:
        """Without an error. The broker may be busy with starting; whether it ended is seen elsewhere."""
        with contextlib.suppress(OSError, ProtocolError):
            response = await connection.send(request, version, _REQUEST_MS)
            return bool(response.error_code == ErrorCode.NONE)
        return False

    @contextlib.asynccontextmanager
    async def _timers(self) -> AsyncIterator[Timers]:
        timers = Timers(self._host.loop)
        try:
            yield timers
        finally:
            timers.close()

    @contextlib.asynccontextmanager
    async def _connection(self, timers: Timers, address: str) -> AsyncIterator[Outgoing]:
        context = LinkContext.of(self._host.loop, timers, LinkLimits(), logging.getLogger("barnabas.supervisor"))
        name, _, port = address.rpartition(":")
        login = tls = None
        if self._access.login is not None:
            login = LinkLogin.of(self._access.login, self._host, timers)
        if self._access.tls is not None:
            from barnabas.link.handshakes import Handshakes
            from barnabas.link.tls_end import TlsEnd

            tls = TlsEnd(self._access.tls, Handshakes(self._host.loop, timers, self._host.offload))
        outgoing = Outgoing(
            context, self._host.random, name.strip("[]"), int(port), client_id=_NO_GROUP, login=login, tls=tls
        )
        try:
            yield outgoing
        finally:
            outgoing.close()
            await outgoing.wait_closed()
