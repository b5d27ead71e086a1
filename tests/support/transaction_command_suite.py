"""What `barnabas txn` does on any cluster of the Kafka protocol that `hanging_transactions.prepare` has prepared.

Run on Barnabas in tests/cluster and on Apache Kafka in tests/interop.
"""

from __future__ import annotations

from typing import Any

from tests.support.command_suite import barnabas
from tests.support.data_command_suite import consumed
from tests.support.hanging_transactions import HANGING_OFFSET, TOPIC


class TransactionCommandSuite:
    """Subclasses give the fixture `bootstrap`, the address of a broker that has been prepared."""

    def test_transactions_are_listed_described_and_found_and_a_hanging_one_is_aborted(self, bootstrap: str) -> None:
        def txn(*arguments: str) -> Any:
            return barnabas(bootstrap, "txn", *arguments, "--json").document

        states = {each["transactional_id"]: each["state"] for each in txn("list")["transactions"]}
        assert states == {"open": "Ongoing", "ended": "CompleteCommit"}
        (only,) = txn("list", "--state", "ongoing")["transactions"]
        assert only["transactional_id"] == "open"
        assert txn("list", "--producer-id", str(only["producer_id"]))["transactions"] == [only]
        assert txn("list", "--longer-than", "1h")["transactions"] == []
        assert only in txn("list", "--longer-than", "0s")["transactions"]
        described, ended = txn("describe", "open", "ended")["transactions"]
        assert (described["partitions"], ended["partitions"]) == ([{"topic": TOPIC, "partition": 0}], [])
        assert described["started_at_ms"] is not None
        missing = barnabas(bootstrap, "txn", "describe", "open", "nobody")
        assert missing.status == 4
        assert missing.rows[0] == "Transactional id open"
        assert "there is no transactional id nobody" in missing.errors

        producers = {each["partition"]: each for each in txn("producers", f"{TOPIC}:0")["producers"]}
        assert producers[0]["transaction_offset"] == 0
        opened = [each["transaction_offset"] for each in txn("producers", f"{TOPIC}:1")["producers"]]
        assert sorted(opened, key=str) == [HANGING_OFFSET, None]

        (hanging,) = txn("find-hanging", TOPIC)["hanging"]
        place = {"topic": TOPIC, "partition": 1, "transaction_offset": HANGING_OFFSET, "transactional_id": None}
        assert hanging.items() >= place.items()
        assert txn("find-hanging")["hanging"] == [hanging]
        assert txn("find-hanging", "--broker", "0")["hanging"] == [hanging]
        assert txn("find-hanging", f"{TOPIC}:0")["hanging"] == []
        assert txn("find-hanging", "--older-than", "50000w")["hanging"] == []
        advice = barnabas(bootstrap, "txn", "find-hanging").errors
        assert f"barnabas txn abort {TOPIC}:1 --start-offset {HANGING_OFFSET}" in advice
        assert barnabas(bootstrap, "txn", "find-hanging", "--broker", "77").status == 4

        refused = barnabas(bootstrap, "txn", "abort", f"{TOPIC}:0", "--start-offset", "0")
        assert (refused.status, refused.output) == (1, "")
        assert "does not hang" in refused.errors
        gone = barnabas(bootstrap, "txn", "abort", f"{TOPIC}:1", "--start-offset", "77")
        assert gone.status == 4
        done = barnabas(bootstrap, "txn", "abort", f"{TOPIC}:1", "--start-offset", str(HANGING_OFFSET))
        assert done.status == 0, done.errors
        assert txn("find-hanging")["hanging"] == []
        assert consumed(bootstrap, TOPIC, "--partition", "1", "--isolation", "committed", "--timeout", "20") == []
        assert len(consumed(bootstrap, TOPIC, "--partition", "1")) == 1
        again = barnabas(bootstrap, "txn", "abort", f"{TOPIC}:1", "--start-offset", str(HANGING_OFFSET))
        assert again.status == 4
        forced = barnabas(bootstrap, "txn", "abort", f"{TOPIC}:0", "--start-offset", "0", "--force")
        assert forced.status == 0, forced.errors
