"""What a broker traces of its requests and of its controller, in virtual time; and that it costs nothing without."""

from __future__ import annotations

import logging

import pytest

from barnabas.api.dispatch import Dispatcher
from barnabas.api.request_metrics import RequestMetrics
from barnabas.api.traced_dispatch import TracedDispatcher
from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, OffsetReset, ProducerSettings
from barnabas.config.broker_config import BrokerConfigError
from barnabas.controller.traces import ControllerTraces
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.tracing import Span, SpanKind
from barnabas.server.broker import Broker
from barnabas.server.config import read_server_config
from barnabas.testing.simulation import Simulation
from barnabas.wire.topics import TopicPartition
from tests.unit.server.coordinated import TIMEOUT_MS, Lines, start_coordinator

TEXT = f"""
listeners=PLAINTEXT://:9092
zookeeper.connect=coordinator:2181
zookeeper.session.timeout.ms={TIMEOUT_MS}
log.dirs=/data/one
"""


class Collected:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        self.spans.append(span)


def traced(*overrides: str) -> list[Span]:
    """What a broker tells while a topic is created, produced to and read."""
    collected = Collected()

    async def main(host: Host) -> None:
        broker = Broker(
            read_server_config(TEXT, "test", overrides), host, Logs(host.name, host.clock, Lines()), traces=collected
        )
        try:
            await broker.start()
            await broker.ready()
            await use(host)
            assert isinstance(broker.components.dispatcher, TracedDispatcher)
        finally:
            await broker.stop()

    async def use(host: Host) -> None:
        settings = ClientSettings(bootstrap_servers=(f"{host.name}:9092",), client_id="ann")
        async with Client(host, settings, logging.getLogger("client")) as client, Admin(client) as admin:
            await admin.create_topics([NewTopic("flights", 1, 1)])
            async with Producer(client, ProducerSettings(idempotent=False)) as producer:
                for _ in range(30):
                    await producer.send_and_wait(ProducerRecord("flights", b"value"))
            consumer = Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST))
            consumer.assign([TopicPartition("flights", 0)])
            records = await consumer.poll(10_000)
            while await consumer.poll(2_000):
                pass
            assert records
            await consumer.close()

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        simulation.run_on(simulation.machine("broker"), main)
    return collected.spans


def of_name(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def test_requests_are_told_with_who_asked_and_how_long_it_took() -> None:
    spans = traced("barnabas.traces.requests.per.second=1000")
    (created,) = of_name(spans, "CreateTopics")
    assert created.kind is SpanKind.SERVER
    assert created.attributes["messaging.client.id"] == "ann"
    assert created.attributes["kafka.listener"] == "PLAINTEXT"
    assert created.attributes["kafka.request.remote_time_ms"] or created.attributes["kafka.request.local_time_ms"]
    asked = of_name(spans, "Metadata")[0]
    assert asked.attributes["kafka.request.remote_time_ms"] == 0
    waited = [span for span in of_name(spans, "FetchConsumer") if span.duration_ms >= 500]
    assert waited, "a fetch that found nothing has waited for fetch.max.wait.ms"
    assert waited[0].attributes["kafka.request.remote_time_ms"] == waited[0].duration_ms
    assert waited[0].attributes["messaging.client.id"] == "ann"
    assert of_name(spans, "Fetch") == []


def test_of_each_kind_of_request_so_many_are_told_in_a_second() -> None:
    assert len(of_name(traced("barnabas.traces.requests.per.second=0.001"), "Metadata")) == 1
    assert len(of_name(traced("barnabas.traces.requests.per.second=1000"), "Metadata")) > 1


def test_events_of_the_controller_are_told_with_the_moves_of_partitions() -> None:
    spans = traced()
    names = [span.name for span in spans]
    assert names.index("controller Startup") < names.index("controller TopicChange")
    created = of_name(spans, "controller TopicChange")[0]
    moves = [event for event in created.events if event.name == "partition state change"]
    led = [event for event in moves if event.attributes["kafka.state.after"] == "ONLINE"]
    assert [event.attributes["messaging.destination.name"] for event in led] == ["flights"]
    assert led[0].attributes["kafka.leader"] == 1001
    assert {span.kind for span in spans if span.name.startswith("controller ")} == {SpanKind.INTERNAL}


def test_without_traces_a_broker_has_nothing_of_them() -> None:
    async def main(host: Host) -> None:
        config = read_server_config(TEXT, "test", ["barnabas.traces.endpoint=http://nobody:4318/v1/traces"])
        broker = Broker(config, host, Logs(host.name, host.clock, Lines()))
        try:
            await broker.start()
            components = broker.components
            assert type(components.dispatcher) is Dispatcher
            assert type(components.dispatcher._metrics.of("Produce")) is RequestMetrics
            assert not isinstance(components.controller._recent_transitions, ControllerTraces)
        finally:
            await broker.stop()

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        simulation.run_on(simulation.machine("broker"), main)


@pytest.mark.parametrize(
    "override",
    [
        "barnabas.traces.endpoint=collector:4318",
        "barnabas.traces.endpoint=grpc://collector:4317",
        "barnabas.traces.endpoint=http://",
        "barnabas.traces.requests.per.second=0",
        "barnabas.traces.requests.per.second=nan",
        "barnabas.traces.requests.per.second=1001",
    ],
)
def test_configs_that_cannot_be_are_refused(override: str) -> None:
    with pytest.raises(BrokerConfigError, match=r"barnabas\.traces"):
        read_server_config(TEXT, "test", [override])
