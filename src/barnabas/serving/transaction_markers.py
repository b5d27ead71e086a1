"""Appending the markers that end transactions to the partitions that this broker leads (KIP-98)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from barnabas.kernel.host import Clock
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.serving.ports import Replicas
from barnabas.wire.control_records import EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.sentinels import ACKS_ALL
from barnabas.wire.topics import TopicPartition


class Marker(NamedTuple):
    """The end of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    marker: EndTransactionMarker


class MarkerAppends:
    """Appends markers with acks of all.

    Invariant: nobody is told NONE before the high watermark has passed the marker. So a transaction whose coordinator
    counts it as ended is ended in every leader to come.
    """

    def __init__(
        self,
        partitions: Replicas,
        acknowledgements: Acknowledgements,
        clock: Clock,
        timeout_ms: int,
        logger: logging.Logger,
    ) -> None:
        """`timeout_ms` is `request.timeout.ms`."""
        self._partitions = partitions
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._logger = logger

    def append(self, topic_partition: TopicPartition, marker: Marker, on_done: Callable[[ErrorCode], None]) -> None:
        """Calls `on_done` once, perhaps before this returns: NONE when every replica in sync has the marker, otherwise
        why that is not so. UNKNOWN_TOPIC_OR_PARTITION where there is no replica, INVALID_PRODUCER_EPOCH and
        TRANSACTION_COORDINATOR_FENCED for who is fenced; else the errors of a Produce with acks -1.
        """
        partition = self._partitions.find_partition(topic_partition)
        if partition is None or (partition.log is None and not partition.is_offline):
            on_done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        batch = end_transaction_batch(
            marker.marker,
            timestamp_ms=self._clock.time_ms(),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
        )
        try:
            log = partition.leader_log()
            result = partition.append(
                memoryview(batch), required_acks=ACKS_ALL, produce_version=None, origin=AppendOrigin.COORDINATOR
            )
        except KafkaError as error:
            self._logger.info("Transaction of producer %d not ended in %s: %s", marker[0], partition.name, error)
            on_done(ErrorCode.for_code(error.code))
            return
        except Exception:
            self._logger.exception("Ending a transaction in %s failed", partition.name)
            on_done(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._acknowledgements.when_replicated(
            partition, log, result.last_offset + 1, self._timeout_ms, _Waiting(on_done)
        )


class _Waiting:
    """Waits for the replicas of a marker."""

    __slots__ = ("_on_done",)

    def __init__(self, on_done: Callable[[ErrorCode], None]) -> None:
        self._on_done = on_done

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:  # noqa: ARG002 - the coordinator asks again
        self._on_done(code)
