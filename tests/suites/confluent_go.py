"""confluent-kafka-go's integration tests, out of its Go module, which has librdkafka compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.suites.clusters import OWN_PORT
from tests.suites.go_suite import GoSuite
from tests.suites.model import Result
from tests.support.ports import free_port
from tests.support.sasl_cluster import login_module

_USER, _PASSWORD = "testuser", "testpass"
"""As the tests' own brokers have them."""
_TOLD = {
    "Brokers": "$BROKERS",
    "BrokersSasl": "$BROKERSSASL",
    "SaslUsername": _USER,
    "SaslPassword": _PASSWORD,
    "SaslMechanism": "PLAIN",
    "TopicName": "test",
    "GroupID": "testgroup",
}
# As much of it as the tests name. They start no containers where they are told of brokers.
_COMPOSE = """package compose

type ExecError struct{ Error error }

type LocalDockerCompose struct{}

func NewLocalDockerCompose([]string, string) *LocalDockerCompose { panic("no containers are started here") }

func (d *LocalDockerCompose) WithCommand([]string) *LocalDockerCompose { return d }

func (d *LocalDockerCompose) Invoke() ExecError { return ExecError{} }

func (d *LocalDockerCompose) Down() ExecError { return ExecError{} }
"""


class ConfluentKafkaGo:
    """confluent-kafka-go, on one broker as its own scripts start one; with consumers of one protocol of groups."""

    version = "v2.11.1"
    broker_ids = (0,)

    def __init__(
        self, group_protocol: str = "classic", ours_alone: str = "", excluded: Mapping[str, str] | None = None
    ) -> None:
        is_classic = group_protocol == "classic"
        self.name = "confluent-kafka-go" if is_classic else f"confluent-kafka-go, the {group_protocol} protocol"
        self.ours_alone = ours_alone
        self.excluded: Mapping[str, str] = excluded or {}
        self.overrides: Mapping[str, object] = {}
        self._group_protocol = {} if is_classic else {"TEST_CONSUMER_GROUP_PROTOCOL": group_protocol}
        self._port = 0
        self._suite = GoSuite(
            self.name,
            "github.com/confluentinc/confluent-kafka-go/v2",
            "kafka",
            self.version,
            900,
            self._environment,
            self.excluded,
            # What the others want of a broker is that there is none, or one that librdkafka simulates.
            only=["TestIntegration"],
            stubs={"github.com/testcontainers/testcontainers-go/modules/compose": _COMPOSE},
            files={"testconf.json": json.dumps(_TOLD)},
        )

    @property
    def source(self) -> str:
        return f"{self._suite.source}, without what starts containers"

    def prepare(self) -> None:
        self._suite.prepare()
        self._port = free_port()
        module = login_module("PLAIN", username="admin", password="admin", **{f"user_{_USER}": _PASSWORD})
        self.overrides = {
            "num.partitions": 1,
            "super.users": "User:ANONYMOUS;User:admin",
            "listeners": f"PLAINTEXT://127.0.0.1:{OWN_PORT},SASL_PLAINTEXT://localhost:{self._port}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": module,
            **({"group.coordinator.rebalance.protocols": "classic,consumer"} if self._group_protocol else {}),
        }

    def tests(self) -> Sequence[str]:
        return self._suite.tests()

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        return self._suite.run(bootstrap_servers, directory, names)

    def _environment(self, bootstrap_servers: str) -> dict[str, str]:
        return {"BROKERS": bootstrap_servers, "BROKERSSASL": f"localhost:{self._port}", **self._group_protocol}
