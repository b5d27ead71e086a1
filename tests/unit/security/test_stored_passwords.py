"""What of a broker's dynamic configs is kept encrypted, and what becomes of it when it cannot be decoded."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.config.keys import Password
from barnabas.kernel.host import Host
from barnabas.security import stored_passwords
from barnabas.security.password_encoder import PasswordEncoderError, PasswordEncoderSettings
from barnabas.security.stored_passwords import StoredPasswords, is_stored_password
from barnabas.testing.simulation import Simulation
from tests.unit.network.serving import Lines

SETTINGS = PasswordEncoderSettings(secret=Password("first"), iterations=1024)
KEY = "listener.name.external.ssl.key.password"
STORE = "listener.name.external.ssl.keystore.password"
JAAS = "listener.name.external.plain.sasl.jaas.config"
Work = Callable[["Broker"], Awaitable[None]]


class Broker:
    """Makes `StoredPasswords` as a broker with these settings does; `lines` is what they have logged."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._lines = Lines()
        self._logger = logging.getLogger(f"passwords of {id(self)}")
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self._lines)

    @property
    def lines(self) -> list[str]:
        return self._lines.lines

    def passwords(self, **settings: Any) -> StoredPasswords:
        secrets: dict[str, Any] = {name: None if value is None else Password(value) for name, value in settings.items()}
        return StoredPasswords(self.host, replace(SETTINGS, **secrets), self._logger)

    async def written(self, clear: dict[str, str], **settings: Any) -> dict[str, str]:
        passwords = self.passwords(**settings)
        return await passwords.encoded(clear, await passwords.opened({}))


def on_broker(work: Work) -> None:
    async def main(host: Host) -> None:
        await work(Broker(host))

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("broker"), main, 60)


def test_what_is_a_password_goes_by_the_end_of_its_name_as_in_kafka() -> None:
    for name in (KEY, STORE, JAAS, "sasl.jaas.config", "nobody.knows.ssl.truststore.certificates", "xssl.keystore.key"):
        assert is_stored_password(name), name
    for name in ("ssl.keystore.location", "log.dirs", "delegation.token.secret.key", "ssl.key.password.x", "", "key"):
        assert not is_stored_password(name), name


def test_what_was_encoded_is_opened_and_the_rest_is_left_as_it_is() -> None:
    async def work(broker: Broker) -> None:
        clear = {KEY: "swordfish", "log.retention.ms": "5", JAAS: "module required;", STORE: ""}
        written = await broker.written(clear)
        assert written["log.retention.ms"] == "5"
        assert not any(word in str(written) for word in ("swordfish", "module"))
        opened = await broker.passwords().opened(written)
        assert list(opened.clear.items()) == list(clear.items())
        assert (opened.sealed, opened.by_old_secret) == ({}, frozenset())
        assert broker.lines == []
        assert "swordfish" not in repr(opened)

    on_broker(work)


def test_what_cannot_be_opened_is_said_once_and_sealed() -> None:
    async def work(broker: Broker) -> None:
        good = await broker.written({KEY: "swordfish"})
        other = await broker.written({STORE: "hunter2"}, secret="another")
        texts = {**good, **other, JAAS: "module required hunter2;", "log.retention.ms": "5"}
        passwords = broker.passwords()
        for _ in range(2):
            opened = await passwords.opened(texts)
            assert opened.clear == {KEY: "swordfish", "log.retention.ms": "5"}
            assert opened.sealed == {STORE: texts[STORE], JAAS: texts[JAAS]}
        assert len(broker.lines) == 2
        assert (
            f"Dynamic password config {STORE} could not be decoded, ignoring: it was encoded with another secret"
            in ("".join(broker.lines))
        )
        assert not any("hunter2" in line for line in broker.lines)

    on_broker(work)


def test_without_a_secret_nothing_is_opened_and_nothing_encoded() -> None:
    async def work(broker: Broker) -> None:
        written = await broker.written({KEY: "swordfish"})
        passwords = broker.passwords(secret=None, old_secret="first")
        opened = await passwords.opened(written)
        assert (opened.clear, opened.sealed) == ({}, written)
        for attempt in (passwords.check({KEY: "x"}), passwords.encoded({KEY: "x"}, opened)):
            with pytest.raises(PasswordEncoderError, match=r"^Password encoder secret not configured"):
                await attempt
        await passwords.check({"log.retention.ms": "5"})
        assert await passwords.encoded({"log.retention.ms": "5"}, opened) == {"log.retention.ms": "5"}

    on_broker(work)


def test_what_has_not_changed_stays_as_it_is_encoded() -> None:
    async def work(broker: Broker) -> None:
        written = await broker.written({KEY: "swordfish", STORE: "hunter2"})
        passwords = broker.passwords()
        opened = await passwords.opened(written)
        again = await passwords.encoded({KEY: "swordfish", STORE: "other"}, opened)
        assert again[KEY] == written[KEY]
        assert again[STORE] != written[STORE]
        assert (await passwords.opened(again)).clear == {KEY: "swordfish", STORE: "other"}

    on_broker(work)


def test_what_was_encoded_with_another_cipher_is_encoded_anew_with_any_change() -> None:
    """A broker of Apache Kafka with the same configs cannot read what is of AES/GCM beside what is not."""

    async def work(broker: Broker) -> None:
        written = await broker.written({KEY: "swordfish"})
        passwords = StoredPasswords(
            broker.host, replace(SETTINGS, cipher="AES/GCM/NoPadding"), logging.getLogger("passwords")
        )
        opened = await passwords.opened(written)
        again = await passwords.encoded({KEY: "swordfish", STORE: "hunter2"}, opened)
        assert all("AES/GCM/NoPadding" in text for text in again.values())
        assert (await broker.passwords().opened(again)).clear == {KEY: "swordfish", STORE: "hunter2"}

    on_broker(work)


def test_what_the_old_secret_opens_is_encoded_with_the_present_one() -> None:
    async def work(broker: Broker) -> None:
        of_then = await broker.written({KEY: "swordfish"})
        of_now = await broker.written({STORE: "hunter2"}, secret="second")
        passwords = broker.passwords(secret="second", old_secret="first")
        opened = await passwords.opened({**of_then, **of_now})
        assert opened.clear == {KEY: "swordfish", STORE: "hunter2"}
        assert opened.by_old_secret == {KEY}
        again = await passwords.encoded(opened.clear, opened)
        assert again[STORE] == of_now[STORE]
        opened = await broker.passwords(secret="second").opened(again)
        assert opened.clear == {KEY: "swordfish", STORE: "hunter2"}
        # Left in place, the old one takes nothing apart.
        opened = await broker.passwords(secret="second", old_secret="first").opened(again)
        assert opened.by_old_secret == frozenset()

    on_broker(work)


def test_the_present_secret_goes_first() -> None:
    async def work(broker: Broker) -> None:
        written = await broker.written({KEY: "swordfish"})
        opened = await broker.passwords(old_secret="first").opened(written)
        assert (opened.clear, opened.by_old_secret) == ({KEY: "swordfish"}, frozenset())

    on_broker(work)


def test_two_that_ask_at_once_are_each_answered() -> None:
    async def work(broker: Broker) -> None:
        some = [{KEY: f"swordfish {number}", STORE: f"hunter {number}"} for number in range(4)]
        written = [await broker.written(clear) for clear in some]
        opened = await asyncio.gather(*map(broker.passwords().opened, written))
        assert [each.clear for each in opened] == some

    on_broker(work)


def test_a_value_is_worked_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[int] = []
    derive = hashlib.pbkdf2_hmac

    def counted(name: str, secret: bytes, salt: bytes, iterations: int, count: int) -> bytes:
        derived.append(iterations)
        return derive(name, secret, salt, iterations, count)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)

    async def work(broker: Broker) -> None:
        passwords = broker.passwords()
        written = await passwords.encoded({KEY: "swordfish"}, await passwords.opened({}))
        assert len(derived) == 1
        await passwords.opened(written)  # its own is known
        assert len(derived) == 1
        for _ in range(3):  # and so is what is garbage
            await passwords.opened({**written, **dict.fromkeys([STORE, JAAS], written[KEY].replace("1024", "1025"))})
        assert len(derived) == 2
        await passwords.opened({})
        await passwords.opened(written)
        assert len(derived) == 3

    on_broker(work)


def test_values_of_many_iterations_keep_no_others_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_passwords, "ITERATIONS_OF_ALL_MAX", 10_000)

    async def work(broker: Broker) -> None:
        good = await broker.written({KEY: "swordfish"})
        costly = {f"x{number}.{STORE}": good[KEY].replace("1024", f"{4_000 + number}") for number in range(5)}
        opened = await broker.passwords().opened({**costly, **good})
        assert opened.clear == {KEY: "swordfish"}
        assert opened.sealed == costly
        assert sum("all of them together" in line for line in broker.lines) == 3
        assert sum("another secret" in line for line in broker.lines) == 2

    on_broker(work)
