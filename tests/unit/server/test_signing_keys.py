"""The keys that sign tokens: fetched, kept, fetched again, whatever the other end does, and however many ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.real_host import real_host
from barnabas.kernel.timers import Timers
from barnabas.server.signing_keys import KeyAddress, SigningKeys
from tests.support.certificates import broker_certificate, other_authority, shared_authority
from tests.support.identity_provider import curve_key, identity_provider, key_set, public, rsa_key

LOGGER = logging.getLogger("tests")
Test = Callable[[SigningKeys, Host], Awaitable[None]]


def with_keys(address: KeyAddress, test: Test) -> None:
    async def main() -> None:
        async with real_host("broker", asyncio.get_running_loop()) as host:
            timers = Timers(host.loop)
            keys = SigningKeys(address, host, timers, LOGGER)
            try:
                await test(keys, host)
            finally:
                await keys.stop()
            assert len(timers) == 0
            timers.close()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_keys_are_there_after_the_start() -> None:
    async def test(keys: SigningKeys, _host: Host) -> None:
        assert keys.find("RS256", "rsa") is None
        await keys.start()
        assert keys.find("RS256", "rsa").public_numbers() == rsa_key().public_key().public_numbers()

    with identity_provider() as provider:
        with_keys(KeyAddress(provider.keys_address), test)
        assert provider.asked == ["/keys"]


def test_keys_come_by_https_from_whom_the_options_trust_and_from_nobody_else() -> None:
    trusted = (
        ("ssl.truststore.location", str(shared_authority().certificate)),
        ("ssl.truststore.type", "PEM"),
    )

    async def known(keys: SigningKeys, _host: Host) -> None:
        await keys.start()
        assert keys.find("RS256", "rsa") is not None

    async def unknown(keys: SigningKeys, _host: Host) -> None:
        with contextlib.suppress(TimeoutError):  # it would wait for them
            async with asyncio.timeout(0.5):
                await keys.start()
        assert keys.find("RS256", "rsa") is None

    with identity_provider(broker_certificate()) as provider:
        with_keys(KeyAddress(provider.keys_address, options=trusted), known)
    with identity_provider(other_authority().sign()) as provider:
        with_keys(KeyAddress(provider.keys_address, options=trusted), unknown)
        assert provider.asked == []


def test_a_key_that_is_new_there_is_known_soon_and_many_strange_names_ask_once() -> None:
    async def test(keys: SigningKeys, host: Host) -> None:
        await keys.start()
        provider.keys = [public("RS256", rsa_key(1), "new")]
        for number in range(1000):
            assert keys.find("RS256", f"strange-{number}") is None
        await until(lambda: keys.find("RS256", "new") is not None)
        assert keys.find("RS256", "rsa") is None
        for number in range(1000):
            keys.find("RS256", f"strange-{number}")
        await asyncio.sleep(0.1)
        assert provider.asked == ["/keys"] * 2
        # Ten seconds later another name may ask; the same one may not for a minute.
        keys._expedited_at_ms -= 10_000
        keys.find("RS256", "strange-0")
        await asyncio.sleep(0.05)
        assert provider.asked == ["/keys"] * 2
        keys.find("RS256", "another")
        await until(lambda: len(provider.asked) == 3)
        for number in range(100):
            keys._expedited_at_ms -= 10_000
            keys.find("RS256", f"more-{number}")
        assert len(keys._missing) <= 16

    with identity_provider() as provider:
        with_keys(KeyAddress(provider.keys_address), test)


def test_keys_are_fetched_at_every_interval() -> None:
    async def test(keys: SigningKeys, _host: Host) -> None:
        await keys.start()
        provider.keys = [public("ES256", curve_key("P-256"), "later")]
        await until(lambda: keys.find("ES256", "later") is not None)

    with identity_provider() as provider:
        with_keys(KeyAddress(provider.keys_address, refresh_ms=20), test)


@pytest.mark.parametrize("keys_there", [[], [{"kty": "oct", "k": "AA"}]])
def test_what_fails_leaves_the_keys_and_is_tried_again(keys_there: list[dict[str, str]]) -> None:
    async def test(keys: SigningKeys, _host: Host) -> None:
        await keys.start()
        provider.status = 503
        await until(lambda: len(provider.asked) > 3)
        assert keys.find("RS256", "rsa") is not None
        provider.status, provider.keys = 200, list(keys_there)
        asked = len(provider.asked)
        await until(lambda: len(provider.asked) > asked + 2)
        assert keys.find("RS256", "rsa") is not None
        provider.keys = [public("RS256", rsa_key(), "again")]
        await until(lambda: keys.find("RS256", "again") is not None)

    with identity_provider() as provider:
        with_keys(KeyAddress(provider.keys_address, 10, retry_backoff_ms=1, retry_backoff_max_ms=5), test)


def test_a_server_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.server.signing_keys._START_SECONDS", 0.1)

    async def test(keys: SigningKeys, _host: Host) -> None:
        await keys.start()
        assert keys._fetching is not None
        assert not keys._fetching.done()
        assert keys.find("RS256", "rsa") is None
        provider.hangs.clear()
        await until(lambda: keys.find("RS256", "rsa") is not None)

    with identity_provider() as provider:
        provider.hangs.set()
        with_keys(KeyAddress(provider.keys_address), test)


def test_a_file_has_keys_too(tmp_path: Path) -> None:
    import json

    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": key_set()}))

    async def test(keys: SigningKeys, _host: Host) -> None:
        await keys.start()
        assert keys.find("ES256", "p256") is not None
        path.write_text(json.dumps({"keys": [public("RS256", rsa_key(1), "new")]}))
        assert keys.find("RS256", "new") is None
        await until(lambda: keys.find("RS256", "new") is not None)

    with_keys(KeyAddress(path.as_uri()), test)


def test_a_password_in_the_address_is_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def test(keys: SigningKeys, _host: Host) -> None:
        await keys.start()
        provider.status = 200
        await until(lambda: keys.find("RS256", "rsa") is not None)

    caplog.set_level(logging.DEBUG)
    with identity_provider() as provider:
        provider.status = 503
        address = provider.keys_address.replace("://", "://user:hush@")
        with_keys(KeyAddress(address, retry_backoff_ms=1, retry_backoff_max_ms=5), test)
    assert "No keys of OAUTHBEARER from http://" in caplog.text
    assert "4 keys of OAUTHBEARER from http://" in caplog.text
    assert "hush" not in caplog.text
