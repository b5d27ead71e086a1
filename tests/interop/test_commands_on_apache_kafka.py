"""Every command for people against an unmodified Apache Kafka 3.9.1."""

from __future__ import annotations

import json

import confluent_kafka
import pytest

from tests.support.admin_command_suite import AdminCommandSuite
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.command_suite import CommandSuite, new_topic
from tests.support.data_command_suite import COMMAND_SECONDS, DataCommandSuite, consumed, produce, run, values


class TestOnApacheKafka(CommandSuite):
    software = "other"

    @pytest.fixture
    def bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address


class TestAdminOnApacheKafka(AdminCommandSuite):
    @pytest.fixture
    def bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address


class TestDataOnApacheKafka(DataCommandSuite):
    @pytest.fixture
    def bootstrap(self, kafka_broker: ApacheKafkaBroker) -> str:
        return kafka_broker.address

    def test_records_of_transactions_that_were_aborted_or_are_open(self, bootstrap: str, topic: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
        producer.init_transactions(COMMAND_SECONDS)
        for value, ends in (("committed", "commit"), ("aborted", "abort"), ("open", "")):
            producer.begin_transaction()
            producer.produce(topic, value.encode(), partition=0)
            assert producer.flush(COMMAND_SECONDS) == 0
            if ends == "commit":
                producer.commit_transaction(COMMAND_SECONDS)
            elif ends == "abort":
                producer.abort_transaction(COMMAND_SECONDS)
        assert values(consumed(bootstrap, topic)) == ["committed", "aborted", "open"]
        assert values(consumed(bootstrap, topic, "--isolation", "committed")) == ["committed"]
        producer.abort_transaction(COMMAND_SECONDS)

    def test_the_log_of_the_running_broker_can_be_looked_at(self, kafka_broker: ApacheKafkaBroker) -> None:
        with new_topic(kafka_broker.address, "--partitions", "1", "--replication-factor", "1") as topic:
            produce(kafka_broker.address, topic, b"".join(b"%0200d\n" % number for number in range(3_000)))
            directory = str(kafka_broker.log_directory / f"{topic}-0")
            output, _ = run(kafka_broker.address, "log", "dump", "--records", "--verify", "--json", directory)
            records = [each for each in map(json.loads, output.splitlines()) if each["type"] == "record"]
            assert [int(each["value"]) for each in records] == list(range(3_000))
