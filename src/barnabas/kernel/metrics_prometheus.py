"""Metrics as a Prometheus scrape shows them, under the names that the JMX exporter gives Kafka's with its example
rules.

`kafka.server:type=ReplicaManager,name=LeaderCount` reads `kafka_server_replicamanager_leadercount`; what ends in
`PerSec` is counted as `..._total`; a histogram is a summary with quantiles. Dashboards made for Kafka behind that
exporter work. Only this module knows the client library, and loads it when it is asked for a scrape.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from barnabas.kernel.metrics import PERCENTILES, Gauge, Histogram, Meter, MetricsRegistry, Timing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric as PrometheusMetric

    from barnabas.kernel.metrics import Metric, MetricName

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PER_SECOND = re.compile(r"PerSec\w*$")
_INVALID_IN_NAME = re.compile(r"[^a-z0-9_]")
_INVALID_IN_LABEL = re.compile(r"[^A-Za-z0-9_]")


def prometheus_name(name: MetricName, metric: Metric) -> str:
    """The name of the family of samples; for what is counted per second without the `_total` that its samples end
    in."""
    last = name.name
    if isinstance(metric, Meter):
        last = _PER_SECOND.sub("", last) if _PER_SECOND.search(last) else f"{last}_count"
    return _INVALID_IN_NAME.sub("_", f"{name.group}_{name.type}_{last}".lower())


def families(registry: MetricsRegistry) -> Iterable[PrometheusMetric]:
    """The registry's metrics, read now, those of one name and different tags together.

    A gauge whose reading fails is left out of this scrape and harms no other.
    """
    from prometheus_client import Metric as Family

    found: dict[str, PrometheusMetric] = {}
    for name, metric in registry:
        family_name = prometheus_name(name, metric)
        family = found.get(family_name)
        if family is None:
            mbean = f"{name.group}:type={name.type},name={name.name}"
            family = found[family_name] = Family(family_name, mbean, _family_type(name, metric))
        _add_samples(family, {_INVALID_IN_LABEL.sub("_", key): value for key, value in name.tags}, metric)
    return found.values()


def scrape(registry: MetricsRegistry) -> bytes:
    """The response to a scrape, in the text format; send it with `CONTENT_TYPE`."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector

    class Reading(Collector):
        def collect(self) -> Iterable[PrometheusMetric]:
            return families(registry)

    # Of this scrape alone: the client library's own registry is global, and ours is not.
    scraped = CollectorRegistry(auto_describe=False)
    scraped.register(Reading())
    return generate_latest(scraped)


def _family_type(name: MetricName, metric: Metric) -> str:
    match metric:
        case Gauge():
            return "gauge"
        case Meter():
            # The client library would have every counter end in _total.
            return "counter" if _PER_SECOND.search(name.name) else "unknown"
        case Histogram() | Timing():
            return "summary"


def _add_samples(family: PrometheusMetric, labels: dict[str, str], metric: Metric) -> None:
    match metric:
        case Gauge():
            try:
                value = float(metric.read())
            except Exception:  # noqa: BLE001 - a gauge must not take the scrape with it
                return
            family.add_sample(family.name, labels, value)
        case Meter():
            suffix = "_total" if family.type == "counter" else ""
            family.add_sample(family.name + suffix, labels, metric.count)
        case Histogram():
            _add_summary(family, labels, metric)
        case Timing():
            _add_summary(family, labels, metric.durations_ms)


def _add_summary(family: PrometheusMetric, labels: dict[str, str], histogram: Histogram) -> None:
    snapshot = histogram.snapshot()
    for quantile, value in zip(PERCENTILES, snapshot.percentiles, strict=True):
        family.add_sample(family.name, {**labels, "quantile": _quantile(quantile)}, value)
    family.add_sample(f"{family.name}_count", labels, snapshot.count)
    family.add_sample(f"{family.name}_sum", labels, snapshot.total)


def _quantile(value: float) -> str:
    """As the exporter writes `50thPercentile` and `999thPercentile`: two digits at least."""
    return f"{value:.3f}".rstrip("0").ljust(4, "0")
