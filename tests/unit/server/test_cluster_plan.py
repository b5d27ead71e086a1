"""What `barnabas up` writes for its brokers."""

from __future__ import annotations

import pytest

from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.config import read_server_config
from barnabas.server.property_files import properties_text


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_replication_is_what_so_many_brokers_allow(brokers: int, replicas: int, in_sync: int) -> None:
    plan = ClusterPlan(brokers=brokers, data_directory="/d", port=9092, metrics_port=9400)
    for broker_id in plan.broker_ids:
        properties = plan.properties(broker_id, "127.0.0.1:2181", plan.port_of(broker_id))
        config = read_server_config(properties_text(properties), "server.properties")
        assert config.notices == ()
        assert config.broker_id == broker_id
        assert config.listeners.bound[0].port == 9091 + broker_id
        assert config.values["barnabas.metrics.port"] == 9399 + broker_id
        assert config.values["default.replication.factor"] == replicas
        assert config.values["offsets.topic.replication.factor"] == replicas
        assert config.values["transaction.state.log.replication.factor"] == replicas
        assert config.values["min.insync.replicas"] == config.values["transaction.state.log.min.isr"] == in_sync
        assert config.values["zookeeper.session.timeout.ms"] == 6000
        assert config.log_dirs == (f"/d/broker-{broker_id}/data",)


def test_port_zero_stays_any_port() -> None:
    plan = ClusterPlan(brokers=3, port=0, metrics_port=0)
    assert [plan.port_of(broker_id) for broker_id in plan.broker_ids] == [0, 0, 0]
    assert plan.properties(3, "z", 0)["barnabas.metrics.port"] == "0"


def test_overrides_go_before_everything_and_any_value_comes_back() -> None:
    value = " a\\b=c:d#e!f\tg "
    plan = ClusterPlan(overrides={"log.dirs": "/else where", "broker.rack": value})
    config = read_server_config(properties_text(plan.properties(1, "z:2181", 9092)), "test")
    assert config.log_dirs == ("/else where",)
    assert config.given["broker.rack"] == value


def test_a_path_in_any_language_is_written_as_java_reads_it_too() -> None:
    """Java's Properties are in ISO 8859-1: its clients would look for the authority in another place."""
    path = "/home/josé/数据/\udce9"
    text = properties_text({"ssl.truststore.location": path})
    assert text.splitlines()[1] == "ssl.truststore.location=/home/jos\\u00e9/\\u6570\\u636e/\\udce9"
    assert read_server_config(f"{text}zookeeper.connect=z:1", "test").given["ssl.truststore.location"] == path


def test_paths_are_absolute_wherever_they_were_given() -> None:
    plan = ClusterPlan(
        data_directory="data", overrides={"log.dirs": "one, ../two,/three", "barnabas.logs.directory": "logs"}
    ).at("/home/me")
    assert plan.broker_directory(1) == "/home/me/data/broker-1"
    properties = plan.properties(1, "z:2181", 9092)
    assert properties["log.dirs"] == "/home/me/one,/home/two,/three"
    assert properties["barnabas.logs.directory"] == "/home/me/logs"
    given = ClusterPlan(data_directory="/data")
    assert given.at("/home/me") == given


def test_what_is_overridden_is_where_records_and_logs_go() -> None:
    plan = ClusterPlan(overrides={"log.dir": "mine", "barnabas.logs.directory": "a,b"}).at("/home/me")
    properties = plan.properties(1, "z:2181", 9092)
    assert read_server_config(properties_text(properties), "test").log_dirs == ("/home/me/mine",)
    assert properties["barnabas.logs.directory"] == "/home/me/a,b"
    # Not the present directory, which nobody has named.
    nothing = ClusterPlan(overrides={"log.dirs": "one,,two, ", "barnabas.logs.directory": ""}).at("/home/me")
    assert nothing.overrides == {"log.dirs": "/home/me/one,/home/me/two", "barnabas.logs.directory": ""}


@pytest.mark.parametrize("name", ["broker.id", "node.id", "zookeeper.connect", "listeners"])
def test_what_is_the_plans_own_cannot_be_overridden(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be overridden: "):
        ClusterPlan(overrides={name: "7"})


@pytest.mark.parametrize("name", ["log.dirs", "advertised.listeners", "barnabas.metrics.port"])
def test_what_no_two_brokers_may_share_is_overridden_for_one_only(name: str) -> None:
    assert ClusterPlan(overrides={name: "7"}).properties(1, "z", 1)[name] == "7"
    with pytest.raises(ValueError, match=f"{name} cannot be overridden for 2 brokers"):
        ClusterPlan(brokers=2, overrides={name: "7"})


@pytest.mark.parametrize(("brokers", "port"), [(0, 9092), (101, 9092), (3, 65_534), (1, -1)])
def test_what_cannot_be_is_refused(brokers: int, port: int) -> None:
    with pytest.raises(ValueError, match="brokers"):
        ClusterPlan(brokers=brokers, port=port)


def test_a_comma_would_make_two_log_directories_of_one() -> None:
    with pytest.raises(ValueError, match="a comma"):
        ClusterPlan(data_directory="one,two")
    with pytest.raises(ValueError, match="a comma"):
        ClusterPlan(data_directory="data").at("/home/me,you")
