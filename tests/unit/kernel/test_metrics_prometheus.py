"""`barnabas.kernel.metrics_prometheus`, held against the names that dashboards for Kafka use."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.metrics_prometheus import scrape_in_steps
from barnabas.kernel.steps import at_once


def registry_at(now: float = 10.0) -> MetricsRegistry:
    return MetricsRegistry(lambda: now)


def text_of(registry: MetricsRegistry) -> str:
    return at_once(scrape_in_steps(registry)).decode()


def samples(registry: MetricsRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a Prometheus server would store: (name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(registry))
        for sample in family.samples
    }


def test_gauges_have_the_names_of_the_exporter() -> None:
    registry = registry_at()
    registry.gauge(MetricName("kafka.server", "ReplicaManager", "UnderReplicatedPartitions"), lambda: 3)
    registry.gauge(MetricName("kafka.controller", "KafkaController", "ActiveControllerCount"), lambda: 1)
    registry.gauge(MetricName("kafka.coordinator.group", "GroupMetadataManager", "NumGroups"), lambda: 7)
    partition = (("topic", "orders"), ("partition", "4"))
    registry.gauge(MetricName("kafka.log", "Log", "Size", partition), lambda: 1024)
    purgatory = (("delayedOperation", "Produce"),)
    registry.gauge(MetricName("kafka.server", "DelayedOperationPurgatory", "PurgatorySize", purgatory), lambda: 9)
    assert samples(registry) == {
        ("kafka_server_replicamanager_underreplicatedpartitions", ()): 3,
        ("kafka_controller_kafkacontroller_activecontrollercount", ()): 1,
        ("kafka_coordinator_group_groupmetadatamanager_numgroups", ()): 7,
        ("kafka_log_log_size", (("partition", "4"), ("topic", "orders"))): 1024,
        ("kafka_server_delayedoperationpurgatory_purgatorysize", (("delayedOperation", "Produce"),)): 9,
    }


def test_what_is_counted_per_second_ends_in_total_with_one_family_for_all_tags() -> None:
    registry = registry_at()
    for tags, count in (((), 30), ((("topic", "orders"),), 10), ((("topic", 'a"b\\c'),), 20)):
        registry.meter(MetricName("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", tags)).count = count
    idle = registry.meter(MetricName("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent"))
    idle.count = 5
    assert samples(registry) == {
        ("kafka_server_brokertopicmetrics_messagesin_total", ()): 30,
        ("kafka_server_brokertopicmetrics_messagesin_total", (("topic", "orders"),)): 10,
        ("kafka_server_brokertopicmetrics_messagesin_total", (("topic", 'a"b\\c'),)): 20,
        ("kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count", ()): 5,
    }
    text = text_of(registry)
    assert text.count("# TYPE kafka_server_brokertopicmetrics_messagesin_total counter") == 1
    assert "# HELP kafka_server_brokertopicmetrics_messagesin_total kafka.server:type=BrokerTopicMetrics" in text


def test_histograms_and_timings_are_summaries_with_quantiles() -> None:
    registry = registry_at()
    total = registry.histogram(MetricName("kafka.network", "RequestMetrics", "TotalTimeMs", (("request", "Fetch"),)))
    for value in range(1, 11):
        total.update(value)
    elections = registry.timing(MetricName("kafka.controller", "ControllerStats", "LeaderElectionRateAndTimeMs"))
    elections.update(12)
    found = samples(registry)
    name = "kafka_network_requestmetrics_totaltimems"
    quantiles = {dict(labels)["quantile"]: value for (sample, labels), value in found.items() if sample == name}
    assert quantiles == {"0.50": 5, "0.75": 8, "0.95": 10, "0.98": 10, "0.99": 10, "0.999": 10}
    assert found[f"{name}_count", (("request", "Fetch"),)] == 10
    assert found[f"{name}_sum", (("request", "Fetch"),)] == 55
    election = "kafka_controller_controllerstats_leaderelectionrateandtimems"
    assert found[election, (("quantile", "0.99"),)] == 12
    assert found[f"{election}_count", ()] == 1


def test_a_gauge_that_fails_is_left_out() -> None:
    registry = registry_at()
    registry.gauge(MetricName("kafka.server", "Test", "Broken"), {}.popitem)  # type: ignore[arg-type]
    registry.gauge(MetricName("kafka.server", "Test", "Sound"), lambda: 1)
    assert samples(registry) == {("kafka_server_test_sound", ()): 1}


def test_labels_that_prometheus_does_not_allow_are_rewritten() -> None:
    registry = registry_at()
    registry.gauge(MetricName("kafka.server", "Produce", "throttle-time", (("client-id", "c-1"),)), lambda: 0.5)
    assert samples(registry) == {("kafka_server_produce_throttle_time", (("client_id", "c-1"),)): 0.5}
