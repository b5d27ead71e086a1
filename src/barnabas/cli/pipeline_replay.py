"""`barnabas pipeline replay`: sends the dead letters of a pipeline back to the topics that they came from.

INVARIANT: the group has an offset only behind letters that their topics have acknowledged. So a replay that is cut
short may send some letters again, and leaves none out.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say
from barnabas.client.admin import Admin
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.producer import Producer
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset, ProducerSettings
from barnabas.pipelines.definition import LETTERS_SUFFIX
from barnabas.pipelines.letters import Letter, letter_of
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.records import ConsumerRecord, ProducerRecord, RecordMetadata

REPLAY_GROUP_PREFIX: Final = "barnabas-replay-"
"""Begins the name of the consumer group that keeps how far the letters of a pipeline were sent back."""

_LETTERS_PER_COMMIT: Final = 500
_POLL_MS: Final = 250.0
_PROGRESS_SECONDS: Final = 1.0
_REASONS_MAX: Final = 200
# A letter may have 32 MiB; so much is read at once, and so much may be on its way.
_RECORD_BYTES_MAX: Final = 33 * 1024 * 1024
_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Letters", "letters", is_number=True),
    Column("Reason", "reason", is_cut=True),
)


@dataclass(slots=True)
class _Found:
    """What was read: letters by topic and reason, and records that are none."""

    letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    others: int = 0

    def add(self, letter: Letter) -> None:
        key = (letter.record.topic, letter.reason)
        if key not in self.letters and len(self.letters) >= _REASONS_MAX:
            key = (letter.record.topic, "(other reasons)")
        self.letters[key] += 1


async def replay(client: Client, pipeline: str, *, is_dry: bool, as_json: bool) -> None:
    """Sends the letters that are there now and were not sent back before, and prints how many of which kind.

    With `is_dry` it only looks. Raises CommandError for what does not exist, and for a letter that its topic refuses.
    """
    topic = pipeline + LETTERS_SUFFIX
    partitions = await _partitions(client, topic)
    settings = ConsumerSettings(
        group_id=REPLAY_GROUP_PREFIX + pipeline,
        auto_commit=False,
        offset_reset=OffsetReset.EARLIEST,
        isolation=IsolationLevel.READ_COMMITTED,
        poll_records_max=_LETTERS_PER_COMMIT,
        fetch_bytes_max=_RECORD_BYTES_MAX,
    )
    sending = ProducerSettings(request_bytes_max=_RECORD_BYTES_MAX, buffer_bytes_max=2 * _RECORD_BYTES_MAX)
    async with Consumer(client, settings) as consumer, Producer(client, sending) as producer:
        found = await _Replay(client, consumer, producer, topic, is_dry=is_dry).run(partitions)
    count = sum(found.letters.values())
    rows = [(name, letters, reason) for (name, reason), letters in sorted(found.letters.items())]
    if as_json:
        print_json(
            {
                "pipeline": pipeline,
                "topic": topic,
                "dry_run": is_dry,
                "letters": count,
                "not_letters": found.others,
                "topics": [{column.name: cell for column, cell in zip(_COLUMNS, row, strict=True)} for row in rows],
            }
        )
    else:
        if rows:
            print_table(_COLUMNS, [(printable(name), letters, printable(reason)) for name, letters, reason in rows])
        say(f"{counted(count, 'letter')} {'would be sent back' if is_dry else 'sent back'}")
    if found.others:
        say(f"warning: {counted(found.others, 'record')} of {printable(topic)} without a pipeline's headers left out")


async def _partitions(client: Client, topic: str) -> list[TopicPartition]:
    async with Admin(client) as admin:
        if topic not in await admin.list_topics():
            name = printable(topic)
            message = (
                f"there is no topic {name}: the pipeline has no dead letters, or another name; see `barnabas topic"
            )
            raise CommandError(f"{message} list`", ExitStatus.MISSING)
        described = (await admin.describe_topics([topic]))[topic]
    return [TopicPartition(topic, number) for number in sorted(described.partitions)]


class _Replay:
    """One replay, from where the one before ended to the ends that the topic has when this one begins: what the
    pipeline sends there meanwhile, perhaps since it refuses the same records again, is for the next.
    """

    def __init__(
        self, client: Client, consumer: Consumer, producer: Producer, letters_topic: str, *, is_dry: bool
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._producer = producer
        self._letters_topic = letters_topic
        self._is_dry = is_dry
        self._found = _Found()
        self._topics: dict[str, frozenset[int]] = {}

    async def run(self, partitions: Sequence[TopicPartition]) -> _Found:
        """Reads and sends to the end."""
        ends = await self._consumer.end_offsets(partitions)
        self._consumer.assign(partitions)
        starts = {partition: await self._consumer.position(partition) for partition in partitions}
        wanted = sum(max(ends[partition] - starts[partition], 0) for partition in partitions)
        loop = self._client.host.loop
        told_at = loop.time()
        while await self._is_left(ends):
            records = [
                record
                for record in await self._consumer.poll(_POLL_MS, _LETTERS_PER_COMMIT)
                if record.offset < ends[record.partition]
            ]
            await self._send_back(records)
            if sys.stderr.isatty() and loop.time() - told_at >= _PROGRESS_SECONDS:
                told_at = loop.time()
                say(f"{sum(self._found.letters.values()):,} of {wanted:,} letters ...")
        return self._found

    async def _is_left(self, ends: dict[TopicPartition, int]) -> bool:
        return any([await self._consumer.position(partition) < end for partition, end in ends.items()])

    async def _send_back(self, records: Sequence[ConsumerRecord]) -> None:
        letters = [(record, letter_of(record)) for record in records]
        mine = [(record, letter) for record, letter in letters if letter is not None]
        self._found.others += len(letters) - len(mine)
        await self._require({letter.record.topic for _, letter in mine})
        if not self._is_dry:
            await self._send(mine)
            # In the order of offsets, so that the last of each partition counts.
            done = {record.partition: OffsetAndMetadata(record.offset + 1) for record in records}
            if done:
                await self._consumer.commit(done)
        for _, letter in mine:
            self._found.add(letter)

    async def _send(self, letters: Sequence[tuple[ConsumerRecord, Letter]]) -> None:
        """Returns when all are acknowledged; their order stays. Raises CommandError for the first that is refused, when
        none is on its way any more.
        """
        sent: list[asyncio.Future[RecordMetadata]] = []
        failure: KafkaError | ClientError | None = None
        for _, letter in letters:
            try:
                sent.append(await self._producer.send(self._placed(letter.record)))
            except (KafkaError, ClientError) as error:
                failure = error
                break
        results: list[RecordMetadata | BaseException | None]
        results = [*await asyncio.gather(*sent, return_exceptions=True), failure]
        for (record, _), result in zip(letters, results, strict=False):
            if isinstance(result, KafkaError | ClientError):
                raise self._refused(record, result) from result
            if isinstance(result, BaseException):
                raise result

    def _placed(self, record: ProducerRecord) -> ProducerRecord:
        """For the partition that it was in; for that of its key where the topic was made again with fewer."""
        return record if record.partition in self._topics[record.topic] else record._replace(partition=None)

    def _refused(self, record: ConsumerRecord, error: Exception) -> CommandError:
        place = f"{printable(self._letters_topic)}-{record.partition.partition} offset {record.offset}"
        return CommandError(
            f"the letter at {place} could not be sent back: {error}; letters before it were, and some beside it may be "
            "sent again by the next replay"
        )

    async def _require(self, topics: Iterable[str]) -> None:
        """Sees that the topics exist, and which partitions they have: a producer would wait for a minute."""
        missing = [topic for topic in topics if topic not in self._topics]
        if not missing:
            return
        async with Admin(self._client) as admin:
            known = set(await admin.list_topics())
            for topic in missing:
                if topic not in known:
                    message = f"the topic {printable(topic)}, which letters came from, does not exist any more"
                    raise CommandError(f"{message}; create it, and replay again", ExitStatus.MISSING)
            described = await admin.describe_topics(missing)
        self._topics.update({topic: frozenset(described[topic].partitions) for topic in missing})
