"""What a dead letter is: the record that did not fit, with headers that say why, and where it was."""

from __future__ import annotations

from typing import Final

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
