"""Real clients, unmodified, against three broker processes: each capability by each client."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from tests.clients.drivers.model import COMPRESSIONS, Capability, Client, GroupMember, Record
from tests.support.waiting import wait_until

PARTITIONS = 4
RECORDS_PER_PARTITION = 25
# On a busy machine a client may have to give a request up, after its 30 s, and join again.
JOIN_SECONDS = 90.0
GROUP_TIMEOUT_SECONDS = 400
BASE_MS = 1_700_000_000_000


def skip_if_missing(client: Client, capability: Capability) -> None:
    if reason := client.missing.get(capability):
        pytest.skip(f"{client.name}: {reason}")


@contextlib.contextmanager
def members(*joined: GroupMember) -> Iterator[None]:
    try:
        yield
    finally:
        for member in joined:
            member.close()


def test_produces_and_consumes(client: Client, topic: str) -> None:
    skip_if_missing(client, Capability.PLAIN)
    records = [Record(b"value-%d" % number, b"key-%d" % number) for number in range(200)]
    client.produce(topic, records)
    assert client.read(topic, len(records)) == records


@pytest.mark.parametrize("capability", COMPRESSIONS, ids=COMPRESSIONS.values())
def test_compresses(client: Client, topic: str, capability: Capability) -> None:
    skip_if_missing(client, capability)
    records = [Record(b"value-%d " % number * 20, b"key-%d" % number) for number in range(100)]
    client.produce(topic, records, COMPRESSIONS[capability])
    assert client.read(topic, len(records)) == records


def test_keeps_headers(client: Client, topic: str) -> None:
    skip_if_missing(client, Capability.HEADERS)
    records = [Record(b"value", b"key", (("trace", b"abc-123"), ("trace", b"again"), ("format", b"json")))]
    client.produce(topic, records)
    assert client.read(topic, 1) == records


def test_keeps_null_keys_and_values(client: Client, topic: str) -> None:
    skip_if_missing(client, Capability.NULLS)
    records = [Record(b"no key"), Record(None, b"no value"), Record(b"", b"empty")]
    client.produce(topic, records)
    assert client.read(topic, len(records)) == records


def test_carries_one_byte_and_900_kilobytes(client: Client, topic: str) -> None:
    skip_if_missing(client, Capability.SIZES)
    records = [Record(b"x", b"small"), Record(b"0123456789" * 90_000, b"large"), Record(b"y", b"small")]
    client.produce(topic, records)
    assert client.read(topic, len(records)) == records


def test_reads_an_empty_topic(client: Client, topic: str) -> None:
    skip_if_missing(client, Capability.EMPTY_TOPIC)
    assert client.read(topic, 1) == []


def test_seeks_by_time(client: Client, topic: str, python_client: Client) -> None:
    skip_if_missing(client, Capability.SEEK_BY_TIME)
    python_client.produce(
        topic, [Record(b"%d" % number, timestamp_ms=BASE_MS + 1_000 * number) for number in range(10)]
    )
    assert client.offset_at(topic, BASE_MS) == 0
    assert client.offset_at(topic, BASE_MS + 3_500) == 4
    assert client.offset_at(topic, BASE_MS + 9_000) == 9
    assert client.offset_at(topic, BASE_MS + 9_001) is None


@pytest.mark.timeout(GROUP_TIMEOUT_SECONDS)
def test_shares_a_topic_in_a_group_through_a_rebalance(client: Client, wide_topic: str, python_client: Client) -> None:
    skip_if_missing(client, Capability.REBALANCE)
    group, everything = f"group-{uuid.uuid4()}", frozenset(range(PARTITIONS))
    python_client.produce(wide_topic, _spread("before"))
    first = client.join(wide_topic, group)
    with members(first):
        wait_until(lambda: first.assigned() == everything, "the first member has all partitions", JOIN_SECONDS)
        second = client.join(wide_topic, group)
        with members(second):
            wait_until(
                lambda: (
                    first.assigned()
                    and second.assigned()
                    and first.assigned() | second.assigned() == everything
                    and not first.assigned() & second.assigned()
                ),
                "the members share the partitions",
                JOIN_SECONDS,
            )
            python_client.produce(wide_topic, _spread("after"))
            expected = {record.value for moment in ("before", "after") for record in _spread(moment)}
            wait_until(
                lambda: {value for member in (first, second) for _, value in member.received()} == expected,
                "the members have everything",
                JOIN_SECONDS,
            )
        wait_until(lambda: first.assigned() == everything, "the first member has all again", JOIN_SECONDS)


@pytest.mark.timeout(GROUP_TIMEOUT_SECONDS)
def test_resumes_at_what_was_committed(client: Client, wide_topic: str, python_client: Client) -> None:
    skip_if_missing(client, Capability.COMMITTED)
    group = f"group-{uuid.uuid4()}"
    for moment in ("before", "after"):
        python_client.produce(wide_topic, _spread(moment))
        member = client.join(wide_topic, group)
        with members(member):
            wait_until(
                lambda: len(member.received()) >= PARTITIONS * RECORDS_PER_PARTITION,  # noqa: B023
                f"what came {moment} is there",
                JOIN_SECONDS,
                lambda: f"{len(member.received())} records came; the member has {sorted(member.assigned())}",  # noqa: B023
            )
        values = {value for _, value in member.received()}
        assert values == {record.value for record in _spread(moment)}, "only what was not committed comes"


def test_administers_topics(client: Client, unused_topic: str) -> None:
    skip_if_missing(client, Capability.ADMIN)
    client.administer(unused_topic)


@pytest.mark.timeout(400)
def test_reads_what_every_other_wrote(client: Client, written_by_all: dict[str, list[Record]]) -> None:
    skip_if_missing(client, Capability.READ_OTHERS)
    for topic, records in written_by_all.items():
        assert client.read(topic, len(records)) == records, f"{client.name} reads {topic}"


def _spread(moment: str) -> list[Record]:
    return [
        Record(f"{moment}-{partition}-{number}".encode(), partition=partition)
        for partition in range(PARTITIONS)
        for number in range(RECORDS_PER_PARTITION)
    ]
