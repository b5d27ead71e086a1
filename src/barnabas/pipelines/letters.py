"""What a dead letter is: the record that did not fit, with headers that say why, and where it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.client.records import ProducerRecord

if TYPE_CHECKING:
    from barnabas.client.records import ConsumerRecord

HEADER_PREFIX: Final = "barnabas.error."
"""Begins the name of each header that a letter has besides those of its record. The values are text."""

REASON_HEADER: Final = HEADER_PREFIX + "reason"
TOPIC_HEADER: Final = HEADER_PREFIX + "topic"
PARTITION_HEADER: Final = HEADER_PREFIX + "partition"
OFFSET_HEADER: Final = HEADER_PREFIX + "offset"
TIMESTAMP_HEADER: Final = HEADER_PREFIX + "timestamp"
"""Milliseconds since 1970."""
PIPELINE_HEADER: Final = HEADER_PREFIX + "pipeline"
SOURCE_HEADER: Final = HEADER_PREFIX + "source"
BATCH_HEADER: Final = HEADER_PREFIX + "batch"
"""VIEW/N: the batch N of the query of a view."""

_PREFIX: Final = HEADER_PREFIX.encode()


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter as it was read: its record as it was, for the partition that it was in, and why it did not fit."""

    record: ProducerRecord
    reason: str


def letter_of(record: ConsumerRecord) -> Letter | None:
    """The letter that a record of a topic of dead letters is; None for one that no pipeline has sent."""
    told = {name.decode(errors="replace"): value for name, value in record.headers if name.startswith(_PREFIX)}
    try:
        topic = (told[TOPIC_HEADER] or b"").decode()
        partition, timestamp_ms = int(told[PARTITION_HEADER] or b""), int(told[TIMESTAMP_HEADER] or b"")
    except (KeyError, ValueError):  # also bytes that are no text
        return None
    if not topic or partition < 0:
        return None
    headers = tuple(header for header in record.headers if not header[0].startswith(_PREFIX))
    sent = ProducerRecord(
        topic, record.value, record.key, headers, partition, timestamp_ms if timestamp_ms >= 0 else None
    )
    return Letter(sent, (told.get(REASON_HEADER) or b"").decode(errors="replace"))
