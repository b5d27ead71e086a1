"""What clients take of their quotas, and how they are held back, under the names of Apache Kafka's metrics.

`kafka.server:type=Produce,user=U,client-id=C` has `byte-rate` and `throttle-time` (the average of the last minute, in
milliseconds), with those tags that the quota tells apart; so has `Fetch`. `Request` has `request-time` (percent)
instead, and `ControllerMutation` has `mutation-rate` and `tokens`. `queue-size` counts who is held back now.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.coordination.layout.configs import sanitize
from barnabas.kernel.metrics import Gauge, MetricName

if TYPE_CHECKING:
    from barnabas.api.client_throttles import ClientThrottles
    from barnabas.quotas.client_quotas import ClientQuotas, QuotaAccount

_GROUP: Final = "kafka.server"


def client_quota_metrics(throttles: ClientThrottles) -> Iterator[tuple[MetricName, Gauge]]:
    """All of them, as they are now."""
    yield from _of_kind("Produce", throttles.produce, {"byte-rate": "rate"})
    yield from _of_kind("Fetch", throttles.fetch, {"byte-rate": "rate"})
    yield from _of_kind("Request", throttles.request, {"request-time": "rate"})
    changes = {"mutation-rate": "rate", "tokens": "tokens"}
    yield from _of_kind("ControllerMutation", throttles.controller_mutation, changes)


def _of_kind(kind: str, quotas: ClientQuotas[Any], attributes: dict[str, str]) -> Iterator[tuple[MetricName, Gauge]]:
    """`attributes` says which attribute of an account is told by which name."""
    yield MetricName(_GROUP, kind, "queue-size"), Gauge(partial(getattr, quotas, "throttled_count"))
    for account in quotas:
        tags = _tags(account)
        for name, attribute in {**attributes, "throttle-time": "throttle_ms_average"}.items():
            yield MetricName(_GROUP, kind, name, tags), Gauge(partial(getattr, account, attribute))


def _tags(account: QuotaAccount) -> tuple[tuple[str, str], ...]:
    both = (("user", sanitize(account.user)), ("client-id", account.client_id))
    return tuple((name, value) for name, value in both if value)
