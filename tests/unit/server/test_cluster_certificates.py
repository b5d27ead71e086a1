"""Certificates of `barnabas up --secure`: what is made, kept, and made anew."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_key_files import load_chain
from barnabas.server.cluster_certificates import AUTHORITY_DAYS, DAYS, RENEWED_DAYS, Certificates, days_left
from barnabas.server.private_files import PrivateFiles
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores
from barnabas.tls.trials import try_handshake
from tests.support.certificates import broker_certificate

DAY_MS = 86_400_000
NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "ä")


class Made:
    """The certificates in a directory."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.key = directory / "authority.pem", directory / "authority.key"
        self.store = directory / "broker-1.pem"
        self.told: list[str] = []

    def make(self, days: float = 0, names: tuple[str, ...] = NAMES) -> tuple[bytes, bytes]:
        """As at a start after so many days."""
        now_ms = int(1_790_000_000_000 + days * DAY_MS)
        files = PrivateFiles(RealFiles())
        made = Certificates(files, now_ms, str(self.authority), str(self.key), self.told.append)
        made.ensure(str(self.store), "broker-1", names)
        return self.authority.read_bytes(), self.store.read_bytes()

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = TlsSettings(keystore_type="PEM", keystore_location=str(self.store))
        client = TlsSettings(truststore_type="PEM", truststore_location=str(self.authority))

        def stores(settings: TlsSettings) -> object:
            return read_stores(settings, lambda path: Path(path).read_bytes())

        return (
            server_context(server, stores(server), load_chain),  # type: ignore[arg-type]
            client_context(client, stores(client), load_chain),  # type: ignore[arg-type]
        )


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_openssl_takes_what_is_made_and_only_its_user_reads_it(made: Made, tmp_path: Path) -> None:
    import time

    made.make((time.time() * 1000 - 1_790_000_000_000) / DAY_MS)
    server, client = made.contexts()
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
    assert try_handshake(server, client) is None
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["authority.key", "authority.pem", "broker-1.pem"]


def test_what_holds_is_kept_and_not_even_written_again(made: Made) -> None:
    first = made.make()
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in (made.authority, made.key, made.store)]
    assert made.make(DAYS - RENEWED_DAYS - 1, NAMES[:2]) == first
    after = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in (made.authority, made.key, made.store)]
    assert before == after
    assert made.told == []


def test_a_certificate_is_made_anew_before_it_ends_by_the_same_authority(made: Made) -> None:
    authority, store = made.make()
    authority_after, store_after = made.make(DAYS - RENEWED_DAYS + 1)
    assert authority_after == authority
    assert store_after != store
    assert made.told == []


def test_an_authority_that_is_about_to_end_is_replaced_with_all_that_it_has_signed_and_that_is_told(made: Made) -> None:
    authority, store = made.make()
    authority_after, store_after = made.make(AUTHORITY_DAYS - RENEWED_DAYS + 1)
    assert authority_after != authority
    assert store_after != store
    assert len(made.told) == 1
    assert "clients have to trust the new one" in made.told[0]


def test_a_clock_that_is_behind_makes_no_other_authority(made: Made) -> None:
    authority, _ = made.make()
    assert made.make(-10_000)[0] == authority
    assert made.told == []


def test_nothing_outlives_its_authority(made: Made) -> None:
    import datetime as dt

    made.make()
    day = AUTHORITY_DAYS - RENEWED_DAYS - 1
    _, store = made.make(day)
    now = dt.datetime.fromtimestamp(1_790_000_000 + day * 86_400, dt.UTC)
    left = days_left(store, now)
    assert left is not None
    assert RENEWED_DAYS < left <= RENEWED_DAYS + 1.1


def _truncated(made: Made) -> None:
    made.store.write_bytes(made.store.read_bytes()[:400])


def _of_others(made: Made) -> None:
    made.store.write_bytes(broker_certificate().both.read_bytes())


def _of_two(made: Made) -> None:
    """A key and a certificate that do not belong together."""
    key = made.store.read_text().partition("-----BEGIN CERTIFICATE")[0]
    made.store.write_text(key + broker_certificate().certificate.read_text())


def _garbage(made: Made) -> None:
    made.store.write_bytes(os.urandom(1000))


@pytest.mark.parametrize("damage", [_truncated, _of_others, _of_two, _garbage, lambda made: made.store.unlink()])
def test_what_cannot_be_used_is_made_anew(made: Made, damage: Callable[[Made], object]) -> None:
    authority, store = made.make()
    damage(made)
    authority_after, store_after = made.make()
    assert authority_after == authority
    assert store_after != store
    assert made.make() == (authority_after, store_after)


def test_another_name_makes_another_certificate(made: Made) -> None:
    _, store = made.make()
    assert made.make(names=(*NAMES, "castle.example"))[1] != store


def test_an_authority_that_is_damaged_is_replaced_and_one_whose_copy_is_missing_is_not(made: Made) -> None:
    authority, _ = made.make()
    made.authority.unlink()
    assert made.make()[0] == authority
    made.key.write_bytes(made.key.read_bytes()[:200])
    assert made.make()[0] != authority
    assert len(made.told) == 1


def test_a_file_that_somebody_else_could_read_before_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.password"
    (tmp_path / "a.password.tmp").write_text("of who was killed")
    (tmp_path / "a.password.tmp").chmod(0o666)
    PrivateFiles(RealFiles()).write(str(path), "secret")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("secret", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["a.password"]
