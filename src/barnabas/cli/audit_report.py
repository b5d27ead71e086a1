"""What `barnabas audit` prints: what is wrong first, then how much was looked at; or a JSON document for each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from barnabas.cli.audit_places import Found
from barnabas.cli.audit_work import Result
from barnabas.cli.output import Column, Mark, Marked, counted, print_json, print_table, printable, size
from barnabas.log.inspection.replica_reading import Finding

_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partitions", "partitions", is_number=True),
    Column("Replicas", "replicas", is_number=True),
    Column("Read", "size_bytes", is_number=True),
    Column("Batches", "batches", is_number=True),
    Column("Records", "records", is_number=True),
    Column("Compared", "compared_batches", is_number=True),
    Column("Faults", "faults", is_number=True),
)


class AuditReport:
    """Takes results as they come; `faults` counts what is wrong."""

    def __init__(self, found: Found, *, as_json: bool) -> None:
        self._as_json = as_json
        self._by_topic: dict[str, list[int]] = {}
        self.faults = len(found.unreadable)
        for line in found.unreadable:
            if as_json:
                print_json({"type": "unreadable", "detail": line})
            else:
                click.echo(f"! {printable(line)}")

    def add(self, result: Result) -> None:
        """Tells what was found of a partition."""
        findings = result.audit.findings
        self.faults += findings.faults
        totals = result.audit.totals
        row = self._by_topic.setdefault(result.audited.partition.topic, [0] * (len(_COLUMNS) - 1))
        added = (
            1,
            len(totals),
            sum(each.size_bytes for each in totals),
            sum(each.batches for each in totals),
            sum(each.records for each in totals),
            result.audit.compared_batches,
            findings.faults,
        )
        for at, value in enumerate(added):
            row[at] += value
        if self._as_json:
            print_json(_document(result))
            return
        name = str(result.audited.partition)
        for finding in findings.kept:
            click.echo(_line(name, finding))
        if findings.left_out:
            click.echo(f"! {printable(name)}: {counted(findings.left_out, 'further finding')}, not shown")

    def end(self) -> None:
        """How much was looked at."""
        sums = [sum(column) for column in zip(*self._by_topic.values(), strict=True)] or [0] * (len(_COLUMNS) - 1)
        if self._as_json:
            names = [column.name for column in _COLUMNS[1:-1]]
            print_json({"type": "totals", **dict(zip(names, sums[:-1], strict=True)), "faults": self.faults})
            return
        print_table(_COLUMNS, [_row(topic, values) for topic, values in sorted(self._by_topic.items())])
        verdict = "nothing is wrong" if not self.faults else counted(self.faults, "fault")
        click.echo(f"{counted(sums[0], 'partition')}, {counted(sums[1], 'replica')}, {size(sums[2])}: {verdict}")


def _row(topic: str, values: Sequence[int]) -> list[object]:
    faults = Marked(values[-1], Mark.BAD) if values[-1] else values[-1]
    return [topic, *values[:2], size(values[2]), *values[3:-1], faults]


def _line(name: str, finding: Finding) -> str:
    offsets = ""
    if finding.first_offset is not None:
        last = finding.last_offset
        if last is None:
            offsets = f" from offset {finding.first_offset} on"
        elif last == finding.first_offset:
            offsets = f" offset {last}"
        else:
            offsets = f" offsets {finding.first_offset} to {last}"
    where = "" if finding.path is None else f" [{finding.path}"
    if finding.path is not None:
        where += "]" if finding.position is None else f", byte {finding.position}]"
    text = f"{name}{offsets}, {', '.join(finding.replicas)}: {finding.detail}{where}"
    return f"{'!' if finding.is_fault else '-'} {printable(text)}"


def _document(result: Result) -> dict[str, Any]:
    audited, audit = result.audited, result.audit
    return {
        "type": "partition",
        "topic": audited.partition.topic,
        "partition": audited.partition.partition,
        "topic_id": audited.topic_id or None,
        "replicas": [
            {"replica": place.label, "place": place.place, "high_watermark": place.high_watermark, **asdict(totals)}
            for place, totals in zip(audited.replicas, audit.totals, strict=True)
        ],
        "compared_batches": audit.compared_batches,
        "compared_records": audit.compared_records,
        "faults": audit.findings.faults,
        "findings_left_out": audit.findings.left_out,
        "findings": [{**asdict(each), "kind": each.kind.value} for each in audit.findings.kept],
    }
