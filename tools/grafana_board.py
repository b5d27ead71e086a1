"""Makes the Grafana boards in `contrib/grafana`: `python -m tools.grafana_board`.

Rows from what is wrong, by what users notice, to what is inside; a panel is a title, a unit and its queries.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_DIRECTORY: Final = Path(__file__).resolve().parents[1] / "contrib" / "grafana"
_WIDTH: Final = 24
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_numgroups"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_OF: Final = '{job="$job", instance=~"$broker"}'
_ALL_TOPICS: Final = '{job="$job", instance=~"$broker", topic=""}'
"""There is a sample for each topic, and one for all."""
_GREEN_AT_ZERO: Final = ((None, "green"), (1, "red"))
_GREEN_AT_ONE: Final = ((None, "red"), (1, "green"), (2, "red"))
_NO_OPINION: Final = ((None, "blue"),)


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture; a legend for each query."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    thresholds: tuple[tuple[int | None, str], ...] = _NO_OPINION
    says: str = ""
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: list[Panel] = field(default_factory=list)


def _stat(title: str, query: str, thresholds: tuple[tuple[int | None, str], ...], says: str) -> Panel:
    return Panel(title, {"": query}, kind="stat", thresholds=thresholds, says=says, width=4)


def _time_of(request: str) -> Panel:
    name = f'kafka_network_requestmetrics_totaltimems{{job="$job", instance=~"$broker", request="{request}"'
    return Panel(
        f"{request}: time until the answer",
        {"half": f'max({name}, quantile="0.50"}})', "99 of 100": f'max({name}, quantile="0.99"}})'},
        unit="ms",
        says="Of the slowest broker. Fetch waits for records, up to fetch.max.wait.ms.",
    )


ROWS: Final = [
    Row(
        "Is anything wrong?",
        [
            _stat(
                "Controllers",
                'sum(kafka_controller_kafkacontroller_activecontrollercount{job="$job"})',
                _GREEN_AT_ONE,
                "One broker has to be the controller.",
            ),
            _stat(
                "Partitions without leader",
                'sum(kafka_controller_kafkacontroller_offlinepartitionscount{job="$job"})',
                _GREEN_AT_ZERO,
                "Nobody can read or write these.",
            ),
            _stat(
                "Below min.insync.replicas",
                'sum(kafka_server_replicamanager_underminisrpartitioncount{job="$job"})',
                _GREEN_AT_ZERO,
                "Producers with acks=all are refused here.",
            ),
            _stat(
                "Under-replicated",
                'sum(kafka_server_replicamanager_underreplicatedpartitions{job="$job"})',
                _GREEN_AT_ZERO,
                "A follower is down or too slow.",
            ),
            _stat(
                "Offline log directories",
                'sum(kafka_log_logmanager_offlinelogdirectorycount{job="$job"})',
                _GREEN_AT_ZERO,
                "Disks that have failed.",
            ),
            _stat("Brokers that answer", 'sum(up{job="$job"})', _NO_OPINION, "As Prometheus reaches them."),
        ],
    ),
    Row(
        "Traffic",
        [
            Panel(
                "Records in",
                {
                    "{{instance}}": "rate(kafka_server_brokertopicmetrics_messagesin_total"
                    f"{_ALL_TOPICS}[$__rate_interval])"
                },
                unit="wps",
                says="Of all topics.",
            ),
            Panel(
                "Bytes in and out",
                {
                    "in": f"sum(rate(kafka_server_brokertopicmetrics_bytesin_total{_ALL_TOPICS}[$__rate_interval]))",
                    "out": f"sum(rate(kafka_server_brokertopicmetrics_bytesout_total{_ALL_TOPICS}[$__rate_interval]))",
                },
                unit="Bps",
            ),
            Panel(
                "Requests",
                {
                    "{{request}}": "topk(8, sum by (request) "
                    f"(rate(kafka_network_requestmetrics_requests_total{_OF}[$__rate_interval])))"
                },
                unit="reqps",
            ),
            _time_of("Produce"),
            _time_of("Fetch"),
            Panel(
                "Errors in answers",
                {
                    "{{error}}": "sum by (error) "
                    '(rate(kafka_network_requestmetrics_errors_total{job="$job", instance=~"$broker", error!="NONE"}'
                    "[$__rate_interval]))"
                },
                unit="reqps",
                says="NOT_LEADER_OR_FOLLOWER after leaders have moved is as it should be.",
            ),
        ],
    ),
    Row(
        "Replication",
        [
            Panel(
                "ISR changes",
                {
                    "shrunk": f"sum(rate(kafka_server_replicamanager_isrshrinks_total{_OF}[$__rate_interval]))",
                    "expanded": f"sum(rate(kafka_server_replicamanager_isrexpands_total{_OF}[$__rate_interval]))",
                },
                unit="ops",
            ),
            Panel(
                "Records that followers are behind",
                {"{{instance}}": f"kafka_server_replicafetchermanager_maxlag{_OF}"},
                says="Of each broker's slowest partition.",
            ),
            Panel("Leaders", {"{{instance}}": f"kafka_server_replicamanager_leadercount{_OF}"}),
        ],
    ),
    Row(
        "Controller, coordinator and groups",
        [
            Panel(
                "Events that wait for the controller",
                {"{{instance}}": f"kafka_controller_controllereventmanager_eventqueuesize{_OF}"},
            ),
            Panel(
                "Operations of the coordinator",
                {
                    "{{instance}}": "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"
                    '{job="$job", instance=~"$broker", quantile="0.99"}'
                },
                unit="ms",
                says="99 of 100 are answered within this time.",
            ),
            Panel(
                "Groups",
                {
                    "stable": f"sum({_GROUPS}stable{_OF})",
                    "rebalancing": f"sum({_GROUPS}preparingrebalance{_OF})",
                    "empty": f"sum({_GROUPS}empty{_OF})",
                },
            ),
        ],
    ),
    Row(
        "Processes",
        [
            Panel(
                "Processor",
                {"{{instance}}": f"rate(process_cpu_seconds_total{_OF}[$__rate_interval])"},
                unit="percentunit",
                says="Of one core. A broker has one loop, and threads for disks and compression.",
            ),
            Panel(
                "Idle loop",
                {"{{instance}}": f"kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{_OF}"},
                unit="percentunit",
                says="The part of the last minute in which the loop had nothing to do.",
            ),
            Panel(
                "Turns of the loop over 50 ms",
                {
                    "{{what}}": "sum by (what) "
                    f"(increase(barnabas_kernel_eventloop_longturns_total{_OF}[$__rate_interval]))"
                },
                says="All clients wait meanwhile. None is best.",
            ),
            Panel("Memory", {"{{instance}}": f"process_resident_memory_bytes{_OF}"}, unit="bytes"),
            Panel(
                "Open files",
                {"{{instance}}": f"process_open_fds{_OF}", "bound of {{instance}}": f"process_max_fds{_OF}"},
            ),
            Panel(
                "Disks",
                {
                    "read": f"sum(rate(kafka_server_kafkaserver_linux_disk_read_bytes{_OF}[$__rate_interval]))",
                    "written": f"sum(rate(kafka_server_kafkaserver_linux_disk_write_bytes{_OF}[$__rate_interval]))",
                },
                unit="Bps",
            ),
        ],
    ),
]


def _pipeline_panel(title: str, metric: str, *, per: str = "", unit: str = "short", says: str = "") -> Panel:
    """A gauge of each query; `per` is a label that it has besides."""
    legend = f"{{{{pipeline}}}} {{{{query}}}}{f' {{{{{per}}}}}' if per else ''}"
    return Panel(title, {legend: f"barnabas_pipeline_{metric}{_OF_PIPELINE}"}, unit=unit, says=says)


def _pipeline_rates(title: str, says: str, **metrics: str) -> Panel:
    """Counters per second, by what each counts."""
    return Panel(
        title,
        {
            f"{what} {{{{query}}}}": f"rate(barnabas_pipeline_{metric}{_OF_PIPELINE}[$__rate_interval])"
            for what, metric in metrics.items()
        },
        unit="wps",
        says=says,
    )


_OF_PIPELINE: Final = '{job="$job", pipeline=~"$pipeline"}'
PIPELINE_ROWS: Final = [
    Row(
        "Is anything wrong?",
        [
            _stat("Runs that answer", 'sum(up{job="$job"})', _NO_OPINION, "As Prometheus reaches them."),
            _stat("Runs that do not", 'sum(1 - up{job="$job"})', _GREEN_AT_ZERO, "They have ended, or are cut off."),
            _stat(
                "Records lost",
                f"sum(increase(barnabas_pipeline_records_lost_total{_OF_PIPELINE}[1h]))",
                _GREEN_AT_ZERO,
                "In the last hour: they were gone before they were read.",
            ),
            _stat(
                "Records refused",
                f"sum(increase(barnabas_pipeline_records_refused_total{_OF_PIPELINE}[1h]))",
                _GREEN_AT_ZERO,
                "In the last hour: they do not fit their schema.",
            ),
            _stat(
                "Records behind",
                f"sum(barnabas_pipeline_lag_records{_OF_PIPELINE})",
                _NO_OPINION,
                "When the last batches were made.",
            ),
        ],
    ),
    Row(
        "Progress",
        [
            _pipeline_rates("Rows", "Of topics, and of results.", read="rows_read_total", written="rows_written_total"),
            _pipeline_panel("Records behind", "lag_records", per="topic", says="When the last batch was made."),
            Panel(
                "Since the last batch",
                {
                    "{{pipeline}} {{query}}": f"time() - barnabas_pipeline_last_batch_timestamp_seconds{_OF_PIPELINE}",
                },
                unit="s",
                says="A query without new records makes no batch.",
            ),
            _pipeline_panel("Time of the last batch", "batch_duration_seconds", unit="s"),
            _pipeline_panel("Rows in a second, in the last batch", "rows_per_second", unit="wps"),
            Panel(
                "Batches",
                {"{{query}}": f"rate(barnabas_pipeline_batches_total{_OF_PIPELINE}[$__rate_interval])"},
                unit="ops",
            ),
        ],
    ),
    Row(
        "What is in no result, and the state",
        [
            _pipeline_rates(
                "Left out",
                "Dead letters are among those that are refused.",
                refused="records_refused_total",
                lost="records_lost_total",
                late="rows_dropped_by_watermark_total",
                without_time="rows_without_event_time_total",
                ahead="rows_ahead_total",
            ),
            _pipeline_panel("Rows of the state", "state_rows"),
            _pipeline_panel("Memory of the state", "state_bytes", unit="bytes"),
            Panel(
                "Watermark behind the clock",
                {
                    "{{pipeline}} {{query}}": f"time() - barnabas_pipeline_watermark_timestamp_seconds{_OF_PIPELINE}",
                },
                unit="s",
            ),
        ],
    ),
]


@dataclass(frozen=True, slots=True)
class Board:
    """What is shown of what: `variables` are chosen at its top."""

    file: Path
    title: str
    uid: str
    description: str
    rows: list[Row]
    variables: list[dict[str, Any]]


def board(which: Board) -> dict[str, Any]:
    """The board as Grafana imports it (schema version 39, Grafana 11; later ones bring it up to date)."""
    return {
        "title": which.title,
        "uid": which.uid,
        "description": which.description,
        "tags": ["kafka", "barnabas"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": which.variables},
        "panels": _panels(which.rows),
    }


def text(which: Board) -> str:
    return json.dumps(board(which), indent=1) + "\n"


def _variables(job: str, metric: str, name: str, label: str, of: str) -> list[dict[str, Any]]:
    """The job, called `job`, of those that have a metric, and which of its `of`."""
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _variable("job", job, f"label_values({metric}, job)"),
        {
            **_variable(name, label, f'label_values({metric}{{job="$job"}}, {of})'),
            "multi": True,
            "includeAll": True,
        },
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {"name": name, "label": label, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2}


def _panels(rows: list[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        panels.append(_placed({"type": "row", "title": row.title, "collapsed": False}, len(panels), 0, y, _WIDTH, 1))
        y, x = y + 1, 0
        height = 4 if row.panels[0].kind == "stat" else 8
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                y, x = y + height, 0
            panels.append(_placed(_panel(panel), len(panels), x, y, panel.width, height))
            x += panel.width
        y += height
    return panels


def _placed(panel: dict[str, Any], number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}, **panel}


def _panel(panel: Panel) -> dict[str, Any]:
    steps = [{"value": value, "color": color} for value, color in panel.thresholds]
    queries = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    found: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "targets": queries,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }
    if panel.kind == "stat":
        found["options"] = {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return found


BROKERS: Final = Board(
    _DIRECTORY / "barnabas.json",
    "Barnabas",
    "barnabas",
    "A cluster of Barnabas or Apache Kafka, by the metrics of its brokers.",
    ROWS,
    _variables("Cluster", "kafka_server_kafkaserver_brokerstate", "broker", "Broker", "instance"),
)
PIPELINES: Final = Board(
    _DIRECTORY / "pipelines.json",
    "Barnabas pipelines",
    "barnabas-pipelines",
    "Runs of pipelines, by what they tell with --metrics.",
    PIPELINE_ROWS,
    _variables("Job", "barnabas_pipeline_batches_total", "pipeline", "Pipeline", "pipeline"),
)
BOARDS: Final = (BROKERS, PIPELINES)


def main() -> int:
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    for each in BOARDS:
        each.file.write_text(text(each), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
