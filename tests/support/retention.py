"""What a test sets whose records have times of the past, which retention would delete while the test runs."""

from __future__ import annotations

from typing import Final

RETENTION_DOES_NOT_RUN: Final = {
    # Its first run is what counts: 30 s after the start where nothing is said, whatever its interval.
    "log.initial.task.delay.ms": 24 * 60 * 60 * 1000,
}
"""Settings of a broker, of ours or of Apache Kafka."""
