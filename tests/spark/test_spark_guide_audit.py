"""`barnabas audit --spark`: a job on Spark finds what processes of one machine find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from barnabas.cli.audit_places import find_audited
from barnabas.cli.audit_spark import audit_with
from barnabas.cli.audit_work import audit_all
from tests.unit.cli.test_audit import flip, log_directory


def test_a_job_finds_what_processes_find(spark: Any, tmp_path: Path) -> None:
    brokers = [log_directory(tmp_path / f"broker-{node_id}", node_id) for node_id in (1, 2)]
    flip(brokers[1] / "flights-2" / f"{60:020d}.log", 70)
    partitions = find_audited([str(each) for each in brokers], (), "{}").partitions
    here = {each.audited.partition: each.audit for each in audit_all(partitions, 1, compares=True)}
    there = {each.audited.partition: each.audit for each in audit_with(spark, partitions, compares=True)}
    assert [audit.findings.faults for _, audit in sorted(there.items())] == [0, 0, 1]
    for partition, audit in there.items():
        assert (audit.totals, audit.findings.kept) == (here[partition].totals, here[partition].findings.kept)
