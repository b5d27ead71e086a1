"""The alerts of contrib/prometheus, as Prometheus' own promtool judges them: each fires when what it is about has
lasted, not before, and not while all is well.

promtool is in Debian's package `prometheus`; `.ci/nightly` puts it into .cache. A test says so where it is missing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.documented import blocks_of

ROOT: Final = Path(__file__).resolve().parents[3]
ALERTS: Final = ROOT / "contrib" / "prometheus" / "alerts.yml"
OF_PIPELINES: Final = ROOT / "contrib" / "prometheus" / "pipelines.yml"
PROMTOOL: Final = shutil.which("promtool") or shutil.which(str(ROOT / ".cache/prometheus/usr/bin/promtool"))
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: {**rule, "file": file}
    for file in (ALERTS, OF_PIPELINES)
    for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
_CONTROLLER: Final = "kafka_controller_kafkacontroller"
_REPLICAS: Final = "kafka_server_replicamanager"
CASES: Final = {
    # The series, its samples while it is ill, and while it is well, one a minute: `0+5x60` is 0, 5, 10, ...
    "BrokerDown": ("up", "0x60", "1x60"),
    "NoController": (f"{_CONTROLLER}_activecontrollercount", "0x60", "1x60"),
    "OfflinePartitions": (f"{_CONTROLLER}_offlinepartitionscount", "3x60", "0x60"),
    "UnderMinIsr": (f"{_REPLICAS}_underminisrpartitioncount", "1x60", "0x60"),
    "UnderReplicated": (f"{_REPLICAS}_underreplicatedpartitions", "1x60", "0x60"),
    "LogDirectoryOffline": ("kafka_log_logmanager_offlinelogdirectorycount", "1x60", "0x60"),
    "UncleanElection": ("kafka_controller_controllerstats_uncleanleaderelections_total", "0 1x60", "7x60"),
    "SessionExpired": ("kafka_server_sessionexpirelistener_zookeeperexpires_total", "0 1x60", "7x60"),
    "IsrFlapping": (f"{_REPLICAS}_isrshrinks_total", "0+5x60", "0+1x60"),
    "FetchersFailed": ("kafka_server_replicafetchermanager_failedpartitionscount", "1x60", "0x60"),
    "ControllerBehind": ("kafka_controller_controllereventmanager_eventqueuesize", "101x60", "100x60"),
    "CleanerFailed": ("kafka_log_logcleanermanager_uncleanable_partitions_count", "1x60", "0x60"),
    "LoopBusy": ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "0.05x60", "0.4x60"),
    "LongTurns": ("barnabas_kernel_eventloop_longturns_total", "0+30x60", "0+1x60"),
    "OpenFiles": ("process_open_fds", "90x60", "50x60"),
    "PipelineDown": ("up", "0x60", "1x60"),
    # What is ill there, the time of the last batch, is well where nothing is left to read.
    "PipelineStalled": ("barnabas_pipeline_last_batch_timestamp_seconds", "0x60", "0+60x60"),
    "PipelineLosesRecords": ("barnabas_pipeline_records_lost_total", "0 1x60", "7x60"),
    "PipelineRefusesRecords": ("barnabas_pipeline_records_refused_total", "0 1x60", "7x60"),
}
LABELS: Final = 'instance="broker-1:9102",what="Metadata"'
OF_QUERY: Final = 'instance="worker-1:9404",pipeline="delays",query="by_hour"'
BESIDE: Final = {
    "OpenFiles": [f'process_max_fds{{job="barnabas",{LABELS}}}'],
    "PipelineStalled": [
        f'barnabas_pipeline_lag_records{{job="barnabas-pipelines",{OF_QUERY},topic="{topic}"}}' for topic in ("a", "b")
    ],
}
"""Other series that a rule looks at, 100 all the time."""
WITHIN_MINUTES: Final = 30
"""By then each of them fires: the longest waits for a quarter of an hour."""


def minutes(text: str) -> int:
    assert text.endswith("m")
    return int(text[:-1])


def test_each_alert_has_a_case() -> None:
    assert CASES.keys() == RULES.keys()


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("file", [ALERTS, OF_PIPELINES], ids=lambda file: file.name)
def test_promtool_takes_the_rules(file: Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def fires(alert: str, samples: str, minute: int, folder: Path, *, beside: str = "100x60") -> bool:
    """Whether an alert fires at a minute, with these samples of its series, by promtool."""
    is_of_pipelines = RULES[alert]["file"] is OF_PIPELINES
    labels = f'job="barnabas-pipelines",{OF_QUERY}' if is_of_pipelines else f'job="barnabas",{LABELS}'
    series = [{"series": f"{CASES[alert][0]}{{{labels}}}", "values": samples}]
    series += [{"series": other, "values": beside} for other in BESIDE.get(alert, ())]
    # How many fire, by name: what they are labelled with is not told again here.
    expression = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    test = {
        "rule_files": [str(RULES[alert]["file"])],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": expression, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": 1}]}
                ],
            }
        ],
    }
    file = folder / f"{alert}.yml"
    file.write_text(yaml.safe_dump(test))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in said, said
    return done.returncode == 0


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_has_lasted_and_not_before_and_not_while_all_is_well(alert: str, tmp_path: Path) -> None:
    _, ill, well = CASES[alert]
    assert fires(alert, ill, WITHIN_MINUTES if "for" in RULES[alert] else 2, tmp_path)
    assert not fires(alert, well, WITHIN_MINUTES, tmp_path)
    if "for" in RULES[alert]:
        assert not fires(alert, ill, minutes(RULES[alert]["for"]) - 1, tmp_path)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_a_query_that_has_read_everything_is_not_said_to_be_stalled(tmp_path: Path) -> None:
    assert not fires("PipelineStalled", CASES["PipelineStalled"][1], WITHIN_MINUTES, tmp_path, beside="0x60")
    assert not fires("PipelineStalled", CASES["PipelineStalled"][1], 14, tmp_path), "ten minutes, and five"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_takes_what_the_docs_say_of_its_config(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    config, more = (each for each in blocks_of("operating.md") if each.startswith(("scrape_configs:", "scheme:")))
    (job,) = yaml.safe_load(config)["scrape_configs"]
    file = tmp_path / "prometheus.yml"
    for name in ("authority.pem", "metrics.password"):
        (tmp_path / name).write_text("")
    for jobs in ([job], [job | yaml.safe_load(more)]):
        file.write_text(yaml.safe_dump({"scrape_configs": jobs}))
        done = subprocess.run(
            [PROMTOOL, "check", "config", "--syntax-only", str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
