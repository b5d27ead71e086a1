"""The same random requests to a broker of ours and to two of Apache Kafka, for all admin, group and data APIs.

What the two of Apache Kafka answer differently is no behaviour of Kafka's, and fails the test as well: it is the
control. `BARNABAS_ANSWERS_SEEDS=100:200` runs other seeds than the usual ones.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.interop.answers.comparison import ASKED, Brokers
from tests.interop.answers.steps import BROKER_ID, Steps
from tests.support.apache_kafka import apache_kafka_broker
from tests.support.broker_process import BrokerProcess
from tests.support.by_night import by_night
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.zookeeper import ZooKeeperServer

STEPS_PER_SEED: Final = 70
USUAL_SEEDS: Final = 24
BY_DAY: Final = 12
OTHERS: Final = "two seconds for each seed; seeds have found much (e0739e0b, 0465320c), and each once"
STEPS_MIN: Final = 2_000
BOUNDARY_SEEDS: Final = 8
BOUNDARY_STEPS_MIN: Final = 800
STEPS_OF_EACH_API_MIN: Final = 20
FIRST_SEED, END_SEED = map(int, os.environ.get("BARNABAS_ANSWERS_SEEDS", f"0:{USUAL_SEEDS}").split(":"))
OVERRIDES: Final[Mapping[str, object]] = {
    "num.partitions": 2,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 6_000,
    "log.index.size.max.bytes": 1_048_576,
    # The records are of the past.
    "log.retention.ms": -1,
    "log.message.timestamp.before.max.ms": 2**63 - 1,
    **RETENTION_DOES_NOT_RUN,
    "producer.id.expiration.check.interval.ms": 24 * 60 * 60 * 1000,
    "zookeeper.session.timeout.ms": 18_000,
}


@pytest.fixture(scope="module")
def brokers(
    oracle_jars: object, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    address, directory = zookeeper_server.address, tmp_path_factory.mktemp("answers")
    ours = BrokerProcess(directory / "ours", BROKER_ID, f"{address}/answers-ours", overrides=OVERRIDES)
    with (
        apache_kafka_broker(
            directory / "theirs", f"{address}/answers-theirs", BROKER_ID, overrides=OVERRIDES
        ) as theirs,
        apache_kafka_broker(
            directory / "control", f"{address}/answers-control", BROKER_ID, overrides=OVERRIDES
        ) as control,
    ):
        ours.start()
        try:
            yield Brokers(ours.port, theirs.port, control.port)
        finally:
            ours.stop()


def test_the_usual_seeds_ask_enough_of_every_api(brokers: Brokers) -> None:
    versions = brokers.versions()
    assert versions.keys() == set(ASKED)
    asked = Counter(step.key for seed in range(USUAL_SEEDS) for step in Steps(seed, versions).draw(STEPS_PER_SEED))
    assert asked.total() >= STEPS_MIN
    assert min(asked[key] for key in ASKED) >= STEPS_OF_EACH_API_MIN, asked


@pytest.mark.parametrize(
    "seed", [*range(FIRST_SEED, END_SEED)[:BY_DAY], *by_night(OTHERS, *range(FIRST_SEED, END_SEED)[BY_DAY:])]
)
def test_answers_are_alike(brokers: Brokers, seed: int) -> None:
    explanation = brokers.explain(Steps(seed, brokers.versions()).draw(STEPS_PER_SEED))
    assert not explanation, f"seed {seed}: {explanation}"


@pytest.mark.parametrize("seed", range(BOUNDARY_SEEDS))
def test_answers_in_the_versions_at_which_something_begins_are_alike(brokers: Brokers, seed: int) -> None:
    """The first and the last of each API, those before and after flexible ones begin, with unknown tagged fields."""
    steps = Steps(seed, brokers.versions()).draw_boundaries(1)
    assert len(steps) >= BOUNDARY_STEPS_MIN / BOUNDARY_SEEDS
    assert sum(step.has_unknown_tag for step in steps) >= len(steps) / 5
    explanation = brokers.explain(steps)
    assert not explanation, f"seed {seed}: {explanation}"
