"""Members of a group as clients are: a connection each, one request in flight, a heartbeat in each interval.

A `ClassicMember` assigns by range if it leads, and gives up all that it has before it joins again, as Java's consumer
does by default. A `NextMember` is of the protocol of KIP-848; it gives up and takes what it is told to, and says so, at
once.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from barnabas.client.assignors import MemberSubscription, assign_range
from barnabas.client.subscription_bytes import (
    PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder, response_decoder
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)

CLASSIC, NEXT = "classic", "consumer"
"""The names of the protocols, as in `group.protocol`."""
CLASSIC_HEARTBEAT_MS = 3_000
"""The default of Java's consumer; members of the other protocol are told theirs."""
SESSION_MS = 45_000
REBALANCE_MS = 300_000
RETRY_SECONDS = 0.1
_CLIENT_ID = "benchmark"
_VERSIONS = {
    ApiKey.JOIN_GROUP: 9,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
}
_SIZE = struct.Struct(">i")
_LATER = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
_AGAIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED})
_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH})


class Connection:
    """One connection with one request in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.requests = 0

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))

    async def call(self, key: ApiKey, message: Any) -> Any:
        """The response. OSError or asyncio.IncompleteReadError when the connection ends."""
        version = _VERSIONS[key]
        self.requests += 1
        self._writer.write(b"".join(request_encoder(key, version, _CLIENT_ID)(1, message)))
        (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
        answer = await self._reader.readexactly(size)
        return response_decoder(key, version)(answer, 0, size)[0]

    def close(self) -> None:
        self._writer.close()


Owns = Callable[[Any, frozenset[int]], None]
"""What a member says, of itself: that it owns these partitions, and nothing else."""


class _Interval:
    """Time between heartbeats, which ends at once when the member is stopped."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._stopped.is_set()

    def end(self) -> None:
        self._stopped.set()

    async def wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return


class ClassicMember:
    """JoinGroup, SyncGroup, Heartbeat."""

    def __init__(
        self,
        connection: Connection,
        group_id: str,
        topic: str,
        partition_count: int,
        owns: Owns,
        *,
        interval_ms: float,
        session_ms: int = SESSION_MS,
    ) -> None:
        """`run` joins and stays until `stop`; `leave` comes after it has ended."""
        self._connection, self._group_id, self._topic = connection, group_id, topic
        self._partition_count, self._owns, self._session_ms = partition_count, owns, session_ms
        self._seconds = interval_ms / 1000
        self._interval = _Interval()
        self._member_id, self._generation = "", -1

    async def run(self) -> None:
        while not self._interval.is_over:
            if self._generation < 0 or await self._heartbeat() is not ErrorCode.NONE:
                self._owns(self, frozenset())
                if not await self._rejoin():
                    await self._interval.wait(RETRY_SECONDS)
                    continue
            await self._interval.wait(self._seconds)

    def stop(self) -> None:
        self._interval.end()

    async def leave(self) -> None:
        self._owns(self, frozenset())
        identity = LeaveGroupRequest.MemberIdentity(member_id=self._member_id)
        await self._connection.call(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id=self._group_id, members=[identity]))

    async def _heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(group_id=self._group_id, generation_id=self._generation, member_id=self._member_id)
        answer = await self._connection.call(ApiKey.HEARTBEAT, request)
        return self._checked(answer.error_code)

    async def _rejoin(self) -> bool:
        """Whether the member has what it was assigned; until then it may be told to join again."""
        while True:
            joined = await self._join()
            code = self._checked(joined.error_code)
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = joined.member_id
            elif code in _LATER:
                return False
            elif code is ErrorCode.NONE:
                self._member_id, self._generation = joined.member_id, joined.generation_id
                synced = await self._sync(joined)
                code = self._checked(synced.error_code)
                if code is ErrorCode.NONE:
                    assigned = read_assignment(synced.assignment)
                    self._owns(self, frozenset(partition.partition for partition in assigned))
                    return True
                if code in _LATER:
                    return False

    async def _join(self) -> Any:
        metadata = write_subscription(MemberSubscription((self._topic,)))
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        return await self._connection.call(ApiKey.JOIN_GROUP, request)

    async def _sync(self, joined: JoinGroupResponse) -> Any:
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=self._assigned(joined) if joined.leader == joined.member_id else [],
        )
        return await self._connection.call(ApiKey.SYNC_GROUP, request)

    def _assigned(self, joined: JoinGroupResponse) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        members = {member.member_id: read_subscription(member.metadata, None) for member in joined.members}
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(partitions))
            for member_id, partitions in assign_range({self._topic: self._partition_count}, members).items()
        ]

    def _checked(self, error_code: int) -> ErrorCode:
        """RuntimeError for what a member of this benchmark is not to be told."""
        code = ErrorCode.for_code(error_code)
        if code in _LOST:
            self._generation = -1
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
        elif code is not ErrorCode.NONE and code not in _LATER | _AGAIN:
            raise RuntimeError(f"a member of {self._group_id} was told {code.name}")
        return code


class NextMember:
    """ConsumerGroupHeartbeat."""

    def __init__(
        self,
        connection: Connection,
        group_id: str,
        topic: str,
        partition_count: int,
        owns: Owns,
        *,
        interval_ms: float,
        session_ms: int = SESSION_MS,
    ) -> None:
        """As of `ClassicMember`. How many partitions there are and how long a session is, the coordinator knows. Where
        it says a shorter interval than `interval_ms`, which is to be what it is configured with, that counts.
        """
        del partition_count, session_ms
        self._connection, self._group_id, self._topic, self._owns = connection, group_id, topic, owns
        self._seconds = interval_ms / 1000
        self._interval = _Interval()
        self._member_id, self._epoch = "", 0
        self._owned: list[tuple[Any, list[int]]] = []
        """By topic id."""

    async def run(self) -> None:
        has_changed = False
        while not self._interval.is_over:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._group_id, member_id=self._member_id, member_epoch=self._epoch
            )
            if self._epoch == 0:
                request.rebalance_timeout_ms, request.subscribed_topic_names = REBALANCE_MS, [self._topic]
            if self._epoch == 0 or has_changed:
                request.topic_partitions = [
                    ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in self._owned
                ]
            answer = await self._connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
            has_changed = self._take(answer)
            if not has_changed and not self._interval.is_over:
                told_seconds = min(answer.heartbeat_interval_ms / 1000, self._seconds)
                await self._interval.wait(RETRY_SECONDS if answer.error_code else told_seconds)

    def stop(self) -> None:
        self._interval.end()

    async def leave(self) -> None:
        self._owns(self, frozenset())
        request = ConsumerGroupHeartbeatRequest(group_id=self._group_id, member_id=self._member_id, member_epoch=-1)
        await self._connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)

    def _take(self, answer: Any) -> bool:
        """Whether the member has something else than before, which it is to say at once."""
        code = ErrorCode.for_code(answer.error_code)
        if code in _LOST:
            self._epoch, self._owned = 0, []
            self._owns(self, frozenset())
            return False
        if code in _LATER:
            return False
        if code is not ErrorCode.NONE:
            raise RuntimeError(f"a member of {self._group_id} was told {code.name}: {answer.error_message}")
        self._member_id = answer.member_id or self._member_id
        self._epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        owned = [(each.topic_id, list(each.partitions)) for each in answer.assignment.topic_partitions]
        if owned == self._owned:
            return False
        self._owned = owned
        self._owns(self, frozenset(number for _, numbers in owned for number in numbers))
        return True


MEMBERS: dict[str, type[ClassicMember | NextMember]] = {CLASSIC: ClassicMember, NEXT: NextMember}
"""By protocol."""
