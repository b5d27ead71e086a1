"""Sends a batch by several senders, side by side, each its share in a transaction of its own (0057).

The first sender's transaction is open from the beginning to the end, and committed last; its offset says that all of
the batch is there. What the others have sent is committed when all records are in their topics, so that whatever is
wrong with a record, or with what was staged, is found while nothing of the batch counts. From the first of these
commits on readers may see a part of the batch, until all are done, and whoever is killed in between goes on with it.

A share counts where its sender's own offset says so, which is read whenever the sender was opened anew. And no share is
sent but by who has the first sender's id: it is asked for behind the opening of the others, so that whoever takes it
later will fence these later too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.client.errors import ClientTimeoutError, ProducerFencedError
from barnabas.pipelines.outbox_sender import ANSWER_MS_MAX, QuerySender, SenderContext

if TYPE_CHECKING:
    from barnabas.client.transactional_producer import TransactionalProducer
    from barnabas.pipelines.definition import TopicSink
    from barnabas.pipelines.outbox_offsets import Sent
    from barnabas.pipelines.staged_batches import StagedBatch


class SideSender(QuerySender):
    """Sends its shares of batches, when the first sender says so."""

    async def has_to_send(self, sent: Sent, first: QuerySender) -> bool:
        """Makes ready for its share of a batch; whether it was not sent yet, as far as the offset says."""
        self.take_measures_of(first)
        await self._prepared(sent, is_batch=True)
        return self._sent is None or self._sent.next_batch < sent.next_batch

    async def send_share(self, share: StagedBatch, sent: Sent) -> None:
        """The records are in their topics when this returns, in a transaction that is open."""
        producer = self._ready
        self._begun(producer)
        await producer.begin(ANSWER_MS_MAX)
        await self._fill(producer, share)
        await self._send_offset(producer, sent)

    async def commit_share(self, sent: Sent) -> None:
        """Now they count."""
        await self._ready.commit()
        self._sent, self._is_begun = sent, False

    @property
    def _ready(self) -> TransactionalProducer:
        if self._producer is None:
            raise ClientTimeoutError("the producer was closed")
        return self._producer


class FirstSender(QuerySender):
    """The first sender of a query, with those that there are beside it (`outbox.OutboxPort`)."""

    def __init__(self, senders: SenderContext, transactional_id: str, sinks: Sequence[TopicSink]) -> None:
        super().__init__(senders, transactional_id, sinks)
        self.sides: dict[int, SideSender] = {}
        self._shares: dict[int, StagedBatch] = {}
        """What is to be sent by others in the attempt under way."""

    def open(self, sender: int = 1) -> Sent | None:
        """See `outbox.OutboxPort`."""
        return self._senders.call(self.opened(sender), is_opening=True)

    def send(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        """See `outbox.OutboxPort`."""
        self._senders.call(self.deliver(batch, sent, sender), is_opening=batch is None)

    async def opened(self, sender: int = 1) -> Sent | None:
        """`open`, on the loop of the client."""
        return await (super().opened() if sender == 1 else self._side(sender).opened())

    async def deliver(self, batch: StagedBatch | None, sent: Sent, sender: int = 1) -> None:
        """`send`, on the loop of the client."""
        if sender > 1:
            await self._side(sender).deliver(batch, sent)
            return
        await super().deliver(batch, sent)
        for number in [each for each in self.sides if each > sent.senders]:
            await self.sides.pop(number).end()  # fenced, and not needed any more

    async def refresh(self) -> None:
        """Commits all offsets again."""
        await super().refresh()
        for side in list(self.sides.values()):
            if self._taken_by_another is not None or self._lock.locked():
                return
            async with self._lock:
                await side.refresh()
                self._taken_by_another = side.taken_by_another

    async def end(self) -> None:
        """Sends no more."""
        for side in self.sides.values():
            await side.end()
        await super().end()

    # Inside.

    def make_side(self, number: int) -> SideSender:
        """A sender beside this one."""
        return SideSender(self._senders, self._name, self._sinks, number)

    def _side(self, number: int) -> SideSender:
        if number not in self.sides:
            self.sides[number] = self.make_side(number)
        return self.sides[number]

    async def _attempt(self, batch: StagedBatch | None, sent: Sent) -> None:
        self._shares = {}
        if batch is None or batch.senders == (1,):
            await super()._attempt(batch, sent)
            return
        producer = await self._prepared(sent, is_batch=True)
        if producer is None:
            return
        for number in batch.senders[1:]:
            if await self._side(number).has_to_send(sent, self):
                self._shares[number] = batch.share(number)
        await self._in_time(producer, batch, sent)

    async def _transact(self, producer: TransactionalProducer, batch: StagedBatch | None, sent: Sent) -> None:
        if batch is None or batch.senders == (1,):
            await super()._transact(producer, batch, sent)
            return
        await producer.begin(ANSWER_MS_MAX)
        ids = await self._topic_ids(batch)
        await self._send_offset(producer, sent)  # before the others send: it is refused where another has our id
        sides = [(self.sides[number], share) for number, share in self._shares.items()]
        await _all(self._fill(producer, batch.share(1)), *(side.send_share(share, sent) for side, share in sides))
        await self._refuse_renewed(batch, ids)
        await _all(*(side.commit_share(sent) for side, _ in sides))
        await producer.commit()

    async def _give_up_transaction(self, error: Exception) -> Exception:
        sides = [self.sides[number] for number in self._shares]
        told = await asyncio.gather(*(side._give_up_transaction(error) for side in sides))  # noqa: SLF001 - one class
        found = await super()._give_up_transaction(error)
        return next((each for each in (found, *told) if isinstance(each, ProducerFencedError)), found)


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    """Does it side by side; raises what went wrong when all have ended."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    failures = [each for each in ended if each is not None]
    failures.sort(key=lambda each: not isinstance(each, ProducerFencedError))
    for failure in failures:
        raise failure
