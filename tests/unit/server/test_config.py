"""Barnabas's own keys beside Kafka's."""

from __future__ import annotations

import pytest

from barnabas.config.broker_config import BrokerConfigError
from barnabas.config.key_table import broker_keys
from barnabas.config.settings import take
from barnabas.server.config import OWN_KEYS, MetricsSettings, log_levels, read_server_config

BASE = "zookeeper.connect=z:2181\n"


def test_own_keys_are_known_and_checked() -> None:
    config = read_server_config(BASE + "barnabas.metrics.port=0", "test", ["barnabas.logs.levels=root=WARN,a.b=DEBUG"])
    assert take(MetricsSettings, config.values) == MetricsSettings(port=0)
    assert log_levels(config.values["barnabas.logs.levels"]) == {"root": "WARN", "a.b": "DEBUG"}
    assert config.notices == ()
    with pytest.raises(BrokerConfigError, match=r"barnabas\.metrics\.port"):
        read_server_config(BASE + "barnabas.metrics.port=70000", "test")


def test_own_keys_have_names_that_kafka_cannot_take() -> None:
    # Kafka's broker knows none of the second kind: it hands what has the prefix to a class, and these are that class's.
    assert all(key.name.startswith(("barnabas.", "rlmm.config.")) for key in OWN_KEYS)
    assert {key.name for key in OWN_KEYS}.isdisjoint(broker_keys())


@pytest.mark.parametrize("pair", ["kafka", "=INFO", "kafka="])
def test_a_level_without_its_logger_is_refused(pair: str) -> None:
    with pytest.raises(ValueError, match="LOGGER=LEVEL"):
        log_levels([pair])
