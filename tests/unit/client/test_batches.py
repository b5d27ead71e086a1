"""`barnabas.client.batches`: exactly once and in order, whatever happens to requests and leaders."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from random import Random

import pytest

from barnabas.client.batches import PRODUCER_EPOCH_MAX, PartitionQueue, ProducerBatch, ProducerIdentity
from barnabas.client.errors import DeliveryTimeoutError
from barnabas.client.records import RecordMetadata
from barnabas.client.settings import ProducerSettings
from barnabas.wire.batch_formats import read_records
from barnabas.wire.record_batch import INT32_MAX, read_batch_header
from barnabas.wire.record_columns import OFFSETS_OF_TWO_BYTES, RecordShape, ValueColumn
from barnabas.wire.topics import TopicPartition

PARTITION = TopicPartition("events", 0)
IDENTITY = ProducerIdentity(7, 0)
SMALL = ProducerSettings(batch_bytes=100, delivery_timeout_ms=1_000)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Leader:
    """The log of a leader, with Kafka's rules of producer state: the last five batches of each epoch are remembered."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.epoch = -1
        self.last_sequence = -1
        self.known: list[tuple[int, int, int]] = []

    def start_anew(self) -> None:
        """What a snapshot has of a producer is the last batch."""
        self.known = self.known[-1:]

    def append(self, data: bytes) -> str:
        header = read_batch_header(data)
        if header.producer_epoch < self.epoch:
            return "fenced"
        if header.producer_epoch > self.epoch:
            if self.epoch >= 0 and header.base_sequence != 0:
                return "out of order"
            self.epoch, self.known = header.producer_epoch, []
        elif any(header.base_sequence == first and header.last_sequence == last for first, last, _ in self.known):
            return "written"
        elif header.base_sequence != (self.last_sequence + 1) & INT32_MAX:
            return "out of order"
        self.known = [*self.known[-4:], (header.base_sequence, header.last_sequence, len(self.values))]
        self.last_sequence = header.last_sequence
        self.values += [bytes(record.value or b"") for record in read_records(data)]
        return "written"


class CarelessLeader(Leader):
    """The log of a leader that gets no sequences: it takes everything."""

    def append(self, data: bytes) -> str:
        self.values += [bytes(record.value or b"") for record in read_records(data)]
        return "written"


class Fates:
    """Gives each record of a column its future, as if it had been sent alone."""

    def __init__(self, futures: list[asyncio.Future[RecordMetadata]]) -> None:
        self.futures = futures

    def written(self, first: int, count: int, partition: TopicPartition, base_offset: int) -> None:
        for place, future in enumerate(self.futures[first : first + count]):
            future.set_result(RecordMetadata(partition, base_offset + place, -1))

    def failed(self, first: int, count: int, error: Exception) -> None:
        for future in self.futures[first : first + count]:
            future.set_exception(error)
            future.exception()


class Sender:
    """Sends what a queue has, over a network that loses requests and answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seed: int,
        *,
        is_idempotent: bool = True,
        is_transactional: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.loop = loop
        settings = dataclasses.replace(SMALL, idempotent=is_idempotent)
        self.queue = PartitionQueue(PARTITION, settings, is_transactional=is_transactional)
        self.queue.identity = IDENTITY if is_idempotent else None
        self.leader = Leader() if is_idempotent else CarelessLeader()
        self.now = 0.0
        self.on_the_way: list[ProducerBatch] = []
        self.delayed: list[tuple[ProducerBatch, str]] = []
        """Requests that have arrived, whose answers take their time: they went to a broker that is slow now."""
        self.futures: dict[bytes, asyncio.Future[RecordMetadata]] = {}

    def add(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self.futures)
            future: asyncio.Future[RecordMetadata] = self.loop.create_future()
            self.futures[value] = future
            self.queue.append((0, None, value, ()), future, len(value), self.now)

    def add_column(self, count: int) -> None:
        values = [b"%d" % (len(self.futures) + place) for place in range(count)]
        futures: list[asyncio.Future[RecordMetadata]] = [self.loop.create_future() for _ in values]
        self.futures.update(zip(values, futures, strict=True))
        self.queue.append_column(ValueColumn(RecordShape(), values), Fates(futures), 0, self.now)

    def send(self) -> None:
        while True:
            when = self.queue.ready_at(self.now, is_flushing=False)
            if when is None or when > self.now:
                return
            self.on_the_way.append(self.queue.take())

    def answer(self, *, loses: float, delays: float = 0.0) -> None:
        """The first request on its way arrives or is lost, and so is its answer, or that comes later."""
        batch = self.on_the_way.pop(0)
        outcome = "lost"
        if self.random.random() >= loses:
            outcome = "not now" if self.random.random() < loses else self.leader.append(bytes(batch.data or b""))
        if self.random.random() < loses:
            outcome = "lost"
        if self.random.random() < delays:
            self.delayed.append((batch, outcome))
        else:
            self.told(batch, outcome)
        if self.delayed and self.random.random() < delays / 4:
            batch, outcome = self.delayed.pop(0)
            self.told(batch, self.random.choice((outcome, "lost")))

    def told(self, batch: ProducerBatch, outcome: str) -> None:
        if outcome == "written":
            self.queue.written(batch, 0, -1)
        elif outcome == "out of order":
            self.queue.out_of_sequence(batch, self.now)
        elif outcome == "fenced":
            self.queue.out_of_sequence(batch, self.now, is_fenced=True)
        else:
            self.queue.send_again(batch, self.now, is_uncertain=outcome == "lost")

    def step(self, **fate: float) -> None:
        """Up to two records more, or a column of some, a request, and an answer of this fate."""
        if self.random.random() < 0.2:
            self.add_column(self.random.randrange(1, 9))
        else:
            self.add(self.random.randrange(3))
        list(self.queue.expire(self.now))
        self.send()
        if self.on_the_way:
            self.answer(**fate)

    def finish(self) -> None:
        for _ in range(10_000):
            self.send()
            if self.on_the_way:
                self.answer(loses=0.0)
            elif self.delayed:
                self.told(*self.delayed.pop(0))
            elif not list(self.queue.expire(self.now)) and self.queue.is_empty:
                break
        assert self.queue.is_empty


@pytest.mark.parametrize("seed", range(120))
def test_everything_is_written_once_and_in_order_though_requests_and_answers_are_lost(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    sender = Sender(loop, seed)
    for _ in range(200):
        sender.step(loses=0.3)
    sender.finish()
    assert sender.leader.values == list(sender.futures)
    assert all(future.done() and future.exception() is None for future in sender.futures.values())


@pytest.mark.parametrize("seed", range(120))
def test_answers_that_a_slow_former_leader_owes_for_long_do_no_harm(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    sender = Sender(loop, seed)
    for _ in range(300):
        sender.step(loses=0.01, delays=0.1)
    sender.finish()
    assert sender.leader.values == list(sender.futures)


@pytest.mark.parametrize("seed", range(120))
def test_what_was_given_up_is_written_once_or_not_at_all_and_nothing_else_suffers(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    sender = Sender(loop, seed)
    for step in range(200):
        sender.now = step * 0.1
        sender.step(loses=0.6 if step % 50 < 25 else 0.1)
    sender.finish()
    numbers = [int(value) for value in sender.leader.values]
    assert numbers == sorted(set(numbers)), "in order, and none twice"
    for value, future in sender.futures.items():
        error = future.exception()
        if error is None:
            assert value in sender.leader.values
        else:
            assert isinstance(error, DeliveryTimeoutError)
            assert error.may_be_written or value not in sender.leader.values
    assert any(future.exception() for future in sender.futures.values()) or seed, "some seed gives up something"


@pytest.mark.parametrize("seed", range(60))
def test_a_transaction_has_one_epoch_and_all_of_it_is_written_or_it_fails(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    sender = Sender(loop, seed, is_transactional=True)
    sent: list[ProducerBatch] = []
    for step in range(150):
        sender.now = step * 0.05 * (seed % 2)
        sender.step(loses=0.3)
        sent += sender.on_the_way
    while sender.on_the_way or (sender.queue.failure is None and not sender.queue.is_empty):
        sender.send()
        if sender.on_the_way:
            sender.answer(loses=0.0)
        list(sender.queue.expire(sender.now))
    headers = [read_batch_header(batch.data or b"") for batch in sent]
    assert all(header.is_transactional and header.producer_epoch == 0 for header in headers)
    is_whole = all(future.done() and future.exception() is None for future in sender.futures.values())
    assert is_whole == (sender.queue.failure is None)
    if is_whole:
        assert sender.leader.values == list(sender.futures)
    else:
        assert sender.queue.ready_at(sender.now, is_flushing=True) is None, "nothing is sent behind a gap"
    assert is_whole == (seed % 2 == 0), "what is sent again does no harm, and what is given up fails the transaction"


def test_what_is_given_up_before_it_was_sent_fails_the_transaction_too(loop: asyncio.AbstractEventLoop) -> None:
    sender = Sender(loop, 1, is_transactional=True)
    sender.queue.leave_transaction()
    sender.add(1)
    assert sender.queue.needs_identity
    assert list(sender.queue.expire(2.0))
    assert isinstance(sender.queue.failure, DeliveryTimeoutError)


@pytest.mark.parametrize("seed", range(120))
def test_nothing_is_written_twice_where_leaders_remember_the_last_batch_only(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    sender = Sender(loop, seed)
    for _ in range(300):
        sender.step(loses=0.2)
        if sender.random.random() < 0.1:
            sender.leader.start_anew()
        list(sender.queue.expire(sender.now))
    sender.finish()
    assert sender.leader.values == list(sender.futures), "in order, none twice, none left out"
    for future in sender.futures.values():
        error = future.exception()
        assert error is None or (isinstance(error, DeliveryTimeoutError) and error.may_be_written)


@pytest.mark.parametrize("seed", range(60))
def test_without_idempotence_nothing_overtakes_what_is_sent_again(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    sender = Sender(loop, seed, is_idempotent=False)
    for _ in range(200):
        sender.step(loses=0.3)
    sender.finish()
    assert list(dict.fromkeys(sender.leader.values)) == list(sender.futures)
    assert len(sender.leader.values) > len(sender.futures), "some were written twice, as they may"


@pytest.mark.parametrize("seed", range(60))
def test_goes_on_after_the_leader_has_lost_the_end_of_its_log(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    sender = Sender(loop, seed)
    for step in range(120):
        sender.step(loses=0.2)
        if step == 60 and len(sender.leader.known) > 1:
            # The last batch is gone from log and producer state, though it may have been acknowledged.
            first, _, at = sender.leader.known.pop()
            del sender.leader.values[at:]
            sender.leader.last_sequence = (first - 1) & INT32_MAX
    sender.finish()
    numbers = [int(value) for value in sender.leader.values]
    assert numbers == sorted(set(numbers))
    assert all(future.exception() is None for future in sender.futures.values())


def test_first_batch_of_an_epoch_goes_alone_and_what_is_sent_again_too(loop: asyncio.AbstractEventLoop) -> None:
    sender = Sender(loop, 1)
    sender.add(60)
    sender.send()
    assert len(sender.on_the_way) == 1, "a leader without state takes any sequence"
    sender.answer(loses=0.0)
    sender.send()
    assert len(sender.on_the_way) == 5
    first, second, *_ = sender.on_the_way
    sender.queue.send_again(first, 0.0, is_uncertain=True)
    sender.queue.send_again(second, 0.0, is_uncertain=True)
    del sender.on_the_way[:2]
    sender.send()
    assert len(sender.on_the_way) == 3
    while sender.on_the_way:
        sender.queue.out_of_sequence(sender.on_the_way.pop(0), 0.0)
    sender.send()
    assert sender.on_the_way == [first]


def test_a_new_epoch_needs_a_new_id_after_the_last_one(loop: asyncio.AbstractEventLoop) -> None:
    sender = Sender(loop, 1)
    sender.queue.identity = ProducerIdentity(7, PRODUCER_EPOCH_MAX)
    sender.add(1)
    sender.send()
    sender.queue.out_of_sequence(sender.on_the_way.pop(), 0.0)
    assert sender.queue.ready_at(0.0, is_flushing=False) is None
    assert sender.queue.needs_identity
    sender.queue.identity = ProducerIdentity(8, 0)
    sender.send()
    assert sender.on_the_way[0].identity == ProducerIdentity(8, 0)
    assert sender.on_the_way[0].base_sequence == 0


def test_sequences_wrap(loop: asyncio.AbstractEventLoop) -> None:
    sender = Sender(loop, 1)
    sender.queue._next_sequence = INT32_MAX - 1
    sender.leader.epoch, sender.leader.last_sequence = 0, INT32_MAX - 2
    sender.add(30)
    sender.finish()
    assert sender.leader.values == list(sender.futures)
    assert sender.leader.last_sequence == 27


def test_lingers_until_the_batch_is_full_or_old_or_flushed(loop: asyncio.AbstractEventLoop) -> None:
    queue = PartitionQueue(PARTITION, ProducerSettings(linger_ms=50, idempotent=False, batch_bytes=500))
    queue.append((0, None, b"x", ()), loop.create_future(), 1, 10.0)
    assert queue.ready_at(10.0, is_flushing=False) == pytest.approx(10.05)
    assert queue.ready_at(10.0, is_flushing=True) == 0.0
    for _ in range(10):
        queue.append((0, None, b"x" * 50, ()), loop.create_future(), 50, 10.0)
    assert queue.ready_at(10.0, is_flushing=False) == 0.0, "the first batch is full"


def test_halves_keep_order_and_futures(loop: asyncio.AbstractEventLoop) -> None:
    settings = ProducerSettings(idempotent=False)
    queue = PartitionQueue(PARTITION, settings)
    futures = [loop.create_future() for _ in range(5)]
    for number, future in enumerate(futures):
        queue.append((0, None, b"%d" % number, ()), future, 10, 0.0)
    batch = queue.take()
    assert queue.split(batch)
    first, second = queue.take(), queue.take()
    assert [len(first.records), len(second.records)] == [2, 3]
    assert first.size_bytes + second.size_bytes == 50
    queue.written(second, 2, -1)
    queue.written(first, 0, -1)
    assert [future.result().offset for future in futures] == [0, 1, 2, 3, 4]
    single = PartitionQueue(PARTITION, settings)
    single.append((0, None, b"x", ()), loop.create_future(), 1, 0.0)
    assert not single.split(single.take())


def test_a_column_takes_as_many_batches_as_it_needs_and_joins_what_waits(loop: asyncio.AbstractEventLoop) -> None:
    queue = PartitionQueue(PARTITION, ProducerSettings(idempotent=False, batch_bytes=500))
    single = loop.create_future()
    queue.append((7, None, b"single", ()), single, 10, 0.0)
    values = [b"%d" % number for number in range(100)]
    futures = [loop.create_future() for _ in values]
    column = ValueColumn(RecordShape(), values)
    assert queue.append_column(column, Fates(futures), 9, 0.0)
    assert not queue.append_column(ValueColumn(RecordShape(), [b"after"]), Fates([loop.create_future()]), 9, 0.0)
    read, bytes_taken, counts = [], 0, []
    while not queue.is_empty:
        batch = queue.take()
        read += list(read_records(batch.data or b""))
        bytes_taken += batch.size_bytes
        counts.append(batch.record_count)
        queue.written(batch, len(read) - batch.record_count, -1)
    assert [record.value for record in read] == [b"single", *values, b"after"]
    assert [record.timestamp_ms for record in read] == [7, *[9] * 101]
    assert bytes_taken == 10 + column.size_bytes + len(b"after") + RecordShape().overhead_bytes
    assert single.result().offset == 0
    assert [future.result().offset for future in futures] == list(range(1, 101))
    assert len(counts) > 2
    assert counts[0] > 1, "the first of the column are in the batch that had been begun"


def test_a_batch_has_no_more_records_of_columns_than_brokers_check_by_columns(loop: asyncio.AbstractEventLoop) -> None:
    queue = PartitionQueue(PARTITION, ProducerSettings(idempotent=False, batch_bytes=10_000_000))
    for _ in range(OFFSETS_OF_TWO_BYTES + 1):
        queue.append((0, None, b"", ()), loop.create_future(), 10, 0.0)
    values = [b""] * (2 * OFFSETS_OF_TWO_BYTES + 1)
    queue.append_column(ValueColumn(RecordShape(), values), Fates([]), 0, 0.0)
    counts = []
    while not queue.is_empty:
        batch = queue.take()
        counts.append(batch.record_count)
        queue.written(batch, 0, -1)
    assert counts == [OFFSETS_OF_TWO_BYTES + 1, OFFSETS_OF_TWO_BYTES, OFFSETS_OF_TWO_BYTES, 1]


@pytest.mark.parametrize("lead", range(4))
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_halves_of_columns_come_to_their_own_ends(loop: asyncio.AbstractEventLoop, lead: int, count: int) -> None:
    queue = PartitionQueue(PARTITION, ProducerSettings(idempotent=False))
    futures = [loop.create_future() for _ in range(lead + count + 1)]
    for number in range(lead):
        queue.append((0, None, b"%d" % number, ()), futures[number], 10, 0.0)
    values = [b"%d" % number for number in range(lead, lead + count)]
    queue.append_column(ValueColumn(RecordShape(), values), Fates(futures[lead:-1]), 0, 0.0)
    queue.append((0, None, b"last", ()), futures[-1], 10, 0.0)

    def split_and_write(at: int) -> int:
        batch = queue.take()
        if queue.split(batch):
            return split_and_write(split_and_write(at))
        assert batch.record_count == 1
        if at == lead + count - 1:
            queue.give_up(batch, RuntimeError("too large"))
        else:
            queue.written(batch, at, -1)
        return at + 1

    assert split_and_write(0) == lead + count + 1
    assert queue.is_empty
    for number, future in enumerate(futures):
        if number == lead + count - 1:
            assert isinstance(future.exception(), RuntimeError)
        else:
            assert future.result().offset == number


def test_closing_fails_everything(loop: asyncio.AbstractEventLoop) -> None:
    sender = Sender(loop, 1)
    sender.add(30)
    sender.add_column(12)
    sender.send()
    failed = sender.queue.fail_all(lambda: RuntimeError("closed"))
    assert sum(batch.record_count for batch in failed) == 42
    assert all(isinstance(future.exception(), RuntimeError) for future in sender.futures.values())
    assert sender.queue.is_empty
