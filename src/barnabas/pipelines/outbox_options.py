"""Options of topics that are written exactly once, as our own client has them; `topic_options` has read them.

All topics of a query are written by one producer, so that they have the same; of all queries by one client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.client.settings import ProducerSettings
from barnabas.pipelines.definition import Delivery, Pipeline, TopicSink
from barnabas.pipelines.sources import BUFFER_BYTES, ROW_BYTES_MAX
from barnabas.pipelines.topic_options import option_of
from barnabas.wire.compression_types import LEVELS, Compression, CompressionType

BATCH_BYTES: Final = 256 * 1024
OF_CLIENT: Final[Mapping[str, str]] = {
    "kafka.request.timeout.ms": "request_timeout_ms",
    "kafka.retry.backoff.ms": "retry_backoff_ms",
    "kafka.retry.backoff.max.ms": "retry_backoff_ms_max",
    "kafka.metadata.max.age.ms": "metadata_max_age_ms",
}
"""Those that all topics share, by the names of ClientSettings."""


def client_options(pipeline: Pipeline) -> dict[str, int]:
    """What the options say of the client, by the names of ClientSettings."""
    sinks = (sink for sink in pipeline.sinks if isinstance(sink, TopicSink) and sink.delivery is Delivery.EXACTLY_ONCE)
    options = next((sink.options for sink in sinks), ())
    return {OF_CLIENT[option.name]: int(option.value) for option in options if option.name in OF_CLIENT}


def request_bytes_max(sink: TopicSink) -> int:
    """How large a request, and so a record, may be."""
    return int(option_of(sink.options, "kafka.max.request.size") or ROW_BYTES_MAX)


def batch_bytes(sink: TopicSink) -> int:
    """How large a batch of several records may be: no larger than a request."""
    wanted = option_of(sink.options, "kafka.batch.size")
    return max(1, min(BATCH_BYTES if wanted is None else int(wanted), request_bytes_max(sink)))


def producer_settings(sink: TopicSink, batch_bytes_max: int, transaction_ms_max: int) -> ProducerSettings:
    """Of the producer of a query, by the options of its first topic. What is not delivered in `transaction_ms_max` is
    not in the transaction.
    """
    delivery_ms = option_of(sink.options, "kafka.delivery.timeout.ms")
    in_flight = option_of(sink.options, "kafka.max.in.flight.requests.per.connection")
    return ProducerSettings(
        batch_bytes=batch_bytes_max,
        linger_ms=int(option_of(sink.options, "kafka.linger.ms") or 0),
        compression=_compression(sink),
        in_flight_max=int(in_flight or 5),
        request_bytes_max=request_bytes_max(sink),
        buffer_bytes_max=BUFFER_BYTES,
        max_block_ms=transaction_ms_max,
        delivery_timeout_ms=min(int(delivery_ms or transaction_ms_max), transaction_ms_max),
    )


def _compression(sink: TopicSink) -> Compression:
    name = option_of(sink.options, "kafka.compression.type") or "none"
    kind = CompressionType[name.upper()]
    level = option_of(sink.options, f"kafka.compression.{name}.level") if kind in LEVELS else None
    return Compression(kind, None if level is None else int(level))
