"""The suites, in the order in which they are run, and why others are not among them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.suites.go_suites import franz_go
from tests.suites.kafka_python import KafkaPython
from tests.suites.librdkafka import Librdkafka
from tests.suites.model import Suite
from tests.suites.no_kafka import NoKafka

SUITES: Mapping[str, Suite] = {
    "kafka-python": KafkaPython(),
    "franz-go": franz_go(),
    "no-kafka": NoKafka(),
    "librdkafka": Librdkafka("default", {}),
    "librdkafka-noautocreate": Librdkafka("noautocreate", {}),
}

UNOBTAINABLE: Mapping[str, str] = {
    "aiokafka": "its source archives on PyPI have no tests, neither that of 0.14.0 nor older ones",
    "confluent-kafka-python": "its source archives on PyPI have no tests, and Debian's sources were not to be had; "
    "what it wraps, librdkafka, is here",
    "kafkajs": "its package on npm has one test, of a default, and none that wants a broker; no-kafka's has all",
}
