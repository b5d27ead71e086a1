"""How a broker comes in at ZooKeeper: from its keys, and the file that Kafka's users have."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from barnabas.config.broker_config import BrokerConfig
from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.layout.access import default_acl
from barnabas.coordination.operations import Check, Create, Multi
from barnabas.coordination.protocol import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL
from barnabas.kernel.real_files import RealFiles
from barnabas.server.config import read_server_config
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.errors import BrokerStartError
from barnabas.server.zookeeper_access import DIGEST_MODULE, login_config_of_kafka, secured_settings
from tests.support.certificates import broker_certificate, shared_authority

SECRET = "hush-hush"
CLIENT = f'Client {{ {DIGEST_MODULE} required username="kafka" password="{SECRET}"; }};'


def config_of(**given: object) -> BrokerConfig:
    lines = {"zookeeper.connect": "localhost:2181", **{name.replace("_", "."): value for name, value in given.items()}}
    return read_server_config("".join(f"{name}={value}\n" for name, value in lines.items()), "test")


def write(directory: Path, text: str) -> Path:
    path = directory / "jaas.conf"
    path.write_text(text)
    return path


def test_the_login_is_that_of_the_section_client(tmp_path: Path) -> None:
    text = f'KafkaServer {{ a.B required x="y"; }};\n/* ... */ {CLIENT}'
    config = config_of(barnabas_zookeeper_login_config=write(tmp_path, text), zookeeper_set_acl="true")
    settings = secured_settings(config, RealFiles())
    assert settings.login == DigestUser("kafka", SECRET)
    assert settings.tls is None
    without = config_of(barnabas_zookeeper_login_config=write(tmp_path, "KafkaServer { a.B required; };"))
    assert secured_settings(without, RealFiles()).login is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CLIENT.replace("Digest", "Krb5"), "Kerberos is not there"),
        (CLIENT.replace("username", "principal"), "Kerberos is not there"),
        (CLIENT.replace("};", ""), "no }; at its end"),
        (CLIENT.replace("required", "reqired"), "needs `required`"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_none_is_refused_and_no_secret_shown(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "nowhere" if text is None else write(tmp_path, text)
    with pytest.raises(BrokerStartError, match=reason) as refusal:
        secured_settings(config_of(barnabas_zookeeper_login_config=path), RealFiles())
    assert SECRET not in str(refusal.value)


def pem_keys() -> dict[str, object]:
    return {
        "zookeeper_ssl_client_enable": "true",
        "zookeeper_ssl_keystore_location": broker_certificate().both,
        "zookeeper_ssl_truststore_location": shared_authority().certificate,
        "zookeeper_ssl_truststore_type": "PEM",
    }


def test_tls_is_as_the_keys_say() -> None:
    context = secured_settings(config_of(**pem_keys(), zookeeper_set_acl="true"), RealFiles()).tls
    assert context is not None
    assert context.check_hostname
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    keys = {"zookeeper_ssl_endpoint_identification_algorithm": "", "zookeeper_ssl_enabled_protocols": "TLSv1.2,TLSv1.3"}
    context = secured_settings(config_of(**pem_keys(), **keys), RealFiles()).tls
    assert context is not None
    assert not context.check_hostname
    assert context.maximum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zookeeper_ssl_crl_enable": "true"}, "lists of revoked ones"),
        ({"zookeeper_ssl_ocsp_enable": "true"}, "lists of revoked ones"),
        ({"zookeeper_ssl_keystore_location": "/nowhere.pem"}, "/nowhere.pem cannot be read"),
        ({"zookeeper_ssl_keystore_location": "/etc/hosts", "zookeeper_ssl_keystore_type": "PEM"}, "zookeeper.ssl"),
    ],
)
def test_what_tls_cannot_do_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(BrokerStartError, match=reason):
        secured_settings(config_of(**(pem_keys() | changes)), RealFiles())


def test_znodes_of_ones_own_need_somebody_to_own_them() -> None:
    keyless = {name: value for name, value in pem_keys().items() if "keystore" not in name}
    switched_off = pem_keys() | {"zookeeper_ssl_client_enable": "false"}
    for given in ({}, keyless, switched_off):
        with pytest.raises(BrokerStartError, match="is not shown who it is"):
            secured_settings(config_of(**given, zookeeper_set_acl="true"), RealFiles())


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ("", None),
        ("-Xmx1g -Djava.security.auth.login.config=/etc/kafka/jaas.conf -Dx=y", "/etc/kafka/jaas.conf"),
        ("-Djava.security.auth.login.config==/a", "/a"),
        ("-Djava.security.auth.login.config=/a -Dzookeeper.sasl.client=false", None),
        ("-Djava.security.auth.login.config=", None),
    ],
)
def test_the_file_may_be_named_as_for_java(options: str, path: str | None) -> None:
    assert login_config_of_kafka(options) == path


def test_what_is_made_belongs_to_the_brokers_where_that_is_wanted() -> None:
    owned = CoordinationSession._owned
    session = CoordinationSession.__new__(CoordinationSession)
    topic, user = Create("/brokers/topics/t"), Create("/config/users/alice")
    session._makes_secure = False
    assert owned(session, topic) is topic
    session._makes_secure = True
    made = owned(session, Multi((topic, Check("/x", 1), user, Create("/consumers"), Create("/y", acl=READ_ACL))))
    assert isinstance(made, Multi)
    lists = [each.acl if isinstance(each, Create) else None for each in made.operations]
    assert lists == [CREATOR_ALL_ACL + READ_ACL, None, CREATOR_ALL_ACL, OPEN_ACL, READ_ACL]
    assert lists[0] == default_acl("/brokers/topics/t", secure=True)
