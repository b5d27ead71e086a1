"""What idempotent producers left in a log: every record with the producer id, epoch and sequence of its batch.

A broker owes a producer this much (KIP-98): within one producer id and epoch, sequences count up by one, so nothing is
there twice. A client that raises its epoch while it does not know whether records were written gives that up by itself:
librdkafka does so for all partitions when one answers OUT_OF_ORDER_SEQUENCE_NUMBER to a request behind a failed one
(confluentinc/librdkafka, issue 4953), and sends again what a broker that died had written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import FetchRequest
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.records import walk_batches
from tests.support.wire_calls import Connection, leader_port

_FETCH_VERSION = 11
_FETCH_BYTES = 8 << 20


class ProducedRecord(NamedTuple):
    """One record, and who says to have sent it."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    value: str


def produced_records(bootstrap_servers: str, topic: str, partition: int) -> list[ProducedRecord]:
    """All records of a partition below its high watermark, as its leader has them. RuntimeError for an error code."""
    known = int(bootstrap_servers.split(",", maxsplit=1)[0].rpartition(":")[2])
    found: list[ProducedRecord] = []
    with Connection(leader_port(known, topic, partition)) as connection:
        offset = 0
        while True:
            asked = FetchRequest.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES, current_leader_epoch=-1
            )
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=_FETCH_BYTES,
                session_id=0,
                session_epoch=-1,
                topics=[FetchRequest.FetchTopic(topic=topic, partitions=[asked])],
            )
            (answer,) = connection.call(ApiKey.FETCH, _FETCH_VERSION, request).responses[0].partitions
            if answer.error_code:
                raise RuntimeError(f"{topic}-{partition} cannot be fetched from {offset}: {answer.error_code}")
            batches = list(_records_of(bytes(answer.records or b"")))
            if not batches:
                return found
            found.extend(batches)
            offset = found[-1].offset + 1


def sequence_faults(records: Iterable[ProducedRecord]) -> list[str]:
    """Where the sequences of one producer id and epoch do not count up by one from 0."""
    faults: list[str] = []
    expected: defaultdict[tuple[int, int], int] = defaultdict(int)
    for record in records:
        sender = record.producer_id, record.producer_epoch
        if record.sequence != expected[sender]:
            faults.append(f"{record} where sequence {expected[sender]} was next")
        expected[sender] = record.sequence + 1
    return faults


def sent_again_in_new_epochs(records: Iterable[ProducedRecord]) -> set[str]:
    """Values that are there several times because their producer sent each copy in an epoch of its own, ever higher."""
    copies: defaultdict[str, list[ProducedRecord]] = defaultdict(list)
    for record in records:
        copies[record.value].append(record)
    again = set()
    for value, found in copies.items():
        epochs = [record.producer_epoch for record in found]
        one_producer = len({record.producer_id for record in found}) == 1
        if len(found) > 1 and one_producer and epochs == sorted(set(epochs)):
            again.add(value)
    return again


def without_copies(values: Iterable[str], sent_again: set[str]) -> list[str]:
    """The values without the later copies of those that were sent again; every other repetition stays."""
    kept: list[str] = []
    seen: set[str] = set()
    for value in values:
        if value not in sent_again or value not in seen:
            kept.append(value)
        seen.add(value)
    return kept


def _records_of(batches: bytes) -> Iterator[ProducedRecord]:
    for span in walk_batches(batches).spans:
        batch = RecordBatch(batches, span.position)
        header = batch.header
        for record in batch.records():
            sequence = header.base_sequence + record.offset - header.base_offset
            value = (record.value or b"").decode()
            yield ProducedRecord(record.offset, header.producer_id, header.producer_epoch, sequence, value)
