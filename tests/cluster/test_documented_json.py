"""What docs/commands.md says that `--json` has: every shape of the page, and what commands print on brokers of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.testing import KafkaCluster
from tests.support import hanging_transactions
from tests.support.command_runs import Done, run_barnabas
from tests.support.command_suite import barnabas, fresh, new_topic
from tests.support.data_command_suite import consumed
from tests.support.documented_json import differences, read_shape, sections, shapes
from tests.support.retention import RETENTION_DOES_NOT_RUN

SESSION_MS = 30_000
CONFIG = {
    **RETENTION_DOES_NOT_RUN,
    **hanging_transactions.OVERRIDES,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Page:
    """The page, and what commands print of which it tells."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.held: set[tuple[str, str]] = set()

    def hold(self, section: str, name: str, done: Done, besides: Collection[str] = ()) -> Any:
        """The document that was printed, whose shape the page has; items of its list have these names `besides`."""
        found = done.document
        self.look(section, name, found, besides)
        return found

    def look(self, section: str, name: str, found: Any, besides: Collection[str] = ()) -> None:
        shape = shapes(section)[name]
        if besides:
            (each,) = [key for key, inner in shape.items() if isinstance(inner, list)]
            shape = {**shape, each: [{**shape[each][0], **dict.fromkeys(besides)}]}
        self.held.add((section, name))
        self.wrong += differences(shape, found, f"{section}: {name}")


def of(bootstrap: str) -> Callable[..., Done]:
    """Runs commands with --json at these brokers."""
    return lambda *arguments: barnabas(bootstrap, *arguments, "--json")


def test_json_has_the_names_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page()
    monkeypatch.setenv("BARNABAS_USER_PASSWORD", "ann's own")
    monkeypatch.setenv("BARNABAS_PROFILES", str(tmp_path / "profiles.toml"))
    with KafkaCluster(2, session_timeout_ms=SESSION_MS) as two:
        _look_at_two_brokers(page, two.bootstrap_servers, tmp_path)
    with KafkaCluster(config=CONFIG, directory=str(tmp_path / "one"), session_timeout_ms=SESSION_MS) as one:
        _look_at_access_and_transactions(page, one.bootstrap_servers)
        _look_at_files(page, tmp_path / "one" / "broker-1" / "data")
    assert page.wrong == []
    assert {(title, name) for title in sections() for name in shapes(title)} - page.held == set()


def _look_at_two_brokers(page: Page, two: str, tmp_path: Path) -> None:
    run, group, new = of(two), fresh("group"), fresh("topic")
    lines, plan = tmp_path / "lines.txt", tmp_path / "plan.json"
    lines.write_text("a\nb\n")
    with new_topic(two, "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=5000000") as topic:
        page.hold("Records", "", run("produce", topic, "--file", str(lines)))
        page.hold("Topics", "list", run("topic", "list"))
        page.hold("Topics", "describe", run("topic", "describe", topic))
        altering = ("topic", "alter", topic, "--config", "retention.ms=6000000", "--partitions", "3")
        page.hold("Topics", "alter", run(*altering))
        made = page.hold("Topics", "create", run("topic", "create", new, "--replication-factor", "1"))
        (listed,) = shapes("Topics")["list"]["topics"]
        page.wrong += differences({**listed, "is_new": None}, made["topics"][0], "Topics: create")
        page.hold("Topics", "", run("topic", "stats", topic, "--measure", "0s"))
        page.hold("Topics", "copy", run("topic", "copy", topic, new, "--partitions", "key"))
        exported = str(tmp_path / "exported")
        page.hold("Topics", "topic export", run("topic", "export", topic, exported))
        page.look("Topics", "copy", run("topic", "import", exported, new, "--partitions", "key").document)
        page.hold("Topics", "delete", run("topic", "delete", new))
        page.hold("Configs", "get", run("config", "get", f"topic:{topic}"))
        page.hold("Configs", "set", run("config", "set", f"topic:{topic}", "retention.ms=7000000"))
        page.hold("Configs", "diff", run("config", "diff", f"topic:{topic}"))
        page.hold("Configs", "unset", run("config", "unset", f"topic:{topic}", "retention.ms"))
        page.hold("Records", "offsets", run("offsets", topic))
        page.hold("Records", "offsets", run("offsets", topic, "--at", "-1"), ("offset", "offsets_to_end"))
        _look_at_records(page, consumed(two, topic))
        page.hold("Records", "records delete", run("records", "delete", topic, "--before", "latest"))
        reset = ("group", "reset", group, "--to", "1", "--topic", f"{topic}:0,1", "--create", "--execute")
        page.hold("Groups", "reset", run(*reset))
        page.hold("Groups", "list", run("group", "list"))
        page.hold("Groups", "describe", run("group", "describe", group))
        page.hold("Groups", "delete-offsets", run("group", "delete-offsets", group, "--topic", f"{topic}:1"))
        page.hold("Groups", "delete", run("group", "delete", group))
        page.hold("The cluster", "describe", run("cluster", "describe"))
        page.hold("The cluster", "elect", run("elect", "preferred", "--topic", topic))
        page.hold("The cluster", "health", run("cluster", "health"))
        page.hold("Log directories of brokers", "describe", run("log-dirs", "describe", topic))
        (first, *_) = run("topic", "describe", topic).document["topics"][0]["partitions"]
        planning = ("reassign", "plan", "--topic", topic, "--measure", "0s", "--drain", str(first["leader"]))
        plan.write_text(json.dumps(page.hold("Moving partitions", "plan", run(*planning))))
        page.hold("Moving partitions", "execute", run("reassign", "execute", str(plan)))
        page.hold("Moving partitions", "status", run("reassign", "status", str(plan)))
        page.hold("Moving partitions", "cancel", run("reassign", "cancel", "--all"))
        page.hold("The controller", "show", run("controller", "show"))


def _look_at_records(page: Page, found: Sequence[Any]) -> None:
    (told,) = re.findall(r"JSON: `(\{[^`]*\})`", sections()["Records"])
    assert len(found) == 2
    for each in found:
        page.wrong += differences(read_shape(told), each, "Records: consume")


def _look_at_access_and_transactions(page: Page, one: str) -> None:
    """And at what needs no cluster."""
    run = of(one)
    page.hold("Quotas", "", run("quota", "set", "--user", "ann", "producer_byte_rate=1000"))
    page.hold("Quotas", "", run("quota", "set", "--default-client-id", "request_percentage=12.5"))
    page.hold("Quotas", "", run("quota", "set", "--ip", "127.0.0.3", "connection_creation_rate=7"))
    assert len(page.hold("Quotas", "", run("quota", "list"))["quotas"]) == 3
    page.hold("Quotas", "", run("quota", "unset", "--user", "ann", "--all"))
    page.hold("Users and ACLs", "user set", run("user", "set", "ann"))
    page.hold("Users and ACLs", "user list", run("user", "list"))
    page.hold("Users and ACLs", "user delete", run("user", "delete", "ann"))
    acl = ("topic:flights", "--principal", "User:ann")
    page.hold("Users and ACLs", "acl add", run("acl", "add", *acl, "--operation", "read"))
    page.hold("Users and ACLs", "acl list", run("acl", "list"))
    page.hold("Users and ACLs", "acl check", run("acl", "check", "User:ann", "read", "topic:flights"))
    page.hold("Users and ACLs", "acl remove", run("acl", "remove", *acl, "--execute"))
    hanging_transactions.prepare(int(one.rpartition(":")[2]))
    page.hold("Transactions", "list", run("txn", "list"))
    page.hold("Transactions", "describe", run("txn", "describe", "open"))
    page.hold("Transactions", "producers", run("txn", "producers", hanging_transactions.TOPIC))
    (found,) = page.hold("Transactions", "find-hanging", run("txn", "find-hanging"), ("transactional_id",))["hanging"]
    place = f"{hanging_transactions.TOPIC}:{found['partition']}"
    page.hold("Transactions", "abort", run("txn", "abort", place, "--start-offset", str(found["transaction_offset"])))
    assert barnabas(one, "profile", "set", "here").status == 0
    page.hold("", "profile list", run_barnabas("profile", "list", "--json"))
    doctor = run_barnabas("doctor", "--local", "--json")
    page.look("When something is wrong", "doctor", json.loads(doctor.output))


def _look_at_files(page: Page, data: Path) -> None:
    """Documents per line: of an audit one for each partition, of a dump one for whatever is in a file."""
    audited = [json.loads(line) for line in run_barnabas("audit", str(data), "--json").output.splitlines()]
    assert audited.pop()["type"] == "totals"
    for each in audited:
        page.look("Files of a log directory", "", each)
    text = sections()["Files of a log directory"]
    (told,) = re.findall(r"A batch has `(\{[^`]*\})`", text)
    dumped = run_barnabas("log", "dump", "--records", "--json", str(data / f"{hanging_transactions.TOPIC}-1"))
    found = [json.loads(line) for line in dumped.output.splitlines()]
    kinds = {each.pop("type") for each in found if "magic" in each}
    batches = [each for each in found if "magic" in each]
    assert (kinds, len(batches)) == ({"batch"}, 3)
    for each in batches:
        page.wrong += differences(read_shape(told), each, "log dump: a batch")


def test_a_name_that_is_missing_or_too_many_is_seen() -> None:
    shape = read_shape("{topics: [{name, configs: {KEY: VALUE}, partitions: [{leader}]}], count, more?}")
    good = {"topics": [{"name": "a", "configs": {"b": "c"}, "partitions": [{"leader": 1}]}], "count": 2}
    assert differences(shape, good, "it") == differences(shape, {**good, "more": 1}, "it") == []
    assert len(differences(shape, {**good, "other": 1}, "it")) == 1
    assert len(differences(shape, {"topics": [{"name": "a"}], "count": 2}, "it")) == 1
    assert len(differences(shape, {**good, "count": {"a": 1}}, "it")) == 1
