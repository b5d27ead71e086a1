"""The connections of a client: one for each broker and lane.

Answers come in the order of the requests, so what may wait long (a fetch, joining a group) must not share a connection
with what should not. Each user of a client therefore has lanes of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

from barnabas.client.errors import ClientClosedError
from barnabas.link.outgoing import Outgoing

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode
    from barnabas.link.connector import Connector

Lane = NewType("Lane", int)
METADATA_LANE = Lane(0)


class Connections:
    """Makes connections when they are asked for. As many as brokers times lanes, besides those to bootstrap servers."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._made: dict[tuple[Lane, str, int], Outgoing] = {}
        self._places: dict[tuple[Lane, int], tuple[str, int]] = {}
        self._lanes = int(METADATA_LANE)
        self._closed = False

    def new_lane(self) -> Lane:
        """A lane that nobody else has; give it back with `close_lane`."""
        self._lanes += 1
        return Lane(self._lanes)

    def to_node(self, lane: Lane, node: BrokerNode) -> Outgoing:
        """The lane's connection to a broker; one to an address that the broker has left is closed."""
        place = (node.host, node.port)
        before = self._places.get((lane, node.node_id))
        if before is not None and before != place:
            self._close((lane, *before))
        self._places[lane, node.node_id] = place
        return self.to_address(lane, node.host, node.port)

    def to_address(self, lane: Lane, host: str, port: int) -> Outgoing:
        """The lane's connection to an address."""
        if self._closed:
            raise ClientClosedError("the client is closed")
        key = (lane, host, port)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._connector.connect(host, port, learns_versions=True)
        return found

    @property
    def node_ids(self) -> set[int]:
        """The brokers that were connected to."""
        return {node_id for _, node_id in self._places}

    def close_node(self, node_id: int) -> None:
        """Ends the connections of all lanes to a broker: what waits there fails."""
        for lane, other in list(self._places):
            if other == node_id:
                self._close((lane, *self._places.pop((lane, other))))

    async def close_lane(self, lane: Lane) -> None:
        """Ends the connections of a lane."""
        ended = [self._close(key) for key in list(self._made) if key[0] == lane]
        for place in [place for place in self._places if place[0] == lane]:
            del self._places[place]
        for outgoing in ended:
            if outgoing is not None:
                await outgoing.wait_closed()

    async def close(self) -> None:
        """Ends all connections."""
        self._closed = True
        for lane in sorted({key[0] for key in self._made}):
            await self.close_lane(lane)

    def _close(self, key: tuple[Lane, str, int]) -> Outgoing | None:
        outgoing = self._made.pop(key, None)
        if outgoing is not None:
            outgoing.close()
        return outgoing
