"""server.properties becomes checked values, with every problem told at once and every oddity noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.config.broker_config import (
    BrokerConfig,
    BrokerConfigError,
    NoticeKind,
    check_broker_config,
    read_broker_config,
)
from barnabas.config.describing import BrokerLayers
from barnabas.config.key_table import broker_keys
from barnabas.config.keys import ConfigKey, ConfigType, Support
from barnabas.config.listeners import SecurityProtocol


def read(text: str = "", *overrides: str, own_keys: tuple[ConfigKey[int], ...] = ()) -> BrokerConfig:
    return read_broker_config(f"zookeeper.connect=localhost:2181\n{text}", "test.properties", overrides, own_keys)


def problems(text: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(BrokerConfigError) as caught:
        read_broker_config(text, "test.properties", overrides)
    return caught.value.problems


def only_problem(text: str, *overrides: str) -> str:
    (problem,) = problems(f"zookeeper.connect=localhost:2181\n{text}", *overrides)
    return problem


def test_without_lines_it_has_kafkas_defaults() -> None:
    config = read()
    assert {name for name in broker_keys() if name not in config.values} == set()
    assert config.values["num.partitions"] == 1
    assert config.broker_id == -1
    assert config.log_dirs == ("/tmp/kafka-logs",)
    assert [str(endpoint) for endpoint in config.listeners.bound] == ["PLAINTEXT://:9092"]
    assert config.listeners.advertised == config.listeners.bound
    assert config.listeners.inter_broker == config.listeners.for_controller == "PLAINTEXT"


def test_a_value_is_read_and_kept_as_it_was_written() -> None:
    config = read("log.cleaner.min.cleanable.ratio = 0.25 \nlog.dirs=/a, /b,\n")
    assert config.values["log.cleaner.min.cleanable.ratio"] == 0.25
    assert config.log_dirs == ("/a", "/b")
    assert config.given == {
        "zookeeper.connect": "localhost:2181",
        "log.cleaner.min.cleanable.ratio": "0.25 ",
        "log.dirs": "/a, /b,",
    }


def test_overrides_go_before_the_file() -> None:
    config = read("broker.id=1\n", "broker.id=2", " broker.rack = a=b")
    assert config.broker_id == 2
    assert config.values["broker.rack"] == "a=b"
    assert not [notice for notice in config.notices if notice.kind is NoticeKind.REPEATED]
    assert only_problem("", "broker.id") == "The override 'broker.id' must have the form key=value"
    assert only_problem("", "=1").startswith("The override '=1'")


def test_a_key_given_twice_is_noticed_and_the_later_counts() -> None:
    config = read("broker.id=1\nbroker.id=2\n")
    assert config.broker_id == 2
    (notice,) = [notice for notice in config.notices if notice.kind is NoticeKind.REPEATED]
    assert notice.keys == ("broker.id",)
    assert "line 3 of test.properties" in notice.text


def test_an_unknown_key_is_noticed_with_the_nearest_known_one() -> None:
    config = read("log.retension.ms=5\nmy.plugin.key=x\nlistener.name.inside.no.such.key=1\n")
    notices = {notice.keys[0]: notice.text for notice in config.notices if notice.kind is NoticeKind.UNKNOWN}
    assert notices == {
        "log.retension.ms": (
            "Unknown config log.retension.ms at test.properties:2 is ignored; did you mean log.retention.ms?"
        ),
        "my.plugin.key": "Unknown config my.plugin.key at test.properties:3 is ignored",
        "listener.name.inside.no.such.key": (
            "Unknown config listener.name.inside.no.such.key at test.properties:4 is ignored"
        ),
    }
    assert config.given["my.plugin.key"] == "x"
    assert "my.plugin.key" not in config.values


def test_what_is_not_supported_yet_is_said_once() -> None:
    not_yet = ConfigKey("a.later", ConfigType.INT, 1, "Later.", support=Support.NOT_YET)
    active = ConfigKey("a.now", ConfigType.INT, 1, "Now.")
    idle = ConfigKey("an.idle", ConfigType.INT, 1, "Idle.", support=Support.WITHOUT_EFFECT)
    config = read("a.later=2\na.now=2\nan.idle=2\n", own_keys=(not_yet, active, idle))
    (notice,) = [notice for notice in config.notices if notice.kind is NoticeKind.NOT_YET]
    assert "a.later" in notice.keys
    assert not {"a.now", "an.idle"} & set(notice.keys)
    assert "a.later" in notice.text
    assert config.values["a.later"] == config.values["a.now"] == 2


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        "broker.id=x\nlog.segment.bytes=13\nmin.insync.replicas=0\nlisteners=nonsense\n", "num.partitions=0"
    )
    assert [problem.rpartition(": ")[0] for problem in found[:4]] == [
        "test.properties:1: Invalid value x for configuration broker.id",
        "test.properties:2: Invalid value 13 for configuration log.segment.bytes",
        "test.properties:3: Invalid value 0 for configuration min.insync.replicas",
        "override: Invalid value 0 for configuration num.partitions",
    ]
    assert any("zookeeper.connect=(none)" in problem for problem in found)
    assert any("'nonsense'" in problem for problem in found)
    assert len(found) == 6


def test_a_text_that_is_no_properties_text_is_refused() -> None:
    (problem,) = problems("a=\\u12")
    assert problem.startswith("test.properties:1: ")


def test_a_secret_is_not_shown() -> None:
    config = read("ssl.key.password=hunter2\n")
    assert "hunter2" not in repr(config.values["ssl.key.password"])
    assert config.values["ssl.key.password"] == "hunter2"
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(BrokerLayers(config.given))


def test_the_brokers_number_has_two_names() -> None:
    assert read("node.id=4\n").broker_id == 4
    assert read("broker.id=4\n").given["node.id"] == "4"
    assert "both set the broker's id" in only_problem("broker.id=4\nnode.id=5\n")
    assert len(problems("zookeeper.connect=z:1\nnode.id=x\n")) == 1


def test_keys_of_one_listener_go_before_the_keys_themselves() -> None:
    config = read(
        "max.connections=9\nlistener.name.plaintext.max.connections=7\n"
        "listener.name.plaintext.plain.connections.max.reauth.ms=5\n"
    )
    assert config.of_listener("PLAINTEXT", "max.connections") == 7
    assert config.of_listener("INSIDE", "max.connections") == 9
    assert config.of_listener("PLAINTEXT", "connections.max.reauth.ms", "PLAIN") == 5
    assert config.of_listener("PLAINTEXT", "connections.max.reauth.ms", "SCRAM-SHA-256") == 0
    assert "listener.name.plaintext.max.connections" in only_problem("listener.name.plaintext.max.connections=-1\n")


def test_listeners_serve_what_their_names_say() -> None:
    config = read(
        "listeners=OUTSIDE://:9092,INSIDE://[::1]:9093,CONTROL://127.0.0.1:9094\n"
        "advertised.listeners=OUTSIDE://example.org:443,INSIDE://[::1]:9093,CONTROL://127.0.0.1:9094\n"
        "listener.security.protocol.map=OUTSIDE:SASL_SSL,INSIDE:SSL,CONTROL:PLAINTEXT\n"
        "inter.broker.listener.name=inside\ncontrol.plane.listener.name=control\nearly.start.listeners=inside\n"
    )
    listeners = config.listeners
    assert listeners.inter_broker == "INSIDE"
    assert listeners.inter_broker_protocol is SecurityProtocol.SSL
    assert listeners.control_plane == listeners.for_controller == "CONTROL"
    assert [endpoint.listener_name for endpoint in listeners.data_plane] == ["OUTSIDE", "INSIDE"]
    assert str(listeners.advertised[0]) == "OUTSIDE://example.org:443"
    assert listeners.early_start == {"INSIDE"}


@given(
    st.dictionaries(
        st.sampled_from([*broker_keys(), "listener.name.plaintext.max.connections", "unknown"]),
        st.one_of(st.text(max_size=30), st.sampled_from(["1", "-1", "0.5", "true", "SSL", "PLAINTEXT://a:1", "A:SSL"])),
        max_size=4,
    )
)
def test_any_values_are_taken_or_refused(given_texts: dict[str, str]) -> None:
    try:
        config = check_broker_config({"zookeeper.connect": "z:1", **given_texts}, "test")
    except BrokerConfigError:
        return
    assert config.given.items() >= given_texts.items()
