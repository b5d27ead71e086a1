"""What a handler knows of a request beside its fields, and how it answers later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from barnabas.kernel.steps import a_turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barnabas.api.request_metrics import RequestMetrics
    from barnabas.api.request_time import RequestTime
    from barnabas.kernel.steps import Steps
    from barnabas.network.connection import ServerConnection, Slot
    from barnabas.security.authorizer import Authorizer
    from barnabas.wire.classes import Message
    from barnabas.wire.errors import KafkaError
    from barnabas.wire.primitives import Buffer

Result = TypeVar("Result")


class Answers(Protocol):
    """The dispatcher, as far as contexts need it. Neither method raises: the connection ends if nothing can be said."""

    authorizer: Authorizer | None

    def encode(self, context: RequestContext, message: Message | None) -> list[Buffer] | None:
        """The frame of the response, counted; None if there is nothing to send."""
        ...

    def failure(self, context: RequestContext, error: KafkaError) -> Message | None:
        """The response that says so."""
        ...

    def run(self, responder: Responder, outcome: Awaitable[Message | None]) -> None:
        """Waits for the response in a task, and gives it."""
        ...

    def answer(self, responder: Responder, slot: Slot, message: Message | Steps[Message | None] | None) -> None:
        """Encodes the response, in later turns if it is large, and completes the slot with it."""
        ...

    def in_steps(self, context: RequestContext, steps: Steps[Result]) -> Awaitable[Result]:
        """The result of the steps, of which one is done per turn of the loop."""
        ...

    def metrics_of(self, context: RequestContext) -> tuple[RequestMetrics, ...]:
        """Where the request is counted: by its API, and by the name that its handler has given it."""
        ...


class RequestContext:
    """Where a request comes from and how it is to be answered. Handlers read it."""

    __slots__ = (
        "_answers",
        "_reserved",
        "_responder",
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "received",
        "request",
        "request_name",
        "time",
    )

    def __init__(
        self,
        answers: Answers,
        connection: ServerConnection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        received: float,
        request: Any,
    ) -> None:
        self._answers = answers
        self._responder: Responder | None = None
        self._reserved: Slot | None = None
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.received = received
        """When the request was handed over, in seconds of the loop's clock."""
        self.request = request
        self.request_name: str | None = None
        """A name that the request is counted by beside its API's; Fetch sets `FetchFollower` or `FetchConsumer`."""
        self.time: RequestTime | None = None
        """Measures the time that the request takes, where that is limited."""

    @property
    def client_host(self) -> str:
        """The client's IP address; Kafka writes it with a slash ahead."""
        return self.connection.address

    @property
    def listener_name(self) -> str:
        """The listener that the client came in by; it is told addresses of this one."""
        return self.connection.listener.name

    @property
    def is_control(self) -> bool:
        """The request came by the control plane, or by a connection of the controller."""
        return self.connection.is_control

    @property
    def principal(self) -> str:
        """Who asks."""
        return self.connection.principal

    @property
    def authorizer(self) -> Authorizer | None:
        """Who decides what it may do (`api.authorization` asks); None where everybody may do everything."""
        return self._answers.authorizer

    @property
    def responder(self) -> Responder | None:
        """What `park` gave, if it was called."""
        return self._responder

    def park(self, *, is_queued: bool = False) -> Responder:
        """Takes the place of the response, to answer after `handle` has returned.

        `is_queued` says that the request waits for work of this broker, which `queued.max.requests` bounds. Raises
        RuntimeError if called again.
        """
        if self._responder is not None:
            raise RuntimeError("this request is parked already")
        slot, self._reserved = self._reserved, None
        if slot is not None:
            if not is_queued:
                slot.leave_queue()
            return self.parked_in(slot)
        return self.parked_in(self.connection.park(is_queued=is_queued))

    def reserve(self, slot: Slot) -> None:
        """For the dispatcher: the place of the response was taken before the request was decoded; `park` returns it."""
        self._reserved = slot

    def in_steps(self, steps: Steps[Result]) -> Awaitable[Result]:
        """For coroutines of handlers: the result of long work, done in steps between which others have their turns."""
        return self._answers.in_steps(self, steps)

    def turn(self) -> Awaitable[None]:
        """For coroutines of handlers, after each piece of long work: waits for the next turn in which there is no other
        long work."""
        return self._answers.in_steps(self, a_turn())

    # For fast paths.

    @property
    def metrics(self) -> tuple[RequestMetrics, ...]:
        """Where the request is counted: by its API, and by `request_name`."""
        return self._answers.metrics_of(self)

    def of_later_request(self, correlation_id: int, received: float) -> RequestContext:
        """That of another request of the connection, which is like this one; it has no `request`."""
        context = RequestContext(
            *(self._answers, self.connection, self.api_key, self.api_version, correlation_id, self.client_id),
            *(received, None),
        )
        context.request_name = self.request_name
        return context

    def parked_in(self, slot: Slot) -> Responder:
        """As `park`, where the place of the response has been taken before."""
        responder = self._responder = Responder(self, slot, self._answers)
        return responder

    def encode(self, message: Message) -> list[Buffer] | None:
        """The frame of a response that is given at once, counted; None if there is nothing to send."""
        return self._answers.encode(self, message)


class Responder:
    """Answers a parked request, once. Made by `RequestContext.park`."""

    __slots__ = ("_answers", "_is_answered", "_slot", "context")

    def __init__(self, context: RequestContext, slot: Slot, answers: Answers) -> None:
        self.context = context
        self._slot = slot
        self._answers = answers
        self._is_answered = False

    @property
    def is_done(self) -> bool:
        return self._is_answered or self._slot.is_done

    @property
    def is_queued(self) -> bool:
        """It waits for work of this broker."""
        return self._slot.is_queued

    def respond(self, message: Message | Steps[Message | None] | None) -> None:
        """Gives the response, or the steps that make it; it leaves in the order of the connection's requests.

        None: there is none.

        Nothing happens if the connection is over. Raises RuntimeError if the request was answered before.
        """
        if self.is_done:
            raise RuntimeError("this request has been answered already")
        self._is_answered = True
        self._answers.answer(self, self._slot, message)

    def when_lost(self, give_up: Callable[[], object]) -> None:
        """Has `give_up()` called if the connection ends before the request is answered, instead of an answer; at once
        if it has ended between two steps."""
        if self.context.connection.is_open:
            self._slot.when_lost = give_up
        else:
            give_up()

    def finish(self, outcome: Awaitable[Message | None]) -> None:
        """Answers with what it gives, or with the error that it raises, as if `handle` had returned it."""
        self._answers.run(self, outcome)

    def fail(self, error: KafkaError) -> None:
        """Answers with the error, in the form that the API has for it."""
        self.respond(self._answers.failure(self.context, error))
