"""`barnabas config`: values with where they come from, changes with their effect, and what is refused before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.cli.config_resources import Kind, Resource, parse_resource
from barnabas.client.admin import ConfigEntry, ConfigOperation, ConfigSynonym, ResourceType
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeAdmin, FakeCluster, partition, topic

Barnabas = Callable[..., Done]


def entry(
    name: str,
    value: str | None,
    source: int,
    *weaker: tuple[str | None, int],
    is_read_only: bool = False,
    is_sensitive: bool = False,
) -> ConfigEntry:
    synonyms = tuple(ConfigSynonym(name, *each) for each in [(value, source), *weaker])
    return ConfigEntry(name, value, source, is_read_only, is_sensitive, synonyms)


@pytest.fixture
def configured(cluster: FakeCluster) -> FakeCluster:
    """Two topics, two brokers with a secret, what is set for all brokers, and loggers of one."""
    cluster.add(topic("flights", partition(1)), topic("copy", partition(1)))
    cluster.configs["flights"] = [
        entry("retention.ms", "1000", 1, ("604800000", 5)),
        entry("min.insync.replicas", "2", 4, ("2", 4), ("1", 5)),
        entry("cleanup.policy", "delete", 5),
    ]
    cluster.configs["copy"] = [
        entry("retention.ms", "604800000", 5),
        entry("min.insync.replicas", "2", 4, ("1", 5)),
        entry("cleanup.policy", "compact", 1, ("delete", 5)),
    ]
    cluster.configs["1"] = [
        entry("broker.id", "1", 4, is_read_only=True),
        entry("log.retention.ms", "77", 2, ("88", 4), (None, 5)),
        entry("ssl.key.password", None, 4, is_sensitive=True),
    ]
    cluster.configs["2"] = [
        entry("broker.id", "2", 4, is_read_only=True),
        entry("log.retention.ms", "77", 2, (None, 5)),
        entry("ssl.key.password", None, 5, is_sensitive=True),
    ]
    cluster.configs[""] = [entry("log.cleaner.threads", "2", 3, ("1", 5))]
    cluster.configs["logger:1"] = [entry("root", "INFO", 6), entry("kafka.controller", "TRACE", 6)]
    return cluster


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("topic:flights", Resource(Kind.TOPIC, "flights")),
        ("topic:default", Resource(Kind.TOPIC, "default")),
        ("broker:01", Resource(Kind.BROKER, "1")),
        ("broker:default", Resource(Kind.ALL_BROKERS, "")),
        ("logger:3", Resource(Kind.LOGGER, "3")),
    ],
)
def test_a_resource_is_written_as_kind_and_name(text: str, resource: Resource) -> None:
    assert parse_resource(text) == resource


@pytest.mark.parametrize(
    "text", ["", "flights", "topic:", "topic", "broker:", "broker:x", "broker:-1", "logger:", "logger:default", "x:1"]
)
def test_what_is_no_resource_is_told_how_to_write_one(configured: FakeCluster, barnabas: Barnabas, text: str) -> None:
    done = barnabas("config", "get", text)
    assert done.status == 2
    assert "topic:NAME, broker:ID, broker:default" in done.errors


def test_get_shows_what_has_not_its_default_and_all_on_demand(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "get", "topic:flights")
    assert (done.status, done.errors) == (0, "")
    assert done.rows == [
        "Config Value From",
        "min.insync.replicas 2 server.properties",
        "retention.ms 1000 topic",
    ]
    assert "cleanup.policy delete default" in barnabas("config", "get", "topic:flights", "--all").rows


def test_get_takes_names_and_patterns(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "get", "topic:flights", "cleanup.policy", "*.ms")
    assert done.rows[1:] == ["cleanup.policy delete default", "retention.ms 1000 topic"]
    done = barnabas("config", "get", "broker:default", "log.retention.ms", "log.cleaner.*")
    assert done.rows[1:] == ["log.retention.ms - -", "log.cleaner.threads 2 all brokers"]


def test_get_for_programs_has_no_secrets(configured: FakeCluster, barnabas: Barnabas) -> None:
    assert barnabas("config", "get", "broker:1", "--json").document == {
        "resource": "broker:1",
        "configs": [
            {"name": name, "value": value, "source": source, "is_sensitive": sensitive, "is_read_only": read_only}
            for name, value, source, sensitive, read_only in [
                ("broker.id", "1", "server_properties", False, True),
                ("log.retention.ms", "77", "broker", False, False),
                ("ssl.key.password", None, "server_properties", True, False),
            ]
        ],
    }
    assert "ssl.key.password (secret) server.properties" in barnabas("config", "get", "broker:1").rows


def test_nothing_set_is_no_error(configured: FakeCluster, barnabas: Barnabas) -> None:
    configured.configs["flights"] = [entry("cleanup.policy", "delete", 5)]
    done = barnabas("config", "get", "topic:flights")
    assert done == Done(0, "", "Nothing is set for topic:flights; --all shows the defaults.\n")
    # Of all brokers, nobody tells the defaults.
    configured.configs[""] = []
    done = barnabas("config", "get", "broker:default", "--all")
    where = "`barnabas config get broker:1 --all` shows what is in effect"
    assert done == Done(0, "", f"Nothing is set for broker:default; {where}.\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("get", "topic:fligths"), "there is no topic fligths; `barnabas topic list` shows which there are"),
        (("get", "broker:9"), "there is no broker 9; the cluster has 1, 2, 3"),
        (
            ("get", "topic:flights", "retention.m"),
            "topic:flights has no config retention.m; did you mean retention.ms?",
        ),
        (
            ("get", "topic:flights", "x*"),
            "topic:flights has no config x*; `barnabas config get topic:flights --all` shows which there are",
        ),
        (("set", "topic:flights", "retention.m=1"), "topic:flights has no config retention.m; did you mean"),
        (("set", "logger:1", "kafka.controler=INFO"), "logger:1 has no logger kafka.controler; did you mean kafka.c"),
        (("unset", "broker:default", "log.retention.mss"), "did you mean log.retention.ms?"),
        (("diff", "topic:flights", "topic:gone"), "there is no topic gone"),
    ],
)
def test_what_is_not_there_is_missing(
    configured: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], error: str
) -> None:
    done = barnabas("config", *arguments)
    assert (done.status, done.output) == (4, "")
    assert error in done.errors
    assert configured.altered == []


def test_set_shows_before_and_after(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "set", "topic:flights", "retention.ms=5000", "cleanup.policy=compact")
    assert done.rows == ["Config Before After", "retention.ms 1000 5000", "cleanup.policy delete compact"]
    changes = [("retention.ms", ConfigOperation.SET, "5000"), ("cleanup.policy", ConfigOperation.SET, "compact")]
    assert configured.altered == [(ResourceType.TOPIC, "flights", changes, False)]
    assert "retention.ms 5000 topic" in barnabas("config", "get", "topic:flights").rows


def test_a_dry_run_has_the_brokers_check_and_changes_nothing(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "set", "topic:flights", "cleanup.policy+=compact", "--dry-run")
    assert done.rows[1:] == ["cleanup.policy delete delete,compact"]
    assert done.errors == "Nothing was changed: that was a dry run.\n"
    ((_, _, changes, is_dry_run),) = configured.altered
    assert (changes, is_dry_run) == ([("cleanup.policy", ConfigOperation.APPEND, "compact")], True)
    done = barnabas("config", "set", "topic:flights", "cleanup.policy-=delete", "--dry-run", "--json")
    assert done.document == {
        "resource": "topic:flights",
        "is_dry_run": True,
        "configs": [{"name": "cleanup.policy", "before": "delete", "after": "", "is_sensitive": False}],
    }


def test_unset_shows_what_is_in_effect_instead(configured: FakeCluster, barnabas: Barnabas) -> None:
    assert barnabas("config", "unset", "topic:flights", "retention.ms", "--dry-run").rows[1:] == [
        "retention.ms 1000 604800000"
    ]
    assert barnabas("config", "unset", "topic:flights", "retention.ms").rows[1:] == ["retention.ms 1000 604800000"]
    assert barnabas("config", "unset", "broker:1", "log.retention.ms", "--dry-run").rows[1:] == [
        "log.retention.ms 77 88"
    ]
    # What is not set may be unset.
    done = barnabas("config", "unset", "broker:default", "log.retention.ms")
    assert (done.status, done.errors) == (
        0,
        "Not set for broker:default, so that nothing changes: log.retention.ms.\n",
    )


def test_levels_of_loggers_may_be_in_small_letters(configured: FakeCluster, barnabas: Barnabas) -> None:
    entry = ConfigEntry("kafka.server", "INFO", 6, is_read_only=False, is_sensitive=False)
    configured.configs |= {"logger:1": [entry], "1": [entry]}
    assert barnabas("config", "set", "logger:1", "kafka.server=debug").status == 0
    assert configured.altered[-1][2] == [("kafka.server", ConfigOperation.SET, "DEBUG")]


def test_a_default_that_brokers_have_in_hours_is_told_in_ms(configured: FakeCluster, barnabas: Barnabas) -> None:
    configured.configs["flights"] = [entry("retention.ms", "1000", 1), entry("segment.ms", "5", 1)]
    configured.configs["1"] = [
        entry("log.retention.ms", None, 5),
        entry("log.retention.minutes", "7", 4),
        entry("log.retention.hours", "168", 5),
        entry("log.roll.hours", "2", 5),
    ]
    assert barnabas("config", "diff", "topic:flights").rows[1:] == [
        "retention.ms 1000 420000",
        "segment.ms 5 7200000",
    ]


def test_only_what_is_changed_is_asked_for(configured: FakeCluster, barnabas: Barnabas) -> None:
    """A broker has hundreds of configs, of which a command would read each three times."""
    configured.configs["flights"] = [entry("retention.ms", "1000", 1), entry("segment.ms", "5", 1)]
    assert barnabas("config", "set", "topic:flights", "retention.ms=5", "segment.ms=5").status == 0
    assert configured.described == [("flights", ("retention.ms", "segment.ms"))] * 2
    configured.described.clear()
    assert barnabas("config", "set", "broker:default", "log.cleaner.threads=2").status == 4
    assert configured.described == [
        *(("", ("log.cleaner.threads",)), ("1", ("log.cleaner.threads",))),
        *(("", None), ("1", None)),  # for names that are like it
    ]
    configured.described.clear()
    configured.configs["1"] = [entry("log.retention.ms", None, 5), entry("log.retention.hours", "2", 5)]
    done = barnabas("config", "unset", "topic:flights", "retention.ms", "--dry-run")
    assert done.rows[1:] == ["retention.ms 5 7200000"]
    coarser = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert configured.described == [("flights", ("retention.ms",)), ("1", coarser)]


def test_a_broker_that_does_not_show_a_change_in_time_is_told_of(configured: FakeCluster, barnabas: Barnabas) -> None:
    configured.is_slow = True
    done = barnabas("config", "set", "broker:1", "log.retention.ms=99")
    assert (done.status, done.errors) == (0, "Changed, but the broker does not show it yet: log.retention.ms.\n")
    assert done.rows[1:] == ["log.retention.ms 77 99"]
    assert configured.seconds > 5


def test_a_broker_may_tell_that_nothing_is_set_before_it_goes_by_it(
    configured: FakeCluster, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka does."""
    describe = FakeAdmin.describe_configs
    late = 2

    async def describe_late(admin: FakeAdmin, *arguments: Any, **more: Any) -> Any:
        nonlocal late
        found = await describe(admin, *arguments, **more)
        shown = found.get("log.retention.ms")
        if configured.altered and shown is not None and late:
            late -= 1
            found["log.retention.ms"] = replace(shown, value="77")
        return found

    monkeypatch.setattr(FakeAdmin, "describe_configs", describe_late)
    done = barnabas("config", "unset", "broker:1", "log.retention.ms")
    assert (done.status, done.errors) == (0, "")
    assert done.rows[1:] == ["log.retention.ms 77 88"]
    assert not late


@pytest.mark.parametrize(
    ("name", "written", "shown"),
    [
        ("retention.ms", "+05000", "5000"),
        ("min.cleanable.dirty.ratio", "0.50", "0.5"),
        ("unclean.leader.election.enable", "TRUE", "true"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
    ],
)
def test_a_value_that_brokers_show_in_another_form_is_shown(
    configured: FakeCluster, barnabas: Barnabas, name: str, written: str, shown: str
) -> None:
    configured.configs["flights"] = [entry(name, shown, 1)]
    configured.is_slow = True
    done = barnabas("config", "set", "topic:flights", f"{name}={written}")
    assert (done.status, done.errors) == (0, "")
    assert done.rows[1:] == [f"{name} {shown} {shown}"]


def test_items_are_added_and_taken_away_without_their_spaces(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "set", "topic:flights", "cleanup.policy+= compact, ", "--dry-run")
    assert done.rows[1:] == ["cleanup.policy delete delete,compact"]
    ((_, _, changes, _),) = configured.altered
    assert changes == [("cleanup.policy", ConfigOperation.APPEND, "compact")]


def test_what_a_broker_cannot_decode_and_does_not_list_is_not_said_to_stay(
    configured: FakeCluster, barnabas: Barnabas
) -> None:
    done = barnabas("config", "unset", "broker:1", "listener.name.tls.ssl.keystore.key", "ssl.key.password")
    assert "nothing changes" not in done.errors
    assert (
        "Not set for broker:1, or such that it cannot be decoded and will be lost: listener.name.tls.ssl.keystore.key,"
        " ssl.key.password.\n"
    ) in done.errors
    done = barnabas("config", "unset", "broker:1", "listener.name.tls.max.connections")
    assert "Not set for broker:1, so that nothing changes: listener.name.tls.max.connections.\n" in done.errors


@pytest.mark.parametrize(
    "name", ["ssl.key.password", "listener.name.tls.ssl.keystore.key", "listener.name.tls.plugin.of.ours"]
)
def test_a_secret_is_set_and_not_shown(configured: FakeCluster, barnabas: Barnabas, name: str) -> None:
    configured.is_slow = True
    done = barnabas("config", "set", "broker:1", f"{name}=hunter2", "--json", "--dry-run")
    assert done.document["configs"] == [{"name": name, "before": None, "after": None, "is_sensitive": True}]
    done = barnabas("config", "set", "broker:1", f"{name}=hunter2")
    assert "hunter2" not in done.output + done.errors


def test_what_only_a_restart_changes_is_not_sent(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "set", "broker:1", "broker.id=7")
    assert (done.status, configured.altered) == (1, [])
    assert done.errors == (
        "barnabas config set: broker.id of broker:1 cannot be changed while a broker runs: change it in "
        "server.properties, and start the broker anew\n"
    )


def test_a_plug_ins_config_is_not_in_any_list(configured: FakeCluster, barnabas: Barnabas) -> None:
    name = "listener.name.internal.ssl.keystore.location"
    assert barnabas("config", "set", "broker:1", f"{name}=x", "--dry-run").rows[1:] == [f"{name} - x"]
    assert barnabas("config", "set", "topic:flights", f"{name}=x").status == 4


@pytest.mark.parametrize("pair", ["retention.ms", "=5", " =5", "+=5"])
def test_what_is_no_pair_is_refused(configured: FakeCluster, barnabas: Barnabas, pair: str) -> None:
    done = barnabas("config", "set", "topic:flights", pair)
    assert done.status == 2
    assert "must have the form KEY=VALUE" in done.errors


def test_a_key_is_changed_once(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "set", "topic:flights", "retention.ms=1", "retention.ms=2")
    assert (done.status, configured.altered) == (2, [])
    assert "retention.ms is there twice" in done.errors


def test_what_brokers_refuse_is_one_line(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "set", "topic:flights", "retention.ms=refused")
    assert done == Done(1, "", "barnabas config set: flights: it is refused (INVALID_CONFIG)\n")


def test_diff_of_two_topics(configured: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("config", "diff", "topic:flights", "topic:copy")
    assert done.rows == [
        "Config topic:flights topic:copy",
        "cleanup.policy delete compact",
        "retention.ms 1000 604800000",
    ]
    done = barnabas("config", "diff", "topic:flights", "topic:flights")
    assert done == Done(0, "", "topic:flights and topic:flights do not differ.\n")


def test_diff_of_two_brokers_tells_of_a_secret_only_where_it_is_set(
    configured: FakeCluster, barnabas: Barnabas
) -> None:
    done = barnabas("config", "diff", "broker:1", "broker:2")
    assert done.rows == ["Config broker:1 broker:2", "broker.id 1 2", "ssl.key.password (secret) -"]
    assert barnabas("config", "diff", "broker:1", "broker:2", "--json").document["configs"] == [
        {"name": "broker.id", "first": "1", "second": "2", "is_sensitive": False},
        {"name": "ssl.key.password", "first": None, "second": None, "is_sensitive": True},
    ]
    done = barnabas("config", "diff", "broker:1", "broker:1")
    assert done.errors == "1 secret could not be compared.\nbroker:1 and broker:1 do not differ.\n"


def test_diff_against_defaults(configured: FakeCluster, barnabas: Barnabas) -> None:
    # What all topics have of the brokers is a topic's default; a broker's is Kafka's.
    assert barnabas("config", "diff", "topic:flights").rows == [
        "Config topic:flights default",
        "retention.ms 1000 604800000",
    ]
    assert barnabas("config", "diff", "broker:1").rows[1:] == [
        "broker.id 1 -",
        "log.retention.ms 77 -",
        "ssl.key.password (secret) -",
    ]
    assert barnabas("config", "diff", "broker:default", "--json").document == {
        "first": "broker:default",
        "second": None,
        "configs": [{"name": "log.cleaner.threads", "first": "2", "second": "1", "is_sensitive": False}],
    }


def test_diff_needs_two_of_a_kind(configured: FakeCluster, barnabas: Barnabas) -> None:
    assert barnabas("config", "diff", "topic:flights", "broker:1").status == 2
    assert "name a second broker" in barnabas("config", "diff", "logger:1").errors
