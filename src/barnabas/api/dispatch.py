"""From a frame to its handler, and from what the handler says back to a frame.

Control goes before data: requests of the control plane's listener do, and those of any connection by which a controller
has spoken (`kernel.tick` does the ordering). A request of an API or version that is not answered ends its connection,
as in Kafka; only ApiVersions has an answer for it, so that a newer client can ask again.

No request holds the loop: large ones are decoded in steps, handlers with many elements handle them in steps, and large
responses are encoded in steps (`kernel.steps`). The first step of each is done at once, so that whatever needs no other
goes the fast path; otherwise the rest is done in later turns, in which the connection's next request waits.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Awaitable, Coroutine
from types import GeneratorType
from typing import Any, Final, TypeVar

from barnabas.api.authentication import Authentication, ClientLogin
from barnabas.api.client_throttles import ClientThrottles
from barnabas.api.context import RequestContext, Responder
from barnabas.api.interception import Intercept, InterceptedHandler
from barnabas.api.registry import FastPathHandler, Handler, Registry
from barnabas.api.request_metrics import RequestMetrics, RequestMetricsByName
from barnabas.api.request_time import Timed, charge, timed_steps
from barnabas.api.response_errors import errors_in_steps, errors_of
from barnabas.api.route import CONTROLLER_APIS, Route
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.steps import StepRunner, Steps, at_once
from barnabas.kernel.turns import yield_to_loop
from barnabas.link.frames import KeptFrame
from barnabas.network.connection import ServerConnection, Slot
from barnabas.network.request_memory import PARKED_PER_FRAME_BYTE
from barnabas.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from barnabas.security.authorizer import Authorizer
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import Message, dissolve
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ApiVersionsResponse
from barnabas.wire.primitives import Buffer, EncodeError, ProtocolError

# Key and version as one number, correlation id, and the length of the client id, which nearly every header has.
_HEADER: Final = struct.Struct(">iih")
_HEADER_BYTES: Final = _HEADER.size
_FLEXIBLE_HEADER: Final = 2
_INT16_MAX: Final = 0x7FFF
LARGE_BYTES: Final = 4096
"""Larger requests are decoded in steps."""
Result = TypeVar("Result")


class Dispatcher:
    """Handles every request of a broker; what the network calls (`network.ports.RequestHandler`)."""

    def __init__(
        self,
        host: Host,
        registry: Registry,
        logger: logging.Logger,
        metrics: MetricsRegistry,
        steps: StepRunner | None = None,
        authorizer: Authorizer | None = None,
        authentication: Authentication | None = None,
        throttles: ClientThrottles | None = None,
    ) -> None:
        """`registry` may still be filled afterwards; a handler is looked up when its first request comes. `steps` does
        what is long; all that is long on a loop should share one. Without an `authorizer` everybody may do everything.
        `authentication` has clients log in, where their listeners ask for it. Without `throttles` no request's time is
        limited.
        """
        self.authorizer = authorizer
        self.throttles = throttles
        self._loop = host.loop
        self._steps = steps or StepRunner(host.loop)
        self._registry = registry
        self._logger = logger
        self._metrics = RequestMetricsByName(metrics)
        self._routes: dict[int, Route] = {}
        self._stand_ins: dict[int, Handler] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._authentication = authentication

    @property
    def running(self) -> int:
        """How many handlers' coroutines have not ended."""
        return len(self._tasks)

    def intercept(self, api_key: ApiKey, look: Intercept | None) -> None:
        """Has `look` called with each request of an API before its handler, in place of its fast path; None ends that.

        Costs requests of other APIs, and all requests where nothing is intercepted, nothing. Connections must forget
        their fast paths then (`NetworkServer.forget_fast_paths`). Raises KeyError for an API that is not answered.
        """
        handler = self._registry.handlers[api_key]
        if look is None:
            self._stand_ins.pop(api_key, None)
        else:
            handler = self._stand_ins[api_key] = InterceptedHandler(handler, look)
        for key_and_version, route in self._routes.items():
            if route.api_key == api_key:  # requests that are parked still look for theirs
                self._routes[key_and_version] = Route(handler, route.api_version, route.metrics)

    async def close(self) -> None:
        """Cancels the coroutines that still run, and waits for their ends. To be called when the network is closed."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._tasks:
            # From Python 3.12 on, gather returns at once where all have ended, before their callbacks are called.
            await yield_to_loop()

    # The network's calls.

    def is_of_controller(self, connection: ServerConnection, api_key: int) -> bool:
        # What goes ahead of all others is not for whoever says that he is the controller.
        authorizer = self.authorizer
        return api_key in CONTROLLER_APIS and (
            authorizer is None
            or authorizer.authorize(
                connection.principal,
                connection.address,
                AclOperation.CLUSTER_ACTION,
                ResourceType.CLUSTER,
                CLUSTER_NAME,
                quietly=True,
            )
        )

    def connection_opened(self, connection: ServerConnection) -> None:
        """Its requests come here once its client is known, if its listener asks for a login."""
        if self._authentication is not None:
            self._authentication.opened(connection, self.handle)

    def connection_closed(self, connection: ServerConnection) -> None:
        """Requests that run go on, and their answers are dropped."""
        login: ClientLogin | None = connection.login
        if login is not None:
            login.closed()

    def handle(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        if end - start < _HEADER_BYTES:
            raise ProtocolError(f"a request of {end - start} bytes, which has no room for a header")
        fast_path = connection.fast_path
        if fast_path is not None:
            if fast_path.take(connection, buffer, start, end):
                return None
            if connection.collected:
                fast_path.finish()
                if not connection.is_open:  # one of them has ended it, and nothing behind it is handled
                    return None
        key_and_version, correlation_id, length = _HEADER.unpack_from(buffer, start)
        route = self._routes.get(key_and_version)
        if route is None:
            route = self._new_route(key_and_version)
            if route is None:
                return self._unsupported_api_versions(correlation_id)
        if route.fast_path is not None:
            position = start + _HEADER_BYTES + max(0, length)
            has_tags = False
            if route.header_version == _FLEXIBLE_HEADER:
                has_tags = position >= end or buffer[position] != 0
                position += 1
            if not has_tags:
                refused, fast_path = (
                    fast_path,
                    route.fast_path(connection, buffer, start, position, end, key_and_version),
                )
                if fast_path is not None and fast_path is not refused:
                    connection.fast_path = fast_path
                    if fast_path.take(connection, buffer, start, end):
                        return None
        return self._decode_and_handle(connection, route, buffer, start, end)

    # The contexts' calls.

    def encode(self, context: RequestContext, message: Message | None) -> list[Buffer] | None:
        self._count(context)
        if message is None or not context.connection.is_open:
            return None
        codes = errors_of(message)
        if codes is None:
            codes = at_once(errors_in_steps(message))
        return self._encode(context, message, codes)

    def answer(self, responder: Responder, slot: Slot, message: Any) -> None:
        context = responder.context
        self._count(context)
        if message is None or not context.connection.is_open:
            self._complete(context, slot, None)
            return
        if type(message) is GeneratorType:
            try:
                next(message)
            except StopIteration as stop:
                message = stop.value
            except Exception:
                self._logger.exception("Answering %s failed", _shown(context))
                context.connection.abort()
                message = None
        if message is None:
            self._complete(context, slot, None)
            return
        codes = None if type(message) is GeneratorType else errors_of(message)
        if codes is None:
            self._start(self._complete_in_steps(context, slot, message), _shown(context))
        else:
            self._complete(context, slot, self._encode(context, message, codes))

    def _complete(self, context: RequestContext, slot: Slot, frame: list[Buffer] | None) -> None:
        # Context and responder refer to each other, and may live for long.
        context.request = None
        slot.complete(frame)

    def in_steps(self, context: RequestContext, steps: Steps[Result]) -> Awaitable[Result]:
        if context.time is not None:
            steps = timed_steps(steps, context.time)
        return self._steps.run(steps, is_urgent=context.is_control)

    def _count(self, context: RequestContext) -> None:
        """Counts a request that is answered now; and its time, where nobody is there any more who could be told."""
        responder, time = context.responder, context.time
        if time is not None and not context.connection.is_open:
            time.count()
        for figures in self.metrics_of(context):
            if responder is None:
                figures.answered_at_once += 1
            else:
                duration_ms = int((self._loop.time() - context.received) * 1000)
                figures.answered_later(duration_ms, is_queued=responder.is_queued, by=context)

    def _count_errors(self, context: RequestContext, codes: list[int]) -> None:
        """By their API alone, as Kafka does, whatever else the request is counted by."""
        if codes:
            figures = self._route_of(context).metrics
            figures.failed += 1
            for code, count in Counter(codes).items() if len(codes) > 1 else ((codes[0], 1),):
                figures.count_error(code, count)

    def _encode(self, context: RequestContext, message: Message, codes: list[int]) -> list[Buffer] | None:
        """The frame of a response with these errors; None after the connection has been ended instead."""
        self._count_errors(context, codes)
        route, time = self._route_of(context), context.time
        if time is not None:
            charge(context.connection, time, message)
        try:
            return route.encode(context.correlation_id, message)
        except EncodeError:
            return self._encode_instead(context, route)
        finally:
            if time is not None:
                time.rest()
                time.count()

    async def _complete_in_steps(self, context: RequestContext, slot: Slot, message: Any) -> None:
        frame = None
        try:
            frame = await self.in_steps(context, self._encode_and_dissolve(context, message))
        except Exception:
            context.connection.abort()  # what its client waits for does not come
            raise
        finally:
            self._complete(context, slot, frame)

    def _encode_and_dissolve(self, context: RequestContext, message: Any) -> Steps[list[Buffer] | None]:
        frame = yield from self._encode_in_steps(context, message)
        request, context.request = context.request, None
        yield from dissolve(request)
        return frame

    def _encode_in_steps(self, context: RequestContext, message: Any) -> Steps[list[Buffer] | None]:
        """As `_encode`, of a large response, or of one that is to be made in steps."""
        if type(message) is GeneratorType:
            message = yield from message
        if message is None:
            return None
        self._count_errors(context, (yield from errors_in_steps(message)))
        route = self._route_of(context)
        if context.time is not None:
            charge(context.connection, context.time, message)
        try:
            encode = codec.response_step_encoder(route.api_key, route.api_version)
            return (yield from encode(context.correlation_id, message))
        except EncodeError:
            return self._encode_instead(context, route)
        finally:
            if context.time is not None:
                context.time.count()

    def _encode_instead(self, context: RequestContext, route: Route) -> list[Buffer] | None:
        """The frame of an error, where the response cannot be written."""
        self._logger.error("The response to %s cannot be written", _shown(context), exc_info=True)  # noqa: LOG014
        instead = self.failure(context, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if type(instead) is GeneratorType:
            instead = at_once(instead)
        try:
            return route.encode(context.correlation_id, instead) if instead is not None else None
        except EncodeError:
            self._logger.exception("Neither can the error response to %s", _shown(context))
            context.connection.abort()
            return None

    def failure(self, context: RequestContext, error: KafkaError) -> Any:
        handler = self._route_of(context).handler
        try:
            response = handler.error_response(context, context.request, error)
        except Exception:
            self._logger.exception("%s has no answer for %s to %s", type(handler).__name__, error, _shown(context))
            context.connection.abort()
            return None
        return response

    def run(self, responder: Responder, outcome: Awaitable[Message | None]) -> None:
        task = self._start(self._finish(responder, outcome), _shown(responder.context))
        if isinstance(outcome, Coroutine):
            # Nothing of a task runs that is cancelled before its first turn, so nobody would have waited for it.
            task.add_done_callback(lambda _: outcome.close())

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def metrics_of(self, context: RequestContext) -> tuple[RequestMetrics, ...]:
        name, metrics = context.request_name, self._route_of(context).metrics
        return (metrics,) if name is None else (metrics, self._metrics.of(name))

    # Inside.

    def _new_route(self, key_and_version: int) -> Route | None:
        """The route of a request that came for the first time; None for a version of ApiVersions that is unknown."""
        api_key, api_version = key_and_version >> 16, key_and_version & 0xFFFF
        if api_version > _INT16_MAX:
            api_version -= _INT16_MAX * 2 + 2
        handler = self._registry.handlers.get(api_key)
        if handler is not None and handler.versions[0] <= api_version <= handler.versions[1]:
            metrics = self._metrics.of(handler.api_key.api_name)
            if isinstance(handler, FastPathHandler):
                handler.count_by(metrics)
            handler = self._stand_ins.get(api_key, handler)
            route = self._routes[key_and_version] = Route(handler, api_version, metrics)
            return route
        if handler is not None and api_key == ApiKey.API_VERSIONS:
            return None
        raise ProtocolError(f"a request with API key {api_key} in version {api_version}, which is not answered here")

    def _unsupported_api_versions(self, correlation_id: int) -> list[Buffer]:
        """Version 0 with the versions of this API alone (KIP-511): every client can read it and ask again."""
        low, high = self._registry.handlers[ApiKey.API_VERSIONS].versions
        self._metrics.of(ApiKey.API_VERSIONS.api_name).count_error(ErrorCode.UNSUPPORTED_VERSION)
        own = ApiVersionsResponse.ApiVersion(api_key=int(ApiKey.API_VERSIONS), min_version=low, max_version=high)
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
        return codec.response_encoder(ApiKey.API_VERSIONS, 0)(correlation_id, response)

    def _decode_and_handle(
        self, connection: ServerConnection, route: Route, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        _, _, correlation_id, client_id, position = headers.read_request_header(buffer, start, end)
        if route.is_from_controller and not connection.is_control and self.is_of_controller(connection, route.api_key):
            connection.is_control = True
        route.requests.count += 1
        context = RequestContext(
            self, connection, route.api_key, route.api_version, correlation_id, client_id, self._loop.time(), None
        )
        throttles = self.throttles
        if throttles is None or not throttles.request.bounds:
            return self._begin(context, route, buffer, position, end)
        time = context.time = throttles.request_time(context)
        try:
            return self._begin(context, route, buffer, position, end)
        finally:
            if time is not None:
                time.rest()

    def _begin(
        self, context: RequestContext, route: Route, buffer: bytearray | memoryview, position: int, end: int
    ) -> list[Buffer] | None:
        """Decodes and handles a request, or the first step of that."""
        connection = context.connection
        if end - position > LARGE_BYTES:
            decode = codec.request_step_decoder(route.api_key, route.api_version)
            decoding = decode(buffer, position, end)
            try:
                next(decoding)
            except StopIteration as stop:
                context.request = stop.value[0]
            else:
                frame = connection.keep(buffer, position, end)
                if frame.buffer is not buffer:  # a copy, of few bytes: it is begun anew
                    decoding = decode(frame.buffer, frame.start, frame.end)
                self._go_on(context, self._decode(context, decoding), frame)
                return None
        else:
            context.request, _ = route.decode(buffer, position, end)
        outcome = self._handle(context)
        if type(outcome) is GeneratorType:
            try:
                next(outcome)
            except StopIteration as stop:
                outcome = stop.value
            except Exception as error:  # noqa: BLE001 - sorted there
                outcome = self._failed(context, error)
                if context.responder is not None:
                    self._answer(context.responder, outcome)
                    return None
            if type(outcome) is GeneratorType:
                self._go_on(context, outcome, None)
                return None
        if isinstance(outcome, Awaitable):
            self.run(context.responder or context.park(is_queued=True), outcome)
            return None
        return self._encode_now(context, outcome) if context.responder is None else None

    def _handle(self, context: RequestContext) -> Any:
        """What the handler gives; of an error that it raises, the response, which is given at once if it has parked."""
        try:
            return self._route_of(context).handler.handle(context, context.request)
        except Exception as error:  # noqa: BLE001 - sorted there
            outcome = self._failed(context, error)
            if context.responder is None:
                return outcome
            self._answer(context.responder, outcome)
            return None

    def _encode_now(self, context: RequestContext, message: Message | None) -> list[Buffer] | None:
        """The frame of a response that is given at once; None if there is none, or it is large and comes later."""
        codes = None if message is None or not context.connection.is_open else errors_of(message)
        if message is not None and codes is None and context.connection.is_open:
            self._go_on(context, _known(message), None)
            return None
        self._count(context)
        return None if message is None or codes is None else self._encode(context, message, codes)

    # What takes more than one step.

    def _go_on(self, context: RequestContext, rest: Steps[Any], frame: KeptFrame | None) -> None:
        """Does the rest of a request in later turns, while the connection's next waits for it."""
        connection = context.connection
        claim = connection.claim_work(0 if frame is None else frame.end - frame.start)
        # Who waits for memory must not stop those who need none.
        slot = connection.park(is_queued=claim is None or claim.is_held)
        slot.claim = claim
        context.reserve(slot)
        connection.hold()
        task = self._start(self._serve(context, slot, rest, frame), _shown(context))

        def given_up(_: object) -> None:
            # Nothing of a task runs that is cancelled before its first turn.
            if frame is not None:
                frame.release()
            if not slot.is_done and context.responder is None:
                slot.complete(None)

        task.add_done_callback(given_up)

    async def _serve(self, context: RequestContext, slot: Slot, rest: Steps[Any], frame: KeptFrame | None) -> None:
        """`rest` decodes the rest of the frame and handles the request, or handles the rest of the request; it returns
        what handlers do.
        """
        connection, claim = context.connection, slot.claim
        frame_bytes = 0 if frame is None else frame.end - frame.start
        try:
            if claim is not None:
                await claim.wait(self._loop)
                claim.is_working = True
            steps = self._serve_in_steps(context, slot, rest, frame)
            if context.time is not None:
                steps = timed_steps(steps, context.time)
            outcome = await self._steps.run(steps, is_urgent=context.is_control)
            if outcome is not None:
                self.run(context.responder or context.park(is_queued=True), outcome)
        except BaseException as error:
            if isinstance(error, Exception):
                connection.abort()  # what its client waits for does not come
            if not slot.is_done:
                slot.complete(None)
            raise
        finally:
            connection.go_on()
            if claim is not None:
                if connection.is_open:  # what is not answered yet is parked, and holds less
                    claim.resize(frame_bytes * PARKED_PER_FRAME_BYTE)
                else:
                    claim.end()
                claim.work_ended()

    def _serve_in_steps(
        self, context: RequestContext, slot: Slot, rest: Steps[Any], frame: KeptFrame | None
    ) -> Steps[Awaitable[Message | None] | None]:
        """Answers the request, unless it is parked; returns what the answer is to be waited for, if anything."""
        try:
            outcome = yield from rest
        except Exception as error:  # noqa: BLE001 - sorted there
            outcome = self._failed(context, error)
        finally:
            if frame is not None:
                frame.release()
        if type(outcome) is GeneratorType:
            outcome = yield from outcome
        if isinstance(outcome, Awaitable):
            return outcome
        if context.responder is not None:
            if outcome is not None:
                self._answer(context.responder, outcome)
            return None
        context.park(is_queued=True)
        self._count(context)
        response = None
        if outcome is not None and context.connection.is_open:
            response = yield from self._encode_in_steps(context, outcome)
        slot.complete(response)
        request, context.request = context.request, None
        yield from dissolve(request)
        return None

    def _decode(self, context: RequestContext, decoding: Steps[tuple[Any, int]]) -> Steps[Any]:
        """The rest of a large request: decodes and handles it, unless its connection ends meanwhile."""
        while context.connection.is_open:
            try:
                next(decoding)
            except StopIteration as stop:
                context.request = stop.value[0]
                yield
                outcome = self._handle(context)
                return (yield from outcome) if type(outcome) is GeneratorType else outcome
            yield
        return None

    async def _finish(self, responder: Responder, outcome: Awaitable[Message | None]) -> None:
        """Waits for what a handler's coroutine says, and answers."""
        try:
            message = await (outcome if responder.context.time is None else Timed(outcome, responder.context.time))
        except Exception as error:  # noqa: BLE001 - sorted there
            message = self._failed(responder.context, error)
        except BaseException:
            self._answer(responder, None)
            raise
        self._answer(responder, message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("%s ended with an error", task.get_name(), exc_info=task.exception())

    def _answer(self, responder: Responder, message: Any) -> None:
        if not responder.is_done:
            responder.respond(message)

    def _failed(self, context: RequestContext, error: Exception) -> Any:
        """What a request is answered whose handler raised: a response, or what makes it in steps."""
        if isinstance(error, KafkaError):
            return self.failure(context, error)
        if isinstance(error, ProtocolError):
            context.connection.fail(f"{_shown(context)}: {error}")
            return None
        self._logger.error("Handling %s failed", _shown(context), exc_info=error)
        return self.failure(context, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _route_of(self, context: RequestContext) -> Route:
        return self._routes[context.api_key << 16 | context.api_version]


def _known(message: Message) -> Steps[Message]:
    """The message, without any step."""
    yield from ()
    return message


def _shown(context: RequestContext) -> str:
    """The request, for the log."""
    return (
        f"{ApiKey(context.api_key).api_name} v{context.api_version} {context.correlation_id}"
        f" of {context.client_id} at {context.connection.peer}"
    )
