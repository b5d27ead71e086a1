"""Target `logins`: what a client may say before anybody knows who it is, what stands in for a broker may answer, and
what is written in configs and znodes. The first byte says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.sasl.errors import LoginConfigError, SaslError
from barnabas.sasl.jaas import parse_login_module
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.plain import PlainServer
from barnabas.sasl.scram_client import ScramClient
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.sasl.scram_server import ScramServer, TokenLogin

_MECHANISM: Final = ScramMechanism.SHA_256
_CREDENTIAL: Final = ScramCredential.of_password(_MECHANISM, "secret", b"salt")
_FIRST: Final = b"n,,n=alice,r=abc"
_NONCE: Final = bytes(18).hex().encode()


def _entropy(count: int) -> bytes:
    return bytes(count)


def _server() -> ScramServer:
    token = TokenLogin("bob", _CREDENTIAL, 1)
    return ScramServer(
        _MECHANISM,
        lambda _, user: _CREDENTIAL if user == "alice" else None,
        _entropy,
        lambda _, token_id: token if token_id == "id" else None,
    )


def _client() -> ScramClient:
    client = ScramClient(_MECHANISM, "alice", "secret", _entropy)
    client.begin()
    return client


def _plain(data: bytes) -> None:
    server = PlainServer({"alice": "secret"})
    server.respond(data)
    if server.username != "alice":
        raise AssertionError("somebody else was let in")


def _first(data: bytes) -> None:
    server = _server()
    server.respond(data)
    if server.username is not None:
        raise AssertionError("somebody was let in without a proof")


def _final(data: bytes) -> None:
    server = _server()
    server.respond(_FIRST)
    server.respond(data)
    raise AssertionError("a proof was taken that nobody can have made")


def _salt(data: bytes) -> None:
    for _ in _client().answer(data):
        break  # the rest is more of the same


def _signature(data: bytes) -> None:
    client = _client()
    for _ in client.answer(b"r=%babc,s=c2FsdA==,i=4096" % _NONCE):
        raise AssertionError("so few iterations take no steps")
    for _ in client.answer(data):
        pass
    raise AssertionError("a signature was taken that nobody can have made")


def _jaas(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    module = parse_login_module(text)
    written = " ".join(f"{_quoted(key)}={_quoted(value)}" for key, value in module.options.items())
    if parse_login_module(f"{_quoted(module.name)} required {written};") != module:
        raise AssertionError("a login module is another one when it is written again")


def _quoted(text: str) -> str:
    for plain, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escape)
    return f'"{text}"'


def _login(data: bytes) -> None:
    Login.of_jaas("PLAIN", data.decode("utf-8", "replace"))


def _credential(data: bytes) -> None:
    credential = ScramCredential.decode(_MECHANISM, data.decode("utf-8", "replace"))
    if ScramCredential.decode(_MECHANISM, credential.encode()) != credential:
        raise AssertionError("a credential is another one when it is written again")


_KINDS: Final[tuple[tuple[Callable[[bytes], None], type[Exception]], ...]] = (
    (_plain, SaslError),
    (_first, SaslError),
    (_final, SaslError),
    (_salt, SaslError),
    (_signature, SaslError),
    (_jaas, LoginConfigError),
    (_login, LoginConfigError),
    (_credential, ValueError),
)


def check_login(data: bytes) -> bool:
    """Whether what the first byte names takes the rest."""
    if not data:
        return False
    check, refusal = _KINDS[data[0] % len(_KINDS)]
    try:
        check(data[1:])
    except refusal:
        return False
    return True


def login_seeds() -> list[bytes]:
    jaas = b'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password=\'b\\"\' user_c=d;'
    seeds = (
        b"\0alice\0secret",
        b"n,a=alice,n=alice,r=abc,x=1",
        b"c=biws,r=abc%b,p=%b=" % (_NONCE, b"A" * 43),
        b"r=%babc,s=c2FsdA==,i=20000" % _NONCE,
        b"v=%b=" % (b"A" * 43),
        jaas,
        jaas,
        _CREDENTIAL.encode().encode(),
    )
    return [bytes((number,)) + seed for number, seed in enumerate(seeds)]
