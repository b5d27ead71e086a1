"""The broker's copy of `/feature`."""

from __future__ import annotations

import pytest

from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.coordination.operations import Create, Delete, SetData
from barnabas.kernel.host import Host
from barnabas.server.features import FinalizedFeatureCache
from barnabas.testing.simulation import simulation_seeds
from tests.unit.server.coordinated import Lines, logger_of, run_on_broker, session_on, until


def payload(status: FeatureStatus, **features: int) -> bytes:
    return FinalizedFeatures(status, features).encode()


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_follows_the_znode_from_nothing_over_changes_to_nothing(seed: int) -> None:
    lines = Lines()

    async def follow(host: Host) -> None:
        session = session_on(host, lines)
        await session.connect()
        cache = FinalizedFeatureCache(host.loop, session, logger_of(host, lines))
        cache.start()
        with pytest.raises(TimeoutError):
            await cache.wait_for_epoch(0, 500)
        assert cache.epoch == -1
        await session.perform(Create(FEATURE_PATH, payload(FeatureStatus.ENABLED)))
        await cache.wait_for_epoch(0, 1_000)
        assert dict(cache.features) == {}
        await session.perform(SetData(FEATURE_PATH, payload(FeatureStatus.ENABLED, group=2)))
        await cache.wait_for_epoch(1, 1_000)
        assert dict(cache.features) == {"group": 2}
        # What cannot be read changes nothing, and the next that can be does.
        await session.perform(SetData(FEATURE_PATH, b"no json"))
        await until(lambda: "keeping the features known before" in lines)
        assert cache.epoch == 1
        await session.perform(SetData(FEATURE_PATH, payload(FeatureStatus.ENABLED, group=3)))
        await cache.wait_for_epoch(3, 1_000)
        assert dict(cache.features) == {"group": 3}
        await session.perform(SetData(FEATURE_PATH, payload(FeatureStatus.DISABLED)))
        await until(lambda: cache.epoch == -1)
        await session.perform(Delete(FEATURE_PATH))
        await session.perform(Create(FEATURE_PATH, payload(FeatureStatus.ENABLED, group=1)))
        await until(lambda: dict(cache.features) == {"group": 1})
        await cache.stop()
        await session.close()

    run_on_broker(seed, follow)
