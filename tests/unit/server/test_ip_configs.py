"""Quotas of addresses follow `/config/ips`, beside a real coordinator in virtual time."""

from __future__ import annotations

import pytest

from tests.unit.server.test_dynamic_configs import Following, following
from tests.unit.server.test_quota_configs import put


def bound(broker: Following, address: str) -> int | None:
    """How many connections of the address come in before one is refused; None: all of very many."""
    for count in range(1000):
        if broker.rates.accept_from(address, "A", broker.world.host.loop.time()) > 0:
            broker.rates._addresses.clear()
            return count // 10
    broker.rates._addresses.clear()
    return None


async def rate(broker: Following, name: str, text: str) -> None:
    await put(broker, f"ips/{name}", connection_creation_rate=text)


def test_reads_all_at_the_start() -> None:
    async def main(broker: Following) -> None:
        await rate(broker, "10.0.0.1", "1")
        await rate(broker, "host", "2")
        await rate(broker, "%3A%3A1", "3")
        await rate(broker, "<default>", "4")
        await rate(broker, "nowhere", "5")
        await broker.dynamic.start()
        found = [bound(broker, address) for address in ("10.0.0.1", "10.1.1.1", "::1", "10.0.0.9")]
        assert found == [1, 2, 3, 4]
        assert "The quota of nowhere is ignored" in "\n".join(broker.world.lines.lines)

    following(main)


def test_hears_of_quotas_that_are_changed_and_removed() -> None:
    async def main(broker: Following) -> None:
        await broker.dynamic.start()
        for name, address in (("10.0.0.1", "10.0.0.1"), ("host", "10.1.1.1"), ("<default>", "10.0.0.9")):
            for value in ("1", "0", "5"):
                await rate(broker, name, value)
                await broker.announce(f"ips/{name}")
                await broker.until(lambda a=address, v=value: bound(broker, a) == int(v))  # type: ignore[misc]
            await put(broker, f"ips/{name}")
            await broker.announce(f"ips/{name}")
            await broker.until(lambda a=address: bound(broker, a) is None)  # type: ignore[misc]

    following(main)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "2147483648", "9" * 5000, "\u0661"])
def test_what_is_no_quota_is_ignored(text: str) -> None:
    async def main(broker: Following) -> None:
        await rate(broker, "10.0.0.1", "3")
        await broker.dynamic.start()
        await rate(broker, "10.0.0.1", text)
        await rate(broker, "10.0.0.2", "1")
        for name in ("10.0.0.1", "10.0.0.2"):
            await broker.announce(f"ips/{name}")
        await broker.until(lambda: bound(broker, "10.0.0.2") == 1)
        assert bound(broker, "10.0.0.1") == 3

    following(main)


def test_quotas_that_are_gone_while_nobody_listens_are_gone() -> None:
    async def main(broker: Following) -> None:
        await rate(broker, "10.0.0.1", "3")
        await rate(broker, "10.0.0.2", "3")
        await broker.dynamic.start()
        await broker.world.client.delete("/config/ips/10.0.0.1")
        await broker.dynamic.after_new_session()
        await broker.until(lambda: bound(broker, "10.0.0.1") is None)
        assert bound(broker, "10.0.0.2") == 3

    following(main)


def test_garbage_harms_nobody_else() -> None:
    async def main(broker: Following) -> None:
        await broker.world.client.create("/config/ips/10.0.0.1", b"garbage")
        await rate(broker, "10.0.0.2", "3")
        await broker.dynamic.start()
        assert (bound(broker, "10.0.0.1"), bound(broker, "10.0.0.2")) == (None, 3)

    following(main)
