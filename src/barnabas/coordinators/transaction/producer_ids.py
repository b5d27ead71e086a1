"""Producer ids (KIP-98), which the controller hands out in blocks (KIP-730, AllocateProducerIds).

The next block is fetched before the present one is used up, so that a producer seldom waits.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from barnabas.coordinators.ports import ProducerIdAllocator
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AllocateProducerIdsResponse

_PREFETCH_PART: Final = 0.9
"""The next block is asked for when so much of the present one is used."""
_RETRY_MS: Final = 50
_RETRY_MS_MAX: Final = 1_000
_WAIT_MS: Final = 1_000
"""How long a producer waits for a block; then it is told to ask again, which every client does."""
_WAITING_MAX: Final = 10_000
_INT64_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class _Block:
    next_id: int
    end: int
    """Behind the last id."""
    prefetch_at: int


class ProducerIdManager:
    """The ids of one broker: each is given out once in the life of the cluster."""

    def __init__(self, allocator: ProducerIdAllocator, *, host: Host, timers: Timers, logger: logging.Logger) -> None:
        """`logger` is `kafka.coordinator.transaction.RPCProducerIdManager`."""
        self._allocator = allocator
        self._loop = host.loop
        self._timers = timers
        self._logger = logger
        self._block: _Block | None = None
        self._next_block: _Block | None = None
        self._highest_end = 0
        self._fetching: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._is_stopped = False

    def start(self) -> None:
        """Fetches the first block ahead."""
        self._fetch()

    async def stop(self) -> None:
        """Gives out no more ids; who waits is told to ask again."""
        self._is_stopped = True
        task = self._fetching
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._wake()

    def next_id_now(self) -> int | None:
        """An id; None while there is no block."""
        block = self._block
        if block is None or block.next_id >= block.end:
            block = self._block = self._next_block
            self._next_block = None
            if block is None:
                self._fetch()
                return None
        producer_id = block.next_id
        block.next_id += 1
        if producer_id >= block.prefetch_at:
            self._fetch()
        return producer_id

    async def next_id(self) -> int:
        """An id, waited for in bounded time; KafkaError COORDINATOR_LOAD_IN_PROGRESS where no block comes."""
        deadline = self._loop.time() + _WAIT_MS / 1000
        while (producer_id := self.next_id_now()) is None:
            remaining_ms = (deadline - self._loop.time()) * 1000
            if self._is_stopped or remaining_ms <= 0 or len(self._waiting) >= _WAITING_MAX:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the next block of producer ids is under way")
            woken: asyncio.Future[None] = self._loop.create_future()
            timer = self._timers.call_after(remaining_ms, _resolve, woken)
            self._waiting[woken] = None
            try:
                await woken
            finally:
                timer.cancel()
                self._waiting.pop(woken, None)
        return producer_id

    def _fetch(self) -> None:
        if self._fetching is None and self._next_block is None and not self._is_stopped:
            self._fetching = self._loop.create_task(self._fetch_until_there(), name="allocate-producer-ids")

    async def _fetch_until_there(self) -> None:
        retry_ms = _RETRY_MS
        try:
            while (block := await self._fetch_once()) is None:
                await self._timers.sleep(retry_ms)
                retry_ms = min(retry_ms * 2, _RETRY_MS_MAX)
            self._next_block = block
        finally:
            self._fetching = None
        self._wake()

    async def _fetch_once(self) -> _Block | None:
        try:
            response = await self._allocator.allocate()
        except OSError as error:  # TimeoutError and ConnectionError among them
            self._logger.info("No answer from the controller to AllocateProducerIds, trying again: %s", error)
            return None
        if response.error_code != ErrorCode.NONE:
            error_code = ErrorCode.for_code(response.error_code)
            self._logger.warning("The controller allocated no producer ids, trying again: %s", error_code.name)
            return None
        return self._accepted(response)

    def _accepted(self, response: AllocateProducerIdsResponse) -> _Block | None:
        """The block, unless ids in it were or may be given out by somebody else."""
        first, count = response.producer_id_start, response.producer_id_len
        if first < self._highest_end or count <= 0 or first > _INT64_MAX - count:
            self._logger.error(
                "The controller allocated %d producer ids from %d, which cannot follow those before %d; trying again",
                count,
                first,
                self._highest_end,
            )
            return None
        self._highest_end = first + count
        return _Block(first, first + count, first + int(count * _PREFETCH_PART))

    def _wake(self) -> None:
        for woken in list(self._waiting):
            _resolve(woken)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
