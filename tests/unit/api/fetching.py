"""Fetch requests for tests, with and without sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from barnabas.kernel.real_host import real_host
from barnabas.wire.batch_formats import read_records
from barnabas.wire.messages import FetchRequest, FetchResponse
from tests.support.writes import WRITES
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import FETCH_BYTES_MAX, DataBroker, data_broker, topic_id

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Data = FetchResponse.PartitionData


def scenario(
    run: Run,
    path: Path,
    body: Callable[[DataBroker], Coroutine[Any, Any, None]],
    *,
    fetch_bytes_max: int | None = None,
    is_rack_aware: bool = False,
    writes: str = WRITES,
) -> None:
    """Runs `body` with a broker; `fetch_bytes_max` is its `fetch.max.bytes` where that is not the default,
    `is_rack_aware` names replicas by rack, and `writes` is `barnabas.log.dir.writes`."""
    size_bytes = fetch_bytes_max or FETCH_BYTES_MAX

    async def main() -> None:
        async with (
            real_host("test", asyncio.get_running_loop()) as host,
            data_broker(
                host, str(path), fetch_bytes_max=size_bytes, is_rack_aware=is_rack_aware, writes=writes
            ) as broker,
        ):
            await body(broker)

    run(main())


async def settled() -> None:
    """The changes that the controller has brought about have been told to all who watch."""
    for _ in range(3):
        await asyncio.sleep(0)


def asked(number: int = 0, offset: int = 0, **options: Any) -> FetchRequest.FetchPartition:
    return FetchRequest.FetchPartition(
        **({"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20} | options)
    )


def fetch_request(
    version: int,
    topic: str,
    *partitions: FetchRequest.FetchPartition,
    replica_id: int = -1,
    replica_epoch: int = -1,
    **options: Any,
) -> FetchRequest:
    """A request outside of sessions that does not wait, unless `options` say otherwise."""
    named = FetchRequest.FetchTopic(partitions=list(partitions))
    if version >= 13:
        named.topic_id = topic_id(topic)
    else:
        named.topic = topic
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": [named] if partitions else []}
    request = FetchRequest(**(fields | options))
    if version >= 15:
        request.replica_state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch)
    else:
        request.replica_id = replica_id
    return request


def only(response: FetchResponse) -> Data:
    """The only partition of a response that has no error of its own."""
    assert response.error_code == 0
    ((data,),) = ([*topic.partitions] for topic in response.responses)
    return data


def values(data: Data) -> list[bytes | None]:
    return [record.value for record in read_records(bytes(data.records or b""))]


class Session:
    """A client that keeps a session."""

    def __init__(self, caller: Caller, version: int = 12, replica_id: int = -1) -> None:
        self.caller = caller
        self.version = version
        self.replica_id = replica_id
        self.session_id = 0
        self.epoch = 0

    def request(
        self, *partitions: FetchRequest.FetchPartition, forgotten: Sequence[int] = (), **options: Any
    ) -> FetchRequest:
        request = fetch_request(
            self.version,
            "flights",
            *partitions,
            replica_id=self.replica_id,
            session_id=self.session_id,
            session_epoch=self.epoch,
            **options,
        )
        if forgotten:
            gone = FetchRequest.ForgottenTopic(partitions=list(forgotten))
            if self.version >= 13:
                gone.topic_id = topic_id("flights")
            else:
                gone.topic = "flights"
            request.forgotten_topics_data = [gone]
        return request

    async def fetch(self, *partitions: FetchRequest.FetchPartition, **options: Any) -> dict[int, Data]:
        """What the response says, by partition."""
        response = await self.caller.call(self.request(*partitions, **options), self.version)
        return self.take(response)

    def take(self, response: FetchResponse) -> dict[int, Data]:
        assert response.error_code == 0
        self.session_id = response.session_id
        self.epoch += 1
        return {data.partition_index: data for topic in response.responses for data in topic.partitions}
