"""SCRAM: the RFC's own exchange, both ends against each other, and whatever else may come."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac as reference_hmac
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.steps import Steps, at_once
from barnabas.sasl import scram_server
from barnabas.sasl.errors import SaslAuthenticationError, SaslError
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.scram_client import SCRAM_CLIENT, ScramClient, ScramClientState
from barnabas.sasl.scram_mechanisms import ITERATIONS_MAX, ScramCredential, ScramMechanism
from barnabas.sasl.scram_messages import MESSAGE_BYTES_MAX
from barnabas.sasl.scram_server import SCRAM_SERVER, ScramServer, ScramServerState, TokenLogin
from tests.support.examples import examples

SHA_256, SHA_512 = ScramMechanism
SALT = b"a salt of bytes"
CREDENTIALS = {
    (mechanism, name): ScramCredential.of_password(mechanism, password, SALT)
    for mechanism in ScramMechanism
    for name, password in (("alice", "secret"), ("a=b,c", "pass, word=3D"))
}


def entropy(count: int) -> bytes:
    return bytes(range(count))


def server(mechanism: ScramMechanism = SHA_256) -> ScramServer:
    return ScramServer(mechanism, lambda *key: CREDENTIALS.get(key), entropy)


def log_in(client: ScramClient, broker: ScramServer) -> None:
    message: bytes | None = client.begin()
    while message is not None:
        message = at_once(client.answer(broker.respond(message)))


# The exchange of RFC 7677, section 3.

RFC_NONCES = ("rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
RFC_MESSAGES = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


class _Nonce(bytes):
    """Random bytes that come out as the text that the RFC has."""

    def hex(self, *_: object) -> str:
        return self.decode()


def test_the_client_says_what_the_rfc_has() -> None:
    client = ScramClient(SHA_256, "user", "pencil", lambda _: _Nonce(RFC_NONCES[0].encode()))
    assert client.begin() == RFC_MESSAGES[0]
    assert at_once(client.answer(RFC_MESSAGES[1])) == RFC_MESSAGES[2]
    assert not client.is_complete
    assert at_once(client.answer(RFC_MESSAGES[3])) is None
    assert client.is_complete


def test_the_server_says_what_the_rfc_has() -> None:
    salt = bytes.fromhex("5b6d99689d12358eec a04b141236fa81".replace(" ", ""))
    credential = ScramCredential.of_password(SHA_256, "pencil", salt)
    broker = ScramServer(
        SHA_256, lambda _, name: credential if name == "user" else None, lambda _: _Nonce(RFC_NONCES[1].encode())
    )
    assert broker.respond(RFC_MESSAGES[0]) == RFC_MESSAGES[1]
    assert broker.username is None
    assert broker.respond(RFC_MESSAGES[2]) == RFC_MESSAGES[3]
    assert broker.username == "user"


# Passwords.


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("iterations", [1, 4096, 16_384, 16_385, 24_577])
def test_long_hashing_in_steps_gives_what_it_gives_at_once(mechanism: ScramMechanism, iterations: int) -> None:
    count, result = 0, b""

    def hashing() -> Steps[None]:
        nonlocal result
        result = yield from mechanism.salted_password_in_steps("pässword", SALT, iterations)

    for _ in hashing():
        count += 1
    assert result == hashlib.pbkdf2_hmac(mechanism.hash_name, "pässword".encode(), SALT, iterations)
    assert count == (iterations - 1) // 2048 if iterations > 16_384 else count == 0


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_credential_is_made_as_the_rfc_has_it(mechanism: ScramMechanism) -> None:
    credential = CREDENTIALS[mechanism, "alice"]
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, b"secret", SALT, 4096)
    client_key = reference_hmac.new(salted, b"Client Key", mechanism.hash_name).digest()
    assert credential.stored_key == hashlib.new(mechanism.hash_name, client_key).digest()
    assert credential.server_key == reference_hmac.new(salted, b"Server Key", mechanism.hash_name).digest()


@given(mechanism=st.sampled_from(ScramMechanism), data=st.data())
def test_a_credential_is_read_as_it_is_written(mechanism: ScramMechanism, data: st.DataObject) -> None:
    keys = st.binary(min_size=mechanism.digest_bytes, max_size=mechanism.digest_bytes)
    credential = ScramCredential(
        data.draw(st.binary(max_size=40)), data.draw(keys), data.draw(keys), data.draw(st.integers(1, 10**9))
    )
    assert ScramCredential.decode(mechanism, credential.encode()) == credential


def test_a_credential_is_written_as_kafka_writes_it() -> None:
    text = CREDENTIALS[SHA_256, "alice"].encode()
    assert text.startswith("salt=YSBzYWx0IG9mIGJ5dGVz,stored_key=")
    assert text.endswith(",iterations=4096")
    assert [part.partition("=")[0] for part in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]


GOOD = CREDENTIALS[SHA_256, "alice"].encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt",
        GOOD.replace("iterations=4096", "iterations=many"),
        GOOD.replace("iterations=4096", "iterations=-1"),
        GOOD.replace(",iterations=4096", ""),
        GOOD + ",more=1",
        GOOD.replace("salt=", "salt=!"),
        CREDENTIALS[SHA_512, "alice"].encode(),
    ],
)
def test_what_is_no_credential_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="SCRAM-SHA-256 credential") as refusal:
        ScramCredential.decode(SHA_256, text)
    for part in GOOD.split(",")[1:3]:
        assert part.partition("=")[2] not in str(refusal.value)


def test_a_credential_does_not_show_its_keys() -> None:
    assert repr(CREDENTIALS[SHA_256, "alice"]) == "ScramCredential(iterations=4096)"


# Both ends.


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(("name", "password"), [("alice", "secret"), ("a=b,c", "pass, word=3D")])
def test_who_knows_the_password_is_let_in(mechanism: ScramMechanism, name: str, password: str) -> None:
    client, broker = ScramClient(mechanism, name, password, entropy), server(mechanism)
    log_in(client, broker)
    assert broker.username == name
    assert client.is_complete


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(
    ("name", "password"), [("alice", "Secret"), ("alice", ""), ("bob", "secret"), ("Alice", "secret")]
)
def test_who_does_not_is_not(mechanism: ScramMechanism, name: str, password: str) -> None:
    client, broker = ScramClient(mechanism, name, password, entropy), server(mechanism)
    with pytest.raises(SaslError):
        log_in(client, broker)
    assert broker.username is None
    assert broker.state is ScramServerState.FAILED
    assert not client.is_complete


def test_proofs_are_compared_in_a_time_that_does_not_tell_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_server, "is_same", lambda _one, _other: False)
    with pytest.raises(SaslError, match="proof is wrong"):
        log_in(ScramClient(SHA_256, "alice", "secret", entropy), server())


def test_a_server_that_lacks_the_credential_cannot_pass_for_one_that_has_it() -> None:
    client = ScramClient(SHA_256, "alice", "secret", entropy)
    forged = ScramCredential(SALT, CREDENTIALS[SHA_256, "alice"].stored_key, b"x" * 32, 4096)
    broker = ScramServer(SHA_256, lambda *_: forged, entropy)
    with pytest.raises(SaslError, match="signature is wrong"):
        log_in(client, broker)
    assert client.state is ScramClientState.FAILED


def test_a_proof_cannot_be_used_again() -> None:
    nonces = iter((b"\1" * 18, b"\2" * 18))
    client, broker = ScramClient(SHA_256, "alice", "secret", entropy), server()
    first = client.begin()
    proof = at_once(client.answer(broker.respond(first)))
    assert proof is not None
    again = ScramServer(SHA_256, lambda *key: CREDENTIALS.get(key), lambda _: next(nonces))
    again.respond(first)
    with pytest.raises(SaslError, match="another nonce"):
        again.respond(proof)


@pytest.mark.parametrize(("before", "says"), [("own", None), ("x", None), ("cut", "another nonce")])
def test_a_proof_may_have_more_before_the_nonce_as_librdkafkas_before_2_6_has(before: str, says: str | None) -> None:
    broker = server()
    bare = "n=alice,r=fyko+d2lbbFgONRv9qkxdawL"
    own = bare.rpartition("=")[2]
    challenge = (broker.respond(f"n,,{bare}".encode()) or b"").decode()
    nonce = challenge.partition(",")[0].removeprefix("r=")
    shown = {"own": own + nonce, "x": "x" + nonce, "cut": nonce[1:]}[before]
    without_proof = f"c=biws,r={shown}"
    client_key = reference_hmac.digest(
        hashlib.pbkdf2_hmac("sha256", b"secret", SALT, int(challenge.rpartition("=")[2])), b"Client Key", "sha256"
    )
    signed = f"{bare},{challenge},{without_proof}".encode()
    signature = reference_hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(one ^ other for one, other in zip(client_key, signature, strict=True))).decode()
    with contextlib.nullcontext() if says is None else pytest.raises(SaslError, match=says):
        assert (broker.respond(f"{without_proof},p={proof}".encode()) or b"").startswith(b"v=")


def test_an_exchange_ends_once() -> None:
    client, broker = ScramClient(SHA_256, "alice", "secret", entropy), server()
    log_in(client, broker)
    with pytest.raises(SaslError):
        broker.respond(b"n,,n=alice,r=x")
    assert broker.username is None
    with pytest.raises(SaslError):
        at_once(client.answer(b"v="))
    assert not client.is_complete


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"p=tls-unique,,n=alice,r=abc", "form"),
        (b"y,,n=alice,r=abc", "form"),
        (b"n,,m=more,n=alice,r=abc", "form"),
        (b"n,,n=alice", "form"),
        (b"n,,n=al=ice,r=abc", "form"),
        ("n,,n=ålice,r=abc".encode(), "form"),
        (b"n,,n=alice,r=abc,tokenauth=true", "delegation token"),
        (b"n,,n=bob,r=abc", "no credential"),
        (b"n,a=bob,n=alice,r=abc", "authorization id"),
    ],
)
def test_a_first_message_is_refused(message: bytes, reason: str) -> None:
    broker = server()
    with pytest.raises(SaslError, match=reason) as refusal:
        broker.respond(message)
    assert isinstance(refusal.value, SaslAuthenticationError) == (reason == "authorization id")
    assert broker.state is ScramServerState.FAILED


# Delegation tokens.


def token_server(mechanism: ScramMechanism = SHA_256) -> ScramServer:
    login = TokenLogin("alice", ScramCredential.of_password(mechanism, "its hmac", SALT), 12_345)
    return ScramServer(
        mechanism, lambda *key: CREDENTIALS.get(key), entropy, lambda _, token_id: login if token_id == "id" else None
    )


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_token_logs_in_as_its_owner(mechanism: ScramMechanism) -> None:
    client, broker = ScramClient(mechanism, "id", "its hmac", entropy, is_token=True), token_server(mechanism)
    assert client.begin().endswith(b",tokenauth=true")
    client = ScramClient(mechanism, "id", "its hmac", entropy, is_token=True)
    log_in(client, broker)
    assert client.is_complete
    assert (broker.username, broker.token_expiry_ms) == ("alice", 12_345)


@pytest.mark.parametrize(
    ("name", "password", "is_token"),
    [
        ("id", "its hmac", False),  # there is no such user
        ("id", "secret", True),
        ("alice", "secret", True),  # nor such a token
        ("no id", "its hmac", True),
        ("", "", True),
    ],
)
def test_a_token_is_no_user_and_a_user_no_token(name: str, password: str, is_token: bool) -> None:
    broker = token_server()
    with pytest.raises(SaslError):
        log_in(ScramClient(SHA_256, name, password, entropy, is_token=is_token), broker)
    assert (broker.username, broker.token_expiry_ms) == (None, None)


@pytest.mark.parametrize(
    ("said", "is_token"),
    [
        ("true", True),
        ("TRUE", True),
        ("false", False),
        ("yes", False),
        ("true,more=x", True),
        ("x,tokenauth=true", True),
    ],
)
def test_whether_it_is_a_token_is_said_as_javas_booleans_are(said: str, is_token: bool) -> None:
    for name in ("id", "alice"):
        broker = token_server()
        if is_token == (name == "id"):
            broker.respond(f"n,,n={name},r=abc,tokenauth={said}".encode())
        else:
            with pytest.raises(SaslError):
                broker.respond(f"n,,n={name},r=abc,tokenauth={said}".encode())


def test_who_a_token_is_of_is_not_said_before_the_proof() -> None:
    broker = token_server()
    broker.respond(b"n,,n=id,r=abc,tokenauth=true")
    assert (broker.username, broker.token_expiry_ms) == (None, None)


def test_a_message_is_short() -> None:
    """Whoever sends it need not have shown who it is, and half a megabyte would take a tenth of a second."""
    broker = server()
    first = b"n,,n=alice,r=" + b"x" * (MESSAGE_BYTES_MAX - len(b"n,,n=alice,r="))
    assert broker.respond(first)
    with pytest.raises(SaslError, match=f"client's final message of {MESSAGE_BYTES_MAX + 1} bytes"):
        broker.respond(b"c" * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(SaslError, match=f"client's first message of {MESSAGE_BYTES_MAX + 1} bytes"):
        server().respond(first + b"x")


def test_ones_own_authorization_id_and_extensions_are_taken() -> None:
    assert server().respond(b"n,a=alice,n=alice,r=abc,x=1").startswith(b"r=abc000102")


def test_a_credential_of_few_iterations_lets_nobody_in() -> None:
    weak = ScramCredential.of_password(SHA_256, "secret", SALT, 4095)
    with pytest.raises(SaslError, match="4095 iterations"):
        ScramServer(SHA_256, lambda *_: weak, entropy).respond(b"n,,n=alice,r=abc")


@pytest.mark.parametrize("iterations", [0, 1, 4095, ITERATIONS_MAX + 1, 999_999_999])
def test_a_client_hashes_neither_too_little_nor_for_ever(iterations: int) -> None:
    client = ScramClient(SHA_256, "alice", "secret", entropy)
    nonce = client.begin().rpartition(b"=")[2]
    with pytest.raises(SaslError, match="iterations"):
        at_once(client.answer(b"r=%bmore,s=YWJj,i=%d" % (nonce, iterations)))
    assert client.state is ScramClientState.FAILED


@pytest.mark.parametrize("change", [lambda nonce: nonce, lambda nonce: b"x" + nonce, lambda _: b"other"])
def test_a_client_wants_its_own_nonce_gone_on_from(change: Callable[[bytes], bytes]) -> None:
    client = ScramClient(SHA_256, "alice", "secret", entropy)
    nonce = client.begin().rpartition(b"=")[2]
    with pytest.raises(SaslError, match="nonce"):
        at_once(client.answer(b"r=%b,s=YWJj,i=4096" % change(nonce)))


def test_an_error_of_the_server_is_told() -> None:
    client, broker = ScramClient(SHA_256, "alice", "secret", entropy), server()
    at_once(client.answer(broker.respond(client.begin())))
    with pytest.raises(SaslError, match="other-error"):
        at_once(client.answer(b"e=other-error"))


# Garbage. What is nearly right is the interesting part of it.

PIECES = st.sampled_from(
    [
        *(b"n", b",", b"=", b"r=", b"s=", b"i=", b"c=biws", b"p=", b"v=", b"e=", b"a=", b"m=", b"n=alice", b"4096"),
        *(b"=2C", b"=3D", b"\0", b"\xff", b"AAAA", b"==", b"tokenauth=true"),
        *RFC_MESSAGES,
    ]
)
MESSAGES = st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=12).map(b"".join))


@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), mechanism=st.sampled_from(ScramMechanism))
@settings(deadline=None, max_examples=examples(30))
def test_garbage_lets_nobody_in_and_breaks_nothing(messages: list[bytes], mechanism: ScramMechanism) -> None:
    broker = server(mechanism)
    client = ScramClient(mechanism, "alice", "secret", entropy)
    client.begin()
    for message in messages:
        for respond in (broker.respond, lambda text: at_once(client.answer(text))):
            try:
                respond(message)
            except SaslError:
                continue
    assert broker.username is None
    assert not client.is_complete


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), of=st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=examples(30))
def test_a_proof_with_one_bit_changed_lets_nobody_in(at: int, bit: int, of: int) -> None:
    client, broker = ScramClient(SHA_256, "alice", "secret", entropy), server()
    first = client.begin()
    proof = at_once(client.answer(broker.respond(first)))
    assert proof is not None
    message = bytearray((first, b"", b"", proof)[0] if of == 1 else proof)
    message[at % len(message)] ^= 1 << bit
    broker = server()
    with pytest.raises(SaslError):
        broker.respond(bytes(message) if of == 1 else first)
        broker.respond(bytes(message) if of == 3 else proof)
    assert broker.username is None


# The tables.


def test_every_refusal_is_final() -> None:
    for table, complete, failed in (
        (SCRAM_SERVER, ScramServerState.COMPLETE, ScramServerState.FAILED),
        (SCRAM_CLIENT, ScramClientState.COMPLETE, ScramClientState.FAILED),
    ):
        following = {state: {to for (at, _), to in table.transitions.items() if at is state} for state in table.states}
        assert following[failed] == set()
        assert following[complete] == {failed}
        assert [at for at, to in following.items() if complete in to] == [
            ScramServerState.EXPECTS_PROOF if table is SCRAM_SERVER else ScramClientState.EXPECTS_SIGNATURE
        ]


def test_a_login_makes_an_exchange_of_its_mechanism() -> None:
    client = Login("SCRAM-SHA-512", "alice", "secret").exchange(entropy)
    broker = server(SHA_512)
    assert isinstance(client, ScramClient)
    log_in(client, broker)
    assert broker.username == "alice"
