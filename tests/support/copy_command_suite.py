"""What `barnabas topic copy` does on any cluster of the Kafka protocol, and between two.

Run on Barnabas in tests/cluster, on Apache Kafka and between both in tests/interop.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from barnabas.cli import connection
from tests.support.command_suite import barnabas, fresh, new_topic
from tests.support.data_command_suite import COMMAND_SECONDS, consumed, produce, started
from tests.support.waiting import wait_until

ONE = ("--partitions", "1", "--replication-factor", "1")
THREE = ("--partitions", "3", "--replication-factor", "1")
TIME_MS = 1_700_000_000_000


def told(record: dict[str, Any]) -> tuple[Any, ...]:
    """All of a record but where it is."""
    return (
        *(record.get("key"), record.get("value"), record.get("value_base64"), record["timestamp_ms"]),
        str(record["headers"]),
    )


def lines(count: int, first: int = 0, partitions: int = 3) -> bytes:
    """Records with a key, headers and a time, in turn in each partition; each tenth is a tombstone."""
    return b"".join(
        json.dumps(
            {
                "key": f"key {number % 50}",
                "value": None if number % 10 == 9 else f"value {number}",
                "headers": [{"key": "n", "value": str(number)}, {"key": "n", "value": None}],
                "partition": number % partitions,
                "timestamp_ms": TIME_MS + number,
            }
        ).encode()
        + b"\n"
        for number in range(first, first + count)
    )


def ends(bootstrap: str, topic: str, partitions: int = 3, *, is_committed: bool = False) -> int:
    """The sum of the offsets where the partitions end, or the committed part of them: a look that takes little."""
    latest = confluent_kafka.admin.OffsetSpec.latest()
    wanted = {confluent_kafka.TopicPartition(topic, number): latest for number in range(partitions)}
    level = confluent_kafka.IsolationLevel.READ_COMMITTED if is_committed else None
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    options = {} if level is None else {"isolation_level": level}
    return sum(found.result(COMMAND_SECONDS).offset for found in admin.list_offsets(wanted, **options).values())


def committed(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The committed records of a topic."""
    return consumed(bootstrap, topic, "--isolation", "committed")


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """What a group without members has read."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def group_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """What it has committed."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, number) for number in range(3)]
    found = consumer.committed(places, COMMAND_SECONDS)
    consumer.close()
    return {place.partition: place.offset for place in found if place.offset >= 0}


class CopyCommandSuite:
    """Subclasses give `bootstrap`, a broker of the source, and `target_bootstrap`, one of the target's cluster."""

    def copy(self, bootstrap: str, target_bootstrap: str, *arguments: str) -> Any:
        done = barnabas(bootstrap, "topic", "copy", *arguments, "--to", target_bootstrap, "--json")
        return done.document

    def test_records_come_as_they_are_into_the_same_partitions(self, bootstrap: str, target_bootstrap: str) -> None:
        with new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic:
            produce(bootstrap, topic, lines(3_000), "--format", "json")
            name = fresh("copy")
            options = ("--create", "--replication-factor", "1", "--configs", "--compression", "gzip")
            done = self.copy(bootstrap, target_bootstrap, topic, name, *options)
            assert (done["records"], [each["records"] for each in done["partitions"]]) == (3_000, [1_000] * 3)
            there, here = consumed(target_bootstrap, name), consumed(bootstrap, topic)
            assert [told(each) for each in there] == [told(each) for each in here]
            assert [(each["partition"], each["offset"]) for each in there] == [
                (each["partition"], each["offset"]) for each in here
            ]
            (described,) = barnabas(target_bootstrap, "topic", "describe", name, "--json").document["topics"]
            assert described["configs"] == {"retention.ms": "-1"}
            assert barnabas(target_bootstrap, "topic", "delete", name).status == 0

    def test_ranges_and_keys(self, bootstrap: str, target_bootstrap: str) -> None:
        with (
            new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *ONE, "--config", "retention.ms=-1") as target,
        ):
            produce(bootstrap, topic, lines(300), "--format", "json")
            refused = barnabas(bootstrap, "topic", "copy", topic, target, "--to", target_bootstrap)
            assert refused.status == 1
            assert "has no partition 1" in refused.errors
            arguments = (f"{topic}:1-2", target, "--partitions", "key", "--from", "90", "--until", "-5")
            done = self.copy(bootstrap, target_bootstrap, *arguments)
            assert [(each["partition"], each["next_offset"], each["records"]) for each in done["partitions"]] == [
                (1, 95, 5),
                (2, 95, 5),
            ]
            numbers = sorted(int(each["headers"][0]["value"]) for each in consumed(target_bootstrap, target))
            assert numbers == sorted(3 * offset + partition for partition in (1, 2) for offset in range(90, 95))

    def test_a_copy_goes_on_where_it_was(self, bootstrap: str, target_bootstrap: str, tmp_path: Path) -> None:
        state = tmp_path / "state.json"
        with (
            new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *THREE, "--config", "retention.ms=-1") as target,
        ):
            for part in range(3):
                produce(bootstrap, topic, lines(300, 300 * part), "--format", "json")
                assert self.copy(bootstrap, target_bootstrap, topic, target, "--state", str(state))["records"] == 300
            assert self.copy(bootstrap, target_bootstrap, topic, target, "--state", str(state))["records"] == 0
            found = sorted(int(each["headers"][0]["value"]) for each in consumed(target_bootstrap, target))
            assert found == list(range(900))
            other = barnabas(
                bootstrap, "topic", "copy", topic, f"{target}-x", "--to", target_bootstrap, "--state", str(state)
            )
            assert other.status == 1
            assert "is the state of another copy" in other.errors
            done = barnabas(bootstrap, "records", "delete", f"{topic}:0", "--before", "latest", "--execute")
            assert done.status == 0, done.errors
            beginning = ("topic", "copy", f"{topic}:0", target, "--to", target_bootstrap)
            behind = tmp_path / "behind.json"
            behind.write_text(state.read_text().replace('"0": 300', '"0": 250'))
            lost = barnabas(bootstrap, *beginning, "--state", str(behind))
            assert lost.status == 1
            assert "offsets 250 to 299" in lost.errors
            assert "were deleted before they were copied" in lost.errors
            assert barnabas(bootstrap, *beginning, "--state", str(behind), "--skip-deleted").status == 0

    def test_groups_go_on_at_the_target_where_they_were(
        self, bootstrap: str, target_bootstrap: str, tmp_path: Path
    ) -> None:
        state, group, other = str(tmp_path / "state.json"), fresh("group"), fresh("unwanted")
        with (
            new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *THREE, "--config", "retention.ms=-1") as target,
        ):
            # The target is ahead of the source, so that offsets differ; and the source begins later in one partition.
            produce(target_bootstrap, target, lines(30), "--format", "json")
            produce(bootstrap, topic, lines(300), "--format", "json")
            assert barnabas(bootstrap, "records", "delete", f"{topic}:1", "--before", "7", "--execute").status == 0
            for name in (group, other):
                commit(bootstrap, name, topic, {0: 40, 1: 3, 2: 100})
            copy = (topic, target, "--state", state, "--groups", f"{group}*")
            done = self.copy(bootstrap, target_bootstrap, *copy)
            assert group_offsets(target_bootstrap, group, target) == {0: 50, 1: 10, 2: 110}
            assert group_offsets(target_bootstrap, other, target) == {}
            places = [{"partition": 0, "offset": 50}, {"partition": 1, "offset": 10}, {"partition": 2, "offset": 110}]
            assert done["groups"] == [{"group": group, "partitions": places, "left": None}]
            # Further on in a later run, which copies little; and never back.
            produce(bootstrap, topic, lines(3, 300), "--format", "json")
            commit(bootstrap, group, topic, {0: 101, 1: 20, 2: 1})
            done = self.copy(bootstrap, target_bootstrap, *copy)
            assert (done["records"], done["groups"][0]["left"]) == (3, None)
            assert group_offsets(target_bootstrap, group, target) == {0: 111, 1: 23, 2: 110}
            # Who reads there already is left alone.
            commit(bootstrap, group, topic, {0: 0, 1: 101, 2: 101})
            reader = confluent_kafka.Consumer(
                {"bootstrap.servers": target_bootstrap, "group.id": group, "enable.auto.commit": False}
            )
            reader.subscribe([target])
            wait_until(lambda: reader.poll(0.1) is not None or reader.assignment(), "the group has a member")
            (left,) = self.copy(bootstrap, target_bootstrap, *copy)["groups"]
            reader.close()
            assert left["partitions"] == []
            assert "it has members at the target" in left["left"]
            assert group_offsets(target_bootstrap, group, target) == {0: 111, 1: 23, 2: 110}

    def test_what_comes_is_followed_and_ctrl_c_leaves_no_gap(
        self, bootstrap: str, target_bootstrap: str, tmp_path: Path
    ) -> None:
        state = str(tmp_path / "state.json")
        with (
            new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *THREE, "--config", "retention.ms=-1") as target,
        ):
            total = 0
            for _ in range(2):
                arguments = ("topic", "copy", topic, target, "--to", target_bootstrap, "--follow", "--state", state)
                with started(bootstrap, *arguments, "--json", "--rate", "2000") as process:
                    produce(bootstrap, topic, lines(3_000, total), "--format", "json")
                    total += 3_000
                    wait_until(lambda: ends(target_bootstrap, target) > total - 2_000, "it copies", 60.0)  # noqa: B023
                    process.send_signal(signal.SIGINT)
                    output, errors = process.communicate(timeout=COMMAND_SECONDS)
                    assert process.returncode == 0, errors
                    assert json.loads(output)["records"] > 0
            self.copy(bootstrap, target_bootstrap, topic, target, "--state", state)
            found = sorted(int(each["headers"][0]["value"]) for each in consumed(target_bootstrap, target))
            assert found == list(range(total))

    def test_a_killed_copy_loses_nothing(self, bootstrap: str, target_bootstrap: str, tmp_path: Path) -> None:
        state = tmp_path / "state.json"
        with (
            new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *THREE, "--config", "retention.ms=-1") as target,
        ):
            produce(bootstrap, topic, lines(4_000), "--format", "json")
            arguments = ("topic", "copy", topic, target, "--to", target_bootstrap, "--state", str(state))
            with started(bootstrap, *arguments, "--rate", "400") as process:
                wait_until(lambda: ends(target_bootstrap, target) > 0, "it copies", 60.0)
                process.kill()
                process.wait()
            assert ends(target_bootstrap, target) < 4_000
            self.copy(bootstrap, target_bootstrap, topic, target, "--state", str(state))
            found = [int(each["headers"][0]["value"]) for each in consumed(target_bootstrap, target)]
            assert set(found) == set(range(4_000))

    def test_a_transactional_copy_that_is_killed_again_and_again_has_each_record_once(
        self, bootstrap: str, target_bootstrap: str
    ) -> None:
        with (
            new_topic(bootstrap, *THREE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *THREE, "--config", "retention.ms=-1") as target,
        ):
            produce(bootstrap, topic, lines(4_000), "--format", "json")
            arguments = (topic, target, "--to", target_bootstrap, "--transactional", target, "--partitions", "key")
            for least in (1, 400, 800):
                with started(bootstrap, "topic", "copy", *arguments, "--rate", "500") as process:
                    is_copied = lambda: ends(target_bootstrap, target, is_committed=True) >= least  # noqa: E731, B023
                    wait_until(is_copied, f"{least} are copied", 60.0)
                    process.kill()
                    process.wait()
            done = barnabas(bootstrap, "topic", "copy", *arguments, "--json")
            assert 0 < done.document["records"] < 4_000
            assert f"Goes on from group {target}." in done.errors
            found = sorted(int(each["headers"][0]["value"]) for each in committed(target_bootstrap, target))
            assert found == list(range(4_000))
            assert barnabas(bootstrap, "topic", "copy", *arguments, "--json").document["records"] == 0
            with new_topic(bootstrap, *THREE) as other:
                refused = barnabas(bootstrap, "topic", "copy", other, *arguments[1:])
                assert refused.status == 1
                assert "keeps the offsets of something else" in refused.errors

    def test_of_two_copies_of_one_name_the_first_one_ends(self, bootstrap: str, target_bootstrap: str) -> None:
        with (
            new_topic(bootstrap, *ONE, "--config", "retention.ms=-1") as topic,
            new_topic(target_bootstrap, *ONE, "--config", "retention.ms=-1") as target,
        ):
            arguments = ("topic", "copy", topic, target, "--to", target_bootstrap, "--transactional", target)
            with started(bootstrap, *arguments, "--follow") as first:
                produce(bootstrap, topic, lines(100, partitions=1), "--format", "json")
                wait_until(lambda: len(committed(target_bootstrap, target)) == 100, "it copies", 60.0)
                assert barnabas(bootstrap, *arguments).status == 0
                produce(bootstrap, topic, lines(100, 100, partitions=1), "--format", "json")
                _, errors = first.communicate(timeout=COMMAND_SECONDS)
                assert first.returncode == 1
                assert b"another copy has taken over" in errors
            assert barnabas(bootstrap, *arguments).status == 0
            found = [int(each["headers"][0]["value"]) for each in committed(target_bootstrap, target)]
            assert found == list(range(200))

    @pytest.mark.parametrize(("isolation", "expected"), [("committed", ["a"]), ("uncommitted", ["a", "b", "c"])])
    def test_what_is_not_committed_stays(
        self, bootstrap: str, target_bootstrap: str, isolation: str, expected: list[str]
    ) -> None:
        with new_topic(bootstrap, *ONE) as topic, new_topic(target_bootstrap, *ONE) as target:
            producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
            producer.init_transactions(COMMAND_SECONDS)
            for value, ends in (("a", "commit"), ("b", "abort"), ("c", "")):
                producer.begin_transaction()
                producer.produce(topic, value.encode(), partition=0)
                assert producer.flush(COMMAND_SECONDS) == 0
                if ends:
                    getattr(producer, f"{ends}_transaction")(COMMAND_SECONDS)
            done = self.copy(bootstrap, target_bootstrap, topic, target, "--isolation", isolation)
            (partition,) = done["partitions"]
            # The transaction that is open begins at 4, behind two records and two markers.
            assert partition["next_offset"] == partition["end_offset"] == (4 if isolation == "committed" else 5)
            assert [each["value"] for each in consumed(target_bootstrap, target)] == expected
            producer.abort_transaction(COMMAND_SECONDS)

    def test_what_cannot_be_is_refused(
        self, bootstrap: str, target_bootstrap: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with new_topic(bootstrap, *ONE) as topic:
            same = barnabas(bootstrap, "topic", "copy", topic, topic)
            assert (same.status, same.output) == (1, "")
            assert "cannot be copied to itself" in same.errors
            assert barnabas(bootstrap, "topic", "copy", f"{topic}-x", topic).status == 4
            assert barnabas(bootstrap, "topic", "copy", f"{topic}:7", f"{topic}-y").status == 4
            missing = barnabas(bootstrap, "topic", "copy", topic, f"{topic}-x", "--to", target_bootstrap)
            assert missing.status == 4
            internal = barnabas(bootstrap, "topic", "copy", topic, "__consumer_offsets", "--to", target_bootstrap)
            assert internal.status == 1
            monkeypatch.setattr(connection, "CONNECT_TIMEOUT_MS", 500)
            nobody = barnabas(bootstrap, "topic", "copy", topic, topic, "--to", "127.0.0.1:1")
            assert nobody.status == 3
            assert "127.0.0.1:1" in nobody.errors
