"""A broker with transactions of three kinds: open, ended, and one of which its coordinator knows nothing."""

from __future__ import annotations

from typing import Any, Final

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, leaders
from tests.support.wire_messages import to_message
from tests.support.wire_values import Tree

TOPIC: Final = "orders"
NOW_MS: Final = 1_700_000_000_000
OVERRIDES: Final = {
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    # With it no transaction can hang.
    "transaction.partition.verification.enable": "false",
    "log.retention.ms": -1,
    "log.message.timestamp.before.max.ms": 2**63 - 1,
}
HANGING_OFFSET: Final = 1


def _ask(port: int, key: ApiKey, version: int, tree: Tree) -> Any:
    return call(port, key, version, to_message(catalogue.request(key), tree))


def prepare(port: int) -> None:
    """A transaction that is open, one that has ended, and in partition 1 one of which its coordinator knows nothing."""
    create_topic(port, TOPIC, 2, 1)
    wait_until(lambda: len(leaders(port, TOPIC)) == 2, "the topic is there")
    for name in ("open", "ended"):
        wait_until(
            lambda: _ask(port, ApiKey.FIND_COORDINATOR, 2, {"key": name, "key_type": 1}).error_code == 0,  # noqa: B023
            "there is a coordinator",
        )
    producers = {}
    for name in ("open", "ended", "hanging"):
        tree = {"transactional_id": name if name != "hanging" else None, "transaction_timeout_ms": 60_000}

        def given() -> bool:
            producers[name] = _ask(port, ApiKey.INIT_PRODUCER_ID, 1, tree)  # noqa: B023
            return bool(producers[name].error_code == 0)  # noqa: B023

        wait_until(given, f"{name} has a producer id")
    for name, partition in (("open", 0), ("ended", 1)):
        who = {
            f"v3_and_below_producer_{each}": getattr(producers[name], f"producer_{each}") for each in ("id", "epoch")
        }
        topics = [{"name": TOPIC, "partitions": [partition]}]
        added = {"v3_and_below_transactional_id": name, **who, "v3_and_below_topics": topics}
        answer = _ask(port, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
        assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    ended = {"transactional_id": "ended", "committed": True}
    ended |= {each: getattr(producers["ended"], each) for each in ("producer_id", "producer_epoch")}
    assert _ask(port, ApiKey.END_TXN, 3, ended).error_code == 0

    def is_complete() -> bool:
        (state,) = _ask(port, ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["ended"]}).transaction_states
        return bool(state.transaction_state == "CompleteCommit")

    wait_until(is_complete, "the transaction has ended")
    for name, partition in (("open", 0), ("hanging", 1)):
        batch = RecordBatchBuilder(
            producer_id=producers[name].producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        batch.append(NOW_MS, None, b"value")
        data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": bytes(batch.build())}]}]
        produced: Tree = {"transactional_id": name, "acks": -1, "timeout_ms": 30_000, "topic_data": data}
        (topic,) = _ask(port, ApiKey.PRODUCE, 8, produced).responses
        assert topic.partition_responses[0].error_code == 0
