"""`barnabas.client.consumer`: what counts as processed, and so may be committed, whatever happens between two polls."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from barnabas.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientClosedError
from barnabas.client.records import ConsumerRecord, OffsetAndMetadata
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated, turns
from tests.unit.client.scripted_group import PARTITION, SETTINGS, Broker, settled, unsettled

BY_ITSELF = dataclasses.replace(SETTINGS, auto_commit=True, auto_commit_interval_ms=1_000_000)
BY_HAND = SETTINGS


class Listener:
    """Notes whether the user polls whenever it is told something."""

    def __init__(self) -> None:
        self.is_polling = False
        self.told: list[tuple[str, bool]] = []
        self.pause_ms = 0.0
        self.client: ScriptedClient | None = None

    async def on_assigned(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append(("assigned", self.is_polling))

    async def on_revoked(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append(("revoked", self.is_polling))
        if self.client is not None:
            await self.client.timers.sleep(self.pause_ms)
            self.told.append(("revoked to the end", self.is_polling))

    async def on_lost(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.told.append(("lost", self.is_polling))

    async def poll(self, consumer: Consumer, timeout_ms: float, records_max: int) -> list[ConsumerRecord]:
        self.is_polling = True
        try:
            return await consumer.poll(timeout_ms, records_max)
        finally:
            self.is_polling = False


Body = Callable[[Consumer, Broker, ScriptedClient, Listener], Awaitable[None]]


def with_reader(body: Body, settings: object = BY_ITSELF, *, assignor: Assignor = RANGE) -> None:
    """Runs `body` with a consumer that was given the first 10 of 100 records that one fetch has brought; closes it
    afterwards as one that has an error.
    """

    async def main(host: Host) -> None:
        broker = Broker()
        broker.records_per_fetch = 100
        client = ScriptedClient(host, broker.answer, {"events": 1})
        listener = Listener()
        assert isinstance(settings, type(BY_ITSELF))
        consumer = Consumer(client, dataclasses.replace(settings, assignors=(assignor,)))
        consumer.subscribe(["events"], listener)
        assert len(await listener.poll(consumer, 1_000, 10)) == 10
        await body(consumer, broker, client, listener)
        broker.silent.clear()
        await consumer.close(1_000, has_processed=False)
        await client.close()

    simulated(main)


@pytest.mark.parametrize("assignor", [RANGE, COOPERATIVE_STICKY], ids=lambda one: one.name)
def test_a_rebalance_commits_nothing_that_the_user_has_not_come_back_for(assignor: Assignor) -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        returned = 10
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        while not consumer.is_stable:
            came_back_for = returned
            for record in await listener.poll(consumer, 10, 10):
                returned = record.offset + 1
            await turns()
            assert all(offset <= came_back_for for offset in broker.commits)
        assert len(broker.of(JoinGroupRequest)) == 2
        if assignor is RANGE:
            assert broker.commits == [10]
        assert listener.told
        assert all(is_polling for _, is_polling in listener.told)

    with_reader(body, assignor=assignor)


def test_no_records_are_given_while_a_join_is_due() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        broker.silent.add(JoinGroupRequest)
        assert await listener.poll(consumer, 0, 10) == []
        assert await listener.poll(consumer, 50, 10) == []
        assert [what for what, _ in listener.told] == ["assigned", "revoked"]

    with_reader(body)


def test_a_poll_lasts_until_the_listener_has_ended() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        listener.client, listener.pause_ms = client, 300
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        await listener.poll(consumer, 0, 10)
        assert listener.told[1:3] == [("revoked", True), ("revoked to the end", True)]

    with_reader(body)


def test_the_listener_waits_for_a_poll_when_the_commit_has_outlasted_one() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        broker.errors[OffsetCommitRequest] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await listener.poll(consumer, 10, 10) == []
        await client.timers.sleep(1_000)
        assert broker.commits == [10, 10]
        assert [what for what, _ in listener.told] == ["assigned"]
        await listener.poll(consumer, 10, 10)
        assert listener.told[1:] == [("revoked", True), ("assigned", True)]

    with_reader(body)


def test_a_turn_that_is_over_is_no_turn() -> None:
    """A poll that finds records at once begins and ends before anybody who waits for it can go on."""

    async def body(consumer: Consumer, _broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        member = consumer._member
        assert member is not None
        waiting = client.host.loop.create_task(member.users_turn())
        await turns()
        assert len(await listener.poll(consumer, 0, 10)) == 10
        await turns()
        assert not waiting.done()
        await listener.poll(consumer, 0, 500)
        assert await listener.poll(consumer, 50, 10)
        await turns()
        assert waiting.done()

    with_reader(body)


class ProcessingError(Exception):
    """What a user's own code raises."""


def closed_after_an_error(end: Callable[[Consumer, Listener], Awaitable[None]], settings: object = BY_ITSELF) -> Broker:
    """The broker after `end`, which may raise ProcessingError, has been run within the consumer's context."""
    seen: list[Broker] = []

    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient, listener: Listener) -> None:
        seen.append(broker)
        try:
            async with consumer:
                await end(consumer, listener)
        except ProcessingError:
            pass

    with_reader(body, settings)
    return seen[0]


def test_leaving_by_an_error_commits_nothing_of_the_last_poll() -> None:
    async def end(_consumer: Consumer, _listener: Listener) -> None:
        raise ProcessingError

    assert closed_after_an_error(end).commits == [0]


def test_leaving_by_an_error_commits_what_the_user_had_come_back_for() -> None:
    async def end(consumer: Consumer, listener: Listener) -> None:
        assert len(await listener.poll(consumer, 10, 20)) == 20
        raise ProcessingError

    assert closed_after_an_error(end).commits == [10]


def test_leaving_without_an_error_commits_all_that_was_given() -> None:
    async def end(consumer: Consumer, listener: Listener) -> None:
        assert len(await listener.poll(consumer, 10, 20)) == 20

    assert closed_after_an_error(end).commits == [30]


def test_leaving_after_having_swallowed_a_cancellation_commits_nothing_of_the_last_poll() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, _listener: Listener) -> None:
        async def work() -> None:
            async with consumer:
                try:
                    await client.timers.sleep(10_000)
                except asyncio.CancelledError:
                    return

        worker = client.host.loop.create_task(work())
        await turns()
        worker.cancel()
        await worker
        assert broker.commits == [0]

    with_reader(body)


def test_closing_commits_only_what_the_user_had_come_back_for() -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient, listener: Listener) -> None:
        await listener.poll(consumer, 10, 20)
        await consumer.close()
        assert broker.commits == [10]

    with_reader(body)


def test_closing_with_has_processed_commits_all_that_was_given() -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient, _listener: Listener) -> None:
        await consumer.close(has_processed=True)
        assert broker.commits == [10]

    with_reader(body)


def test_closing_ends_a_poll_of_another_task_at_once_and_gives_it_nothing() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        broker.held = asyncio.Event()
        consumer.seek(PARTITION, 50)
        polling = client.host.loop.create_task(listener.poll(consumer, 60_000, 10))
        await turns()
        broker.errors[OffsetCommitRequest] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        closing = client.host.loop.create_task(consumer.close(1_000, has_processed=True))
        broker.held.set()
        await turns()
        with pytest.raises(ClientClosedError):
            await polling
        with pytest.raises(ClientClosedError):
            await consumer.poll(0)
        again = client.host.loop.create_task(consumer.close())
        await turns()
        assert not again.done(), "the first one has not come to its end"
        await closing
        await again

    with_reader(body)


def test_closing_does_not_undo_a_commit_that_is_under_way() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, _listener: Listener) -> None:
        broker.errors[OffsetCommitRequest] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        by_hand = client.host.loop.create_task(consumer.commit({PARTITION: OffsetAndMetadata(7)}))
        await turns()
        await consumer.close()
        await by_hand
        assert broker.commits == [7, 7, 7]

    with_reader(body)


def test_giving_partitions_up_commits_what_is_processed_when_its_turn_has_come() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        broker.errors[OffsetCommitRequest] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        first = client.host.loop.create_task(consumer.commit({PARTITION: OffsetAndMetadata(10)}))
        await turns()
        polling = client.host.loop.create_task(listener.poll(consumer, 2_000, 10))
        await turns()
        second = client.host.loop.create_task(consumer.commit({PARTITION: OffsetAndMetadata(4)}))
        await asyncio.wait([first, second, polling])
        assert broker.commits == [10, 10, 4, 4]

    with_reader(body)


def test_leaving_by_an_error_does_not_undo_a_commit_by_hand() -> None:
    async def end(consumer: Consumer, _listener: Listener) -> None:
        await consumer.commit({PARTITION: OffsetAndMetadata(7)})
        raise ProcessingError

    assert closed_after_an_error(end).commits == [7, 7]


def test_going_back_to_what_failed_and_leaving_by_an_error_commits_nothing_of_it() -> None:
    async def end(consumer: Consumer, _listener: Listener) -> None:
        consumer.seek(PARTITION, 5)
        raise ProcessingError

    assert closed_after_an_error(end).commits == [0]


def test_what_is_read_again_after_going_back_is_committed_from_there() -> None:
    async def end(consumer: Consumer, listener: Listener) -> None:
        consumer.seek(PARTITION, 5)
        assert [record.offset for record in await listener.poll(consumer, 100, 3)] == [5, 6, 7]
        raise ProcessingError

    assert closed_after_an_error(end).commits == [5]


def test_nothing_is_committed_of_a_position_that_is_to_be_found_anew() -> None:
    """The log may be another one, or begin behind what was processed of it."""

    async def end(consumer: Consumer, _listener: Listener) -> None:
        consumer.seek_to_end(PARTITION)
        raise ProcessingError

    assert closed_after_an_error(end).commits == []


def test_automatic_commits_have_what_the_user_has_come_back_for() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        for number in range(1, 5):
            await client.timers.sleep(250)
            assert await listener.poll(consumer, 10, 10)
            await turns()
            assert broker.commits == [10 * each for each in range(1, number + 1)]

    with_reader(body, dataclasses.replace(BY_ITSELF, auto_commit_interval_ms=200))


def test_committing_by_hand_has_all_that_was_given() -> None:
    async def body(consumer: Consumer, broker: Broker, _client: ScriptedClient, listener: Listener) -> None:
        await listener.poll(consumer, 10, 10)
        await consumer.commit()
        assert broker.commits == [20]

    with_reader(body, BY_HAND)


def test_an_older_automatic_commit_does_not_undo_one_by_hand() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        await client.timers.sleep(250)
        broker.errors[OffsetCommitRequest] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await listener.poll(consumer, 10, 10)
        await turns()
        assert broker.commits == [10], "an automatic one, which is to be repeated"
        await consumer.commit()
        assert broker.commits == [10, 20]
        await client.timers.sleep(5_000)
        assert broker.commits == [10, 20]

    with_reader(body, dataclasses.replace(BY_ITSELF, auto_commit_interval_ms=200))


def test_an_automatic_commit_waits_for_one_by_hand_that_is_under_way() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        await client.timers.sleep(250)
        broker.errors[OffsetCommitRequest] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        by_hand = client.host.loop.create_task(consumer.commit({PARTITION: OffsetAndMetadata(4)}))
        await turns()
        await listener.poll(consumer, 10, 10)
        await by_hand
        await client.timers.sleep(5_000)
        assert broker.commits == [4, 4, 10]

    with_reader(body, dataclasses.replace(BY_ITSELF, auto_commit_interval_ms=200))


def test_all_is_settled_again_after_a_rebalance() -> None:
    async def body(consumer: Consumer, broker: Broker, client: ScriptedClient, listener: Listener) -> None:
        broker.errors[HeartbeatRequest] = ErrorCode.REBALANCE_IN_PROGRESS
        await unsettled(consumer, client)
        await settled(consumer)
        assert len(await listener.poll(consumer, 1_000, 10)) == 10

    with_reader(body)
