"""The outboxes of a pipeline: which topics are written exactly once, and what stands in the way, at its line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from barnabas.pipelines.definition import Delivery, Pipeline, PipelineError, Query, SourceFormat, TopicSink
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_offsets import OutboxError
from barnabas.pipelines.outbox_thread import sending
from barnabas.pipelines.staged_batches import StagedBatch, StagedBatchError
from barnabas.pipelines.state_directory import StateDirectory


def exact_sinks(query: Query) -> tuple[TopicSink, ...]:
    """The topics that a query writes exactly once: all in one transaction."""
    topics = (sink for sink in query.sinks if isinstance(sink, TopicSink))
    return tuple(sink for sink in topics if sink.delivery is Delivery.EXACTLY_ONCE)


@dataclass(frozen=True, slots=True)
class QueryOutbox:
    """The outbox of one query, with its topics; errors are told at the line of the first. Raises PipelineError."""

    pipeline: Pipeline
    sinks: tuple[TopicSink, ...]
    outbox: Outbox

    def is_sent(self, batch_id: int) -> bool:
        """Whether the batch is in the topics, for good."""
        return self.outbox.is_sent(batch_id)

    def find(self, batch_id: int) -> StagedBatch | None:
        """The batch, if it is staged."""
        with self._told(batch_id):
            return self.outbox.find(batch_id, self._topics)

    def being_written(self, batch_id: int, number: int) -> Path:
        """Where Spark is to write the records for the topic of that number, as text."""
        return self.outbox.staged.being_written(batch_id, number)

    def publish(self, batch_id: int) -> StagedBatch:
        """Takes what Spark has written as the batch."""
        with self._told(batch_id):
            return self.outbox.staged.publish(batch_id, self._topics, self._encoded, self._encoded_keys)

    def deliver(self, batch: StagedBatch) -> None:
        """Sends a staged batch, notes that, and removes what was staged."""
        with self._told(batch.batch_id):
            self.outbox.deliver(batch)

    @property
    def _encoded(self) -> list[str]:
        return [sink.topic for sink in self.sinks if sink.format is not SourceFormat.JSON]

    @property
    def _encoded_keys(self) -> list[str]:
        return [sink.topic for sink in self.sinks if sink.key_format is not None]

    @property
    def _topics(self) -> list[tuple[str, bool]]:
        return [(sink.topic, bool(sink.key)) for sink in self.sinks]

    @contextlib.contextmanager
    def _told(self, batch_id: int) -> Iterator[None]:
        directory = self.outbox.directory / f"batch-{batch_id}"
        try:
            yield
        except StagedBatchError as error:
            message = f"{directory} {error}; remove it and run it again: nothing of that batch is in the topic"
            raise self.pipeline.error(message, self.sinks[0].line) from error
        except OutboxError as error:
            raise self.pipeline.error(str(error), self.sinks[0].line) from error
        except OSError as error:
            raise _unusable(self.pipeline, self.outbox, error) from error


def _unusable(pipeline: Pipeline, outbox: Outbox, error: OSError) -> PipelineError:
    message = f"the state directory {outbox.directory} cannot be used: {error.strerror or error}"
    return pipeline.error(f"{message}; nothing is lost: correct that, and run it again", pipeline.state_line)


@contextlib.contextmanager
def opened_outboxes(
    pipeline: Pipeline,
    state: StateDirectory,
    state_id: str,
    topic_ids: Mapping[str, str],
    bootstrap_servers: str,
    stop: threading.Event,
) -> Iterator[Mapping[str, QueryOutbox]]:
    """The outboxes of a run, by view, for as long as the block lasts; where no topic is written exactly once, none.

    Whatever a former run was sending has ended when this has begun. Raises PipelineError when nobody can tell which
    batches the topics have, PipelineUnreachableError when brokers do not answer, and RunStopped on `stop`.
    """
    exact = {query.from_view: sinks for query in pipeline.queries if (sinks := exact_sinks(query))}
    if not exact:
        yield {}
        return
    with sending(pipeline, state_id, bootstrap_servers, stop) as senders:
        found: dict[str, QueryOutbox] = {}
        for view, sinks in exact.items():
            ids = {sink.topic: topic_ids[sink.topic] for sink in sinks if sink.topic in topic_ids}
            port = senders.sender(state.name_of(view), sinks)
            outbox = Outbox(state.outbox(view), state_id, ids, port, sinks[0].senders)
            try:
                outbox.open(state.batches_done(view))
            except OutboxError as error:
                raise pipeline.error(str(error), sinks[0].line) from error
            except OSError as error:
                raise _unusable(pipeline, outbox, error) from error
            found[view] = QueryOutbox(pipeline, sinks, outbox)
        yield found
