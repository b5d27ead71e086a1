"""What the commands that change a cluster do on any cluster of the Kafka protocol.

Run on Barnabas in tests/cluster and on Apache Kafka in tests/interop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.command_suite import barnabas, fill, fresh, member, new_topic
from tests.support.waiting import wait_until


def broker_of(bootstrap: str) -> int:
    """The id of the broker at this address."""
    brokers = barnabas(bootstrap, "cluster", "describe", "--json").document["brokers"]
    (node_id,) = [broker["id"] for broker in brokers if f"{broker['host']}:{broker['port']}" == bootstrap]
    return int(node_id)


def configs(bootstrap: str, resource: str, *keys: str) -> dict[str, tuple[Any, Any]]:
    """Value and source of each config that `config get` shows."""
    found = barnabas(bootstrap, "config", "get", resource, *keys, "--json").document["configs"]
    return {each["name"]: (each["value"], each["source"]) for each in found}


def committed(bootstrap: str, group: str) -> list[int | None]:
    """The offsets of a group of one topic, by partition."""
    (found,) = barnabas(bootstrap, "group", "describe", group, "--json").document["groups"]
    return [each["offset"] for each in found["partitions"]]


class AdminCommandSuite:
    """Subclasses give the fixture `bootstrap`, the address of one broker."""

    def test_configs_of_a_topic(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--config", "retention.ms=123456") as topic, new_topic(bootstrap) as other:
            resource = f"topic:{topic}"
            assert configs(bootstrap, resource)["retention.ms"] == ("123456", "topic")
            done = barnabas(
                bootstrap, "config", "set", resource, "retention.ms=5000", "cleanup.policy+=compact", "--dry-run"
            )
            assert done.rows[1:] == ["retention.ms 123456 5000", "cleanup.policy delete delete,compact"], done.errors
            assert configs(bootstrap, resource)["retention.ms"] == ("123456", "topic")
            done = barnabas(bootstrap, "config", "set", resource, "retention.ms=5000", "cleanup.policy+=compact")
            assert done.rows[1:] == ["retention.ms 123456 5000", "cleanup.policy delete delete,compact"], done.errors
            found = configs(bootstrap, resource, "retention.*", "cleanup.policy")
            assert found["retention.ms"] == ("5000", "topic")
            assert found["cleanup.policy"] == ("delete,compact", "topic")
            assert found["retention.bytes"] == ("-1", "default")
            assert barnabas(bootstrap, "config", "diff", resource).rows[1:] == [
                "cleanup.policy delete,compact delete",
                "retention.ms 5000 604800000",
            ]
            assert barnabas(bootstrap, "config", "diff", resource, f"topic:{other}").rows[1:] == [
                "cleanup.policy delete,compact delete",
                "retention.ms 5000 604800000",
            ]
            done = barnabas(bootstrap, "config", "unset", resource, "retention.ms", "cleanup.policy")
            assert done.rows[1:] == ["retention.ms 5000 604800000", "cleanup.policy delete,compact delete"]
            assert barnabas(bootstrap, "config", "diff", resource).output == ""

    def test_what_a_topic_cannot_be_set_to(self, bootstrap: str) -> None:
        with new_topic(bootstrap) as topic:
            done = barnabas(bootstrap, "config", "set", f"topic:{topic}", "retention.ms=soon")
            assert (done.status, done.output) == (1, "")
            assert done.errors.endswith("(INVALID_CONFIG)\n")
            done = barnabas(bootstrap, "config", "set", f"topic:{topic}", "retention.mss=1")
            assert (done.status, done.output) == (4, "")
            assert done.errors.endswith("has no config retention.mss; did you mean retention.ms?\n")
            gone = barnabas(bootstrap, "config", "set", f"topic:{topic}-gone", "retention.ms=1")
            assert gone.status == 4, gone.errors

    def test_configs_of_one_broker_and_of_all(self, bootstrap: str) -> None:
        one = f"broker:{broker_of(bootstrap)}"
        key = "log.cleaner.io.buffer.load.factor"
        assert configs(bootstrap, one)["broker.id"] == (one.partition(":")[2], "server_properties")
        assert barnabas(bootstrap, "config", "set", "broker:default", f"{key}=0.7").status == 0
        try:
            assert barnabas(bootstrap, "config", "set", one, f"{key}=0.6").rows[1:] == [f"{key} 0.7 0.6"]
            assert configs(bootstrap, one)[key] == ("0.6", "broker")
            assert configs(bootstrap, "broker:default") == {key: ("0.7", "all_brokers")}
            assert f"{key} 0.6 0.9" in barnabas(bootstrap, "config", "diff", one).rows
            assert barnabas(bootstrap, "config", "unset", one, key).rows[1:] == [f"{key} 0.6 0.7"]
        finally:
            done = barnabas(bootstrap, "config", "unset", "broker:default", key)
        assert done.rows[1:] == [f"{key} 0.7 0.9"]
        assert configs(bootstrap, one, key) == {key: ("0.9", "default")}
        done = barnabas(bootstrap, "config", "set", one, "broker.id=77")
        assert (done.status, done.output) == (1, "")
        assert "cannot be changed while a broker runs" in done.errors

    def test_levels_of_loggers(self, bootstrap: str) -> None:
        loggers = f"logger:{broker_of(bootstrap)}"
        before = configs(bootstrap, loggers)
        name = min(name for name in before if name != "root")
        done = barnabas(bootstrap, "config", "set", loggers, f"{name}=ERROR")
        assert done.rows[1:] == [f"{name} {before[name][0]} ERROR"], done.errors
        assert configs(bootstrap, loggers, name) == {name: ("ERROR", "logger")}
        done = barnabas(bootstrap, "config", "unset", loggers, name)
        assert (done.status, done.errors) == (0, "")
        assert barnabas(bootstrap, "config", "set", loggers, f"{name}=LOUD").status == 1

    def test_a_topic_gets_partitions_and_configs(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as topic:
            options = ("--partitions", "5", "--config", "retention.ms=7000")
            done = barnabas(bootstrap, "topic", "alter", topic, *options, "--dry-run")
            assert (done.status, done.rows[0]) == (0, f"Topic {topic}: 5 partitions, before 2."), done.errors
            (found,) = barnabas(bootstrap, "topic", "describe", topic, "--json").document["topics"]
            assert (len(found["partitions"]), found["configs"]) == (2, {})
            done = barnabas(bootstrap, "topic", "alter", topic, *options)
            assert done.rows == [
                f"Topic {topic}: 5 partitions, before 2.",
                "Config Before After",
                "retention.ms 604800000 7000",
            ]
            (found,) = barnabas(bootstrap, "topic", "describe", topic, "--json").document["topics"]
            assert [each["state"] for each in found["partitions"]] == ["ok"] * 5
            assert found["configs"] == {"retention.ms": "7000"}
            fewer = barnabas(bootstrap, "topic", "alter", topic, "--partitions", "4")
            assert (fewer.status, fewer.output) == (1, "")
            assert "has 5 partitions, and none can be taken away" in fewer.errors
            assert barnabas(bootstrap, "topic", "alter", topic, "--partitions", "5").status == 0
            refused = barnabas(
                *(bootstrap, "topic", "alter", topic, "--partitions", "6"),
                *("--config", "retention.ms=soon"),
            )
            assert refused.errors.endswith("(INVALID_CONFIG)\n")
            (found,) = barnabas(bootstrap, "topic", "describe", topic, "--json").document["topics"]
            assert len(found["partitions"]) == 5

    def test_a_group_is_reset_and_goes(self, bootstrap: str, tmp_path: Path) -> None:
        group = fresh("reset")
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as topic:
            fill(bootstrap, topic, 2, 10)
            options = ("--to", "4", "--topic", topic)
            unknown = barnabas(bootstrap, "group", "reset", group, *options)
            assert (unknown.status, unknown.output) == (4, "")
            begun = barnabas(bootstrap, "group", "reset", group, *options, "--create", "--execute")
            assert begun.rows[1:] == [f"{topic} 0 - 4 10 - 6", f"{topic} 1 - 4 10 - 6"], begun.errors
            assert committed(bootstrap, group) == [4, 4]

            shown = barnabas(bootstrap, "group", "reset", group, "--to", "-3")
            assert shown.rows[1:] == [f"{topic} 0 4 7 10 6 3", f"{topic} 1 4 7 10 6 3"], shown.errors
            assert committed(bootstrap, group) == [4, 4]
            for wish, expected in (
                (("--shift", "2"), [6, 6]),
                (("--to", "earliest", "--topic", f"{topic}:1"), [6, 0]),
                (("--to", "2h"), [0, 0]),
                (("--to", "latest", "--topic", f"{topic}:0"), [10, 0]),
                (("--to", "2001-01-01"), [0, 0]),
                (("--to", "77"), [10, 10]),
            ):
                done = barnabas(bootstrap, "group", "reset", group, *wish, "--execute")
                assert done.status == 0, done.errors
                assert committed(bootstrap, group) == expected
            file = tmp_path / "offsets.csv"
            file.write_text(f"{topic},0,1\n{topic},1,2\n")
            assert barnabas(bootstrap, "group", "reset", group, "--from-file", str(file), "--execute").status == 0

            with member(bootstrap, group, topic, 2):
                refused = barnabas(bootstrap, "group", "reset", group, "--to", "latest", "--execute")
                assert (refused.status, refused.output) == (1, "")
                assert "has 1 member: the-reader at " in refused.errors
                assert barnabas(bootstrap, "group", "delete", group).status == 1
                kept = barnabas(bootstrap, "group", "delete-offsets", group, "--topic", topic)
                assert (kept.status, kept.output) == (1, ""), kept.errors
            assert committed(bootstrap, group) == [1, 2]
            gone = barnabas(bootstrap, "group", "delete-offsets", group, "--topic", f"{topic}:1", "--json").document
            assert gone["deleted"] == [{"topic": topic, "partition": 1, "offset": 2}]
            assert committed(bootstrap, group) == [1]
            assert barnabas(bootstrap, "group", "delete", group).output == f"Deleted group {group}, with 1 offset.\n"
            assert barnabas(bootstrap, "group", "delete", group).status == 4

    def test_offsets_and_deleted_records(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as topic:
            fill(bootstrap, topic, 2, 10)
            assert barnabas(bootstrap, "offsets", topic).rows[1:] == [f"{topic} 0 0 10 10", f"{topic} 1 0 10 10"]
            assert barnabas(bootstrap, "records", "delete", topic, "--before", "4").rows[1:] == [
                f"{topic} 0 0 4 10 4",
                f"{topic} 1 0 4 10 4",
            ]
            assert barnabas(bootstrap, "offsets", f"{topic}:1").rows[1:] == [f"{topic} 1 0 10 10"]
            done = barnabas(bootstrap, "records", "delete", topic, "--before", "4", "--execute")
            assert (done.status, done.errors) == (0, "Deleted 8 offsets.\n")
            done = barnabas(bootstrap, "records", "delete", f"{topic}:1", "--before", "latest", "--execute")
            assert (done.status, done.errors) == (0, "Deleted 6 offsets.\n")
            assert barnabas(bootstrap, "offsets", topic, "--at", "2h").rows[1:] == [
                f"{topic} 0 4 10 6 4 6",
                f"{topic} 1 10 10 0 10 0",
            ]
            assert barnabas(bootstrap, "offsets", f"{topic}:2").status == 4
            assert barnabas(bootstrap, "config", "set", f"topic:{topic}", "cleanup.policy=compact").status == 0

            def is_refused() -> bool:
                done = barnabas(bootstrap, "records", "delete", f"{topic}:0", "--before", "-1", "--execute")
                return done.status == 1 and "a topic that is only compacted keeps its records" in done.errors

            # The leader learns of the new policy by and by.
            wait_until(is_refused, "the leader refuses it")
            refused = barnabas(bootstrap, "records", "delete", "__consumer_offsets", "--before", "latest", "--execute")
            assert refused.status in {1, 4}

    def test_the_health_of_a_whole_cluster(self, bootstrap: str) -> None:
        with new_topic(bootstrap):
            done = barnabas(bootstrap, "cluster", "health")
            assert (done.status, done.errors) == (0, ""), done.output
            assert done.output.startswith("All is well: ")
            assert barnabas(bootstrap, "cluster", "health", "--json").document == {"problems": []}

    def test_quotas_are_set_shown_and_removed(self, bootstrap: str) -> None:
        who = ("--user", "Ann B", "--default-client-id")
        done = barnabas(bootstrap, "quota", "set", *who, "producer_byte_rate=1000000", "request_percentage=12.5")
        assert (done.status, done.errors) == (0, ""), done.output
        rows = [
            "User Client id Address Quota Value",
            "Ann B <default> - producer_byte_rate 1000000",
            "Ann B <default> - request_percentage 12.5",
        ]
        assert done.rows == rows
        done = barnabas(bootstrap, "quota", "set", "--ip", "127.0.0.1", "connection_creation_rate=100000", "--json")
        address = {"entity": {"ip": "127.0.0.1"}, "values": {"connection_creation_rate": 100000.0}}
        assert done.document == {"quotas": [address]}
        assert barnabas(bootstrap, "quota", "list", "--user", "Ann B").rows == rows
        assert barnabas(bootstrap, "quota", "list").rows == [*rows, "- - 127.0.0.1 connection_creation_rate 100000"]
        done = barnabas(bootstrap, "quota", "unset", *who, "request_percentage")
        assert (done.status, done.rows) == (0, rows[:2])
        assert barnabas(bootstrap, "quota", "set", "--user", "x", "producer_byte_rate=1.5").status == 1
        for arguments in (who, ("--ip", "127.0.0.1")):
            done = barnabas(bootstrap, "quota", "unset", *arguments, "--all")
            assert (done.status, done.output, done.errors) == (0, "", "No quota is set.\n")
        assert barnabas(bootstrap, "quota", "list", "--json").document == {"quotas": []}

    def test_nobody_is_elected_where_leaders_are_as_they_should_be(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "2", "--replication-factor", "1") as topic:
            done = barnabas(bootstrap, "elect", "preferred", "--topic", topic)
            assert (done.status, done.output) == (0, ""), done.errors
            assert done.errors == "2 partitions had the preferred leader already.\n"
            done = barnabas(bootstrap, "elect", "unclean", "--topic", f"{topic}:1", "--json")
            assert done.document == {"election_type": "unclean", "partitions": []}
            assert barnabas(bootstrap, "elect", "preferred", "--topic", f"{topic}:2").status == 4
