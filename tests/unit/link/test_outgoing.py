"""`barnabas.link.outgoing`, against a scripted broker, on real sockets and both loops."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from barnabas.kernel.steps import StepRunner, Steps
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.link.client import LARGE_RESPONSE_BYTES
from barnabas.link.connection import LinkContext
from barnabas.link.errors import (
    ConnectionLostError,
    InFlightLimitError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from barnabas.link.limits import LinkLimits
from barnabas.link.outgoing import Outgoing, OutgoingSettings
from barnabas.wire import codec
from barnabas.wire.messages import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    MetadataRequest,
    MetadataResponse,
)
from barnabas.wire.primitives import EncodeError, ProtocolError
from tests.unit.link.scripted_broker import ScriptedBroker, answer_plainly

Result = TypeVar("Result")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
HEARTBEAT = HeartbeatRequest(group_id="g")
QUICK = OutgoingSettings(in_flight_max=2, waiting_max=3, reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)


def scenario(
    run: Run,
    body: Callable[[ScriptedBroker, Outgoing], Coroutine[Any, Any, None]],
    *,
    settings: OutgoingSettings = QUICK,
    learns_versions: bool = False,
    logger: logging.Logger | None = None,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        broker = ScriptedBroker()
        await broker.listen()
        timers = Timers(loop)
        pool = BufferPool(poisons=True)
        context = LinkContext.of(loop, timers, LinkLimits(), logger or logging.getLogger("outgoing"), pool=pool)
        outgoing = Outgoing(
            context,
            random.Random(1),
            "127.0.0.1",
            broker.port,
            client_id="me",
            settings=settings,
            learns_versions=learns_versions,
        )
        try:
            await body(broker, outgoing)
        finally:
            outgoing.close()
            await outgoing.wait_closed()
            await broker.stop()
            assert len(timers) == 0
            timers.close()
            assert pool.lent == 0

    run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_connects_on_the_first_request_and_keeps_the_connection(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        assert broker.connections == 0
        answers = [await outgoing.send(HEARTBEAT, 4, 5_000) for _ in range(3)]
        assert [answer.throttle_time_ms for answer in answers] == [0, 1, 2]
        assert outgoing.is_connected
        assert broker.connections == 1

    scenario(run, body)


def test_requests_leave_in_order_and_no_more_than_the_bound_are_in_flight(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        gate = asyncio.Event()

        async def answer(key: int, version: int, correlation_id: int) -> bytes:
            await gate.wait()
            return answer_plainly(key, version, correlation_id)

        broker.answer = answer
        await outgoing.ready(5_000)
        sending = [asyncio.ensure_future(outgoing.send(HEARTBEAT, version, 5_000)) for version in (0, 1, 2, 3, 4)]
        await until(lambda: outgoing.waiting == 3)
        assert outgoing.in_flight == 2
        with pytest.raises(InFlightLimitError, match="3 requests"):
            await outgoing.send(HEARTBEAT, 4, 5_000)
        gate.set()
        await asyncio.gather(*sending)
        assert [version for _, version, _ in broker.asked] == [0, 1, 2, 3, 4]

    scenario(run, body)


def test_connects_again_after_the_broker_has_dropped_the_connection(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        await outgoing.send(HEARTBEAT, 4, 5_000)
        broker.drop_connections()
        await until(lambda: not outgoing.is_connected)
        await outgoing.send(HEARTBEAT, 4, 5_000)
        assert broker.connections == 2

    scenario(run, body)


def test_a_request_in_flight_fails_with_its_connection_and_the_waiting_ones_go_on(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = lambda *_: b""
        sending = [asyncio.ensure_future(outgoing.send(HEARTBEAT, 4, 5_000)) for _ in range(3)]
        await until(lambda: len(broker.asked) == 2)
        broker.answer = answer_plainly
        broker.drop_connections()
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert [type(result).__name__ for result in results] == [
            "ConnectionLostError",
            "ConnectionLostError",
            "HeartbeatResponse",
        ]
        assert len(broker.asked) == 3, "nothing is sent twice"

    scenario(run, body)


def test_failed_attempts_fail_all_that_wait_and_are_told_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        await broker.stop()
        for _ in range(5):
            results = await asyncio.gather(
                *(outgoing.send(HEARTBEAT, 4, 5_000) for _ in range(2)), return_exceptions=True
            )
            assert all(isinstance(result, ConnectionLostError) for result in results), results
        await broker.listen()
        await outgoing.send(HEARTBEAT, 4, 5_000)

    with caplog.at_level(logging.DEBUG):
        scenario(run, body)
    assert [record.levelname for record in caplog.records if "No connection to" in record.message] == ["WARNING"]


def test_a_request_that_is_not_answered_in_time_ends_the_connection(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = lambda *_: b""
        late = asyncio.ensure_future(outgoing.send(HEARTBEAT, 4, 60))
        behind = asyncio.ensure_future(outgoing.send(HEARTBEAT, 4, 5_000))
        with pytest.raises(RequestTimeoutError):
            await late
        with pytest.raises(ConnectionLostError):
            await behind
        broker.answer = answer_plainly
        assert (await outgoing.send(HEARTBEAT, 4, 5_000)).throttle_time_ms == 0

    scenario(run, body)


def test_the_time_limit_holds_for_what_was_never_sent(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = lambda *_: b""
        await outgoing.ready(5_000)
        blocking = [asyncio.ensure_future(outgoing.send(HEARTBEAT, 4, 5_000)) for _ in range(2)]
        await until(lambda: outgoing.in_flight == 2)
        with pytest.raises(RequestTimeoutError, match=r"nothing was sent .* busy with earlier requests"):
            await outgoing.send(HEARTBEAT, 4, 30)
        assert outgoing.is_connected
        for future in blocking:
            future.cancel()
        await asyncio.gather(*blocking, return_exceptions=True)

    scenario(run, body)


def test_the_time_limit_holds_while_it_backs_off(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        await broker.stop()
        with pytest.raises(ConnectionLostError):
            await outgoing.send(HEARTBEAT, 4, 5_000)
        with pytest.raises(RequestTimeoutError, match="there was no connection"):
            await outgoing.send(HEARTBEAT, 4, 30)

    scenario(run, body, settings=OutgoingSettings(reconnect_backoff_ms=60_000, reconnect_backoff_ms_max=60_000))


def test_a_cancelled_request_is_taken_back_or_its_answer_dropped(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        gate = asyncio.Event()

        async def answer(key: int, version: int, correlation_id: int) -> bytes:
            await gate.wait()
            return answer_plainly(key, version, correlation_id)

        broker.answer = answer
        await outgoing.ready(5_000)
        sending = [asyncio.ensure_future(outgoing.send(HEARTBEAT, version, 5_000)) for version in (0, 1, 2, 3)]
        await until(lambda: outgoing.waiting == 2)
        sending[0].cancel()
        sending[2].cancel()
        await asyncio.wait([sending[0], sending[2]])
        assert outgoing.waiting == 1
        gate.set()
        await asyncio.gather(sending[1], sending[3])
        assert [version for _, version, _ in broker.asked] == [0, 1, 3]

    scenario(run, body)


def test_close_fails_what_waits_at_once_and_takes_nothing_more(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = lambda *_: b""
        sending = [asyncio.ensure_future(outgoing.send(HEARTBEAT, 4, 5_000)) for _ in range(3)]
        await until(lambda: len(broker.asked) == 2)
        outgoing.close()
        outgoing.close()
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(result, ConnectionLostError) for result in results)
        with pytest.raises(ConnectionLostError, match="was closed"):
            await outgoing.send(HEARTBEAT, 4, 5_000)
        await outgoing.wait_closed()

    scenario(run, body)


def test_close_while_connecting(run: Run) -> None:
    async def body(_broker: ScriptedBroker, outgoing: Outgoing) -> None:
        sending = asyncio.ensure_future(outgoing.send(HEARTBEAT, 4, 5_000))
        await asyncio.sleep(0)
        outgoing.close()
        with pytest.raises(ConnectionLostError, match="was closed"):
            await sending

    scenario(run, body)


def test_one_who_fails_to_hear_of_a_failure_keeps_nobody_else_from_hearing(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        await broker.stop()
        heard: list[Exception] = []

        def fail(_error: Exception) -> None:
            raise RuntimeError("unforeseen")

        outgoing.start(HEARTBEAT, 4, 5_000, heard.append, fail)
        outgoing.start(HEARTBEAT, 4, 5_000, heard.append, heard.append)
        await until(lambda: bool(heard))
        assert isinstance(heard[0], ConnectionLostError)
        # And the next one is served as if nothing had happened.
        await broker.listen()
        assert (await outgoing.send(HEARTBEAT, 4, 5_000)).throttle_time_ms == 0

    scenario(run, body)


def test_exchange_gives_views_that_end_with_the_call(run: Run) -> None:
    async def body(_broker: ScriptedBroker, outgoing: Outgoing) -> None:
        kept: list[Any] = []

        def handle(response: FetchResponse) -> bytes:
            records = response.responses[0].partitions[0].records
            assert isinstance(records, memoryview)
            kept.append(records)
            return bytes(records)

        for _ in range(2):  # the second answer comes into the same buffer, poisoned since
            assert await outgoing.exchange(FetchRequest(), 12, 5_000, handle) == b"r" * 70_000
        assert bytes(kept[0]) != b"r" * 70_000
        copy = await outgoing.send(FetchRequest(), 12, 5_000)
        await outgoing.send(FetchRequest(), 12, 5_000)
        assert copy.responses[0].partitions[0].records == b"r" * 70_000

    scenario(run, body)


def test_what_the_handler_of_an_exchange_raises_is_its_callers(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        with pytest.raises(ZeroDivisionError):
            await outgoing.exchange(HEARTBEAT, 4, 5_000, lambda _: 1 // 0)
        await outgoing.send(HEARTBEAT, 4, 5_000)
        assert broker.connections == 1

    scenario(run, body)


def test_start_reports_by_callbacks(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        told: list[object] = []
        changed = asyncio.Event()

        def tell(what: object) -> None:
            told.append(type(what).__name__)
            changed.set()

        outgoing.start(HEARTBEAT, 4, 5_000, tell, tell)
        await changed.wait()
        assert told == ["HeartbeatResponse"]
        outgoing.start(HeartbeatRequest(group_id=None), 4, 5_000, tell, tell)  # type: ignore[arg-type]
        assert told[1:] == ["EncodeError"]
        await outgoing.send(HEARTBEAT, 4, 5_000)
        assert broker.connections == 1

    scenario(run, body)
    assert issubclass(EncodeError, ValueError)


def test_posts_what_has_no_answer_in_order_with_the_rest(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        silent = {1}
        broker.answer = lambda key, version, number: b"" if number in silent else answer_plainly(key, version, number)
        assert not outgoing.post(HEARTBEAT, 3), "there is no connection yet"
        await outgoing.send(HEARTBEAT, 4, 5_000)
        assert outgoing.post(HEARTBEAT, 3)
        assert (await outgoing.send(HEARTBEAT, 4, 5_000)).throttle_time_ms == 2
        assert [version for _, version, _ in broker.asked] == [4, 3, 4]

    scenario(run, body)


def test_learns_versions_and_chooses_among_them(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        assert outgoing.api_versions == {}
        await outgoing.ready(5_000)
        assert [key for key, _, _ in broker.asked] == [18]
        assert outgoing.version_of(12, 0, 9) == 4
        assert outgoing.version_of(12, 0, 2) == 2
        with pytest.raises(UnsupportedVersionError, match=r"5 to 9.*speaks 0 to 4"):
            outgoing.version_of(12, 5, 9)
        with pytest.raises(UnsupportedVersionError, match="does not have it"):
            outgoing.version_of(1, 0, 9)

    scenario(run, body, learns_versions=True)


def test_a_broker_whose_versions_make_no_sense_is_a_protocol_error(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = lambda _key, _version, correlation_id: b"\0\0\0\6" + correlation_id.to_bytes(4, "big") + b"\0\7"
        with pytest.raises((ProtocolError, ConnectionLostError)):
            await outgoing.send(HEARTBEAT, 4, 5_000)
        broker.answer = answer_plainly
        await outgoing.send(HEARTBEAT, 4, 5_000)

    scenario(run, body, learns_versions=True)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="in_flight_max is 0"):
        OutgoingSettings(in_flight_max=0)


class CountingRunner(StepRunner):
    begun = 0

    async def run(self, steps: Steps[Result], *, is_urgent: bool = False) -> Result:
        self.begun += 1
        return await super().run(steps, is_urgent=is_urgent)


def test_a_request_is_encoded_in_steps_only_for_a_broker_that_is_there(run: Run) -> None:
    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        steps = CountingRunner(asyncio.get_running_loop())
        await broker.stop()
        for _ in range(3):
            with pytest.raises(ConnectionLostError):
                await outgoing.send_in_steps(HEARTBEAT, 4, 5_000, steps)
        assert steps.begun == 0
        await broker.listen()
        answer = await outgoing.send_in_steps(HEARTBEAT, 4, 5_000, steps)
        assert (answer.throttle_time_ms, steps.begun) == (0, 1)

    scenario(run, body)


@pytest.mark.parametrize("version", [8, 12])
def test_a_large_answer_is_read_in_turns_of_the_loop(run: Run, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In version 12 with tags in its header, which are skipped."""
    partition = MetadataResponse.MetadataResponsePartition(partition_index=3, leader_id=1, replica_nodes=[1, 2])
    sent = MetadataResponse(
        topics=[MetadataResponse.MetadataResponseTopic(name="t", topic_id=bytes(16), partitions=[partition] * 10_000)]
    )

    def answer(key: int, version: int, correlation_id: int) -> bytes:
        frame = b"".join(codec.response_encoder(key, version)(correlation_id, sent))[4:]
        if version >= 9:
            # One tag, 5, of two bytes, where there was none.
            frame = frame[:4] + b"\x01\x05\x02\xff\xff" + frame[5:]
        return struct.pack(">i", len(frame)) + frame

    pieces: list[int] = []
    whole = codec.response_in_steps

    def counted(*given: Any) -> Steps[Any]:
        reading = whole(*given)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                return end.value
            pieces.append(1)
            yield

    monkeypatch.setattr(codec, "response_in_steps", counted)

    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = answer
        await outgoing.ready(5_000)
        asking = asyncio.ensure_future(outgoing.send(MetadataRequest(), version, 5_000))
        await until(lambda: asking.done() or len(pieces) == 1)
        assert not asking.done(), "it was read at once"
        received = await asking
        assert len(pieces) >= 10_000 // 1_024
        assert received.topics[0].partitions == sent.topics[0].partitions
        # What follows is read as before.
        broker.answer = answer_plainly
        await outgoing.send(HEARTBEAT, 4, 5_000)
        assert broker.connections == 1

    scenario(run, body)


def test_a_large_answer_that_makes_no_sense_fails_its_request_and_no_other(run: Run) -> None:
    def answer(_key: int, _version: int, correlation_id: int) -> bytes:
        return struct.pack(">ii", LARGE_RESPONSE_BYTES + 8, correlation_id) + bytes([127]) * (LARGE_RESPONSE_BYTES + 4)

    async def body(broker: ScriptedBroker, outgoing: Outgoing) -> None:
        broker.answer = answer
        with pytest.raises(ProtocolError):
            await outgoing.send(MetadataRequest(), 8, 5_000)
        broker.answer = answer_plainly
        await outgoing.send(HEARTBEAT, 4, 5_000)

    scenario(run, body)
