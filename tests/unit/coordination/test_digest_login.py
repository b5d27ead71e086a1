"""DIGEST-MD5 (RFC 2831), both ends."""

from __future__ import annotations

import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination import digest_login
from barnabas.coordination.digest_login import _NOBODYS, DigestClient, DigestLoginError, DigestServer, DigestUser

PASSWORDS = {"kafka": 'pa"ss\\word', "änne": "gehëim", "日本": "秘密"}


def entropy(count: int) -> bytes:
    return bytes(range(count))


def other_entropy(count: int) -> bytes:
    return bytes(range(1, count + 1))


def md5(text: bytes) -> str:
    return hashlib.md5(text).hexdigest()


def log_in(username: str, password: str) -> tuple[DigestServer, DigestClient]:
    server = DigestServer(PASSWORDS, entropy)
    client = DigestClient(DigestUser(username, password), other_entropy)
    message = client.answer(server.respond(b""))
    assert message is not None
    proof = server.respond(message)
    assert client.answer(proof) is None
    with pytest.raises(DigestLoginError):
        client.answer(proof)
    return server, client


@pytest.mark.parametrize("username", PASSWORDS)
def test_who_knows_the_password_is_let_in_and_so_does_the_server_know_it(username: str) -> None:
    server, client = log_in(username, PASSWORDS[username])
    assert server.username == username
    assert client.is_complete


@pytest.mark.parametrize(
    ("username", "password"), [("kafka", "wrong"), ("nobody", ""), ("nobody", "x"), ("nobody", _NOBODYS), ("", "")]
)
def test_others_are_not(username: str, password: str) -> None:
    with pytest.raises(DigestLoginError, match="the password is wrong, or the user unknown"):
        log_in(username, password)


def test_responses_are_compared_in_a_time_that_does_not_tell_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_login, "is_same", lambda _one, _other: False)
    with pytest.raises(DigestLoginError, match="the password is wrong"):
        log_in("kafka", PASSWORDS["kafka"])


def test_a_response_is_what_the_rfc_says() -> None:
    client = DigestClient(DigestUser("chris", "secret"), entropy)
    message = client.answer(
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
    )
    assert message is not None
    cnonce = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
    first = hashlib.md5(b"chris:elwood.innosoft.com:secret").digest()
    one = md5(first + f":OA6MG9tEQGm2hh:{cnonce}".encode())
    two = md5(b"AUTHENTICATE:zookeeper/zk-sasl-md5")
    expected = md5(f"{one}:OA6MG9tEQGm2hh:00000001:{cnonce}:auth:{two}".encode())
    assert f"response={expected}".encode() in message
    with pytest.raises(DigestLoginError, match="does not know the password"):
        client.answer(b"rspauth=" + expected.encode())


def test_a_client_may_say_whom_it_wants_to_be_and_that_is_itself() -> None:
    """As Java's, which signs that too."""
    for wanted in ("kafka", "admin"):
        server = DigestServer({"kafka": "secret"}, entropy)
        nonce = server.respond(b"").decode().split('nonce="')[1].split('"')[0]
        first = hashlib.md5(b"kafka:zk-sasl-md5:secret").digest()
        one = md5(first + f":{nonce}:c:{wanted}".encode())
        two = md5(b"AUTHENTICATE:zookeeper/zk-sasl-md5")
        response = md5(f"{one}:{nonce}:00000001:c:auth:{two}".encode())
        message = (
            f'charset=utf-8,username="kafka",realm="zk-sasl-md5",nonce="{nonce}",nc=00000001,cnonce="c",'
            f'digest-uri="zookeeper/zk-sasl-md5",maxbuf=65536,response={response},qop=auth,authzid="{wanted}"'
        )
        if wanted == "kafka":
            server.respond(message.encode())
            assert server.username == "kafka"
        else:
            with pytest.raises(DigestLoginError, match="to be another"):
                server.respond(message.encode())
            assert server.username is None


def test_what_was_heard_is_of_no_use_again() -> None:
    heard = DigestServer(PASSWORDS, entropy)
    client = DigestClient(DigestUser("kafka", PASSWORDS["kafka"]), entropy)
    message = client.answer(heard.respond(b""))
    assert message is not None
    later = DigestServer(PASSWORDS, other_entropy)
    later.respond(b"")
    with pytest.raises(DigestLoginError, match="does not fit"):
        later.respond(message)
    with pytest.raises(DigestLoginError, match="after the end"):
        later.respond(message)
    heard.respond(message)
    with pytest.raises(DigestLoginError, match="after the end"):
        heard.respond(message)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nc=00000001", "nc=00000002"),
        ("qop=auth", "qop=auth-conf"),
        ('realm="zk-sasl-md5"', 'realm="other"'),
        ("zookeeper/", "kafka/"),
        ('cnonce="', 'x="'),
        ("qop=auth", 'qop=auth,username="admin"'),
        ("response=", "response=0"),
        ("qop=auth", 'qop=auth,x="'),
    ],
)
def test_a_response_that_was_changed_is_refused(before: str, after: str) -> None:
    server = DigestServer(PASSWORDS, entropy)
    client = DigestClient(DigestUser("kafka", PASSWORDS["kafka"]), entropy)
    message = client.answer(server.respond(b""))
    assert message is not None
    assert before.encode() in message
    with pytest.raises(DigestLoginError):
        server.respond(message.replace(before.encode(), after.encode()))
    assert server.username is None


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_a_login_that_fails(data: bytes) -> None:
    server = DigestServer(PASSWORDS, entropy)
    server.respond(b"")
    with pytest.raises(DigestLoginError):
        server.respond(data)
    client = DigestClient(DigestUser("kafka", "x"), entropy)
    with pytest.raises(DigestLoginError):
        client.answer(data)


@pytest.mark.parametrize("message", [b"a=" + b" " * 4000 + b'"', b"a" * 4000, b"a=b" + b" " * 4000 + b"c", b" " * 4000])
def test_what_comes_of_garbage_is_known_at_once(message: bytes) -> None:
    """Whoever reaches the port sends it: blanks before a quotation mark held the loop for 0.2 s, and longer for 3 s."""
    server = DigestServer(PASSWORDS, entropy)
    server.respond(b"")
    began = time.thread_time()
    with pytest.raises(DigestLoginError):
        server.respond(message)
    assert time.thread_time() - began < 0.1


def test_a_message_of_too_many_bytes_is_not_read() -> None:
    server = DigestServer(PASSWORDS, entropy)
    server.respond(b"")
    with pytest.raises(DigestLoginError, match="too many bytes"):
        server.respond(b"a=b," * 1100)


def test_no_password_is_shown() -> None:
    assert "secret" not in repr(DigestUser("kafka", "secret"))
