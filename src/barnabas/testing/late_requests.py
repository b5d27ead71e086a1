"""Requests of controllers that arrive once more, late.

A controller that gets no answer in time gives its connection up and sends the request again over another one, while
the first copy may be on its way still. So whatever a broker has been told may reach it again when more has happened:
what it makes of that is decided by epochs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from barnabas.api.leader_and_isr import LeaderAndIsrHandler
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    import random

    from barnabas.api.context import RequestContext
    from barnabas.testing.profile import Range
    from barnabas.wire.messages import LeaderAndIsrRequest

LATE_SECONDS: Final[Range] = (0.05, 30.0)
"""How much later: TCP repeats what is lost for longer than a term of a controller may last."""


@contextlib.contextmanager
def late_copies(probability: float, source: random.Random) -> Iterator[None]:
    """While this lasts, a LeaderAndIsr request comes twice with this probability; nobody hears the second answer.

    UpdateMetadata has nothing that orders two of one controller, and StopReplica for a deletion overrides all epochs
    (as in Kafka): these come once.
    """
    handle = LeaderAndIsrHandler.handle

    def arrive_again(handler: LeaderAndIsrHandler, context: RequestContext, request: LeaderAndIsrRequest) -> None:
        with contextlib.suppress(KafkaError):  # refused as a whole, as it should be
            answer = handle(handler, context, request)
            if inspect.iscoroutine(answer):
                answering = asyncio.ensure_future(answer)
                answering.add_done_callback(_hear)

    @functools.wraps(handle)
    def probe(handler: LeaderAndIsrHandler, context: RequestContext, request: LeaderAndIsrRequest) -> Any:
        if source.random() < probability:
            loop = asyncio.get_running_loop()
            loop.call_later(source.uniform(*LATE_SECONDS), arrive_again, handler, context, request)
        return handle(handler, context, request)

    type_: Any = LeaderAndIsrHandler
    type_.handle = probe
    try:
        yield
    finally:
        type_.handle = handle


def _hear(answering: asyncio.Future[Any]) -> None:
    """Raises any error that is no refusal, for the loop to report."""
    if not answering.cancelled() and not isinstance(answering.exception(), KafkaError):
        answering.result()
