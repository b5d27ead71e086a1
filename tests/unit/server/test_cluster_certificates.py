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
from barnabas.server.cluster_security import ClusterSecurityError
from barnabas.server.private_files import PrivateFiles
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores
from barnabas.tls.trials import try_handshake

DAY_MS = 86_400_000
NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "ä")


class Made:
    """The certificates in a directory."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.key = directory / "authority.pem", directory / "authority.key"
        self.store = directory / "broker-1.pem"
        self.told: list[str] = []

    def make(
        self, days: float = 0, names: tuple[str, ...] = NAMES, *, keeps_authority: bool = False
    ) -> tuple[bytes, bytes]:
        """As at a start after so many days, or while the cluster runs."""
        now_ms = int(1_790_000_000_000 + days * DAY_MS)
        files = PrivateFiles(RealFiles())
        paths = str(self.authority), str(self.key)
        made = Certificates(files, now_ms, *paths, self.told.append, keeps_authority=keeps_authority)
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


def test_what_was_made_while_the_clock_was_ahead_is_made_anew_when_it_is_right_again(made: Made) -> None:
    """It does not hold yet, and nobody would be let in for years."""
    import datetime as dt

    authority, store = made.make()
    authority_ahead, store_ahead = made.make(2_000, keeps_authority=True)
    authority_after, store_after = made.make(1, keeps_authority=True)
    assert authority == authority_ahead == authority_after
    assert len({store, store_ahead, store_after}) == 3
    left = days_left(store_after, dt.datetime.fromtimestamp(1_790_000_000, dt.UTC))
    assert left is not None
    assert DAYS <= left <= DAYS + 2
    assert made.make(2) == (authority, store_after)


@pytest.mark.parametrize("days", [-10_000, AUTHORITY_DAYS + 1])
def test_nothing_is_made_while_a_cluster_runs_by_a_clock_at_which_its_authority_does_not_hold(
    made: Made, days: float
) -> None:
    before = made.make()
    with pytest.raises(ClusterSecurityError, match=r"does not hold now; is the clock right\?"):
        made.make(days, names=(*NAMES, "castle.example"), keeps_authority=True)
    assert (made.authority.read_bytes(), made.store.read_bytes()) == before
    assert made.make(1) == before


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
    """For the same names, by an authority of the same name."""
    (made.store.parent / "other").mkdir()
    other = Made(made.store.parent / "other")
    other.make()
    made.store.write_bytes(other.store.read_bytes())


def _of_two(made: Made) -> None:
    """A key and a certificate that do not belong together, each well by itself."""
    key = made.store.read_text().partition("-----BEGIN CERTIFICATE")[0]
    made.store.unlink()
    made.make()
    certificate = made.store.read_text().partition("-----BEGIN CERTIFICATE")
    made.store.write_text(key + "".join(certificate[1:]))


def _garbage(made: Made) -> None:
    made.store.write_bytes(os.urandom(1000))


@pytest.mark.parametrize("damage", [_truncated, _of_others, _of_two, _garbage, lambda made: made.store.unlink()])
def test_what_cannot_be_used_is_made_anew(made: Made, damage: Callable[[Made], object]) -> None:
    authority, store = made.make()
    damage(made)
    damaged = made.store.read_bytes() if made.store.exists() else b""
    authority_after, store_after = made.make()
    assert authority_after == authority
    assert store_after not in (store, damaged)
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


def test_a_process_can_sign_for_nobody_and_the_authority_for_processes_alone(made: Made) -> None:
    """Else whoever has the key of one broker would be all of them, and the console."""
    from cryptography.x509 import BasicConstraints, ExtendedKeyUsage, KeyUsage, load_pem_x509_certificate

    authority, process = map(load_pem_x509_certificate, made.make())
    for certificate, is_authority in ((authority, True), (process, False)):
        constraints = certificate.extensions.get_extension_for_class(BasicConstraints)
        usage = certificate.extensions.get_extension_for_class(KeyUsage)
        assert constraints.critical
        assert usage.critical
        assert (constraints.value.ca, constraints.value.path_length) == (is_authority, 0 if is_authority else None)
        assert usage.value.key_cert_sign is usage.value.crl_sign is is_authority
        assert usage.value.digital_signature is not is_authority
        assert certificate.public_key().key_size == 256
    assert len(list(process.extensions.get_extension_for_class(ExtendedKeyUsage).value)) == 2


def test_what_cannot_sign_is_no_authority(made: Made) -> None:
    authority, store = made.make()
    made.key.write_bytes(store)
    assert made.make()[0] not in (authority, store.partition(b"-----BEGIN CERTIFICATE")[2])
    assert len(made.told) == 1


def test_a_file_that_somebody_else_could_read_before_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.password"
    (tmp_path / "a.password.tmp").write_text("of who was killed")
    (tmp_path / "a.password.tmp").chmod(0o666)
    PrivateFiles(RealFiles()).write(str(path), "secret")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("secret", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["a.password"]


def test_while_the_cluster_runs_its_authority_stays(made: Made) -> None:
    authority, first = made.make()
    assert made.make(DAYS - RENEWED_DAYS - 1, keeps_authority=True) == (authority, first)
    kept, second = made.make(DAYS - RENEWED_DAYS + 1, keeps_authority=True)
    assert kept == authority
    assert second != first
    kept, third = made.make(AUTHORITY_DAYS - 1, keeps_authority=True)
    assert kept == authority
    assert third != second
    assert not made.told
    assert made.make(AUTHORITY_DAYS - 1)[0] != authority


def test_while_the_cluster_runs_no_authority_takes_the_place_of_one_whose_key_is_kept_elsewhere(made: Made) -> None:
    authority, store = made.make()
    made.key.unlink()
    with pytest.raises(ClusterSecurityError, match=r"authority\.key is not there"):
        made.make(DAYS - 1, keeps_authority=True)
    assert (made.authority.read_bytes(), made.store.read_bytes()) == (authority, store)
