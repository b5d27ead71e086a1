"""How librdkafka's tests come to a cluster that wants TLS or a login, as its own scripts (trivup's) set that up."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import ScramMechanism

from tests.suites.clusters import OWN_PORT
from tests.suites.users import make_user
from tests.support.certificates import Authority, openssl
from tests.support.ports import free_port
from tests.support.sasl_cluster import login_module
from tests.support.tls_cluster import pem_properties

_USER, _PASSWORD = "testuser", "testpass"
_KEY_PASSWORD = "of the key"
_SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_BEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_REAUTHENTICATION_MS = 10_000
"""A test of theirs wants one, and takes eight times as long."""


@dataclass(frozen=True, slots=True)
class Access:
    """What brokers and clients are given."""

    overrides: Mapping[str, object]
    config: Mapping[str, str]
    """Lines of `test.conf`."""
    environment: Mapping[str, str]
    mechanism: str

    def make_users(self, bootstrap_servers: str) -> None:
        if self.mechanism in _SCRAM:
            make_user(bootstrap_servers, _USER, _PASSWORD, [_SCRAM[self.mechanism]])


def access(protocol: str, mechanism: str, broker_ids: Sequence[int]) -> Access:
    """By a listener of this security protocol, beside the plain one that brokers and tools have."""
    ports = {broker_id: free_port() for broker_id in broker_ids}
    overrides: dict[str, object] = {
        "listeners": {each: f"PLAINTEXT://127.0.0.1:{OWN_PORT},{protocol}://localhost:{ports[each]}" for each in ports},
        "connections.max.reauth.ms": _REAUTHENTICATION_MS,
    }
    config = {
        "metadata.broker.list": ",".join(f"localhost:{port}" for port in ports.values()),
        "security.protocol": protocol,
    }
    environment: dict[str, str] = {}
    if protocol.endswith("SSL"):
        keys = Path(tempfile.mkdtemp(prefix="librdkafka-keys-"))
        atexit.register(shutil.rmtree, keys, ignore_errors=True)
        authority = Authority(keys / "authority")
        overrides |= pem_properties(authority.sign("/CN=localhost"), authority)
        config["ssl.ca.location"] = str(authority.certificate)
        if protocol == "SSL":
            overrides["listener.name.ssl.ssl.client.auth"] = "required"
            more_config, environment = _client(authority, keys)
            config |= more_config
    if mechanism:
        config |= {"sasl.mechanism": mechanism, **_login(mechanism)}
        overrides["sasl.enabled.mechanisms"] = mechanism
        overrides[f"listener.name.{protocol.lower()}.{mechanism.lower()}.sasl.jaas.config"] = (
            f'{_BEARER_MODULE} required unsecuredLoginStringClaim_sub="broker";'
            if mechanism == "OAUTHBEARER"
            else login_module(mechanism, username=_USER, password=_PASSWORD, **_known_to(mechanism))
        )
    return Access(overrides, config, environment, mechanism)


def _known_to(mechanism: str) -> dict[str, str]:
    """Users of PLAIN are in the brokers' own configs, those of SCRAM in ZooKeeper."""
    return {f"user_{_USER}": _PASSWORD} if mechanism == "PLAIN" else {}


def _login(mechanism: str) -> dict[str, str]:
    if mechanism == "OAUTHBEARER":
        return {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": "principal=admin scope=requiredScope",
        }
    return {"sasl.username": _USER, "sasl.password": _PASSWORD}


def _client(authority: Authority, keys: Path) -> tuple[dict[str, str], dict[str, str]]:
    """A certificate of a client, in each form that the tests read it in."""
    certified = authority.sign("/CN=librdkafka")
    encrypted = keys / "client.encrypted.pem"
    encrypted.write_text(authority.encrypted_key(certified, _KEY_PASSWORD))
    certificate_der, authority_der, all_authorities = keys / "client.der", keys / "authority.der", keys / "all.pem"
    openssl("x509", "-in", certified.certificate, "-outform", "DER", "-out", certificate_der)
    openssl("x509", "-in", authority.certificate, "-outform", "DER", "-out", authority_der)
    other = Authority(keys / "other", "other")
    all_authorities.write_bytes(authority.certificate.read_bytes() + other.certificate.read_bytes())
    config = {
        "ssl.certificate.location": str(certified.certificate),
        "ssl.key.location": str(encrypted),
        "ssl.key.password": _KEY_PASSWORD,
    }
    files = {
        "pkcs": authority.pkcs12(certified, _KEY_PASSWORD),
        "pub_pem": certified.certificate,
        "pub_der": certificate_der,
        "priv_pem": encrypted,
        "ca_pem": authority.certificate,
        "ca_der": authority_der,
        "all_cas_pem": all_authorities,
    }
    told = {f"SSL_{name}": str(path) for name, path in files.items()}
    return config, {**told, "SSL_password": _KEY_PASSWORD, "SSL_client_auth": "required"}
