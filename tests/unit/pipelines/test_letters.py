"""What is a letter, and which record it is of."""

from __future__ import annotations

import pytest

from barnabas.client.records import ConsumerRecord, ProducerRecord
from barnabas.pipelines.letters import Letter, letter_of
from barnabas.wire.records import Header, TimestampType
from barnabas.wire.topics import TopicPartition

PLACE: dict[bytes, bytes | None] = {b"topic": b"flights", b"partition": b"3", b"timestamp": b"1356998400123"}


def read(*before: Header, **told: bytes | None) -> Letter | None:
    changed = {name.encode(): value for name, value in told.items()}
    headers = tuple((b"barnabas.error." + name, value) for name, value in {**PLACE, **changed}.items())
    place = TopicPartition("delays.dlq", 0)
    return letter_of(ConsumerRecord(place, 9, 1, b"k", b"\xff", (*before, *headers), -1, TimestampType.CREATE_TIME))


def test_a_letter_is_its_record_as_it_was() -> None:
    trace, twice = (b"trace", b"\x00"), (b"trace", None)
    record = ProducerRecord("flights", b"\xff", b"k", (trace, twice), 3, 1_356_998_400_123)
    assert read(trace, twice, reason=b"not \xff text") == Letter(record, "not \ufffd text")
    # A record that was a letter before: what was told last holds, and none of it stays.
    assert read((b"barnabas.error.topic", b"older"), trace, twice, reason=b"") == Letter(record, "")
    without_time = read(timestamp=b"-1")
    assert without_time is not None
    assert without_time.record.timestamp_ms is None


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0\0\7\2U", b"\0\0\0\0\3\2\2\x08\xf9"])
@pytest.mark.parametrize("key", [None, b"", b"\0\0\0\0\x09\x0e"])
def test_keys_and_values_in_any_format_are_sent_back_to_the_byte(key: bytes | None, value: bytes | None) -> None:
    """Of Avro, and of a message whose fields are all defaults, which has no bytes and is no tombstone."""
    headers = tuple((b"barnabas.error." + name, told) for name, told in PLACE.items())
    place = TopicPartition("delays.dlq", 0)
    letter = letter_of(ConsumerRecord(place, 9, 1, key, value, headers, -1, TimestampType.CREATE_TIME))
    assert letter is not None
    assert (letter.record.key, letter.record.value) == (key, value)


@pytest.mark.parametrize(
    "told",
    [
        {"topic": None},
        {"topic": b""},
        {"topic": b"\xff"},
        {"partition": b"x"},
        {"partition": b"-1"},
        {"timestamp": None},
    ],
)
def test_what_no_pipeline_has_sent_is_no_letter(told: dict[str, bytes | None]) -> None:
    assert read(**told) is None
