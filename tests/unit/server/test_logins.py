"""How listeners have clients log in, and brokers each other: from the keys of a broker."""

from __future__ import annotations

import pytest

from barnabas.config.broker_config import BrokerConfig, check_broker_config
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.server.errors import BrokerStartError
from barnabas.server.listeners import listener_configs
from barnabas.server.logins import check_logins, listener_logins, login_at_brokers, uses_scram

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "hush-hush"
USERS = f'{PLAIN} required username="broker" password="{SECRET}" user_alice="{SECRET}" user_broker="{SECRET}";'
BASE = {
    "zookeeper.connect": "localhost:2181",
    "listeners": "PLAINTEXT://:9092,LOGIN://:9093,CONTROL://:9094",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROL:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": USERS,
    "listener.name.control.plain.sasl.jaas.config": USERS.replace("broker", "control"),
    "inter.broker.listener.name": "PLAINTEXT",
}
BROKERS = {"inter.broker.listener.name": "LOGIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"}


def with_(*changes: dict[str, str]) -> BrokerConfig:
    given = dict(BASE)
    for change in changes:
        given |= change
    return check_broker_config({name: value for name, value in given.items() if value}, "test")


def nobody(*_: object) -> None:
    return None


def test_listeners_with_sasl_ask_and_others_do_not() -> None:
    config = with_()
    assert {listener.name: listener.authenticates for listener in listener_configs(config, {})} == {
        "PLAINTEXT": False,
        "LOGIN": True,
        "CONTROL": True,
    }
    logins = listener_logins(config, nobody, bytes)
    assert list(logins) == ["LOGIN", "CONTROL"]
    assert list(logins["LOGIN"].exchanges) == ["PLAIN"]
    assert logins["LOGIN"].request_bytes_max == 524_288
    assert not uses_scram(config)


def test_each_listener_has_users_of_its_own() -> None:
    logins = listener_logins(with_(), nobody, bytes)
    for listener, user, other in (("LOGIN", "broker", "control"), ("CONTROL", "control", "broker")):
        server = logins[listener].exchanges["PLAIN"]()
        server.respond(f"\0{user}\0{SECRET}".encode())
        assert server.username == user
        with pytest.raises(Exception, match="Invalid username or password"):
            logins[listener].exchanges["PLAIN"]().respond(f"\0{other}\0{SECRET}".encode())


def test_keys_of_a_listener_and_a_mechanism_go_before_those_of_all() -> None:
    config = with_(
        {
            "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.login.sasl.server.max.receive.size": "1000",
            "connections.max.reauth.ms": "5000",
            "listener.name.login.scram-sha-512.connections.max.reauth.ms": "7000",
        }
    )
    logins = listener_logins(config, nobody, bytes)
    assert list(logins["LOGIN"].exchanges) == ["SCRAM-SHA-512", "PLAIN"]
    assert logins["LOGIN"].lifetimes_ms == {"SCRAM-SHA-512": 7000, "PLAIN": 5000}
    assert logins["LOGIN"].request_bytes_max == 1000
    assert list(logins["CONTROL"].exchanges) == ["PLAIN"]
    assert uses_scram(config)


def test_scram_asks_for_the_credentials_of_the_cluster() -> None:
    credential = ScramCredential.of_password(ScramMechanism.SHA_256, SECRET, b"salt")
    asked: list[tuple[ScramMechanism, str]] = []

    def find(mechanism: ScramMechanism, user: str) -> ScramCredential:
        asked.append((mechanism, user))
        return credential

    config = with_({"sasl.enabled.mechanisms": "SCRAM-SHA-256", "listener.name.login.plain.sasl.jaas.config": ""})
    server = listener_logins(config, find, bytes)["LOGIN"].exchanges["SCRAM-SHA-256"]()
    assert server.respond(b"n,,n=alice,r=abc").startswith(b"r=abc")
    assert asked == [(ScramMechanism.SHA_256, "alice")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, not GSSAPI"),
        ({"listener.name.login.sasl.enabled.mechanisms": "OAUTHBEARER"}, "not OAUTHBEARER"),
        ({"listener.name.login.plain.sasl.jaas.config": ""}, 'plain.sasl.jaas.config=.* required user_NAME="PASSWORD"'),
        ({"listener.name.login.plain.sasl.jaas.config": USERS.rstrip(";")}, "lacks the semicolon"),
        ({"listener.name.login.plain.sasl.jaas.config": USERS.replace(PLAIN, SCRAM)}, "login module of PLAIN is"),
        ({"listener.name.login.plain.sasl.server.callback.handler.class": "a.B"}, "Java classes cannot be loaded"),
        ({"sasl.login.class": "a.B"}, "Java classes cannot be loaded"),
        (
            BROKERS | {"listener.name.login.plain.sasl.jaas.config": f'{PLAIN} required user_a="{SECRET}";'},
            "lacks username",
        ),
    ],
)
def test_what_is_not_there_is_refused_and_no_secret_shown(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(BrokerStartError, match=reason) as refusal:
        check_logins(with_(changes))
    assert SECRET not in str(refusal.value)


def test_brokers_log_in_where_their_listener_asks() -> None:
    assert login_at_brokers(with_(), "PLAINTEXT") is None
    assert login_at_brokers(with_(BROKERS), "LOGIN") == Login("PLAIN", "broker", SECRET)
    control = BROKERS | {"control.plane.listener.name": "CONTROL"}
    assert login_at_brokers(with_(control), "CONTROL") == Login("PLAIN", "control", SECRET)
    scram = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "inter.broker.listener.name": "LOGIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    }
    with pytest.raises(BrokerStartError, match="it is missing, and has the name and password"):
        login_at_brokers(with_(scram), "LOGIN")
    scram["listener.name.login.scram-sha-256.sasl.jaas.config"] = f'{SCRAM} required username="b" password="{SECRET}";'
    assert login_at_brokers(with_(scram), "LOGIN") == Login("SCRAM-SHA-256", "b", SECRET)


def test_brokers_may_name_the_protocol_only() -> None:
    changes = {
        "listeners": "SASL_PLAINTEXT://:9092",
        "listener.security.protocol.map": "",
        "inter.broker.listener.name": "",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    }
    config = with_(changes)
    assert login_at_brokers(config, "SASL_PLAINTEXT") == Login("PLAIN", "broker", SECRET)
    check_logins(config)
