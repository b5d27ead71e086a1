"""The block `options` of a source and of a topic that is written: settings of Spark's connector and Kafka's clients.

Names are those of Spark ("Structured Streaming + Kafka Integration Guide"), so those of Kafka's clients have `kafka.`
before them. What a run is made of (where it begins, what it has read, as whom, how often a row is there) is none of
them: it is refused, with what says it. So nothing here is a part of the state, and all may change between two runs.

A topic that is written exactly once is written by our own client (`outbox_options`), and not by Kafka's producer: it
has some of that one's settings, under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from barnabas.pipelines.definition import Delivery, Option, Pipeline, PipelineError, TopicSink
from barnabas.pipelines.file_secrets import has_reference, resolved, stands_open
from barnabas.pipelines.sources import ANSWER_MS_MAX, BUFFER_BYTES, FETCH_WAIT_MS, ROW_BYTES_MAX
from barnabas.pipelines.yaml_positions import Section, nearest
from barnabas.wire.compression_types import LEVELS, Compression, CompressionType

KEY: Final = "options"
OPTIONS_MAX: Final = 100
PREFIX: Final = "kafka."
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_PARTITIONS_MAX: Final = 100_000
_TEXT_CHARACTERS_MAX: Final = 250
_BATCH_BYTES: Final = 16 * 1024
"""What Kafka's producer has where nothing is said."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What an option is for, and what it may be: a whole number between the bounds, one of the words, or else text."""

    about: str
    bounds: tuple[int, int] | None = None
    words: tuple[str, ...] = ()


def _ms(about: str, lowest: int = 0) -> Setting:
    return Setting(about, (lowest, _INT_MAX))


_CONNECTIONS: Final = {
    "kafka.request.timeout.ms": _ms(f"How long an answer may take; {ANSWER_MS_MAX} if left out.", 100),
    "kafka.retry.backoff.ms": _ms("The pause before a request is tried again.", 1),
    "kafka.retry.backoff.max.ms": _ms("The longest such pause.", 1),
    "kafka.metadata.max.age.ms": _ms("How old what is known of leaders may be.", 100),
}
"""Of every client; those that our own has too."""
_OF_JAVA: Final = {
    "kafka.client.id": Setting("The name by which brokers know the client, for quotas and logs."),
    "kafka.client.dns.lookup": Setting(
        "Which addresses of a name are tried.", words=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")
    ),
    "kafka.connections.max.idle.ms": Setting("When an idle connection is closed; -1 is never.", (-1, _LONG_MAX)),
    "kafka.reconnect.backoff.ms": _ms("The pause before a connection is tried again."),
    "kafka.reconnect.backoff.max.ms": _ms("The longest such pause; 1000 if left out."),
    "kafka.socket.connection.setup.timeout.ms": _ms("How long a connection may take to be there.", 100),
    "kafka.socket.connection.setup.timeout.max.ms": _ms("The longest that is waited for one.", 100),
    "kafka.send.buffer.bytes": Setting("The socket's buffer; -1 is the system's own.", (-1, _INT_MAX)),
    "kafka.receive.buffer.bytes": Setting("The socket's buffer; -1 is the system's own.", (-1, _INT_MAX)),
}
"""Of Kafka's clients alone."""
SOURCE_OPTIONS: Final[Mapping[str, Setting]] = {
    "minPartitions": Setting("At least so many tasks read a batch.", (1, _PARTITIONS_MAX)),
    "maxRecordsPerPartition": Setting("No task reads more records of a batch.", (1, _LONG_MAX)),
    "kafkaConsumer.pollTimeoutMs": _ms("How long a task waits for records.", 1_000),
    "fetchOffset.numRetries": Setting("How often offsets are asked for again; 8 if left out.", (0, 1_000)),
    "fetchOffset.retryIntervalMs": _ms("The pause before that; 500 if left out."),
    "kafka.fetch.min.bytes": Setting("A fetch waits until there is so much.", (0, _INT_MAX)),
    "kafka.fetch.max.bytes": Setting("A fetch brings no more, but one batch.", (0, _INT_MAX)),
    "kafka.max.partition.fetch.bytes": Setting("Of one partition no more, but one batch.", (0, _INT_MAX)),
    "kafka.fetch.max.wait.ms": _ms(f"How long a fetch waits for that; {FETCH_WAIT_MS} if left out."),
    "kafka.max.poll.records": Setting("How many records are handed over at once.", (1, _INT_MAX)),
    "kafka.check.crcs": Setting("Whether the checksum of each batch is checked.", words=("true", "false")),
    "kafka.client.rack": Setting("Where the readers are: they fetch from a replica there, where brokers allow that."),
    "kafka.default.api.timeout.ms": _ms(f"How long a call may take with its repetitions; {ANSWER_MS_MAX}.", 100),
    **_CONNECTIONS,
    **_OF_JAVA,
}
_LEVELS: Final = {
    f"kafka.compression.{kind.name.lower()}.level": Setting(
        "How hard is compressed.", (min(levels.lowest, levels.default), levels.highest)
    )
    for kind, levels in LEVELS.items()
}
EXACT_OPTIONS: Final[Mapping[str, Setting]] = {
    "kafka.compression.type": Setting(
        "How batches are compressed.", words=tuple(kind.name.lower() for kind in CompressionType)
    ),
    **_LEVELS,
    "kafka.batch.size": Setting("How many bytes a batch has at most, but one record.", (0, _INT_MAX)),
    "kafka.linger.ms": _ms("How long a batch waits to be full."),
    "kafka.max.request.size": Setting("No request, and so no record, is larger.", (1, ROW_BYTES_MAX)),
    "kafka.max.in.flight.requests.per.connection": Setting("How many requests wait for their answers.", (1, 5)),
    "kafka.delivery.timeout.ms": _ms("How long a record may take to be there.", 1),
    **_CONNECTIONS,
}
"""Of a topic that is written exactly once."""
SINK_OPTIONS: Final[Mapping[str, Setting]] = {
    **EXACT_OPTIONS,
    "kafka.buffer.memory": Setting("What may wait to be sent, in each task.", (1, _LONG_MAX)),
    "kafka.max.block.ms": Setting("How long a task waits for room, or for a topic to be known.", (100, _LONG_MAX)),
    "kafka.retries": Setting("How often a batch is sent again.", (1, _INT_MAX)),
    "kafka.metadata.max.idle.ms": _ms("When a topic that nobody writes is forgotten.", 5_000),
    "kafka.partitioner.adaptive.partitioning.enable": Setting(
        "Whether records without a key go to fast brokers.", words=("true", "false")
    ),
    "kafka.partitioner.availability.timeout.ms": Setting("When a broker counts as slow; 0 is never.", (0, _LONG_MAX)),
    **_OF_JAVA,
}
"""Of one that is written at least once."""
OF_CLIENT: Final = frozenset(_CONNECTIONS)
"""What one client of a run has for all topics that are written exactly once."""

_BY_CLUSTER: Final = "who comes in, and where, is what the block `cluster` says"
_TAKEN: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (_BY_CLUSTER, ("kafka.bootstrap.servers", "kafka.security.", "kafka.sasl.", "kafka.ssl.")),
    (
        "it would have Kafka's clients load code of others, which is none of the pipeline's",
        (
            "kafka.interceptor.classes",
            "kafka.metric.reporters",
            "kafka.config.providers",
            "kafka.partitioner.class",
            "kafka.auto.include.jmx.reporter",
        ),
    ),
)
_TAKEN_OF_SOURCES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("what is read is the source's `topic`", ("subscribe", "subscribePattern", "assign")),
    (
        "where the first run begins is the source's `starting`, or `run --from`; a later one goes on from the last",
        (
            "startingOffsets",
            "startingOffsetsByTimestamp",
            "startingTimestamp",
            "startingOffsetsByTimestampStrategy",
            "kafka.auto.offset.reset",
        ),
    ),
    ("where a run ends is `run --to`, or `--once`", ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")),
    ("how much a batch has is the source's `max_records_per_batch`", ("maxOffsetsPerTrigger",)),
    (
        "a run with --once would leave behind what is less than that; when a batch begins is the pipeline's `trigger`",
        ("minOffsetsPerTrigger", "maxTriggerDelay"),
    ),
    ("whether lost records stop a run is the source's `allow_data_loss`", ("failOnDataLoss",)),
    ("no column of a source has headers, and dead letters keep theirs", ("includeHeaders",)),
    (
        "what was read is in Spark's own account, and for people in the group of the pipeline",
        ("groupIdPrefix", "kafka.group.", "kafka.enable.auto.commit", "kafka.auto.commit.interval.ms"),
    ),
    ("what a transaction has taken back is never read", ("kafka.isolation.level",)),
    ("how records are written is the source's `format`, and `key_format`", ("kafka.key.des", "kafka.value.des")),
    (
        "Spark gives each task its partitions itself, without a group's members, so it has no effect",
        (
            "kafka.session.timeout.ms",
            "kafka.heartbeat.interval.ms",
            "kafka.max.poll.interval.ms",
            "kafka.partition.assignment.strategy",
        ),
    ),
)
_TAKEN_OF_SINKS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("what is written is the sink's `topic`", ("topic",)),
    ("a row is a record without headers", ("includeHeaders",)),
    (
        "a row counts as written when all replicas in sync have it, and what the producer repeats is there once",
        ("kafka.acks", "kafka.enable.idempotence"),
    ),
    ("how often a row is there is the sink's `delivery`", ("kafka.transactional.id", "kafka.transaction.timeout.ms")),
    ("how rows are written is the sink's `format`, and `key_format`", ("kafka.key.ser", "kafka.value.ser")),
    (
        "a key decides the partition, as with all of Kafka's clients",
        ("kafka.partitioner.ignore.keys",),
    ),
)
_NOT_OF_EXACT: Final = {
    "kafka.retries": "what did not arrive is sent again until kafka.delivery.timeout.ms",
    "kafka.max.block.ms": "it waits as long as the transaction has time",
    "kafka.buffer.memory": "its memory is 64 MiB, whatever a batch has",
}

Refuse = Callable[[str, int], PipelineError]


def source_options(section: Section) -> tuple[Option, ...]:
    """The options of a source. Raises PipelineError at the line of the first that cannot be right."""
    return _read(section, SOURCE_OPTIONS, (*_TAKEN, *_TAKEN_OF_SOURCES))


def sink_options(section: Section, delivery: Delivery) -> tuple[Option, ...]:
    """The same of a topic that is written."""
    return _read(section, _of_delivery(delivery), (*_TAKEN, *_TAKEN_OF_SINKS))


def resolved_options(pipeline: Pipeline) -> Pipeline:
    """The pipeline with what the references in its options stand for. Raises PipelineError, as the reading does."""

    def found(options: tuple[Option, ...], settings: Mapping[str, Setting]) -> tuple[Option, ...]:
        if not any(has_reference(option.value) for option in options):
            return options
        values = []
        for option in options:
            try:
                value = resolved(option.value, pipeline.path, option.line)
                value = parsed(value, settings[option.name], option.value)
            except ValueError as error:
                raise pipeline.error(f"{option.name} {error}", option.line) from None
            values.append(replace(option, value=value))
        _refuse_contradictions(values, settings, pipeline.error)
        return tuple(values)

    sources = tuple(replace(each, options=found(each.options, SOURCE_OPTIONS)) for each in pipeline.sources)
    sinks = tuple(
        replace(sink, options=found(sink.options, _of_delivery(sink.delivery))) if isinstance(sink, TopicSink) else sink
        for sink in pipeline.sinks
    )
    return replace(pipeline, sources=sources, sinks=sinks)


def refuse_different_options(pipeline: Pipeline) -> None:
    """Sees that topics which one producer writes say the same of it, and all topics that one client writes."""
    exact = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink) and sink.delivery is Delivery.EXACTLY_ONCE]
    for query in pipeline.queries:
        together = [sink for sink in exact if sink.from_view == query.from_view]
        _refuse_different(pipeline, together, None)
        for sink in together:
            if sink.senders != together[0].senders:
                raise pipeline.error(
                    f"topics {together[0].topic} and {sink.topic} are written in the same transactions, and differ in "
                    "senders: give both the same, or set `delivery: at_least_once` at one of them",
                    sink.line,
                )
    _refuse_different(pipeline, exact, OF_CLIENT)


def _refuse_different(pipeline: Pipeline, sinks: Sequence[TopicSink], names: Iterable[str] | None) -> None:
    told = [
        {option.name: option.value for option in sink.options if names is None or option.name in names}
        for sink in sinks
    ]
    for sink, values in zip(sinks, told, strict=True):
        name = next((each for each in {**told[0], **values} if told[0].get(each) != values.get(each)), None)
        if name is None:
            continue
        by = "one producer in one transaction" if names is None else "one client"
        line = next((option.line for option in sink.options if option.name == name), sink.line)
        raise pipeline.error(
            f"topics {sinks[0].topic} and {sink.topic} are written by {by}, and differ in {name}: give both the same, "
            "or set `delivery: at_least_once` at one of them",
            line,
        )


def parsed(text: str, setting: Setting, shown: str | None = None) -> str:
    """The value as Kafka's clients take it. Raises ValueError, in words that follow the option's name, and show `shown`
    in place of a value that is not in the file.
    """
    value = text.strip()
    shown = value[:50] if shown is None else shown
    if setting.bounds is not None:
        lowest, highest = setting.bounds
        number = int(value.replace("_", "")) if re.fullmatch(r"-?(0|[1-9][0-9_]{0,24})", value) else None
        if number is None or not lowest <= number <= highest:
            raise ValueError(f'"{shown}" must be a whole number from {lowest} to {highest}')
        return str(number)
    if setting.words:
        if value.lower() not in setting.words:
            hint = nearest(shown, setting.words) or f"; there is: {', '.join(setting.words)}"
            raise ValueError(f'"{shown}" is not known{hint}')
        return value.lower()
    if not value or len(value) > _TEXT_CHARACTERS_MAX or not value.isprintable():
        raise ValueError(f"must be a text of 1 to {_TEXT_CHARACTERS_MAX} characters")
    return value


def option_of(options: Iterable[Option], name: str) -> str | None:
    """The value of the option of that name; None where it is not there."""
    return next((option.value for option in options if option.name == name), None)


def _of_delivery(delivery: Delivery) -> Mapping[str, Setting]:
    return EXACT_OPTIONS if delivery is Delivery.EXACTLY_ONCE else SINK_OPTIONS


def _read(
    section: Section, settings: Mapping[str, Setting], taken: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[Option, ...]:
    if KEY not in section:
        return ()
    inner = section.section(KEY, None)
    if len(inner.keys) > OPTIONS_MAX:
        raise inner.error(f"there are more than {OPTIONS_MAX} options: remove some")
    found: list[Option] = []
    for name, line in inner.keys.items():
        setting = settings.get(name)
        if setting is None:
            raise inner.error(_refusal(name, settings, taken), line)
        text = inner.text(name, also=("int", "float", "bool"))
        value = text.value.strip()
        if stands_open("", value):
            raise inner.error(f"{name} has a secret in its address: write ${{env:NAME}} or ${{file:PATH}} there", line)
        if not has_reference(value):
            try:
                value = parsed(value, setting)
            except ValueError as error:
                raise inner.error(f"{name} {error}", text.line) from None
        found.append(Option(name, value, line))
    _refuse_contradictions([each for each in found if not has_reference(each.value)], settings, inner.error)
    return tuple(found)


def _refusal(name: str, settings: Mapping[str, Setting], taken: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """Why a name is none of these, and what to do."""
    for asked in (name, PREFIX + name):
        for why, names in taken:
            if any(_is_of(asked, each) for each in names):
                return f"{name} is the run's own to set: {why}; remove this line"
    if settings is EXACT_OPTIONS and name in SINK_OPTIONS:
        why = _NOT_OF_EXACT.get(name, "it has no such setting")
        return (
            f"{name} is of Kafka's producer, and a topic that is written exactly once has our own: {why}; remove this "
            "line, or set `delivery: at_least_once`"
        )
    if PREFIX + name in settings:
        return f'"{name}" is written as Spark has it, "{PREFIX}{name}": a setting of Kafka\'s client'
    hint = nearest(name, settings) or f"; there are: {', '.join(settings)}"
    return f'unknown option "{name}"{hint}'


def _is_of(asked: str, name: str) -> bool:
    """Whether a name is the other, as Spark compares them; one that ends with a dot, or in the middle of a word, is
    all that begin so.
    """
    asked, name = asked.lower(), name.lower()
    return asked == name or (name.endswith((".", ".des", ".ser")) and asked.startswith(name))


def _refuse_contradictions(options: Sequence[Option], settings: Mapping[str, Setting], refuse: Refuse) -> None:
    """What each of Kafka's clients refuses only when it is made, or sends, in a task."""
    lines = {option.name: option.line for option in options}
    numbers = {option.name: int(option.value) for option in options if re.fullmatch(r"-?\d+", option.value)}
    request_ms = numbers.get("kafka.request.timeout.ms", ANSWER_MS_MAX)

    def told(name: str, than: str, of: int) -> PipelineError:
        return refuse(f"{name} must be {than} ({of}): change one of them", lines[name])

    wait, api = "kafka.fetch.max.wait.ms", "kafka.default.api.timeout.ms"
    if numbers.get(wait, 0) >= request_ms:
        raise told(wait, "less than kafka.request.timeout.ms", request_ms)
    if numbers.get(api, request_ms) < request_ms:
        raise told(api, "no less than kafka.request.timeout.ms", request_ms)
    delivery = "kafka.delivery.timeout.ms"
    together = min(request_ms + numbers.get("kafka.linger.ms", 0), _INT_MAX)
    if numbers.get(delivery, together) < together:
        raise told(delivery, "no less than kafka.request.timeout.ms and kafka.linger.ms together", together)
    batch, memory = "kafka.batch.size", "kafka.buffer.memory"
    if memory in settings and numbers.get(batch, _BATCH_BYTES) > numbers.get(memory, BUFFER_BYTES):
        if memory in numbers:
            raise told(memory, f"no less than {batch}", numbers.get(batch, _BATCH_BYTES))
        raise told(batch, f"no more than {memory}", BUFFER_BYTES)
    for name in ("kafka.send.buffer.bytes", "kafka.receive.buffer.bytes"):
        if numbers.get(name) == 0:
            raise refuse(f"{name} must be -1, the system's own, or at least 1", lines[name])
    for kind in LEVELS:
        name = f"kafka.compression.{kind.name.lower()}.level"
        if name in numbers:
            try:
                Compression(kind, numbers[name])
            except ValueError as error:
                raise refuse(f"{name}: {error}", lines[name]) from None
