"""Consumers that read from the replica in their rack, in a cluster that fails: none sees what is not committed."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from barnabas.leader.partition import Partition
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import LogRead, ReadIsolation
from barnabas.serving.fetch_partition import FetchPartition, PartitionRead
from barnabas.serving.fetch_reads import FetchParameters, FetchReader
from barnabas.testing.cluster_plans import PLANS
from barnabas.testing.cluster_simulation import simulate


# What `test_cluster_plans` does not run.
@pytest.mark.parametrize("seed", [3])
def test_followers_give_what_is_committed_only(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    given: Counter[str] = Counter()
    read_one = FetchReader._read_one

    def counted(
        reader: FetchReader,
        parameters: FetchParameters,
        item: FetchPartition,
        partition: Partition,
        log: PartitionLog,
        limit: int,
        *,
        has_minimum: bool,
    ) -> PartitionRead:
        found = read_one(reader, parameters, item, partition, log, limit, has_minimum=has_minimum)
        if not parameters.is_from_follower and found.size_bytes:
            given["leader" if partition.is_leader else "follower"] += 1
        return found

    monkeypatch.setattr(FetchReader, "_read_one", counted)
    report = simulate(seed, PLANS["near"])
    assert report.findings == ()
    assert report.acknowledged > 100
    assert given["follower"] > 50
    assert given["leader"] > 0, "one of the racks is the leader's"


@pytest.mark.skipif(
    not os.environ.get("BARNABAS_ALL_MUTANTS"), reason="takes minutes: make mutants, which is run every night, has it"
)
@pytest.mark.timeout(1_800)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fault_that_is_put_into_followers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a log reads to its end, as followers' fetches do."""
    read = PartitionLog.read

    def to_the_end(
        log: PartitionLog, offset: int, bytes_max: int, _isolation: ReadIsolation, *, has_minimum: bool
    ) -> LogRead:
        return read(log, offset, bytes_max, ReadIsolation.LOG_END, has_minimum=has_minimum)

    monkeypatch.setattr(PartitionLog, "read", to_the_end)
    assert any(simulate(seed, PLANS["near"]).findings for seed in range(1, 12))
