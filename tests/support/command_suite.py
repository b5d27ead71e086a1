"""What `barnabas topic`, `group`, `cluster` and `controller show` do on any cluster of the Kafka protocol.

Run on Barnabas in tests/cluster and on Apache Kafka in tests/interop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from barnabas.cli import completed_names
from barnabas.cli.main import main
from barnabas.cli.shells import SHELLS
from tests.support.command_runs import Done, run_barnabas
from tests.support.waiting import wait_until

GROUP_SECONDS = 90.0
BATCHES_SECONDS = 120.0
_numbers = itertools.count()


def barnabas(bootstrap: str, *arguments: str) -> Done:
    """Runs `barnabas ARGUMENTS --bootstrap-server BOOTSTRAP`."""
    return run_barnabas(*arguments, "--bootstrap-server", bootstrap)


def fresh(what: str) -> str:
    """A name that no other test of this process has."""
    return f"command-{what}-{next(_numbers)}"


@contextlib.contextmanager
def new_topic(bootstrap: str, *options: str) -> Iterator[str]:
    """A topic for the time of the block."""
    name = fresh("topic")
    done = barnabas(bootstrap, "topic", "create", name, *options)
    assert done.status == 0, done.errors
    yield name
    done = barnabas(bootstrap, "topic", "delete", name)
    assert done.status == 0, done.errors


def fill(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """So many records in each partition."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(partitions * records):
        producer.produce(topic, b"value", partition=number % partitions)
    assert producer.flush(GROUP_SECONDS) == 0


def fill_in_batches(bootstrap: str, topic: str, batches: int, batch_bytes: int) -> None:
    """Records of one size in partition 0, each in a batch of its own, so that logs have the same size everywhere."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "batch.num.messages": 1})
    for _ in range(batches):
        producer.produce(topic, b"v" * batch_bytes, partition=0)
    assert producer.flush(BATCHES_SECONDS) == 0


@contextlib.contextmanager
def member(bootstrap: str, group: str, topic: str, partitions: int) -> Iterator[Consumer]:
    """A member that has all partitions of the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "the-reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    try:
        consumer.subscribe([topic])

        def has_all() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == partitions

        wait_until(has_all, "the member has its partitions", GROUP_SECONDS)
        yield consumer
    finally:
        consumer.close()


class CommandSuite:
    """Subclasses give the fixture `bootstrap`, the address of one broker, and whose software it is."""

    software: str

    def test_a_new_topic_is_seen_by_the_next_command_and_a_deleted_one_is_not(self, bootstrap: str) -> None:
        name = fresh("topic")
        created = barnabas(
            *(bootstrap, "topic", "create", name, "--partitions", "3", "--replication-factor", "1"),
            *("--config", "retention.ms=123456", "--json"),
        ).document["topics"]
        assert [(each["name"], each["partitions"], each["is_new"]) for each in created] == [(name, 3, True)]
        (found,) = barnabas(bootstrap, "topic", "describe", name, "--json").document["topics"]
        assert (found["id"], found["configs"]) == (created[0]["id"], {"retention.ms": "123456"})
        assert len(found["id"]) == 22
        for number, partition in enumerate(found["partitions"]):
            leader = partition["leader"]
            assert leader is not None
            assert partition == {
                "partition": number,
                "leader": leader,
                "leader_epoch": 0,
                "replicas": [leader],
                "isr": [leader],
                "offline_replicas": [],
                "state": "ok",
            }
        listed = barnabas(bootstrap, "topic", "list", "--json").document["topics"]
        assert [each for each in listed if each["name"] == name] == [
            {
                "name": name,
                "id": found["id"],
                "is_internal": False,
                "partitions": 3,
                "replication_factor": 1,
                "under_replicated": 0,
                "without_leader": 0,
            }
        ]
        assert barnabas(bootstrap, "topic", "delete", name, "--json").document == {"deleted": [name], "missing": []}
        assert name not in barnabas(bootstrap, "topic", "list").output
        gone = barnabas(bootstrap, "topic", "describe", name)
        assert (gone.status, gone.errors) == (
            4,
            f"barnabas topic describe: there is no topic {name}; `barnabas topic list` shows which there are\n",
        )
        assert barnabas(bootstrap, "topic", "delete", name).status == 4
        assert barnabas(bootstrap, "topic", "delete", name, "--if-exists").status == 0

    def test_a_doctor_finds_nothing_that_does_not_work(self, bootstrap: str) -> None:
        done = barnabas(bootstrap, "doctor", "--json")
        found = json.loads(done.output)["findings"]
        states = {each["check"]: each["state"] for each in found}
        assert "critical" not in states.values(), found
        assert (states["reachability"], states["versions"]) == ("ok", "ok")
        # The brokers' own, which are on this machine.
        assert "disk_space" in states
        assert (done.status == 0) is ("warning" not in states.values())

    def test_a_shell_is_told_the_names_of_the_cluster(self, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
        # A machine that is busy is not what is tested.
        monkeypatch.setattr(completed_names, "COMPLETION_TIMEOUT_MS", 30_000)

        def completed(line: str) -> list[str]:
            monkeypatch.setenv("_BARNABAS_LINE", f"barnabas {line}")
            return SHELLS["bash"](main, {}, "barnabas", "_BARNABAS_COMPLETE").complete().splitlines()

        group = fresh("a group's")
        brokers = barnabas(bootstrap, "cluster", "describe", "--json").document["brokers"]
        with new_topic(bootstrap, "--partitions", "1", "--replication-factor", "1") as topic:
            options = ("--to", "earliest", "--topic", topic, "--create", "--execute")
            assert barnabas(bootstrap, "group", "reset", group, *options).status == 0
            assert completed(f"topic describe -b {bootstrap} {topic[:-1]}").count(f"plain,{topic}") == 1
            quoted = group.replace("'", "\\'").replace(" ", "\\ ")
            assert f"plain,{quoted}" in completed(f"group describe -b {bootstrap} {quoted[:12]}")
            assert completed(f"config set -b {bootstrap} topic:{topic} retention.m") == ["part,retention.ms="]
            found = completed(f"log-dirs describe -b {bootstrap} --broker ")
            assert sorted(found) == sorted(f"plain,{broker['id']}" for broker in brokers)
            assert barnabas(bootstrap, "group", "delete", group).status == 0

    def test_topics_for_people_and_by_pattern(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as name:
            done = barnabas(bootstrap, "topic", "describe", f"{name[:-1]}?")
            assert f"Topic {name}" in done.rows
            assert "Size 2 partitions, 1 replica each" in done.rows
            assert done.rows[4] == "Partition Leader Epoch Replicas In sync Offline State"
            assert done.rows[5].startswith("0 ")
            assert done.rows[6].endswith(" - ok")
            assert f"{name} 2 1 0 0" in barnabas(bootstrap, "topic", "list").rows

    def test_a_topic_that_is_there_already(self, bootstrap: str) -> None:
        with new_topic(bootstrap) as name:
            again = barnabas(bootstrap, "topic", "create", name)
            assert again.status == 1
            assert "choose another name, or add --if-not-exists to leave it as it is" in again.errors
            again = barnabas(bootstrap, "topic", "create", name, "--if-not-exists", "--json")
            assert [each["is_new"] for each in again.document["topics"]] == [False]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (("--replication-factor", "77"), "INVALID_REPLICATION_FACTOR"),
            (("--config", "no.such.config=1"), "INVALID_CONFIG"),
            (("--config", "retention.ms=soon"), "INVALID_CONFIG"),
        ],
    )
    def test_what_the_brokers_refuse_is_one_line(self, bootstrap: str, options: tuple[str, ...], error: str) -> None:
        name = fresh("refused")
        done = barnabas(bootstrap, "topic", "create", name, *options)
        assert (done.status, done.output) == (1, "")
        (line,) = done.errors.splitlines()
        assert line.startswith(f"barnabas topic create: {name}: ")
        assert line.endswith(f"({error})")

    def test_a_group_with_a_member_and_after_it_has_left(self, bootstrap: str) -> None:
        group = fresh("group")
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as topic:
            fill(bootstrap, topic, 2, 10)
            with member(bootstrap, group, topic, 2) as consumer:
                read = [message for message in consumer.consume(20, GROUP_SECONDS) if message.partition() == 0]
                for message in sorted(read, key=lambda message: message.offset() or 0)[:1]:
                    consumer.commit(message, asynchronous=False)
                committed = (read[0].offset() or 0) + 1
                (found,) = barnabas(bootstrap, "group", "describe", group, "--json").document["groups"]
                self._check_group(found, topic, committed)
                rows = barnabas(bootstrap, "group", "describe", group).rows
                me = found["members"][0]
                assert f"{topic} 0 {committed} 10 {10 - committed} {me['member_id']} {me['host']} the-reader" in rows
                assert f"{topic} 1 - 10 - {me['member_id']} {me['host']} the-reader" in rows
                listed = barnabas(bootstrap, "group", "list", "--state", "Stable", "--json").document["groups"]
                assert [each["coordinator"] for each in listed if each["group_id"] == group] == [
                    found["coordinator"]["id"]
                ]
            (found,) = barnabas(bootstrap, "group", "describe", f"{group[:-1]}?", "--json").document["groups"]
            assert (found["group_id"], found["state"], found["members"]) == (group, "Empty", [])
            assert [(each["partition"], each["offset"], each["member_id"]) for each in found["partitions"]] == [
                (0, committed, None)
            ]
        # Its topic is gone, its offsets may be.
        assert barnabas(bootstrap, "group", "describe", group).status in {0, 4}

    def _check_group(self, found: Any, topic: str, committed: int) -> None:
        assert (found["state"], found["protocol_type"], found["protocol"]) == ("Stable", "consumer", "range")
        assert found["coordinator"]["port"] > 0
        (me,) = found["members"]
        assert (me["client_id"], me["partitions"], me["group_instance_id"]) == ("the-reader", 2, None)
        assert me["host"].count(".") == 3
        assert found["lag"] == 10 - committed
        reader = {"member_id": me["member_id"], "host": me["host"], "client_id": "the-reader"}
        assert found["partitions"] == [
            {
                "topic": topic,
                "partition": 0,
                "offset": committed,
                "end_offset": 10,
                "lag": 10 - committed,
                **reader,
            },
            {"topic": topic, "partition": 1, "offset": None, "end_offset": 10, "lag": None, **reader},
        ]

    def test_a_group_that_is_not_there(self, bootstrap: str) -> None:
        name = fresh("no-group")
        done = barnabas(bootstrap, "group", "describe", name)
        assert (done.status, done.output) == (4, "")
        assert done.errors == (
            f"barnabas group describe: there is no group {name}; `barnabas group list` shows which there are\n"
        )

    def test_the_cluster(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "4", "--replication-factor", "1") as topic:
            fill(bootstrap, topic, 4, 5)
            found = barnabas(bootstrap, "cluster", "describe", "--json").document
            assert len(found["cluster_id"]) == 22
            ids = [broker["id"] for broker in found["brokers"]]
            assert found["controller"] in ids
            assert sum(broker["leads"] for broker in found["brokers"]) == found["partitions"] >= 4
            for broker in found["brokers"]:
                assert broker["software"] == self.software
                (directory,) = broker["log_directories"]
                assert (directory["error"], directory["logs"]) == (None, broker["replicas"])
                assert broker["size_bytes"] == directory["size_bytes"]
                assert directory["total_bytes"] > directory["usable_bytes"] > 0
            assert sum(broker["size_bytes"] for broker in found["brokers"]) > 0
            assert f"{bootstrap}" in [f"{broker['host']}:{broker['port']}" for broker in found["brokers"]]
            assert f"Controller broker {found['controller']}" in barnabas(bootstrap, "cluster", "describe").rows

    def test_logs_are_told_by_who_has_them(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as name:
            fill(bootstrap, name, 2, 10)
            (found,) = barnabas(bootstrap, "topic", "describe", name, "--json").document["topics"]
            brokers = barnabas(bootstrap, "log-dirs", "describe", name, "--json").document["brokers"]
            logs = {
                (broker["id"], log.pop("topic"), log.pop("partition")): log
                for broker in brokers
                for directory in broker["log_directories"]
                for log in directory["replicas"]
            }
            assert {*logs} == {(each["leader"], name, each["partition"]) for each in found["partitions"]}
            for log in logs.values():
                assert log.pop("size_bytes") > 0
                assert log == {"offset_lag": 0, "is_future": False}
            leader = found["partitions"][1]["leader"]
            (row,) = barnabas(bootstrap, "log-dirs", "describe", f"{name}:1", "--broker", str(leader)).rows[4:]
            assert row.startswith(f"{name} 1 {leader} ")
            assert row.endswith(" 0 no")

    def test_the_controller_is_told_by_any_broker(self, bootstrap: str) -> None:
        cluster = barnabas(bootstrap, "cluster", "describe", "--json").document
        (wanted,) = [broker for broker in cluster["brokers"] if broker["id"] == cluster["controller"]]
        for broker in cluster["brokers"]:
            found = barnabas(f"{broker['host']}:{broker['port']}", "controller", "show", "--json").document
            assert {name: found[name] for name in ("id", "host", "port", "software")} == {
                "id": wanted["id"],
                "host": wanted["host"],
                "port": wanted["port"],
                "software": self.software,
            }
        shown = barnabas(bootstrap, "controller", "show")
        assert shown.status == 0
        assert shown.rows[0] == f"Controller broker {wanted['id']} at {wanted['host']}:{wanted['port']}"
        if self.software != "barnabas":
            assert shown.rows[1].endswith("the protocol says no more about it.")
