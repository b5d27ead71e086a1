"""Makes the Grafana board in `contrib/grafana`: `python -m tools.grafana_board`.

Rows from what is wrong, by what users notice, to what is inside; a panel is a title, a unit and its queries.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

BOARD: Final = Path(__file__).resolve().parents[1] / "contrib" / "grafana" / "barnabas.json"
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


def board() -> dict[str, Any]:
    """The board as Grafana imports it (schema version 39, Grafana 11; later ones bring it up to date)."""
    return {
        "title": "Barnabas",
        "uid": "barnabas",
        "description": "A cluster of Barnabas or Apache Kafka, by the metrics of its brokers.",
        "tags": ["kafka", "barnabas"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def text() -> str:
    return json.dumps(board(), indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    brokers = 'label_values(kafka_server_kafkaserver_brokerstate{job="$job"}, instance)'
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _variable("job", "Cluster", "label_values(kafka_server_kafkaserver_brokerstate, job)"),
        {**_variable("broker", "Broker", brokers), "multi": True, "includeAll": True},
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {"name": name, "label": label, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2}


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
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


def main() -> int:
    BOARD.parent.mkdir(parents=True, exist_ok=True)
    BOARD.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
