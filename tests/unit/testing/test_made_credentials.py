"""Keys, certificates and tokens of a simulated cluster: the same of one seed, and such as a broker takes."""

from __future__ import annotations

import pytest

from barnabas.kernel.real_key_files import load_chain
from barnabas.sasl.bearer_tokens import TokenRefusedError
from barnabas.sasl.json_web_keys import KeySet
from barnabas.sasl.signed_tokens import SignedTokenRules, SignedTokens
from barnabas.testing.made_credentials import Authority, KeyPair, TokenKey, key_set, unsigned
from barnabas.tls.contexts import client_context, server_context
from barnabas.tls.settings import OF_CLIENTS, tls_settings
from barnabas.tls.stores import read_stores
from barnabas.tls.trials import try_handshake

CLAIMS = {"iss": "somebody", "sub": "alice", "iat": 900, "exp": 1_100, "scope": "all"}


def taken(text: str, *keys: TokenKey, at_seconds: int = 1_000) -> str:
    found = KeySet.decode(key_set(keys))
    return SignedTokens(SignedTokenRules(), found.find, lambda: at_seconds * 1_000)(text).principal


def shows(authority: Authority, pair: KeyPair, trusted: Authority) -> bool:
    """Whether who trusts that authority takes a listener with that key."""
    given = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": pair.key,
        "ssl.keystore.certificate.chain": pair.chain,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": trusted.certificate,
    }
    settings = tls_settings(given, {**OF_CLIENTS, "ssl.endpoint.identification.algorithm": ""})
    stores = read_stores(settings, lambda _: b"")
    return (
        try_handshake(server_context(settings, stores, load_chain), client_context(settings, stores, load_chain))
        is None
    )


def test_a_seed_makes_one_key_and_one_certificate() -> None:
    one, again, other = (
        Authority("one", seed).sign("broker1", 7, bytes(32)) for seed in (b"a" * 32, b"a" * 32, b"b" * 32)
    )
    assert one == again
    assert one.der != other.der


def test_a_certificate_is_taken_by_who_trusts_its_authority() -> None:
    authority, other = Authority("one", b"a" * 32), Authority("two", b"b" * 32)
    pair = authority.sign("broker1", 7, b"k" * 32)
    assert shows(authority, pair, authority)
    assert not shows(authority, pair, other)


def test_a_token_is_taken_by_its_key_only() -> None:
    key, other = TokenKey("one", b"a" * 32), TokenKey("one", b"b" * 32)
    assert taken(key.sign(CLAIMS), key) == "alice"
    for text in (other.sign(CLAIMS), key.sign(CLAIMS, "two"), unsigned(CLAIMS)):
        with pytest.raises(TokenRefusedError):
            taken(text, key)


def test_a_token_runs_out() -> None:
    key = TokenKey("one", b"a" * 32)
    with pytest.raises(TokenRefusedError, match="expired"):
        taken(key.sign(CLAIMS), key, at_seconds=1_200)
