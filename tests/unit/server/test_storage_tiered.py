"""A broker without remote storage does not take over logs that have a part of theirs there; one with it follows what is
set at run time."""

from __future__ import annotations

import logging
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.config.broker_config import check_broker_config
from barnabas.config.settings import take
from barnabas.kernel.timers import Timers
from barnabas.quotas.byte_quota import UNLIMITED
from barnabas.server.config import OWN_KEYS
from barnabas.server.errors import BrokerStartError
from barnabas.server.remote_components import RemoteComponents
from barnabas.server.storage import Storage
from barnabas.tiered.remote_quotas import RemoteQuotas
from barnabas.tiered.settings import TieredSettings
from tests.unit.kernel.virtual_loop import VirtualLoop


def storage_with(tiered: list[str]) -> Any:
    asked: list[tuple[str, str]] = []

    def topics_with(name: str, text: str) -> list[str]:
        asked.append((name, text))
        return tiered

    made = Storage.__new__(Storage)
    made.topic_configs = SimpleNamespace(topics_with=topics_with)  # type: ignore[assignment]
    return made, asked


def test_topics_that_are_tiered_keep_the_broker_from_starting() -> None:
    storage, asked = storage_with(["b", "a"])
    with pytest.raises(BrokerStartError, match=r"2 topics have remote.storage.enable=true \(a, b\): set"):
        storage._check_that_none_is_tiered()
    assert asked == [("remote.storage.enable", "true")]


def test_others_do_not() -> None:
    storage, _ = storage_with([])
    storage._check_that_none_is_tiered()


def test_bounds_and_waits_of_remote_storage_are_followed_at_run_time() -> None:
    static = {"broker.id": "1", "zookeeper.connect": "z:1", "log.dirs": "/logs"}
    configs = BrokerConfigs(
        check_broker_config(static, "test", own_keys=OWN_KEYS),
        broker_id=1,
        logger=logging.getLogger("barnabas.tests.tiered"),
        own_keys=OWN_KEYS,
    )
    with closing(VirtualLoop()) as loop:
        heard: list[TieredSettings] = []
        made = RemoteComponents.__new__(RemoteComponents)
        quotas = RemoteQuotas(Timers(loop), lambda: 0.0, take(TieredSettings, configs.values))
        made._quotas = quotas
        made.reads = SimpleNamespace(reconfigure=heard.append)  # type: ignore[assignment]
        configs.set_cluster_default({"remote.log.manager.copy.max.bytes.per.second": "5"})
        made.follow_configs(configs)
        assert (quotas.copy.bytes_per_second, quotas.fetch.bytes_per_second) == (5, UNLIMITED)
        configs.set_cluster_default({"remote.log.manager.fetch.max.bytes.per.second": "7"})
        assert (quotas.copy.bytes_per_second, quotas.fetch.bytes_per_second) == (UNLIMITED, 7)
        configs.set_cluster_default({"remote.fetch.max.wait.ms": "9"})
        configs.set_cluster_default({"remote.log.index.file.cache.total.size.bytes": "11"})
        assert [each.fetch_wait_max_ms for each in heard] == [500, 500, 9, 500]
        assert heard[-1].index_cache_bytes == 11
