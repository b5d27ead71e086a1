from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.client.partitioners import murmur2
from demo import pipeline
from demo.source import AIRLINES, FLIGHTS, SOURCE_TOPICS, WEATHER, load_tables, records_of
from tests.unit.demo.frames import tables


@pytest.fixture(scope="module")
def year() -> Any:
    return load_tables()


def test_a_row_is_one_json_document_with_nulls_and_whole_numbers() -> None:
    records = list(records_of(FLIGHTS, tables()["flights"]))
    cancelled = next(json.loads(record.value) for record in records if b'"minute":30' in record.value)
    assert cancelled["dep_delay"] is None
    assert b'"dep_delay":10,' in b"".join(record.value for record in records)
    assert {record.topic for record in records} == {"flights"}


def test_keys_are_the_values_of_the_key_columns() -> None:
    assert [record.key for record in records_of(AIRLINES, tables()["airlines"])] == [b"AA", b"OO"]
    assert next(records_of(WEATHER, tables()["weather"])).key == b"JFK 2013-07-01T13:00:00Z"


def test_a_float_stays_one_where_not_all_are_whole() -> None:
    values = [json.loads(record.value)["precip"] for record in records_of(WEATHER, tables()["weather"])]
    assert values == [0.12, 0.0, 0.29]


def test_flights_come_in_the_order_in_which_they_were_to_leave() -> None:
    documents = [json.loads(record.value) for record in records_of(FLIGHTS, tables()["flights"])]
    times = [(document["time_hour"], document["minute"]) for document in documents]
    assert times == sorted(times)
    assert times[2] == ("2013-07-02T02:00:00Z", 15)


def test_refuses_tables_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    read_csv = pd.read_csv
    monkeypatch.setattr(pd, "read_csv", lambda path: read_csv(path).iloc[1:] if "airlines" in path else read_csv(path))
    with pytest.raises(RuntimeError, match="15 airlines instead of 16"):
        load_tables()


def test_no_key_of_the_real_tables_is_there_twice_but_carriers_of_flights(year: Any) -> None:
    for topic in SOURCE_TOPICS:
        if topic is not FLIGHTS:
            assert not year[topic.name].duplicated(list(topic.key_columns)).any(), topic.name


def test_the_watermark_allows_for_how_far_the_partitions_are_apart(year: Any) -> None:
    """Each batch takes the same share of every partition. The newest record of any must then not be further ahead
    of the oldest record to come than the delay that demo/delays.yaml gives."""
    import pandas as pd

    from barnabas.pipelines.reading import read_pipeline

    flights = year["flights"]
    times = pd.to_datetime(flights.time_hour) + pd.to_timedelta(flights.minute, unit="min")
    partitions = flights.carrier.map(lambda carrier: (murmur2(carrier.encode()) & 0x7FFF_FFFF) % FLIGHTS.partitions)
    shares = [step / 1_000 for step in range(1, 1_000)]
    progress = pd.DataFrame(
        {
            number: times[partitions == number].quantile(shares, interpolation="nearest")
            for number in partitions.unique()
        }
    )
    apart = (progress.max(axis=1) - progress.min(axis=1)).max()
    (watermark,) = [step.watermark for step in read_pipeline(pipeline.FILE).steps if step.watermark is not None]
    delay = pd.Timedelta(milliseconds=watermark.delay_ms)
    assert pd.Timedelta(days=1) < apart < delay / 2
