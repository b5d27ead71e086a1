"""Signed tokens: whose signature is taken, and what a token has to say. Answers to each are compared with Apache
Kafka's in tests/interop/test_oauthbearer.py.
"""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from barnabas.sasl.bearer_tokens import BearerToken, TokenRefusedError
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.json_web_keys import ALGORITHMS, KeySet, KeySetError
from barnabas.sasl.signed_tokens import SignedTokenRules, SignedTokens
from tests.support.identity_provider import (
    claims,
    curve_key,
    encoded,
    key_set,
    public,
    rsa_key,
    sign,
    signed,
    unsecured,
)

CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
ANY_AUDIENCE = SignedTokenRules(audiences=("kafka",))


def keys(*listed: dict[str, Any]) -> KeySet:
    return KeySet.decode(json.dumps({"keys": listed}).encode())


def checker(rules: SignedTokenRules = ANY_AUDIENCE, keys_: KeySet | None = None) -> SignedTokens:
    found = keys(*key_set()) if keys_ is None else keys_
    return SignedTokens(rules, found.find, lambda: int(time.time() * 1000))


def test_a_token_says_who_and_until_when() -> None:
    body = claims()
    assert checker()(signed(body)) == BearerToken("alice", body["exp"] * 1000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_has_its_key(algorithm: str) -> None:
    key = curve_key(CURVES[algorithm]) if algorithm in CURVES else rsa_key()
    key_type = algorithm if algorithm in CURVES else "RS256"
    check = checker(keys_=keys(public(key_type, key, "k")))
    assert check(signed(claims(), algorithm, key, "k")).principal == "alice"
    assert check(signed(claims(), algorithm, key, None)).principal == "alice"
    with pytest.raises(TokenRefusedError, match="there is no key"):
        check(signed(claims(), algorithm, key, "other"))


def test_a_public_key_is_nobodys_secret() -> None:
    """The attack on those who let a token say how it is checked: HS256 with the public key as the secret."""
    pem = rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, body = encoded({"alg": "HS256", "kid": "rsa"}), encoded(claims())
    hmac = jwt.get_algorithm_by_name("HS256")
    for secret in (pem, pem.strip(), json.dumps(public("RS256", rsa_key(), "rsa")).encode()):
        forged = f"{head}.{body}.{encoded(hmac.sign(f'{head}.{body}'.encode(), secret))}"
        with pytest.raises(TokenRefusedError, match="signed by 'HS256', and may be by RS256"):
            checker()(forged)


def test_a_secret_in_a_key_set_checks_nothing() -> None:
    secret = {"kty": "oct", "k": encoded(b"x" * 32), "kid": "rsa", "alg": "HS256"}
    with pytest.raises(KeySetError, match="none of its 1 keys"):
        keys(secret)
    with pytest.raises(TokenRefusedError):
        checker(keys_=keys(secret, *key_set()))(signed(claims(), "HS256", b"x" * 32))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS256", "RSA1_5", "ES256K", 5, None, ["RS256"]])
def test_no_other_algorithm_is_taken(algorithm: Any) -> None:
    signature = signed(claims()).split(".")[2]
    for token in (unsecured(claims(), signature, alg=algorithm, kid="rsa"), unsecured(claims(), alg=algorithm)):
        with pytest.raises(TokenRefusedError):
            checker()(token)


def test_a_key_checks_what_it_is_for_only() -> None:
    body = encoded(claims())
    curve = sign(encoded({"alg": "ES256", "kid": "rsa"}), body, "ES256", curve_key("P-256"))
    for_384 = sign(encoded({"alg": "ES384", "kid": "p256"}), body, "ES384", curve_key("P-384"))
    for token in (curve, for_384, signed(claims(), key=rsa_key(1)), signed(claims(), "PS256", rsa_key(1))):
        with pytest.raises(TokenRefusedError):
            checker()(token)
    only = checker(keys_=keys(public("RS256", rsa_key(), "rsa", alg="RS256")))
    assert only(signed(claims())).principal == "alice"
    with pytest.raises(TokenRefusedError, match="no key 'rsa' for PS256"):
        only(signed(claims(), "PS256"))


def test_every_bit_of_the_signature_counts() -> None:
    section, body, signature = signed(claims()).split(".")
    for forged in (signature[:-2], "", "AAAA", signature[::-1], signature + "AAAA"):
        with pytest.raises(TokenRefusedError):
            checker()(f"{section}.{body}.{forged}")
    for other in (encoded(claims("bob")), encoded(claims(exp=2**40))):
        with pytest.raises(TokenRefusedError):
            checker()(f"{section}.{other}.{signature}")


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"b64": True, "crit": ["b64"]}])
def test_a_header_that_asks_for_more_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(TokenRefusedError):
        checker()(signed(claims(), **header))


def test_a_key_that_the_token_brings_is_not_looked_at() -> None:
    mine = rsa_key(1)
    header = {"jwk": public("RS256", mine, "mine"), "jku": "http://127.0.0.1:1/keys", "x5u": "http://127.0.0.1:1"}
    for key_id in (None, "mine", "rsa"):
        with pytest.raises(TokenRefusedError):
            checker()(signed(claims(), "RS256", mine, key_id, **header))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"exp": None}, "no exp"),
        ({"exp": "1"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": -1}, "no time"),
        ({"exp": 10**30}, "no time"),
        ({"exp": 1}, "expired"),
        ({"iat": None}, "no iat"),
        ({"iat": 2**42}, "ends before it begins"),
        ({"nbf": time.time() + 86_400, "exp": time.time() + 90_000}, "not valid yet"),
        ({"nbf": 2**42}, "ends before it begins"),
        ({"iss": 5}, "no text"),
        ({"jti": 5}, "no text"),
        ({"aud": None}, "no aud"),
        ({"aud": "web"}, "another audience"),
        ({"aud": ["web", 5]}, "no audience"),
        ({"sub": None}, "names nobody"),
        ({"sub": " "}, "names nobody"),
        ({"sub": "\udfff"}, "no text of Unicode"),
        ({"sub": "a" * 4097}, "more than 4096 bytes"),
        ({"sub": 5}, "no text"),
        ({"scope": ["a", "a"]}, "scope twice"),
        ({"scope": [5]}, "cannot be read"),
        ({"scope": ""}, "cannot be read"),
    ],
)
def test_a_token_has_to_say_what_is_asked_for(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenRefusedError, match=reason):
        checker()(signed(claims(**more)))


def test_an_issuer_and_other_claims_can_be_asked_for() -> None:
    rules = SignedTokenRules(("kafka",), "https://us", scope_claim="scp", subject_claim="azp")
    good = claims(iss="https://us", azp=" service ", scp=["a"], scope=["x", "x"])
    assert checker(rules)(signed(good)).principal == "service"
    with pytest.raises(TokenRefusedError, match="another issuer"):
        checker(rules)(signed(good | {"iss": "https://us/"}))
    with pytest.raises(TokenRefusedError, match="azp names nobody"):
        checker(rules)(signed(claims(iss="https://us")))


def test_without_an_audience_that_is_expected_none_may_be_named() -> None:
    with pytest.raises(TokenRefusedError, match="another audience"):
        checker(SignedTokenRules())(signed(claims()))
    assert checker(SignedTokenRules())(signed(claims(aud=None))).principal == "alice"


def test_clocks_may_differ_by_the_skew() -> None:
    now = time.time()
    for body in (claims(exp=now - 20, iat=now - 60), claims(nbf=now + 20)):
        checker()(signed(body))
        with pytest.raises(TokenRefusedError):
            checker(SignedTokenRules(("kafka",), clock_skew_seconds=10))(signed(body))


def test_the_skew_ends_at_the_second_at_which_kafkas_does() -> None:
    now = 1_800_000_000
    check = SignedTokens(ANY_AUDIENCE, keys(*key_set()).find, lambda: now * 1000 + 999)
    for taken, refused in (
        (claims(exp=now - 29, iat=now - 60), claims(exp=now - 30, iat=now - 60)),
        (claims(exp=now + 600, iat=now, nbf=now + 30), claims(exp=now + 600, iat=now, nbf=now + 31)),
    ):
        assert check(signed(taken)).expiry_ms == taken["exp"] * 1000
        with pytest.raises(TokenRefusedError):
            check(signed(refused))


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "1",
        "{",
        "[" * 20_000,
        '{"exp": NaN}',
        '{"a": ' + "1" * 6000 + "}",
        '{"exp": 1, "exp": 2}',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_claims_that_cannot_be_read_are_refused_even_if_signed(body: str) -> None:
    with pytest.raises(TokenRefusedError, match="claims of the token cannot be read"):
        checker()(signed(body))


@pytest.mark.parametrize("token", ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "é.é.é", "....", "e30.e30.", "e30.e30.AA"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(TokenRefusedError):
        checker()(token)


def test_the_largest_header_and_token_are_bounded_and_quick() -> None:
    with pytest.raises(TokenRefusedError, match="too long"):
        checker()(signed(claims(), x="y" * 10_000))
    with pytest.raises(TokenRefusedError, match="too long a name"):
        checker()(signed(claims(), key_id="k" * 1001))
    # Nothing is read of claims that nobody has signed.
    check, token = checker(), signed("[" * 45_000, key=rsa_key(1))
    began = time.thread_time()
    with pytest.raises(TokenRefusedError, match="signature"):
        check(token)
    assert time.thread_time() - began < 0.05


@pytest.mark.parametrize(
    "listed",
    [
        {"kty": "RSA"},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        public("RS256", rsa_key(7, 1024), "short"),
        public("RS256", rsa_key(), "encrypts", use="enc"),
        public("RS256", rsa_key(), "signs", key_ops=["sign"]),
        public("RS256", rsa_key(), "other", alg="RS1"),
        public("RS256", rsa_key(), "k" * 1001),
        {**public("ES256", curve_key("P-256"), "off the curve"), "x": encoded(b"\1" * 32)},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {**public("RS256", rsa_key(), "x"), "kid": 5},
        "text",
        None,
    ],
)
def test_keys_that_cannot_be_used_are_left_out(listed: Any) -> None:
    assert len(keys(listed, public("RS256", rsa_key(), "good")).keys) == 1
    with pytest.raises(KeySetError, match="none of its 1 keys"):
        keys(listed)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"keys": {}}', b"\xff", b"[" * 100_000, b"x" * 1_100_000])
def test_what_is_no_key_set_is_said(data: bytes) -> None:
    with pytest.raises(KeySetError):
        KeySet.decode(data)


def test_a_key_set_has_a_bound() -> None:
    with pytest.raises(KeySetError, match="more than 1000 keys"):
        KeySet.decode(json.dumps({"keys": [{}] * 1001}).encode())


@pytest.mark.parametrize("changes", [{"scope_claim": " "}, {"subject_claim": ""}, {"clock_skew_seconds": -1}])
def test_rules_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(LoginConfigError):
        SignedTokenRules(**changes)
