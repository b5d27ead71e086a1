"""Metrics as a Prometheus scrape shows them, under the names that the JMX exporter gives Kafka's with its example
rules.

`kafka.server:type=ReplicaManager,name=LeaderCount` reads `kafka_server_replicamanager_leadercount`; what ends in
`PerSec` is counted as `..._total`, a gauge that ends in `Percent` is `..._percent`; a histogram is a summary with
quantiles. Dashboards made for Kafka behind that exporter work.

A broker of 10,000 partitions has 100,000 samples: they are read, and written out, in steps of the loop. The lines are
made here, and not by the client library, for which that took five times as long; its parser reads them in the tests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from barnabas.kernel.metrics import PERCENTILES, Gauge, Histogram, Meter, MetricsRegistry, Timing
from barnabas.kernel.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.kernel.metrics import Metric, MetricName

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NAMES_PER_STEP: Final = 1024
LINES_PER_STEP: Final = 512
_PER_SECOND: Final = re.compile(r"PerSec\w*$")
_PERCENT: Final = re.compile(r"Percent$")
_INVALID_IN_NAME: Final = re.compile(r"[^a-z0-9_]")
_INVALID_IN_LABEL: Final = re.compile(r"[^A-Za-z0-9_]")
_ESCAPED_IN_LABEL: Final = re.compile(r'[\\\n"]')
_NUMBERS: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}

_Family = tuple[str, str]
"""What its samples are called, and of which type they are."""


def scrape_in_steps(registry: MetricsRegistry) -> Steps[bytes]:
    """The response to a scrape, in the text format; send it with `CONTENT_TYPE`. Each metric is read once.

    A gauge whose reading fails is left out of this scrape and harms no other.
    """
    families: dict[_Family, list[tuple[MetricName, Metric]]] = {}
    known: dict[tuple[str, str, str], _Family] = {}
    for number, (name, metric) in enumerate(registry, start=1):
        mbean = (name.group, name.type, name.name)
        family = known.get(mbean)
        if family is None:
            family = known[mbean] = prometheus_family(name, metric)
        families.setdefault(family, []).append((name, metric))
        if not number % NAMES_PER_STEP:
            yield
    labels = _Labels()
    pieces: list[bytes] = []
    lines: list[str] = []
    for (sample, kind), metrics in families.items():
        first = metrics[0][0]
        lines.append(f"# HELP {sample} {first.group}:type={first.type},name={first.name}")
        lines.append(f"# TYPE {sample} {kind}")
        for name, metric in metrics:
            lines += _lines(sample, labels.of(name), metric)
            if len(lines) >= LINES_PER_STEP:
                pieces.append(_text(lines))
                lines = []
                yield
    pieces.append(_text(lines))
    return b"".join(pieces)


def prometheus_family(name: MetricName, metric: Metric) -> _Family:
    """How the samples of a metric are called, without the suffixes of a summary, and their type."""
    last, suffix, kind = name.name, "", "summary"
    match metric:
        case Gauge():
            last, kind = _PERCENT.sub("_percent", last), "gauge"
        case Meter() if _PER_SECOND.search(last):
            last, suffix, kind = _PER_SECOND.sub("", last), "_total", "counter"
        case Meter():
            suffix, kind = "_count", "untyped"
        case Histogram() | Timing():
            pass
    return _INVALID_IN_NAME.sub("_", f"{name.group}_{name.type}_{last}".lower()) + suffix, kind


def _lines(sample: str, labels: str, metric: Metric) -> Iterator[str]:
    match metric:
        case Gauge():
            try:
                value = float(metric.read())
            except Exception:  # noqa: BLE001 - a gauge must not take the scrape with it
                return
            yield _line(sample, labels, value)
        case Meter():
            yield _line(sample, labels, float(metric.count))
        case Histogram():
            yield from _summary(sample, labels, metric)
        case Timing():
            yield from _summary(sample, labels, metric.durations_ms)


def _summary(sample: str, labels: str, histogram: Histogram) -> Iterator[str]:
    snapshot = histogram.snapshot()
    before = f"{labels}," if labels else ""
    for quantile, value in zip(_QUANTILES, snapshot.percentiles, strict=True):
        yield _line(sample, f'{before}quantile="{quantile}"', value)
    yield _line(f"{sample}_count", labels, float(snapshot.count))
    yield _line(f"{sample}_sum", labels, float(snapshot.total))


def _line(sample: str, labels: str, value: float) -> str:
    number = repr(value)
    number = _NUMBERS.get(number, number)
    return f"{sample}{{{labels}}} {number}" if labels else f"{sample} {number}"


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


class _Labels:
    """A metric's tags as they stand between the braces of a sample. Values are few, partitions times topics many."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def of(self, name: MetricName) -> str:
        return ",".join([f'{self._key(key)}="{self._value(value)}"' for key, value in name.tags])

    def _key(self, key: str) -> str:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _INVALID_IN_LABEL.sub("_", key)
        return found

    def _value(self, value: str) -> str:
        found = self._values.get(value)
        if found is None:
            found = self._values[value] = _ESCAPED_IN_LABEL.sub(_escaped, value)
        return found


def _escaped(match: re.Match[str]) -> str:
    return "\\n" if match[0] == "\n" else f"\\{match[0]}"


def _quantile(value: float) -> str:
    """As the exporter writes `50thPercentile` and `999thPercentile`: two digits at least."""
    return f"{value:.3f}".rstrip("0").ljust(4, "0")


_QUANTILES: Final = tuple(map(_quantile, PERCENTILES))
