"""How listeners have clients log in, and brokers each other: from the keys of a broker."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from barnabas.config.broker_config import BrokerConfig, check_broker_config
from barnabas.kernel.real_files import RealFiles
from barnabas.sasl.jaas import LoginModule
from barnabas.sasl.json_web_keys import library
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.oauthbearer_login import VALIDATOR_HANDLERS, OAuthBearerLogin
from barnabas.sasl.plain import PlainServer
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.sasl.signed_tokens import SignedTokenRules
from barnabas.server.bearer_tokens import key_address, token_rules
from barnabas.server.errors import BrokerStartError
from barnabas.server.listeners import listener_configs
from barnabas.server.logins import check_logins, listener_logins, login_at_brokers, uses_bearer_tokens, uses_scram
from barnabas.server.signing_keys import KeyAddress

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
        (
            {"sasl.enabled.mechanisms": "PLAIN,GSSAPI"},
            "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, not GSSAPI",
        ),
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
        check_logins(with_(changes), RealFiles())
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
    check_logins(config, RealFiles())


OAUTH = "org.apache.kafka.common.security.oauthbearer"
OAUTH_PREFIX = "listener.name.login.oauthbearer"
BEARER = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.login.plain.sasl.jaas.config": "",
    "listener.name.control.plain.sasl.jaas.config": "",
    f"{OAUTH_PREFIX}.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
    "listener.name.control.oauthbearer.sasl.server.callback.handler.class": VALIDATOR_HANDLERS[1],
    "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/keys",
}
MODULE = f"{OAUTH}.OAuthBearerLoginModule"


def test_tokens_are_checked_by_the_keys_of_each_listener() -> None:
    config = with_(
        BEARER,
        {
            "sasl.oauthbearer.expected.audience": "a, b",
            "sasl.oauthbearer.expected.issuer": " us ",
            "listener.name.control.sasl.oauthbearer.jwks.endpoint.url": "https://127.0.0.1:2/keys",
            "listener.name.control.oauthbearer.sasl.oauthbearer.sub.claim.name": "azp",
            "listener.name.control.oauthbearer.sasl.jaas.config": f'{MODULE} required ssl.protocol="TLS" clientId="x";',
        },
    )
    check_logins(config, RealFiles())
    assert uses_bearer_tokens(config)
    assert not uses_scram(config)
    login, control = key_address(config, "LOGIN", None), key_address(config, "CONTROL", None)
    assert login == KeyAddress("http://127.0.0.1:1/keys")
    assert control == KeyAddress("https://127.0.0.1:2/keys")
    assert token_rules(config, "LOGIN") == SignedTokenRules(("a", "b"), "us")
    assert token_rules(config, "CONTROL").subject_claim == "azp"
    asked: list[tuple[str, str | None]] = []

    def bearer(_config: BrokerConfig, name: str, module: LoginModule | None) -> Callable[[], PlainServer]:
        asked.append((name, None if module is None else module.name))
        return lambda: PlainServer({})

    assert list(listener_logins(config, nobody, bytes, bearer=bearer)["LOGIN"].exchanges) == ["OAUTHBEARER"]
    assert asked == [("LOGIN", None), ("CONTROL", MODULE)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{OAUTH_PREFIX}.sasl.server.callback.handler.class": ""}, "nothing would check tokens by it: write"),
        ({f"{OAUTH_PREFIX}.sasl.server.callback.handler.class": "a.B"}, "other Java classes cannot be loaded"),
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "needs sasl.oauthbearer.jwks.endpoint.url"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ldap://x"}, "must be an address"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere"}, "No such file"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:///etc/hosts"}, "it is no JSON Web Key Set"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "at least 1"),
        ({"sasl.oauthbearer.sub.claim.name": "\u00a0"}, "is empty"),
        ({f"{OAUTH_PREFIX}.sasl.jaas.config": f'{SCRAM} required a="{SECRET}";'}, "login module of OAUTHBEARER is"),
        ({"sasl.login.class": "a.B"}, "Java classes cannot be loaded"),
    ],
)
def test_what_would_check_no_token_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(BrokerStartError, match=reason) as refusal:
        check_logins(with_(BEARER, changes), RealFiles())
    assert SECRET not in str(refusal.value)


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(BrokerStartError, match=r"pip install 'barnabas\[oauth\]'"):
        check_logins(with_(BEARER), RealFiles())


def test_unsecured_tokens_are_taken_where_nothing_else_was_said() -> None:
    plain = {"sasl.enabled.mechanisms": "OAUTHBEARER", "listener.name.login.plain.sasl.jaas.config": ""}
    plain["listener.name.control.plain.sasl.jaas.config"] = ""
    config = with_(plain)
    check_logins(config, RealFiles())
    assert key_address(config, "LOGIN", None) is None
    wrong = f'{MODULE} required unsecuredValidatorAllowableClockSkewMs="x";'
    with pytest.raises(BrokerStartError, match="unsecuredValidatorAllowableClockSkewMs"):
        check_logins(with_(plain, {f"{OAUTH_PREFIX}.sasl.jaas.config": wrong}), RealFiles())


def test_brokers_log_in_by_tokens_of_their_own() -> None:
    between = {
        "inter.broker.listener.name": "LOGIN",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
        f"{OAUTH_PREFIX}.sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        f"{OAUTH_PREFIX}.sasl.jaas.config": f'{MODULE} required clientId="broker" clientSecret="{SECRET}";',
        "sasl.login.read.timeout.ms": "77",
    }
    config = with_(BEARER, between)
    check_logins(config, RealFiles())
    login = login_at_brokers(config, "LOGIN")
    assert isinstance(login, OAuthBearerLogin)
    assert login.endpoint is not None
    assert (login.endpoint.client_id, login.endpoint.read_timeout_ms) == ("broker", 77)
    assert login.endpoint.connect_timeout_ms == 10_000
    for left_out, reason in (
        (f"{OAUTH_PREFIX}.sasl.jaas.config", "it is missing"),
        ("sasl.oauthbearer.token.endpoint.url", "needs"),
    ):
        with pytest.raises(BrokerStartError, match=reason):
            check_logins(with_(BEARER, between, {left_out: ""}), RealFiles())
