"""Spans of the controller, where somebody collects traces: its events, with the moves of partitions and replicas that
each brings about, and reassignments from their beginning to their end.

Where nobody does, the controller has none of these objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from barnabas.controller.recent_transitions import RecentTransitions, StateTransition
from barnabas.kernel.tracing import Span, SpanEvent, SpanKind, Traces, Value

if TYPE_CHECKING:
    from barnabas.controller.events import ControllerEvent
    from barnabas.controller.term import ControllerTerm
    from barnabas.kernel.host import Host
    from barnabas.wire.topics import TopicPartition

MOVES_MAX: Final = 128
"""Of one span, as OpenTelemetry's own bound; how many there were besides stands in an attribute."""
REASSIGNMENTS_MAX: Final = 1000
"""Partitions whose reassignments are followed at a time."""


class ControllerTraces(RecentTransitions):
    """Makes the spans. Told of moves as `RecentTransitions` is, and asked to `process` each event."""

    def __init__(self, host: Host, traces: Traces) -> None:
        super().__init__(host.clock)
        self._host = host
        self._traces = traces
        self._moves: list[SpanEvent] = []
        self._moves_left_out = 0
        self._reassignments: dict[TopicPartition, float] = {}
        self._epoch = 0

    def add(self, move: StateTransition) -> None:
        super().add(move)
        if len(self._moves) >= MOVES_MAX:
            self._moves_left_out += 1
            return
        attributes: dict[str, Value] = {
            "messaging.destination.name": move.topic,
            "messaging.destination.partition.id": str(move.partition),
            "kafka.state.before": move.before,
            "kafka.state.after": move.after,
        }
        if move.leadership is not None:
            attributes["kafka.leader"] = move.leadership.leader
            attributes["kafka.leader.epoch"] = move.leadership.leader_epoch
        if move.fault is not None:
            attributes["error.message"] = move.fault
        if move.broker_id is not None:
            attributes["kafka.broker.id"] = move.broker_id
        name = "partition state change" if move.broker_id is None else "replica state change"
        self._moves.append(SpanEvent(self._host.clock.time_ms(), name, attributes))

    async def process(
        self,
        event: ControllerEvent,
        process: Callable[[ControllerEvent], Awaitable[None]],
        term: Callable[[], ControllerTerm | None],
    ) -> None:
        """Processes the event, and makes a span of that."""
        begun, error = self._host.loop.time(), None
        self._moves, self._moves_left_out = [], 0
        try:
            await process(event)
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            attributes: dict[str, Value] = {"kafka.controller.state": event.state.name}
            present = term()
            if present is not None:
                attributes["kafka.controller.epoch"] = present.context.epoch
            if self._moves_left_out:
                attributes["kafka.state_changes.left_out"] = self._moves_left_out
            self._span(f"controller {event.name}", begun, attributes, error, tuple(self._moves))
            self._moves = []
            self._follow(present)

    def _span(
        self,
        name: str,
        begun: float,
        attributes: dict[str, Value],
        error: str | None,
        moves: tuple[SpanEvent, ...] = (),
    ) -> None:
        duration_ms = (self._host.loop.time() - begun) * 1000
        end_ms = self._host.clock.time_ms()
        self._traces.add(Span(name, SpanKind.INTERNAL, end_ms, duration_ms, attributes, moves, error))

    def _follow(self, term: ControllerTerm | None) -> None:
        """Sees which reassignments have begun, and which are over; those of a former term go on in the next one."""
        if term is None or term.context.epoch != self._epoch:
            self._epoch = 0 if term is None else term.context.epoch
            self._reassignments.clear()
        if term is None:
            return
        context, now = term.context, self._host.loop.time()
        for partition in [one for one in self._reassignments if not context.is_being_reassigned(one)]:
            attributes: dict[str, Value] = {
                "messaging.destination.name": partition.topic,
                "messaging.destination.partition.id": str(partition.partition),
                "kafka.controller.epoch": self._epoch,
            }
            self._span("reassignment", self._reassignments.pop(partition), attributes, None)
        for partition in context.reassigned_partitions[:REASSIGNMENTS_MAX]:
            if len(self._reassignments) >= REASSIGNMENTS_MAX:
                return
            self._reassignments.setdefault(partition, now)
