"""Quotas of clients follow `/config`, beside a real coordinator in virtual time; and what the metrics say of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.coordination.layout.configs import EntityConfig
from barnabas.kernel.metrics import Gauge, MetricName
from barnabas.quotas.client_quotas import DEFAULT, QuotaEntity
from barnabas.server.client_quota_metrics import client_quota_metrics
from barnabas.server.quota_configs import QuotaConfigs
from tests.unit.server.test_dynamic_configs import Following, following


async def put(broker: Following, entity: str, **configs: str) -> None:
    """As Apache Kafka writes an entity's quotas, and makes those above it."""
    client, path = broker.world.client, "/config"
    for part in entity.split("/"):
        path += f"/{part}"
        if await client.exists(path) is None:
            await client.create(path, b"")
    await client.set_data(path, json.dumps({"version": 1, "config": configs}).encode())


def bounds(broker: Following) -> dict[QuotaEntity, float]:
    return dict(broker.throttles.produce.bounds)


def test_reads_all_quotas_at_the_start() -> None:
    async def main(broker: Following) -> None:
        await put(broker, "clients/a%20b", producer_byte_rate="1", consumer_byte_rate="10")
        await put(broker, "clients/<default>", producer_byte_rate="2")
        await put(broker, "users/U%3D1", producer_byte_rate="3", **{"SCRAM-SHA-256": "no quota"})
        await put(broker, "users/<default>/clients/<default>", producer_byte_rate="4")
        await put(broker, "users/U%3D1/clients/c", producer_byte_rate="5")
        await put(broker, "users/nobody")
        await broker.dynamic.start()
        assert bounds(broker) == {
            QuotaEntity(None, "a b"): 1.0,
            QuotaEntity(None, DEFAULT): 2.0,
            QuotaEntity("U=1", None): 3.0,
            QuotaEntity(DEFAULT, DEFAULT): 4.0,
            QuotaEntity("U=1", "c"): 5.0,
        }
        assert broker.throttles.fetch.bounds == {QuotaEntity(None, "a b"): 10.0}

    following(main)


def test_hears_of_quotas_that_are_changed_and_removed() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        for entity, expected in (
            ("clients/c", QuotaEntity(None, "c")),
            ("users/u", QuotaEntity("u", None)),
            ("users/u/clients/<default>", QuotaEntity("u", DEFAULT)),
        ):
            for rate in (100, 200):
                await put(broker, entity, producer_byte_rate=str(rate))
                await broker.announce(entity)
                await broker.until(lambda e=expected, r=rate: bounds(broker).get(e) == r)  # type: ignore[misc]
        await put(broker, "clients/c")
        await broker.announce("clients/c")
        await broker.until(lambda: QuotaEntity(None, "c") not in bounds(broker))
        for path in ("/config/users/u/clients/<default>", "/config/users/u/clients", "/config/users/u"):
            await broker.world.client.delete(path)
        await broker.announce("users/u/clients/<default>")
        await broker.announce("users/u")
        await broker.until(lambda: not bounds(broker))

    following(main)


def test_what_was_removed_while_nobody_heard_is_gone_after_the_next_session() -> None:
    async def main(broker: Following) -> None:
        await put(broker, "clients/gone", producer_byte_rate="1")
        await put(broker, "clients/stays", producer_byte_rate="2")
        await broker.dynamic.start()
        await broker.dynamic.before_new_session()
        await broker.world.client.delete("/config/clients/gone")
        await broker.dynamic.after_new_session()
        await broker.until(lambda: bounds(broker) == {QuotaEntity(None, "stays"): 2.0})

    following(main)


def test_what_is_no_quota_is_logged_and_the_quota_stays() -> None:
    async def main(broker: Following) -> None:
        await put(broker, "clients/c", producer_byte_rate="7")
        await broker.dynamic.start()
        for number, text in enumerate(("many", "-1", "nan")):
            await put(broker, "clients/c", producer_byte_rate=text, consumer_byte_rate=str(number))
            await broker.announce("clients/c")
            entity = QuotaEntity(None, "c")
            await broker.until(
                lambda number=number, entity=entity: broker.throttles.fetch.bounds.get(entity) == number  # type: ignore[misc]
            )
            assert bounds(broker) == {entity: 7.0}
            assert any(
                f"producer_byte_rate of clients/c is no quota, and ignored: {text!r}" in line
                for line in broker.world.lines.lines
            )
        await broker.world.client.set_data("/config/clients/c", b"{")
        await broker.announce("clients/c")
        await broker.until(lambda: any("Quotas are ignored" in line for line in broker.world.lines.lines))
        assert bounds(broker) == {QuotaEntity(None, "c"): 7.0}

    following(main)


class SlowQuotas:
    """Quotas of very many accounts; counts how many of them are looked at in a turn of the loop."""

    def __init__(self, accounts: int) -> None:
        self.accounts = accounts
        self.in_turn = self.most_in_turn = self.in_all = 0

    def set(self, _entity: QuotaEntity, _bound: float | None) -> int:
        self.in_turn += self.accounts
        self.in_all += self.accounts
        self.most_in_turn = max(self.most_in_turn, self.in_turn)
        return self.accounts


@pytest.mark.parametrize(("accounts", "most"), [(0, 0), (8000, 8000), (300, 1200)])
def test_no_turn_looks_at_the_accounts_of_many_quotas(accounts: int, most: int) -> None:
    class Read:
        data = EntityConfig({"producer_byte_rate": "5"}).encode()

    class OneTurn:
        async def get_many(self, paths: Sequence[str]) -> list[Any]:
            return [Read()] * len(paths)

    quotas = SlowQuotas(accounts)

    async def main() -> None:
        store: Any = OneTurn()
        kinds: Any = {"producer_byte_rate": quotas, "consumer_byte_rate": quotas}
        configs = QuotaConfigs(store, kinds, logging.getLogger("tests.quotas"))
        reading = asyncio.ensure_future(configs.read([f"users/u{number}" for number in range(2000)]))
        turns = 0
        while not reading.done():
            quotas.in_turn = 0
            turns += 1
            await asyncio.sleep(0)
        await reading
        assert turns >= 6000 // 1024

    asyncio.run(main())
    assert quotas.in_all == 4000 * accounts
    assert quotas.most_in_turn == most


def test_the_metrics_say_who_takes_what_and_who_is_held_back() -> None:
    async def main(broker: Following) -> None:
        throttles = broker.throttles

        def told() -> dict[str, float]:
            return {str(name): metric.read() for name, metric in client_quota_metrics(throttles)}

        throttles.produce.set(QuotaEntity("a b", DEFAULT), 100.0)
        throttles.fetch.set(QuotaEntity(None, DEFAULT), 100.0)
        produced, fetched = throttles.produce.account("a b", "c"), throttles.fetch.account("a b", "c")
        assert produced is not None
        assert fetched is not None
        assert produced.take(500) == 0
        produced.note_throttled(produced.take(1_500))
        assert told() == {
            "kafka.server:type=Produce,name=queue-size": 1,
            "kafka.server:type=Produce,name=byte-rate,user=a%20b,client-id=c": 200.0,
            "kafka.server:type=Produce,name=throttle-time,user=a%20b,client-id=c": 10_000.0,
            "kafka.server:type=Fetch,name=queue-size": 0,
            "kafka.server:type=Fetch,name=byte-rate,client-id=c": 0.0,
            "kafka.server:type=Fetch,name=throttle-time,client-id=c": 0.0,
            "kafka.server:type=Request,name=queue-size": 0,
            "kafka.server:type=ControllerMutation,name=queue-size": 0,
        }
        name, metric = next(iter(client_quota_metrics(throttles)))
        assert isinstance(name, MetricName)
        assert isinstance(metric, Gauge)

    following(main)
