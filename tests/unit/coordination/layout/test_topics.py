"""Names of partitions in znodes and in words."""

from __future__ import annotations

from barnabas.coordination.layout.topics import partition_state_path
from barnabas.wire.topics import TopicPartition


def test_a_partition_is_named_in_words_as_kafka_names_it() -> None:
    partition = TopicPartition("orders-of-today", 7)
    assert str(partition) == f"{partition}" == "%s" % (partition,) == "orders-of-today-7"  # noqa: UP031 - as loggers do
    assert partition_state_path(*partition) == "/brokers/topics/orders-of-today/partitions/7/state"
