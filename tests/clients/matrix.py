"""The clients of the table client x capability, and what this machine lacks for some of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from tests.clients.drivers import franzgo, java, kafkajs, kcat
from tests.clients.drivers.aiokafka_client import AiokafkaClient
from tests.clients.drivers.confluent import ConfluentClient
from tests.clients.drivers.kafka_python import KafkaPythonClient
from tests.clients.drivers.model import Capability, Client

_CLASSES: dict[str, type[Client]] = {
    ConfluentClient.name: ConfluentClient,
    KafkaPythonClient.name: KafkaPythonClient,
    AiokafkaClient.name: AiokafkaClient,
    java.JavaClient.name: java.JavaClient,
    kafkajs.KafkajsClient.name: kafkajs.KafkajsClient,
    kcat.KcatClient.name: kcat.KcatClient,
    franzgo.FranzGoClient.name: franzgo.FranzGoClient,
}
_REASONS: dict[str, Callable[[], str | None]] = {
    java.JavaClient.name: java.reason_to_skip,
    kafkajs.KafkajsClient.name: kafkajs.reason_to_skip,
    kcat.KcatClient.name: kcat.reason_to_skip,
    franzgo.FranzGoClient.name: franzgo.reason_to_skip,
}
CLIENTS = tuple(_CLASSES)
IN_PYTHON = (ConfluentClient.name, KafkaPythonClient.name, AiokafkaClient.name)
ALL = os.environ.get("BARNABAS_ALL_CLIENTS") == "1"
TRIED = CLIENTS if ALL else IN_PYTHON
"""`make test` tries the clients in Python, `make test-clients` all of them."""


def make_client(name: str, bootstrap_servers: str) -> Client:
    """The client of that name for the cluster there."""
    return _CLASSES[name](bootstrap_servers)


def reason_to_skip(name: str) -> str | None:
    """Why this machine, or this run, cannot try the client, and what would help; None where it can."""
    check = _REASONS.get(name)
    return None if check is None else check()


def missing(name: str) -> Mapping[Capability, str]:
    """What cannot be asked of the client, and why."""
    return _CLASSES[name].missing
