"""A broker of ours and one of Apache Kafka 3.9.1 with OAUTHBEARER, on one identity provider: they log in at each other
by client credentials, clients log in at both, and both answer every token alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.wire.messages import SaslAuthenticateRequest
from tests.support.apache_kafka import CONSOLE_CONSUMER, CONSOLE_PRODUCER, run_tool, tool_run
from tests.support.identity_provider import (
    AUDIENCE,
    ISSUER,
    LOGIN_HANDLER,
    MODULE,
    VALIDATOR_HANDLER,
    IdentityProvider,
    claims,
    client_properties,
    curve_key,
    encoded,
    identity_provider,
    rsa_key,
    sign,
    signed,
    unsecured,
)
from tests.support.sasl_pair import (
    OURS,
    PATIENCE_SECONDS,
    THEIRS,
    Pair,
    Sent,
    Wire,
    authenticate,
    handshake,
)
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders

PREFIX: Final = "listener.name.login.oauthbearer"


def broker_properties(provider: IdentityProvider) -> dict[str, object]:
    """For brokers of both kinds."""
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.keys_address,
        "sasl.oauthbearer.token.endpoint.url": provider.token_address,
        "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        f"{PREFIX}.sasl.server.callback.handler.class": VALIDATOR_HANDLER,
        f"{PREFIX}.sasl.login.callback.handler.class": LOGIN_HANDLER,
        f"{PREFIX}.sasl.jaas.config": f'{MODULE} required clientId="broker" clientSecret="brokers";',
        "connections.max.reauth.ms": 0,
        "connection.failed.authentication.delay.ms": 10,
    }


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as found:
        found.secrets["broker"] = "brokers"
        yield found


@pytest.fixture(scope="module")
def pair(provider: IdentityProvider, oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    brokers = Pair(tmp_path_factory.mktemp("oauth"), passwords={}, overrides=broker_properties(provider))
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


def first(token: str, authorization: str = "", pairs: str = "") -> bytes:
    return f"n,{authorization},\x01auth=Bearer {token}{pairs}\x01\x01".encode()


def tokens_by_their_signature() -> dict[str, str]:
    """By what is said of them; the brokers are to take them or not, alike."""
    good = claims()
    section, body, signature = signed(good).split(".")
    other = signed(claims("mallory")).split(".")[1]
    hmac_secret = b"x" * 32
    return {
        "good": signed(good),
        "no kid": signed(good, key_id=None),
        "ES256": signed(good, "ES256", curve_key("P-256"), "p256"),
        "ES384": signed(good, "ES384", curve_key("P-384"), "p384"),
        "ES512": signed(good, "ES512", curve_key("P-521"), "p521"),
        "PS256": signed(good, "PS256"),
        "RS512": signed(good, "RS512"),
        "another key": signed(good, key=rsa_key(1)),
        "another kid": signed(good, key_id="p256"),
        "unknown kid": signed(good, key_id="unknown"),
        "kid of another kind": signed(good, "ES256", curve_key("P-256"), "rsa"),
        "other claims": f"{section}.{other}.{signature}",
        "signature cut": f"{section}.{body}.{signature[:-8]}",
        "none": unsecured(good, kid="rsa"),
        "none with a signature": unsecured(good, signature, kid="rsa"),
        "NONE": unsecured(good, signature, alg="NONE"),
        "HS256 by a secret": signed(good, "HS256", hmac_secret),
        "header says ES256": sign(encoded({"alg": "ES256", "kid": "rsa"}), body, "RS256", rsa_key()),
        "crit": signed(good, crit=["exp"]),
        "typ": signed(good, typ="at+jwt"),
        "two sections": f"{section}.{body}",
        "four sections": f"{signed(good)}.x",
        "no signature": f"{section}.{body}.",
        "no header": f".{body}.{signature}",
        "header is no JSON": f"{encoded('x')}.{body}.{signature}",
        "header is a list": sign(encoded("[]"), body, "RS256", rsa_key()),
        "header has alg twice": sign(encoded('{"alg":"RS256","alg":"RS256","kid":"rsa"}'), body, "RS256", rsa_key()),
        "alg is a number": sign(encoded({"alg": 5, "kid": "rsa"}), body, "RS256", rsa_key()),
        "kid is a number": sign(encoded({"alg": "RS256", "kid": 5}), body, "RS256", rsa_key()),
        "kid of 2000": signed(good, key_id="k" * 2000),
        "one word": "token",
        "dots": "..",
    }


def tokens_by_their_claims() -> dict[str, str]:
    """As those before."""
    now, good = int(time.time()), claims()
    return {
        "expired": signed(claims(exp=now - 60, iat=now - 600)),
        "expired within the skew": signed(claims(exp=now - 10, iat=now - 600)),
        "no exp": signed(claims(exp=None)),
        "exp as text": signed(claims(exp=str(now + 60))),
        "exp as fraction": signed(claims(exp=now + 60.5)),
        "exp negative": signed(claims(exp=-5)),
        "exp is true": signed(claims(exp=True)),
        "exp far away": signed(claims(exp=2_000_000_000_000)),
        "no iat": signed(claims(iat=None)),
        "iat of the future": signed(claims(iat=now + 300)),
        "iat behind exp": signed(claims(iat=now + 3000)),
        "iat as text": signed(claims(iat="now")),
        "nbf of the future": signed(claims(nbf=now + 300)),
        "nbf within the skew": signed(claims(nbf=now + 10)),
        "nbf as text": signed(claims(nbf="x")),
        "another issuer": signed(claims(iss="https://evil.example")),
        "no issuer": signed(claims(iss=None)),
        "issuer as number": signed(claims(iss=5)),
        "another audience": signed(claims(aud="web")),
        "audiences": signed(claims(aud=["web", AUDIENCE])),
        "no audience": signed(claims(aud=None)),
        "empty audiences": signed(claims(aud=[])),
        "audience as number": signed(claims(aud=5)),
        "audience of numbers": signed(claims(aud=[5, AUDIENCE])),
        "no sub": signed(claims(sub=None)),
        "empty sub": signed(claims(sub="")),
        "blank sub": signed(claims(sub="  ")),
        "sub with blanks": signed(claims(sub="  alice ")),
        "sub as number": signed(claims(sub=7)),
        "sub as list": signed(claims(sub=["alice"])),
        "sub beyond ASCII": signed(claims(sub="ältere")),
        "jti as number": signed(claims(jti=7)),
        "scopes": signed(claims(scope=["a", "b"])),
        "no scope": signed(claims(scope=None)),
        "scope twice": signed(claims(scope=["a", "a"])),
        "empty scope": signed(claims(scope="")),
        "scope as number": signed(claims(scope=5)),
        "scope as object": signed(claims(scope={"a": 1})),
        "a claim twice": signed(json.dumps(good)[:-1] + ', "sub": "mallory"}'),
        "a claim within twice": signed(json.dumps(good)[:-1] + ', "x": {"a": 1, "a": 2}}'),
        "claims as list": signed("[]"),
        "claims empty": signed("{}"),
        "claims are no JSON": signed("hello"),
        "claims are a token": signed(signed(good), cty="JWT"),
        "64 KiB": signed(claims(x="y" * 40_000)),
    }


STRICTER: Final = {"claims are a token"}
"""What Kafka takes and we do not: a token within a token."""
MESSAGES: Final[Mapping[str, bytes]] = {
    "nothing": b"",
    "confirmation": b"\x01",
    "no separators": b"n,,auth=Bearer x",
    "another scheme": b"n,,\x01auth=Basic x\x01\x01",
    "channel binding": b"y,,\x01auth=Bearer x\x01\x01",
    "no auth": b"n,,\x01host=x\x01\x01",
    "no pairs": b"n,,\x01\x01",
    "a value of a zero byte": b"n,,\x01auth=Bearer x\x00\x01\x01",
    "a key with a digit": b"n,,\x01k1=v\x01auth=Bearer x\x01\x01",
    "beyond ASCII": "n,,\x01auth=Bearer x\x01key=ä\x01\x01".encode(),
    "no UTF-8": b"n,,\x01auth=Bearer x\xff\x01\x01",
    "text behind": b"n,,\x01auth=Bearer x\x01\x01x",
    "an empty name": b"n,a=,\x01auth=Bearer x\x01\x01",
}


def say(port: int, message: bytes, seconds: float) -> Any:
    """What is said to a first message: who is let in has a session; else what comes, and whether it ends so soon."""
    wire = Wire(port)
    try:
        wire.say(handshake("OAUTHBEARER"))
        answer = wire.say(Sent(SaslAuthenticateRequest(auth_bytes=message), 2, lambda response: response))
        if answer == "closed" or answer.error_code or not answer.auth_bytes:
            return (
                answer if answer == "closed" else (answer.error_code, answer.error_message, answer.session_lifetime_ms)
            )
        return bytes(answer.auth_bytes), wire.say(authenticate(b"\x01")), wire.is_open(seconds)
    finally:
        wire.close()


def are_alike(ours: Any, theirs: Any) -> bool:
    """Sessions are alike where they end at about the same time."""
    if ours == "closed" or theirs == "closed" or not isinstance(ours[0], int):
        return bool(ours == theirs)
    return bool(ours[:2] == theirs[:2] and abs(ours[2] - theirs[2]) < 30_000)


def differences(pair: Pair, messages: Mapping[str, bytes]) -> dict[str, Any]:
    def said(message: bytes, seconds: float) -> list[Any]:
        return [say(pair.sasl_ports[each], message, seconds) for each in (OURS, THEIRS)]

    answers = {name: said(message, 0.5) for name, message in messages.items()}
    for name, (ours, theirs) in answers.items():
        if not are_alike(ours, theirs) and ours[:2] == theirs[:2]:
            # Once more, with more patience: on a busy machine either may close a connection later.
            answers[name] = said(messages[name], 10.0)
    return {name: both for name, both in answers.items() if not are_alike(*both)}


# What is said.


def test_both_take_and_refuse_the_same_tokens(pair: Pair) -> None:
    found = differences(
        pair,
        {name: first(token) for name, token in {**tokens_by_their_signature(), **tokens_by_their_claims()}.items()},
    )
    assert {name: both for name, both in found.items() if name not in STRICTER} == {}
    assert found.keys() == STRICTER


def test_both_read_messages_alike(pair: Pair) -> None:
    token = signed(claims())
    good = {
        "the same name": first(token, "a=alice"),
        "another name": first(token, "a=mallory"),
        "extensions": first(token, pairs="\x01traceId=1 2\x01x=="),
        "auth twice": first("x", pairs=f"\x01auth=Bearer {token}"),
        "lower case": first(token).replace(b"Bearer", b"bEARER"),
        "two blanks": first(token).replace(b"Bearer ", b"Bearer  "),
    }
    found = differences(pair, {**MESSAGES, **good})
    # Kafka looks for the scheme in the wrong match there, fails, and closes.
    assert found.pop("another scheme")[1] == "closed"
    assert found == {}


# Brokers and clients.


def test_brokers_serve_each_other_and_javas_tools_log_in_at_either(
    pair: Pair, provider: IdentityProvider, tmp_path: Path
) -> None:
    create_topic(pair.ports[pair.controller()], "both", 2, 2)
    for port in pair.ports.values():
        wait_until(
            lambda: sorted(leaders(port, "both").values()) == [OURS, THEIRS],  # noqa: B023 - called in this turn
            "each leads a partition",
            PATIENCE_SECONDS,
        )
    config = tmp_path / "client.properties"
    properties = {"security.protocol": "SASL_PLAINTEXT", **client_properties(provider, extension_traceId="1")}
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    lines = "".join(f"{number}\n" for number in range(20))
    servers = ("--bootstrap-server", pair.sasl_servers, "--topic", "both")
    acks = ("--request-required-acks", "all")
    run_tool(CONSOLE_PRODUCER, [*servers, *acks, "--producer.config", config], standard_input=lines)
    output = run_tool(
        CONSOLE_CONSUMER,
        [*servers, "--consumer.config", config, "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000"],
    )
    assert sorted(map(int, output.split())) == list(range(20))


def test_javas_client_hears_that_its_token_is_not_taken(pair: Pair, provider: IdentityProvider, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    address = tmp_path / "token"
    address.write_text(signed(claims(), key=rsa_key(1)))
    properties = client_properties(provider) | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.oauthbearer.token.endpoint.url": address.as_uri(),
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    arguments = ["--bootstrap-server", f"127.0.0.1:{pair.sasl_ports[OURS]}", "--topic", "both", "--from-beginning"]
    done = tool_run(CONSOLE_CONSUMER, [*arguments, "--consumer.config", config, "--timeout-ms", "20000"])
    assert '{"status":"invalid_token"}' in done.output + done.errors
