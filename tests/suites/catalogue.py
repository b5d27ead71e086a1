"""The suites, in the order in which they are run, and why others are not among them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.suites.confluent_go import ConfluentKafkaGo
from tests.suites.go_suites import franz_go
from tests.suites.kafka_python import KafkaPython
from tests.suites.librdkafka import Librdkafka
from tests.suites.model import Suite
from tests.suites.no_kafka import NoKafka

# Records there and back, of each codec, with a group, in transactions, and the administration.
_BY_ANY_ACCESS = (
    "0012_produce_consume",
    "0017_compression",
    "0056_balanced_group_mt",
    "0081_admin",
    "0103_transactions",
)
_NO_CONSUMER_GROUPS = "Apache Kafka 3.9.1 with ZooKeeper has no groups of the consumer protocol (KIP-848)"
_ITS_OWN = "its authors know that it fails, and it is run by them when they say so alone"
_NO_CURL = "wants an identity provider of its own, and librdkafka built with curl"
_ONLY_WITH = "wants another access to the brokers, and is run with that"
_ONLY_CONSUMER = "is about the consumer protocol: below"
_PATTERNS = "has the broker match a pattern, which Apache Kafka has since 4.0"
_AUTHORITIES = (
    "wants brokers to name the authorities that they trust, so that a client shows no certificate of another: Apache "
    "Kafka passes it with TLS 1.2, with 1.3 neither does, and ours name none ([decision 0032](decisions/0032-tls.md))"
)
_EXCLUDED: Mapping[str, str] = {
    "0028_long_topicnames": _ITS_OWN,
    "0047_partial_buf_tmout": _ITS_OWN,
    "0126_oauthbearer_oidc": _NO_CURL,
}
_OTHER_ACCESS: Mapping[str, str] = dict.fromkeys(
    ["0097_ssl_verify", "0135_sasl_credentials", "0142_reauthentication"], _ONLY_WITH
)

SUITES: Mapping[str, Suite] = {
    "kafka-python": KafkaPython(),
    "franz-go": franz_go(),
    "no-kafka": NoKafka(),
    "confluent-kafka-go": ConfluentKafkaGo(),
    "confluent-kafka-go-consumer": ConfluentKafkaGo(
        "consumer",
        _NO_CONSUMER_GROUPS,
        {
            "TestIntegration/TestAdminConfig": "sets configs of a group, which Kafka 3.9 has with KRaft alone; "
            "with the classic protocol it does not"
        },
    ),
    "librdkafka": Librdkafka({**_EXCLUDED, **_OTHER_ACCESS, "0153_memberid": _ONLY_CONSUMER}),
    "librdkafka-noautocreate": Librdkafka(
        {},
        variant="noautocreate",
        scenario="noautocreate",
        overrides={"auto.create.topics.enable": "false"},
    ),
    "librdkafka-ssl": Librdkafka(
        {"0097_ssl_verify": _AUTHORITIES}, variant="SSL", protocol="SSL", only=["0097_ssl_verify", *_BY_ANY_ACCESS]
    ),
    "librdkafka-scram": Librdkafka(
        {},
        variant="SASL_SSL with SCRAM-SHA-512",
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        only=["0135_sasl_credentials", "0142_reauthentication", *_BY_ANY_ACCESS],
    ),
    "librdkafka-plain": Librdkafka(
        {},
        variant="SASL_PLAINTEXT with PLAIN",
        protocol="SASL_PLAINTEXT",
        mechanism="PLAIN",
        only=["0135_sasl_credentials", "0142_reauthentication"],
    ),
    "librdkafka-oauthbearer": Librdkafka(
        {},
        variant="SASL_PLAINTEXT with OAUTHBEARER",
        protocol="SASL_PLAINTEXT",
        mechanism="OAUTHBEARER",
        only=["0142_reauthentication", *_BY_ANY_ACCESS],
    ),
    "librdkafka-consumer": Librdkafka(
        {**_EXCLUDED, **_OTHER_ACCESS, "0033_regex_subscribe": _PATTERNS, "0109_auto_create_topics": _PATTERNS},
        variant="the consumer protocol",
        group_protocol="consumer",
        overrides={"group.coordinator.rebalance.protocols": "classic,consumer"},
        ours_alone=_NO_CONSUMER_GROUPS,
    ),
}

UNOBTAINABLE: Mapping[str, str] = {
    "aiokafka": "its source archives on PyPI have no tests, neither that of 0.14.0 nor older ones",
    "confluent-kafka-python": "its source archives on PyPI have no tests, and Debian's sources were not to be had; "
    "what it wraps, librdkafka, is here",
    "kafkajs": "its package on npm has one test, of a default, and none that wants a broker; no-kafka's has all",
}
