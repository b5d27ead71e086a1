"""`barnabas.api.dispatch`: what becomes of a request, whatever its handler does."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.api.api_versions import ApiVersionsHandler
from barnabas.api.context import RequestContext, Responder
from barnabas.kernel.metrics import Histogram, Meter, MetricName
from barnabas.kernel.real_host import real_host
from barnabas.kernel.steps import each
from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.wire.primitives import ProtocolError
from tests.unit.api.calling import CONTROL, Calls

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Body = Callable[[Calls, "Heartbeats"], Coroutine[Any, Any, None]]


class Heartbeats:
    """Does what the group's name says."""

    api_key = ApiKey.HEARTBEAT
    versions = (0, 4)

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []
        self.handled: list[str] = []
        self.responders: list[Responder] = []
        self.open = asyncio.Event()

    def handle(self, context: RequestContext, request: HeartbeatRequest) -> Any:
        self.contexts.append(context)
        self.handled.append(request.group_id)
        match request.group_id:
            case "answers":
                return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            case "parks":
                self.responders.append(context.park())
                return None
            case "parks, then fails":
                self.responders.append(context.park())
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
            case "is silent":
                return None
            case "refuses":
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
            case "is broken":
                raise ProtocolError("what was asked makes no sense")
            case "has a bug":
                raise ZeroDivisionError("a bug in a handler")
            case "says nonsense":
                return HeartbeatResponse(error_code=1 << 40)
        return self._later(request.group_id)

    async def _later(self, what: str) -> HeartbeatResponse:
        await self.open.wait()
        if what == "refuses later":
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if what == "is broken later":
            raise ProtocolError("what was asked makes no sense")
        if what == "has a bug later":
            raise ZeroDivisionError("a bug in a handler")
        return HeartbeatResponse(error_code=1 << 40 if what == "says nonsense later" else 0)

    def error_response(
        self, _context: RequestContext, request: HeartbeatRequest, error: KafkaError
    ) -> HeartbeatResponse:
        assert request.group_id  # most errors repeat what was asked
        return HeartbeatResponse(error_code=error.code)


class Updates:
    """Takes the controller's requests."""

    api_key = ApiKey.UPDATE_METADATA
    versions = (0, 8)

    def __init__(self, order: list[str]) -> None:
        self._order = order

    def handle(self, _context: RequestContext, _request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        self._order.append("update")
        return UpdateMetadataResponse()

    def error_response(self, *_: Any) -> UpdateMetadataResponse:
        raise NotImplementedError


def scenario(run: Run, body: Body) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            heartbeats = Heartbeats()
            calls = Calls(host, heartbeats, Updates(heartbeats.handled))
            calls.registry.add(ApiVersionsHandler(calls.registry))
            try:
                await body(calls, heartbeats)
            finally:
                await calls.dispatcher.close()
                assert not calls.dispatcher.running
                calls.timers.close()

    run(main())


def heartbeat(group_id: str) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group_id, generation_id=1, member_id="m")


def metric(calls: Calls, name: str, **tags: str) -> Any:
    return calls.metrics.get(MetricName("kafka.network", "RequestMetrics", name, tuple(tags.items())))


def error_counts(calls: Calls, request: str) -> dict[str, int]:
    """How often each error was answered, by its name."""
    return {
        dict(name.tags)["error"]: found.count
        for name, found in calls.metrics
        if name.name == "ErrorsPerSec" and dict(name.tags)["request"] == request and isinstance(found, Meter)
    }


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.mark.parametrize("version", range(5))
def test_answers_in_the_version_of_the_request(run: Run, version: int) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        caller = calls.connect(client_id="a client" if version else None)
        response = await caller.call(heartbeat("answers"), version)
        assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        (context,) = heartbeats.contexts
        assert (context.api_key, context.api_version, context.correlation_id) == (12, version, 1)
        assert context.client_id == ("a client" if version else None)
        assert (context.client_host, context.listener_name) == ("127.0.0.1", "PLAINTEXT")
        assert context.principal == "User:ANONYMOUS"
        requests = metric(calls, "RequestsPerSec", request="Heartbeat", version=str(version))
        errors = metric(calls, "ErrorsPerSec", request="Heartbeat", error="REBALANCE_IN_PROGRESS")
        total = metric(calls, "TotalTimeMs", request="Heartbeat")
        assert isinstance(requests, Meter)
        assert isinstance(errors, Meter)
        assert isinstance(total, Histogram)
        assert (requests.count, errors.count, total.snapshot().count) == (1, 1, 1)
        assert "NONE" not in error_counts(calls, "Heartbeat")
        heartbeats.open.set()
        await caller.call(heartbeat("answers well later"), version)
        assert error_counts(calls, "Heartbeat") == {"REBALANCE_IN_PROGRESS": 1, "NONE": 1}

    scenario(run, body)


def test_keeps_the_order_of_responses_when_handlers_answer_later(run: Run) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        caller = calls.connect()
        for group_id in ("parks", "waits", "answers"):
            caller.send(heartbeat(group_id), 4)
        await turn()
        assert heartbeats.handled == ["parks", "waits", "answers"]
        assert calls.queue.queued == 1  # the coroutine; what is parked waits for something else
        assert calls.dispatcher.running == 1
        heartbeats.open.set()
        await turn()
        assert caller.received() == []
        heartbeats.responders[0].respond(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
        await turn()
        codes = [response.error_code for response in caller.received()]
        assert codes == [ErrorCode.ILLEGAL_GENERATION, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS]
        assert calls.queue.queued == calls.dispatcher.running == 0
        with pytest.raises(RuntimeError, match="answered already"):
            heartbeats.responders[0].respond(HeartbeatResponse())
        assert metric(calls, "TotalTimeMs", request="Heartbeat").snapshot().count == 3

    scenario(run, body)


@pytest.mark.parametrize(
    ("group_id", "code", "is_logged"),
    [
        ("refuses", ErrorCode.NOT_COORDINATOR, False),
        ("refuses later", ErrorCode.FENCED_INSTANCE_ID, False),
        ("parks, then fails", ErrorCode.NOT_COORDINATOR, False),
        ("has a bug", ErrorCode.UNKNOWN_SERVER_ERROR, True),
        ("has a bug later", ErrorCode.UNKNOWN_SERVER_ERROR, True),
        ("says nonsense", ErrorCode.UNKNOWN_SERVER_ERROR, True),
        ("says nonsense later", ErrorCode.UNKNOWN_SERVER_ERROR, True),
    ],
)
def test_answers_with_the_error_that_a_handler_raises(
    run: Run, group_id: str, code: ErrorCode, *, is_logged: bool
) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        heartbeats.open.set()
        response = await calls.connect().call(heartbeat(group_id), 4)
        assert response.error_code == code
        assert [line for line in calls.lines.lines if line.startswith("ERROR")] == calls.lines.lines
        assert bool(calls.lines.lines) is is_logged
        assert calls.queue.queued == 0
        assert error_counts(calls, "Heartbeat") == {code.name: 1}

    scenario(run, body)


@pytest.mark.parametrize("group_id", ["is broken", "is broken later"])
def test_closes_the_connection_of_a_request_that_makes_no_sense(run: Run, group_id: str) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        heartbeats.open.set()
        caller = calls.connect()
        caller.send(heartbeat(group_id), 4)
        await turn()
        assert caller.transport.closed
        assert "what was asked makes no sense" in calls.lines.lines[0]
        assert calls.queue.queued == 0

    scenario(run, body)


def test_a_request_without_answer_is_not_waited_for(run: Run) -> None:
    async def body(calls: Calls, _heartbeats: Heartbeats) -> None:
        caller = calls.connect()
        caller.send(heartbeat("is silent"), 4, answered=False)
        assert (await caller.call(heartbeat("answers"), 4)).error_code == ErrorCode.REBALANCE_IN_PROGRESS

    scenario(run, body)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 12, 5, 1, -1),  # a version that is not answered
        struct.pack(">hhih", 12, -1, 1, -1),
        struct.pack(">hhih", 10, 0, 1, -1),  # an API without handler
        struct.pack(">hhih", 999, 0, 1, -1),  # no API at all
        struct.pack(">hhi", 12, 0, 1),  # no room for a header
        struct.pack(">hhih", 12, 0, 1, 300),  # a client id that is longer than the frame
        struct.pack(">hhih", 12, 0, 1, -1),  # no body
        b"",
    ],
)
def test_closes_a_connection_that_asks_what_is_not_answered(run: Run, frame: bytes) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        caller, other = calls.connect(), calls.connect()
        caller.send_bytes(struct.pack(">i", len(frame)) + frame)
        await turn()
        assert caller.transport.closed
        assert len(calls.lines.lines) == 1
        assert not heartbeats.handled
        assert (await other.call(heartbeat("answers"), 0)).error_code == ErrorCode.REBALANCE_IN_PROGRESS

    scenario(run, body)


@pytest.mark.parametrize("version", [5, 0x7FFF, -1])
def test_answers_unknown_versions_of_api_versions_in_version_0(run: Run, version: int) -> None:
    async def body(calls: Calls, _heartbeats: Heartbeats) -> None:
        caller = calls.connect()
        caller.send_bytes(struct.pack(">ihhi", 10, 18, version, 77) + b"??")
        await turn()
        written = bytes(caller.transport.written)
        assert not caller.transport.closed
        response, end = codec.response_decoder(18, 0)(written, 4, len(written))
        assert struct.unpack_from(">ii", written) == (len(written) - 4, 77)
        assert end == len(written)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert response.api_keys == [ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)]

    scenario(run, body)


@pytest.mark.parametrize("version", range(5))
def test_says_which_apis_have_handlers(run: Run, version: int) -> None:
    async def body(calls: Calls, _heartbeats: Heartbeats) -> None:
        request = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.0")
        response = await calls.connect().call(request, version)
        assert response.error_code == ErrorCode.NONE
        found = [(api.api_key, api.min_version, api.max_version) for api in response.api_keys]
        assert found == [(6, 0, 8), (12, 0, 4), (18, 0, 4)]
        assert response.supported_features == response.finalized_features == []

    scenario(run, body)


@pytest.mark.parametrize("name", ["", "-librdkafka", "libr dkafka", "librdkafka.", "ö"])
def test_refuses_a_software_name_that_is_none(run: Run, name: str) -> None:
    async def body(calls: Calls, _heartbeats: Heartbeats) -> None:
        request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
        caller = calls.connect()
        assert (await caller.call(request, 3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await caller.call(request, 2)).error_code == ErrorCode.NONE

    scenario(run, body)


def test_a_controller_goes_ahead_of_data_on_a_shared_listener_too(run: Run) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        data, controller, plane = calls.connect(), calls.connect(), calls.connect(CONTROL)
        update = UpdateMetadataRequest(controller_id=1, controller_epoch=1)
        await controller.call(update, 6)
        heartbeats.handled.clear()
        data.send(heartbeat("answers"), 0)
        controller.send(update, 6)
        plane.send(heartbeat("parks"), 0)
        await turn()
        assert heartbeats.handled == ["update", "parks", "answers"]
        assert [context.is_control for context in heartbeats.contexts] == [True, False]
        heartbeats.responders[0].respond(None)

    scenario(run, body)


def test_an_answer_for_a_connection_that_is_over_is_dropped(run: Run) -> None:
    async def body(calls: Calls, heartbeats: Heartbeats) -> None:
        caller = calls.connect()
        caller.send(heartbeat("parks"), 0)
        caller.send(heartbeat("waits"), 0)
        await turn()
        caller.transport.abort()
        heartbeats.responders[0].respond(HeartbeatResponse())
        heartbeats.open.set()
        await turn()
        assert calls.queue.queued == calls.dispatcher.running == 0
        assert not calls.lines.lines

    scenario(run, body)


def test_closing_cancels_what_still_runs(run: Run) -> None:
    async def body(calls: Calls, _heartbeats: Heartbeats) -> None:
        caller = calls.connect()
        caller.send(heartbeat("waits for ever"), 0)
        await turn()
        assert calls.dispatcher.running == 1
        await calls.dispatcher.close()
        assert calls.queue.queued == calls.dispatcher.running == 0

    scenario(run, body)


def test_closing_ends_what_has_not_begun(run: Run, recwarn: pytest.WarningsRecorder) -> None:
    async def body(calls: Calls, _heartbeats: Heartbeats) -> None:
        calls.connect().send(heartbeat("waits for ever"), 0)
        await calls.dispatcher.close()  # in the turn of the request
        assert calls.dispatcher.running == 0

    scenario(run, body)
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


class Groups:
    """Describes groups, or does not, in steps."""

    api_key = ApiKey.DESCRIBE_GROUPS
    versions = (0, 5)

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.steps = 0
        self.error: Exception | None = None

    def handle(self, _context: RequestContext, request: DescribeGroupsRequest) -> Any:
        self.handled.append(request.groups[0])
        for _ in range(self.steps):
            yield
        if self.error is not None:
            raise self.error
        self.handled.append(f"end of {request.groups[0]}")
        return DescribeGroupsResponse(groups=(yield from each(described, request.groups)))

    def error_response(self, _context: RequestContext, request: DescribeGroupsRequest, error: KafkaError) -> Any:
        groups = yield from each(lambda name: described(name, error.code), request.groups)
        return DescribeGroupsResponse(groups=groups)


def described(name: str, code: int = 0) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(group_id=name, error_code=code)


def describe(first: str, count: int) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=[first, *(f"g{number}" for number in range(1, count))])


def in_steps(run: Run, body: Callable[[Calls, Groups], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            groups = Groups()
            calls = Calls(host, groups, Heartbeats())
            try:
                await body(calls, groups)
            finally:
                await calls.dispatcher.close()
                assert not calls.dispatcher.running
                assert calls.context.pool.lent == 0
                assert calls.queue.queued == 0
                calls.timers.close()

    run(main())


@pytest.mark.parametrize("count", [1, 300, 1_500, 5_000, 30_000])
@pytest.mark.parametrize("code", [None, ErrorCode.NOT_COORDINATOR])
def test_large_requests_and_responses_are_whole(run: Run, count: int, code: ErrorCode | None) -> None:
    async def body(calls: Calls, groups: Groups) -> None:
        groups.error = None if code is None else KafkaError(code)
        request = describe("first", count)
        response = await calls.connect().call(request, 5)
        assert [group.group_id for group in response.groups] == request.groups
        assert {group.error_code for group in response.groups} == {code or 0}
        if code is not None:
            assert error_counts(calls, "DescribeGroups") == {code.name: count}
        else:
            assert error_counts(calls, "DescribeGroups") == {"NONE": 1}

    in_steps(run, body)


@pytest.mark.parametrize("count", [1, 5_000, 30_000])
def test_the_next_request_of_a_connection_waits_for_a_long_one(run: Run, count: int) -> None:
    async def body(calls: Calls, groups: Groups) -> None:
        groups.steps = 20
        caller, other = calls.connect(), calls.connect()
        caller.send(describe("long", count), 5)
        caller.send(describe("next", 1), 5)
        other.send(heartbeat("answers"), 4)
        while not other.transport.written:
            await asyncio.sleep(0)
        assert not caller.transport.written  # others do not wait
        first, second = await caller.responses(2)
        assert (first.groups[0].group_id, second.groups[0].group_id) == ("long", "next")
        assert groups.handled == ["long", "end of long", "next", "end of next"]

    in_steps(run, body)


@pytest.mark.parametrize("turns", [0, 3, 10, 40])
def test_a_long_request_survives_neither_its_connection_nor_the_dispatcher(run: Run, turns: int) -> None:
    async def body(calls: Calls, groups: Groups) -> None:
        groups.steps = 10
        lost, cut = calls.connect(), calls.connect()
        lost.send(describe("lost", 20_000), 5)
        cut.send(describe("cut", 20_000), 5)
        for _ in range(turns):
            await asyncio.sleep(0)
        lost.connection.abort()
        await asyncio.sleep(0)
        await calls.dispatcher.close()
        assert cut.transport.written == b""

    in_steps(run, body)


def test_too_many_elements_end_the_connection_with_a_reason(run: Run) -> None:
    async def body(calls: Calls, groups: Groups) -> None:
        caller = calls.connect()
        caller.send(describe("first", 500_001), 5)
        while not caller.transport.closed:
            await asyncio.sleep(0)
        assert groups.handled == []
        assert any("groups it has more than 500,000 elements" in line for line in calls.lines.lines)

    in_steps(run, body)


def test_an_error_response_that_fails_ends_the_connection(run: Run) -> None:
    async def body(calls: Calls, groups: Groups) -> None:
        groups.error = KafkaError(ErrorCode.NOT_COORDINATOR)
        groups.steps = 3
        caller = calls.connect()
        calls.registry.handlers[15].error_response = lambda *_: each(lambda _: 1 // 0, [1])  # type: ignore[method-assign]
        caller.send(describe("first", 2), 5)
        while not caller.transport.closed:
            await asyncio.sleep(0)

    in_steps(run, body)
