"""What `barnabas reassign` does on any cluster of the Kafka protocol with brokers 1, 2 and 3.

Run on Barnabas in tests/cluster and on Apache Kafka in tests/interop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.admin_command_suite import configs
from tests.support.command_suite import barnabas, fill, fill_in_batches, new_topic
from tests.support.waiting import wait_until

COPY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate", COPY_RATE)
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
TOPIC = ("--partitions", "4", "--replication-factor", "2")
DIRECTORIES = ("a", "b")
"""The log directories of each broker of the cluster."""
PIECES = {"replica.fetch.max.bytes": 65_536}
"""What its brokers are configured with: a copy is made in many pieces, so that a throttle holds it back."""


def replicas(bootstrap: str, topic: str) -> list[list[int]]:
    """The brokers of each partition."""
    (found,) = barnabas(bootstrap, "topic", "describe", topic, "--json").document["topics"]
    return [each["replicas"] for each in found["partitions"]]


def directories(bootstrap: str, topic: str) -> tuple[dict[int, list[str]], dict[tuple[int, int], str]]:
    """The log directories of each broker, and in which of them each partition is at each broker."""
    brokers = barnabas(bootstrap, "log-dirs", "describe", topic, "--json").document["brokers"]
    places = [(each["id"], directory) for each in brokers for directory in each["log_directories"]]
    return {each["id"]: [directory["path"] for directory in each["log_directories"]] for each in brokers}, {
        (log["partition"], broker_id): directory["path"]
        for broker_id, directory in places
        for log in directory["replicas"]
    }


def throttles(bootstrap: str, topic: str) -> set[Any]:
    """What is set of throttles, at the topic and at the brokers."""
    return {
        (resource, name, value)
        for resource in (f"topic:{topic}", *(f"broker:{each}" for each in (1, 2, 3)))
        for name, (value, source) in configs(bootstrap, resource).items()
        if name in (*RATES, *LISTS) and source in {"broker", "topic"}
    }


class ReassignCommandSuite:
    """Subclasses give the fixture `bootstrap`, the address of one broker."""

    def test_a_broker_is_drained_and_filled_again(self, bootstrap: str, tmp_path: Path) -> None:
        with new_topic(bootstrap, *TOPIC) as topic:
            fill(bootstrap, topic, 4, 50)
            before = replicas(bootstrap, topic)
            options = ("--topic", topic, "--measure", "0s")
            plan, back = tmp_path / "plan.json", tmp_path / "back.json"
            done = barnabas(bootstrap, "reassign", "plan", "--drain", "3", *options, "--save", str(plan))
            assert (done.status, "Nothing was moved: `barnabas reassign execute" in done.errors) == (0, True), (
                done.errors
            )
            assert replicas(bootstrap, topic) == before
            moved = {each["partition"] for each in json.loads(plan.read_text())["partitions"]}
            assert moved == {number for number, each in enumerate(before) if 3 in each}
            for each in json.loads(plan.read_text())["partitions"]:
                # Brokers have two directories: which of them is chosen for what comes to them, and no other.
                are_chosen = [path != "any" for path in each["log_dirs"]]
                assert are_chosen == [node_id not in before[each["partition"]] for node_id in each["replicas"]]

            # What somebody else has set is there afterwards.
            others = [(f"topic:{topic}", LISTS[0], "99:1"), ("broker:1", COPY_RATE, "123456789")]
            for resource, name, value in others:
                assert barnabas(bootstrap, "config", "set", resource, f"{name}={value}").status == 0
            wait_until(lambda: throttles(bootstrap, topic) == {*others}, "the throttles of others are set")
            arguments = ("--throttle", "50MiB", "--save-current", str(back))
            done = barnabas(bootstrap, "reassign", "execute", str(plan), *arguments)
            assert done.status == 0, done.errors
            assert done.errors.splitlines()[-1].startswith("Done: ")
            assert not any(3 in each for each in replicas(bootstrap, topic))
            wait_until(lambda: throttles(bootstrap, topic) == {*others}, "only the throttles of others are left")
            for resource, name, _ in others:
                assert barnabas(bootstrap, "config", "unset", resource, name).status == 0
            done = barnabas(bootstrap, "reassign", "status", str(plan), "--json")
            assert {each["state"] for each in done.document["partitions"]} == {"done"}
            assert barnabas(bootstrap, "reassign", "status", str(back)).status == 1

            filled = barnabas(bootstrap, "reassign", "plan", "--onto", "3", *options, "--json").document
            assert all(3 in each["after"] for each in filled["moves"])
            assert barnabas(bootstrap, "reassign", "execute", str(back)).status == 0
            assert replicas(bootstrap, topic) == before

    def test_replicas_go_into_other_directories_and_back(self, bootstrap: str, tmp_path: Path) -> None:
        with new_topic(bootstrap, *TOPIC) as topic:
            fill(bootstrap, topic, 4, 50)
            brokers = replicas(bootstrap, topic)
            known, before = directories(bootstrap, topic)
            wanted = {
                (number, node_id): next(path for path in known[node_id] if path != before[number, node_id])
                for number in (0, 1)
                for node_id in brokers[number]
            }
            # One of them onto a broker that does not have it, and into the directory that it would not choose last.
            kept, gone = brokers[1]
            (other,) = {1, 2, 3} - {kept, gone}
            del wanted[1, gone]
            wanted[1, other] = known[other][-1]
            targets = {0: brokers[0], 1: [kept, other]}
            entries = [
                {"topic": topic, "partition": each, "replicas": on, "log_dirs": [wanted[each, node] for node in on]}
                for each, on in targets.items()
            ]
            plan, back = tmp_path / "plan.json", tmp_path / "back.json"
            plan.write_text(json.dumps({"version": 1, "partitions": entries}))
            assert barnabas(bootstrap, "reassign", "status", str(plan)).status == 1
            options = ("--throttle", "50MiB", "--directory-throttle", "50MiB", "--save-current", str(back))
            done = barnabas(bootstrap, "reassign", "execute", str(plan), *options)
            assert done.status == 0, done.errors
            assert done.errors.splitlines()[-1] == "Done: 1 partition, 3 replicas between log directories."
            _, after = directories(bootstrap, topic)
            assert {each: after[each] for each in wanted} == wanted
            wait_until(lambda: throttles(bootstrap, topic) == set(), "the throttles are gone")
            status = barnabas(bootstrap, "reassign", "status", str(plan), "--json").document
            assert {each["state"] for each in status["directories"]} == {"done"}
            done = barnabas(bootstrap, "reassign", "execute", str(back))
            assert done.status == 0, done.errors
            assert replicas(bootstrap, topic) == brokers
            # A broker that is rid of a replica deletes it a little later.
            wait_until(lambda: directories(bootstrap, topic)[1] == before, "all are where they were")

    def test_a_replica_on_its_way_to_a_directory_is_held_back_shown_and_cancelled(
        self, bootstrap: str, tmp_path: Path
    ) -> None:
        with new_topic(bootstrap, "--partitions", "1", "--replication-factor", "1") as topic:
            fill_in_batches(bootstrap, topic, 40, 100_000)
            ((broker_id,),) = replicas(bootstrap, topic)
            known, before = directories(bootstrap, topic)
            target = next(path for path in known[broker_id] if path != before[0, broker_id])
            assert barnabas(bootstrap, "config", "set", f"broker:{broker_id}", f"{COPY_RATE}=1000").status == 0
            plan = tmp_path / "plan.json"
            entry = {"topic": topic, "partition": 0, "replicas": [broker_id], "log_dirs": [target]}
            plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
            done = barnabas(bootstrap, "reassign", "execute", str(plan), "--no-wait")
            assert (done.status, done.errors.partition(";")[0]) == (0, "Begun: 1 replica between log directories")
            (found,) = barnabas(bootstrap, "reassign", "status", "--json").document["directories"]
            assert found.pop("copied_bytes") < found.pop("total_bytes")
            assert found == {
                "topic": topic,
                "partition": 0,
                "broker": broker_id,
                "state": "moving",
                "directory": before[0, broker_id],
                "target": target,
            }
            done = barnabas(bootstrap, "reassign", "cancel", topic)
            assert done.status == 0, done.errors
            assert done.errors.splitlines()[-1] == "Cancelled: 1 replica between log directories."
            assert directories(bootstrap, topic)[1] == before
            wait_until(lambda: throttles(bootstrap, topic) == set(), "the throttle is gone")
            assert barnabas(bootstrap, "reassign", "status", str(plan)).status == 1

    def test_what_is_being_moved_is_left_alone_but_for_additional(self, bootstrap: str, tmp_path: Path) -> None:
        with new_topic(bootstrap, "--partitions", "1", "--replication-factor", "1") as topic:
            fill_in_batches(bootstrap, topic, 40, 100_000)
            before = replicas(bootstrap, topic)
            ((node_id,),) = before
            # Somebody holds all copies back, so that the first move goes on.
            for resource, pairs in (
                *((f"broker:{each}", [f"{name}=1000" for name in RATES[:2]]) for each in (1, 2, 3)),
                (f"topic:{topic}", [f"{name}=*" for name in LISTS]),
            ):
                assert barnabas(bootstrap, "config", "set", resource, *pairs).status == 0
            wait_until(lambda: len(throttles(bootstrap, topic)) == 8, "the throttles are set")
            others = throttles(bootstrap, topic)

            for name, target in (("away", [node_id % 3 + 1]), ("back", [node_id])):
                entry = {"topic": topic, "partition": 0, "replicas": target}
                (tmp_path / name).write_text(json.dumps({"version": 1, "partitions": [entry]}))
            away, back = str(tmp_path / "away"), str(tmp_path / "back")
            done = barnabas(bootstrap, "reassign", "execute", away, "--no-wait")
            assert done.status == 0, done.errors
            first, second = sorted((node_id, node_id % 3 + 1))
            left = f"though nothing is being moved: brokers {first}, {second}, topic {topic}."
            assert f"Throttles are set already, {left}" in done.errors
            refused = barnabas(bootstrap, "reassign", "execute", back)
            assert (refused.status, "partitions are being moved already: " in refused.errors) == (1, True)
            # Where it was, which looks as if there were nothing to do.
            done = barnabas(bootstrap, "reassign", "execute", back, "--additional")
            assert (done.status, "Throttles" in done.errors) == (0, False), done.errors
            wait_until(lambda: replicas(bootstrap, topic) == before, "it is where it was")
            assert barnabas(bootstrap, "reassign", "status", "--json").document["partitions"] == []
            assert throttles(bootstrap, topic) == others
            assert barnabas(bootstrap, "reassign", "cancel", topic).status == 4
            assert throttles(bootstrap, topic) == others
            assert barnabas(bootstrap, "reassign", "cancel", "--all").status == 0
            wait_until(lambda: throttles(bootstrap, topic) == set(), "the throttles are gone")

    def test_what_makes_no_sense_moves_nothing(self, bootstrap: str, tmp_path: Path) -> None:
        with new_topic(bootstrap, *TOPIC) as topic:
            before = replicas(bootstrap, topic)
            file = tmp_path / "plan.json"
            for target, status, error in (
                ([1, 9], 4, "there is no broker 9; the cluster has 1, 2, 3"),
                ([1, 1], 1, "would have two replicas on one broker: 1, 1"),
                ([], 1, "would have no replica"),
                (["1"], 1, "are no replicas"),
            ):
                entry = {"topic": topic, "partition": 0, "replicas": target}
                file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
                done = barnabas(bootstrap, "reassign", "execute", str(file))
                assert (done.status, done.output) == (status, ""), done.errors
                assert error in done.errors
            for name, partition in ((f"{topic}-gone", 0), (topic, 4)):
                entry = {"topic": name, "partition": partition, "replicas": [1]}
                file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
                assert barnabas(bootstrap, "reassign", "execute", str(file)).status == 4
            assert barnabas(bootstrap, "reassign", "execute", "/no/such/file").status == 4
            drained = barnabas(bootstrap, "reassign", "plan", *("--drain", "2", "--drain", "3", "--measure", "0s"))
            assert drained.status == 1
            assert "replicas, and only 1 would be left of the brokers: add some first" in drained.errors
            unknown = barnabas(bootstrap, "reassign", "plan", "--onto", "9")
            assert (unknown.status, "there is no broker 9; the cluster has 1, 2, 3" in unknown.errors) == (4, True)
            assert replicas(bootstrap, topic) == before
            assert barnabas(bootstrap, "reassign", "cancel", topic).status == 4

    def test_throttles_that_are_left_are_told_and_removed(self, bootstrap: str) -> None:
        with new_topic(bootstrap, *TOPIC) as topic:
            assert barnabas(bootstrap, "config", "set", f"topic:{topic}", f"{LISTS[0]}=0:1").status == 0
            assert barnabas(bootstrap, "config", "set", "broker:2", f"{RATES[1]}=5000").status == 0
            done = barnabas(bootstrap, "reassign", "status")
            assert f"Throttles are set: broker 2, topic {topic}." in done.errors
            assert "`barnabas reassign cancel --all` removes them" in done.errors
            assert barnabas(bootstrap, "reassign", "cancel", "--all").status == 0
            wait_until(lambda: throttles(bootstrap, topic) == set(), "the throttles are gone")
