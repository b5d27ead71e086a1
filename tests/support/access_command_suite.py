"""What `barnabas acl` and `barnabas user` do on any cluster of the Kafka protocol that has an authorizer.

Run on Barnabas in tests/cluster and on Apache Kafka in tests/interop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.command_runs import Done, run_barnabas
from tests.support.command_suite import barnabas, fill, fresh, new_topic
from tests.support.data_command_suite import run
from tests.support.sasl_cluster import PASSWORD, SCRAM_MODULE, in_properties, quoted
from tests.support.waiting import wait_until

SETTLED_SECONDS: Final = 30.0
AUTHORIZED: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:broker",
}
"""Everybody who does not log in is a super user, as the brokers are; the others may what ACLs allow."""


def command_config(directory: Path, user: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> Path:
    """A file with which a command logs in."""
    path = directory / f"{user}.properties"
    module = f"{SCRAM_MODULE} required username={quoted(user)} password={quoted(password)};"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={in_properties(module)}\n"
    )
    return path


class AccessCommandSuite:
    """Subclasses give `bootstrap`, where everybody is ANONYMOUS, and `login_bootstrap`, where one logs in."""

    def test_a_user_may_what_acls_allow_for_as_long_as_they_do(
        self, bootstrap: str, login_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user = fresh("user")
        monkeypatch.setenv("BARNABAS_USER_PASSWORD", PASSWORD)
        made = barnabas(bootstrap, "user", "set", user, "--json")
        assert [each["mechanism"] for each in made.document["credentials"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
            option = ("--command-config", str(command_config(tmp_path, user, mechanism)))
            wait_until(
                lambda: barnabas(login_bootstrap, "cluster", "describe", *option).status == 0,  # noqa: B023
                f"{user} can log in by {mechanism}",
                SETTLED_SECONDS,
            )
        login = ("--command-config", str(command_config(tmp_path, user)))
        principal = f"User:{user}"
        with new_topic(bootstrap, "--partitions", "1", "--replication-factor", "1") as topic:
            fill(bootstrap, topic, 1, 3)
            check = ("acl", "check", principal, "read", f"topic:{topic}")
            consume = ("consume", topic, "--until-end", "--timeout", "20", *login)
            assert barnabas(bootstrap, *check).status == 1
            assert "TOPIC_AUTHORIZATION_FAILED" in self.refused(login_bootstrap, *consume).errors
            wanted = ("acl", "add", f"topic:{topic}", f"group:{topic}", "--consumer", "--principal", principal)
            added = barnabas(bootstrap, *wanted, "--json").document
            assert [(each["resource_type"], each["operation"]) for each in added["added"]] == [
                ("topic", "read"),
                ("topic", "describe"),
                ("group", "read"),
            ]
            assert barnabas(bootstrap, *wanted, "--json").document["added"] == []
            listed = barnabas(bootstrap, "acl", "list", "--principal", principal, "--json").document["acls"]
            assert sorted(map(str, listed)) == sorted(map(str, added["added"]))
            assert barnabas(bootstrap, *check).status == 0
            wait_until(
                lambda: barnabas(login_bootstrap, "offsets", topic, *login).status == 0,
                f"the broker knows what {user} may",
                SETTLED_SECONDS,
            )
            assert run(login_bootstrap, *consume)[0] == b"value\n" * 3
            pick = ("acl", "remove", f"topic:{topic}", "--matching", "--principal", principal)
            shown = barnabas(bootstrap, *pick, "--json").document
            assert (shown["is_executed"], len(shown["removed"])) == (False, 2)
            assert barnabas(bootstrap, *check).status == 0
            assert len(barnabas(bootstrap, *pick, "--execute", "--json").document["removed"]) == 2
            assert barnabas(bootstrap, *check).status == 1
            assert barnabas(bootstrap, *pick, "--json").document["removed"] == []
        assert barnabas(bootstrap, "user", "delete", user).status == 0
        assert barnabas(bootstrap, "user", "delete", user).status == 4
        assert barnabas(bootstrap, "user", "list", user).status == 4
        wait_until(
            lambda: barnabas(login_bootstrap, "cluster", "describe", *login).status == 1,
            f"{user} cannot log in any more",
            SETTLED_SECONDS,
        )
        assert barnabas(bootstrap, "acl", "remove", "--principal", principal, "--execute").status == 0

    def test_prefixes_and_denials(self, bootstrap: str) -> None:
        name = fresh("prefix")
        principal = f"User:{name}"
        allow = ("acl", "add", f"topic:{name}", "--prefixed", "--principal", principal, "--operation", "all")
        deny = ("acl", "add", f"topic:{name}-secret", "--deny", "--principal", "User:*", "--operation", "read")
        for each in (allow, deny):
            assert barnabas(bootstrap, *each).status == 0
        check = ("acl", "check", principal, "read")
        assert barnabas(bootstrap, *check, f"topic:{name}-open").status == 0
        denied = barnabas(bootstrap, *check, f"topic:{name}-secret")
        assert (denied.status, denied.rows[2].split()[0]) == (1, f"topic:{name}-secret")
        matching = barnabas(bootstrap, "acl", "list", f"topic:{name}-secret", "--matching", "--json").document["acls"]
        assert [(each["pattern_type"], each["permission"]) for each in matching] == [
            ("prefixed", "allow"),
            ("literal", "deny"),
        ]
        for pick in ((f"topic:{name}", "--prefixed"), (f"topic:{name}-secret",)):
            assert len(barnabas(bootstrap, "acl", "remove", *pick, "--execute", "--json").document["removed"]) == 1

    def test_what_a_user_may_not_is_one_line(
        self, bootstrap: str, login_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user = fresh("user")
        monkeypatch.setenv("BARNABAS_USER_PASSWORD", PASSWORD)
        assert barnabas(bootstrap, "user", "set", user, "--mechanism", "SCRAM-SHA-256").status == 0
        login = ("--command-config", str(command_config(tmp_path, user)))
        wait_until(
            lambda: barnabas(login_bootstrap, "cluster", "describe", *login).status == 0, "logs in", SETTLED_SECONDS
        )
        for arguments in (
            ("acl", "list"),
            ("acl", "add", "topic:t", "--principal", "User:x", "--operation", "read"),
            ("user", "list"),
            ("user", "set", "other"),
            ("acl", "remove", "topic:t", "--execute"),
            ("quota", "list"),
        ):
            done = run_barnabas(*arguments, "--bootstrap-server", login_bootstrap, *login)
            assert (done.status, done.output) == (1, ""), arguments
            (line,) = done.errors.splitlines()
            assert "(CLUSTER_AUTHORIZATION_FAILED)" in line
            # What Apache Kafka says itself is an object of its memory, or nothing.
            assert ": (" not in line
            assert "Request(" not in line
            assert PASSWORD not in line
        assert barnabas(bootstrap, "user", "delete", user).status == 0

    def test_what_a_user_may_not_see_is_left_out_and_said_so(
        self, bootstrap: str, login_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user = fresh("user")
        monkeypatch.setenv("BARNABAS_USER_PASSWORD", PASSWORD)
        assert barnabas(bootstrap, "user", "set", user, "--mechanism", "SCRAM-SHA-256").status == 0
        login = ("--command-config", str(command_config(tmp_path, user)))
        wait_until(
            lambda: barnabas(login_bootstrap, "cluster", "describe", *login).status == 0, "logs in", SETTLED_SECONDS
        )
        with new_topic(bootstrap, "--partitions", "1", "--replication-factor", "1") as topic:
            nothing: list[tuple[tuple[str, ...], str]] = [
                (("topic", "list"), "There are no topics that this login may see."),
                (("topic", "stats"), "There are no topics that this login may see."),
                (("group", "list"), "There are no groups that this login may see."),
                (("group", "describe"), "There are no groups that this login may see."),
                (("txn", "list"), "There is no such transaction that this login may see."),
                (("txn", "find-hanging"), "No transaction hangs in 0 partitions that this login may see."),
            ]
            for arguments, said in nothing:
                done = barnabas(login_bootstrap, *arguments, *login)
                # Behind it is of which broker sizes are not known.
                assert (done.status, done.output, done.errors.splitlines()[0]) == (0, "", said), arguments
            refused: list[tuple[tuple[str, ...], str]] = [
                (("txn", "producers", f"{topic}:0"), "TOPIC_AUTHORIZATION_FAILED"),
                (("txn", "find-hanging", topic), "TOPIC_AUTHORIZATION_FAILED"),
                (("txn", "abort", f"{topic}:0", "--start-offset", "0"), "TOPIC_AUTHORIZATION_FAILED"),
                (("txn", "describe", "anybody"), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            ]
            for arguments, error in refused:
                done = barnabas(login_bootstrap, *arguments, *login)
                assert (done.status, done.output) == (1, ""), arguments
                (line,) = done.errors.splitlines()
                assert error in line, arguments
        assert barnabas(bootstrap, "user", "delete", user).status == 0

    def test_a_transaction_is_not_waited_for_where_nothing_keeps_any(self, bootstrap: str) -> None:
        """Brokers could not make the topic either, with so few of them."""
        assert "__transaction_state" not in barnabas(bootstrap, "topic", "list").output
        done = barnabas(bootstrap, "txn", "describe", "anybody")
        assert (done.status, done.output) == (4, "")
        assert "there is no transactional id anybody" in done.errors
        assert "__transaction_state" not in barnabas(bootstrap, "topic", "list").output
        assert barnabas(bootstrap, "txn", "describe", "").status == 2

    @staticmethod
    def refused(bootstrap: str, *arguments: str) -> Done:
        """A command that must fail."""
        done = barnabas(bootstrap, *arguments)
        assert done.status == 1, done.errors
        return done
