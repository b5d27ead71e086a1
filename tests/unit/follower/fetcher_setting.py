"""A fetcher, and its leader that tests play, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from barnabas.cluster.image import Node
from barnabas.follower.fetch_protocol import FetchProtocol
from barnabas.follower.fetcher_context import FetcherContext
from barnabas.follower.fetcher_partitions import FetchedPartition, FetchPhase
from barnabas.follower.ports import AuxiliaryState
from barnabas.follower.replica_fetcher import ReplicaFetcher
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.ids import Uuid
from barnabas.kernel.timers import Timers
from barnabas.quotas.replication_quota import ReplicationQuota
from barnabas.quotas.settings import ReplicationQuotaSettings
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    FetchRequest,
    FetchResponse,
)
from barnabas.wire.primitives import Buffer
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import run_virtually
from tests.unit.leader.memory_log import TOPIC_ID, Entry
from tests.unit.leader.partition_setting import BrokerSetting

LEADER = Node(2, "leader", 9092)
SESSION = 77
BACKOFF_SECONDS = 1.0
OTHER_ID = Uuid(bytes(16 * [7]))


class Sent(NamedTuple):
    """A request that the fetcher has sent."""

    message: Any
    version: int
    on_response: Callable[[Any], object]
    on_failure: Callable[[Exception], object]
    is_encoded: bool = False
    """By the fetcher itself."""


class PlayedLeader:
    """The connection, and the leader behind it."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Sent] = asyncio.Queue()
        self.is_closed = False
        self.is_gone = False
        self.attempts = 0
        """To connect to it while it is gone."""

    async def ready(self, _timeout_ms: float) -> None:
        if self.is_gone:
            self.attempts += 1
            raise ConnectionError("nobody listens")

    def connect(self, _node: Node, _client_id: str) -> PlayedLeader:
        return self

    def start(self, message: Any, version: int, _timeout_ms: float, on_response: Any, on_failure: Any) -> None:
        self.sent.put_nowait(Sent(message, version, on_response, on_failure))

    def start_encoded(
        self,
        encode: Callable[[int], list[Buffer]],
        _decode: object,
        _timeout_ms: float,
        on_response: Any,
        on_failure: Any,
    ) -> None:
        frame = b"".join(encode(9))
        key, version, correlation_id, client_id, start = headers.read_request_header(frame, 4, len(frame))
        assert (key, correlation_id, client_id) == (ApiKey.FETCH, 9, "broker-1-fetcher-0")
        message, _ = codec.request_decoder(key, version)(frame, start, len(frame))
        self.sent.put_nowait(Sent(message, version, on_response, on_failure, is_encoded=True))

    async def send(self, message: Any, version: int, timeout_ms: float) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.start(message, version, timeout_ms, answered.set_result, answered.set_exception)
        return await answered

    def close(self) -> None:
        self.is_closed = True


class PlayedWriteQueue:
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[KafkaError | None], object]] = []
        self.is_slow = False

    def needs_wait(self, _log: object) -> bool:
        return self.is_slow

    def when_written(self, _log: object, callback: Callable[[KafkaError | None], object]) -> None:
        self.waiting.append(callback)


class PlayedRemoteStates:
    """Remote storage, of a follower."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answers: list[AuxiliaryState | Exception | None] = []
        self.hangs = False

    async def auxiliary_state(self, _log: object, leader_epoch: int, last_offset: int) -> AuxiliaryState | None:
        self.asked.append((leader_epoch, last_offset))
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Setting:
    """A follower with its fetcher; made within a loop."""

    def __init__(self, protocol: FetchProtocol, *, has_remote_storage: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self.leader = PlayedLeader()
        self.writes = PlayedWriteQueue()
        self.broker = BrokerSetting(1)
        self.failed: list[TopicPartition] = []
        self.remote = PlayedRemoteStates()
        self.quota = ReplicationQuota(ReplicationQuotaSettings(), loop.time)
        context = FetcherContext(
            broker_id=1,
            broker_epoch=lambda: 42,
            loop=loop,
            timers=Timers(loop),
            settings=ReplicaSettings(),
            protocol=protocol,
            connections=self.leader,
            write_queue=self.writes,  # type: ignore[arg-type]
            wake_ups=self.broker.woken,  # type: ignore[arg-type]
            logger=logging.getLogger("barnabas.tests.replication"),
            quota=self.quota,
            remote=self.remote if has_remote_storage else None,
        )
        self.fetcher = ReplicaFetcher(context, LEADER, 0, self.failed.append)

    def follow(self, *entries: Entry, epoch: int = 5, phase: FetchPhase = FetchPhase.FETCHING) -> FetchedPartition:
        """Follows the leader in an epoch, with these records in the log."""
        log = self.broker.log
        log.append_as_follower(entries)
        self.broker.follow(LEADER.broker_id, epoch)
        known = log.latest_epoch
        fetched = FetchedPartition(
            *(self.broker.partition, TOPIC_ID, epoch),
            *(
                log.log_end_offset if phase is FetchPhase.FETCHING else log.high_watermark,
                -1 if known is None else known,
            ),
            phase,
        )
        self.fetcher.add([fetched])
        return fetched

    async def request(self, kind: type[Any]) -> Sent:
        sent = await self.leader.sent.get()
        assert isinstance(sent.message, kind)
        return sent

    async def fetch_request(self) -> tuple[Sent, list[FetchRequest.FetchPartition]]:
        sent = await self.request(FetchRequest)
        return sent, [partition for topic in sent.message.topics for partition in topic.partitions]


def fetched_response(
    *entries: Entry, error: ErrorCode = ErrorCode.NONE, high_watermark: int = 0, session_id: int = SESSION, **more: Any
) -> FetchResponse:
    records: Any = list(entries)
    data = FetchResponse.PartitionData(
        partition_index=0, error_code=error, high_watermark=high_watermark, records=records, **more
    )
    topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
    return FetchResponse(session_id=session_id, responses=[topic])


def empty_response(error: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    return FetchResponse(error_code=error, session_id=SESSION)


def in_setting(test: Callable[[Setting], Coroutine[Any, Any, None]], protocol: FetchProtocol | None = None) -> None:
    async def run() -> None:
        setting = Setting(protocol or FetchProtocol())
        try:
            await test(setting)
        finally:
            setting.fetcher.close()
            await setting.fetcher.wait_closed()
            assert setting.leader.is_closed

    run_virtually(run())
