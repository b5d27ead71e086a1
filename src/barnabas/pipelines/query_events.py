"""What happens to the queries of a session, in order and each thing once, on the thread that asks for it."""

from __future__ import annotations

import json
import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

_EVENTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """A batch of a query, by the query's name; `content` is Spark's StreamingQueryProgress."""

    query: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """One start of a query has asked the brokers, and found nothing new; comes every ten seconds."""

    run_id: str


@dataclass(frozen=True, slots=True)
class TerminatedEvent:
    """One start of a query is over; `error` is what Spark says of its failure, None when there was none."""

    run_id: str
    error: str | None


class QueryEvents:
    """A queue between Spark's listener, which is called on a thread of the gateway's, and the run."""

    def __init__(self) -> None:
        self._events: queue.Queue[BatchEvent | IdleEvent | TerminatedEvent] = queue.Queue(_EVENTS_MAX)

    def next(self, timeout_seconds: float) -> BatchEvent | IdleEvent | TerminatedEvent | None:
        """The next event; None when there is none in that time."""
        try:
            return self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def listener(self) -> StreamingQueryListener:
        """What a session's `streams.addListener` takes."""
        from pyspark.sql.streaming.listener import StreamingQueryListener

        events = self._events

        class Listener(StreamingQueryListener):  # type: ignore[misc]  # pyspark's types are not followed
            """Spark calls it in the order of what happens, and a query's end after its last batch."""

            def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's names
                """Not of interest: the run has started it."""

            def onQueryProgress(self, event: Any) -> None:  # noqa: N802
                """A batch is done, or there was nothing to do for a while."""
                events.put(BatchEvent(str(event.progress.name), json.loads(event.progress.json)))

            def onQueryIdle(self, event: Any) -> None:  # noqa: N802
                """It works, with nothing to do."""
                events.put(IdleEvent(str(event.runId)))

            def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
                """The end, with the error if it was one."""
                events.put(TerminatedEvent(str(event.runId), event.exception))

        return Listener()
