"""`barnabas.tls`: from `ssl.*` configs to OpenSSL's contexts, in each form that a key may have."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_key_files import load_chain
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.settings import ClientAuth, TlsSettings
from barnabas.tls.stores import read_stores
from tests.support.certificates import (
    Authority,
    broker_certificate,
    client_certificate,
    other_authority,
    shared_authority,
)

SECRET = "very secret"


def settings(**values: Any) -> TlsSettings:
    """By the names of the configs, with `_` for `.`."""
    texts = {f"ssl.{name.replace('_', '.')}": value for name, value in values.items()}
    texts.setdefault("ssl.endpoint.identification.algorithm", "https")
    return TlsSettings.of(texts.get)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def server(**values: Any) -> ssl.SSLContext:
    given = settings(**values)
    return server_context(given, read_stores(given, read), load_chain)


def client(**values: Any) -> ssl.SSLContext:
    given = settings(**values)
    return client_context(given, read_stores(given, read), load_chain)


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after their handshake. Raises ssl.SSLError of whichever fails first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done: set[ssl.SSLObject] = set()
    for _ in range(6):
        for end in ends:
            if end in done:
                continue
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    assert len(done) == len(ends)
    return ends


def pem_store(**more: Any) -> dict[str, Any]:
    return {"keystore_type": "PEM", "keystore_location": str(broker_certificate().both), **more}


def pem_trust(authority: Authority | None = None) -> dict[str, Any]:
    return {"truststore_type": "PEM", "truststore_location": str((authority or shared_authority()).certificate)}


def in_configs() -> dict[str, Any]:
    """As in `server.properties`, where a line is hardly ever broken."""
    certified = broker_certificate()
    return {
        "keystore_type": "PEM",
        "keystore_key": " ".join(certified.key.read_text().split("\n")),
        "keystore_certificate_chain": " ".join(certified.certificate.read_text().split("\n")),
    }


def encrypted() -> dict[str, Any]:
    key = shared_authority().encrypted_key(broker_certificate(), SECRET)
    return in_configs() | {"keystore_key": key, "key_password": SECRET}


def of_pkcs12(kind: str = "PKCS12") -> dict[str, Any]:
    pytest.importorskip("cryptography")
    store = shared_authority().pkcs12(broker_certificate(), SECRET)
    return {"keystore_type": kind, "keystore_location": str(store), "keystore_password": SECRET}


@pytest.mark.parametrize(
    "store",
    [pem_store, in_configs, encrypted, of_pkcs12, lambda: of_pkcs12("JKS")],
    ids=["file", "configs", "encrypted", "PKCS12", "PKCS12 as JKS"],
)
@pytest.mark.parametrize("has_memory_files", [True, False])
def test_a_key_in_any_form_serves(store: Any, has_memory_files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    ours, _ = shaken(server(**store()), client(**pem_trust()))
    assert ours.version() == "TLSv1.3"
    assert ours.getpeercert()


def test_a_trust_store_of_java_is_read() -> None:
    pytest.importorskip("cryptography")
    store = shared_authority().pkcs12(broker_certificate(), SECRET)
    trusted = {"truststore_type": "PKCS12", "truststore_location": str(store), "truststore_password": SECRET}
    shaken(server(**pem_store()), client(**trusted))


def test_who_is_trusted_need_not_have_signed_itself() -> None:
    itself = {"truststore_type": "PEM", "truststore_certificates": broker_certificate().certificate.read_text()}
    shaken(server(**pem_store()), client(**itself))


def test_a_client_checks_the_name_unless_it_is_told_not_to() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(server(**pem_store()), client(**pem_trust()), "castle")
    shaken(server(**pem_store()), client(**pem_trust(), endpoint_identification_algorithm=""), "castle")
    shaken(server(**pem_store()), client(**pem_trust()), "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server(**pem_store()), client(**pem_trust(other_authority()), endpoint_identification_algorithm=""))


def test_a_name_that_only_the_subject_has_counts_as_in_java() -> None:
    old_style = shared_authority().sign("/CN=castle", "")
    shaken(server(keystore_type="PEM", keystore_location=str(old_style.both)), client(**pem_trust()), "castle")


@pytest.mark.parametrize(
    ("auth", "shows", "is_in"),
    [
        ("required", None, False),
        ("required", "ours", True),
        ("required", "other", False),
        ("requested", None, True),
        ("requested", "ours", True),
        ("requested", "other", False),
        ("none", "ours", True),
    ],
)
def test_whether_clients_must_show_a_certificate(auth: str, shows: str | None, is_in: bool) -> None:
    context = server(**pem_store(), **pem_trust(), client_auth=auth)
    ours = client(**pem_trust())
    if shows:
        shown = client_certificate() if shows == "ours" else other_authority().sign("/CN=alice")
        ours = client(**pem_trust(), keystore_type="PEM", keystore_location=str(shown.both))
    if is_in:
        _, theirs = shaken(context, ours)
        assert bool(theirs.getpeercert(binary_form=True)) == (shows is not None and auth != "none")
    else:
        with pytest.raises(ssl.SSLError):
            shaken(context, ours)


@pytest.mark.parametrize(
    ("values", "version", "suite"),
    [
        ({}, "TLSv1.3", None),
        ({"protocol": "TLSv1.2"}, "TLSv1.2", None),
        ({"enabled_protocols": ["TLSv1.2"]}, "TLSv1.2", None),
        ({"cipher_suites": ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]}, "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (
            {"cipher_suites": ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]},
            "TLSv1.3",
            None,
        ),
    ],
)
def test_versions_and_suites_are_those_that_are_configured(
    values: dict[str, Any], version: str, suite: str | None
) -> None:
    ours, _ = shaken(server(**pem_store(), **values), client(**pem_trust()))
    assert ours.version() == version
    chosen = ours.cipher()
    assert chosen is not None
    assert suite in (None, chosen[0])


def test_nobody_is_let_in_by_a_ticket_of_a_former_connection() -> None:
    assert server(**pem_store()).num_tickets == 0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "needs a key: set ssl.keystore.location"),
        ({"keystore_location": "/nowhere"}, "/nowhere cannot be read: No such file"),
        ({"keystore_password": SECRET}, "ssl.keystore.password is given, and no ssl.keystore.location"),
        ({"keystore_type": "BKS"}, "ssl.keystore.type=BKS: it must be PEM or PKCS12"),
        ({"keystore_type": "PEM", "keystore_key": SECRET}, "are needed both"),
        ({"keystore_key": SECRET, "keystore_certificate_chain": SECRET}, "they need ssl.keystore.type=PEM"),
        (
            {"keystore_type": "PEM", "keystore_key": SECRET, "keystore_certificate_chain": SECRET},
            "has 0 private keys and 0 certificates",
        ),
        (in_configs() | {"keystore_location": "/nowhere"}, "only one of them can count"),
        (pem_store(keystore_password=SECRET), "the key's is ssl.key.password"),
        (pem_store(key_password=SECRET), "is not encrypted: leave ssl.key.password out"),
        (in_configs() | {"key_password": ""}, "is not encrypted: leave ssl.key.password out"),
        (pem_store(client_auth="required"), "ssl.client.auth=required needs to know whose"),
        (pem_store(truststore_password=SECRET), "ssl.truststore.password is given"),
        (pem_store(truststore_certificates=SECRET), "it needs ssl.truststore.type=PEM"),
        (pem_store(truststore_type="PEM", truststore_certificates=SECRET), "has no certificates"),
        (pem_store(protocol="SSLv3"), "ssl.protocol=SSLv3: it must be"),
        (pem_store(enabled_protocols=["TLSv1", "TLSv1.2"]), "ssl.enabled.protocols has TLSv1: it can have"),
        (pem_store(protocol="TLSv1.2", enabled_protocols=["TLSv1.3"]), "leaves none of ssl.enabled.protocols"),
        (pem_store(cipher_suites=["TLS_AES_256_GCM_SHA384"]), "all or none of them"),
        (pem_store(cipher_suites=["TLS_ECDHE_ECDSA_WITH_CAMELLIA_999_CBC_SHA"]), "OpenSSL has none of"),
        (pem_store(engine_factory_class="org.Other"), "Java classes cannot be loaded"),
    ],
)
def test_what_cannot_be_is_told_without_a_secret(values: dict[str, Any], says: str) -> None:
    with pytest.raises(TlsConfigError) as caught:
        server(**values)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_wrong_password_and_a_foreign_key_are_told(tmp_path: Path) -> None:
    with pytest.raises(TlsConfigError, match=r"ssl\.key\.password is wrong"):
        server(**encrypted() | {"key_password": "guess"})
    with pytest.raises(TlsConfigError, match=r"ssl\.key\.password is not given"):
        server(**encrypted() | {"key_password": None})
    mixed = tmp_path / "mixed.pem"
    mixed.write_bytes(client_certificate().key.read_bytes() + broker_certificate().certificate.read_bytes())
    with pytest.raises(TlsConfigError, match="not that of the first certificate"):
        server(keystore_type="PEM", keystore_location=str(mixed))
    with pytest.raises(TlsConfigError, match=r"ssl\.keystore\.password is wrong"):
        server(**of_pkcs12() | {"keystore_password": "guess"})
    with pytest.raises(TlsConfigError, match="is no PEM: name its type, PKCS12"):
        server(**of_pkcs12("PEM") | {"keystore_password": None})


@pytest.mark.parametrize("store", ["keystore", "truststore"])
@pytest.mark.parametrize("damage", [b"\xff", b"\x00", b"*", b"\xc3\xa4"])
def test_a_store_with_damaged_letters_is_told_as_any_that_cannot_be_used(
    tmp_path: Path, store: str, damage: bytes
) -> None:
    key, place = broker_certificate().both, tmp_path / "store.pem"
    data = (key if store == "keystore" else shared_authority().certificate).read_bytes()
    begin = data.rindex(b"-----BEGIN CERTIFICATE-----") + 100
    place.write_bytes(data[:begin] + damage + data[begin + len(damage) :])
    places = {"keystore_location": str(key)} | {f"{store}_location": str(place)}
    with pytest.raises(TlsConfigError):
        server(keystore_type="PEM", truststore_type="PEM", **places)


def test_a_store_that_only_java_reads_says_how_it_is_converted(tmp_path: Path) -> None:
    store = tmp_path / "broker.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(TlsConfigError) as caught:
        server(keystore_type="JKS", keystore_location=str(store))
    assert f"keytool -importkeystore -srckeystore {store} -destkeystore {store}.p12 -deststoretype PKCS12" in str(
        caught.value
    )


def test_secrets_are_in_no_representation() -> None:
    shown = repr(
        settings(**encrypted(), keystore_password=SECRET, truststore_password=SECRET, truststore_certificates=SECRET)
    )
    assert SECRET not in shown
    assert "PRIVATE KEY" not in shown
    assert settings(client_auth="REQUESTED").client_auth is ClientAuth.REQUESTED


def test_a_key_in_memory_leaves_no_file_and_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(list(Path("/dev/fd").iterdir()))
    for has_memory_files in (True, False):
        if not has_memory_files:
            monkeypatch.delattr(os, "memfd_create", raising=False)
        server(**pem_store())
        with pytest.raises(TlsConfigError):
            server(**encrypted() | {"key_password": "guess"})
    assert len(list(Path("/dev/fd").iterdir())) == before
    assert not list(tmp_path.iterdir())


def test_openssl_is_loaded_only_where_a_context_is_made() -> None:
    code = (
        "import sys\n"
        "from barnabas.kernel.real_tls import import_loops_without_tls\n"
        "import_loops_without_tls()\n"
        "import barnabas.server.broker, barnabas.client.client, barnabas.cli.command_config\n"
        "sys.exit('ssl' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
