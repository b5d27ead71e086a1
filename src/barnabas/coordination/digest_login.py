"""DIGEST-MD5 (RFC 2831), by which ZooKeeper's clients log in with SASL, both ends, without I/O.

It is as weak as its hash, and what ZooKeeper has beside Kerberos; TLS keeps others from listening. Invariant: the
`username` of a server is set only once a response was right for the password of that name and this exchange's nonce.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.coordination.errors import CoordinationError
from barnabas.sasl.hashes import is_same

if TYPE_CHECKING:
    from barnabas.kernel.host import Entropy

REALM: Final = "zk-sasl-md5"
_DIGEST_URI: Final = f"zookeeper/{REALM}"
_NONCE_BYTES: Final = 24
_TOKEN_BYTES_MAX: Final = 4096
_FIRST_COUNT: Final = "00000001"
_DIRECTIVE: Final = re.compile(rb'\s*+([A-Za-z-]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^",\s]*+))\s*+(?:,|$)', re.DOTALL)
"""Nothing is tried twice: whoever has not logged in may send any bytes."""
_NOBODYS: Final = "the password of those who have none"


class DigestLoginError(CoordinationError):
    """The login has failed. The message holds no secret."""


@dataclass(frozen=True, slots=True)
class DigestUser:
    """Who logs in."""

    username: str
    password: str = field(repr=False)


class DigestClient:
    """The client's end. ZooKeeper's own begins with an empty message."""

    def __init__(self, user: DigestUser, entropy: Entropy) -> None:
        self._user = user
        self._entropy = entropy
        self._proof: bytes | None = None
        self.is_complete = False

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message, or None when the server has shown that it knows the password too. Raises
        DigestLoginError.
        """
        found = _directives(challenge)
        if self._proof is not None:
            if self.is_complete or not is_same(found.get("rspauth", "").encode(), self._proof):
                raise DigestLoginError("the server does not know the password")
            self.is_complete = True
            return None
        nonce, qop = found.get("nonce", ""), found.get("qop", "auth")
        if not nonce or found.get("algorithm") != "md5-sess" or "auth" not in [word.strip() for word in qop.split(",")]:
            raise DigestLoginError("the server does not ask for a login by DIGEST-MD5")
        cnonce = base64.b64encode(self._entropy(_NONCE_BYTES)).decode()
        user, realm = self._user, found.get("realm", REALM)
        secret = _secret(user.username, realm, user.password, nonce, cnonce, "")
        response = _response(secret, nonce, cnonce, "AUTHENTICATE", _DIGEST_URI)
        self._proof = _response(secret, nonce, cnonce, "", _DIGEST_URI)
        fields = {"username": user.username, "realm": realm, "nonce": nonce, "cnonce": cnonce}
        quoted = ",".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        return (
            f'charset=utf-8,{quoted},nc={_FIRST_COUNT},digest-uri="{_DIGEST_URI}",maxbuf=65536,'
            f"response={response.decode()},qop=auth"
        ).encode()


class DigestServer:
    """The server's end."""

    def __init__(self, passwords: Mapping[str, str], entropy: Entropy) -> None:
        self._passwords = passwords
        self._nonce = base64.b64encode(entropy(_NONCE_BYTES)).decode()
        self._is_asked = self._is_over = False
        self.username: str | None = None

    def respond(self, token: bytes) -> bytes:
        """The answer to a message of the client. Raises DigestLoginError, and nothing else for any bytes."""
        if self._is_over:
            raise DigestLoginError("a message after the end of the login")
        if not self._is_asked:
            self._is_asked = True
            self._is_over = bool(token)
            if token:
                raise DigestLoginError("a login begins with an empty message")
            return f'charset=utf-8,realm="{REALM}",nonce="{self._nonce}",qop="auth",algorithm=md5-sess'.encode()
        self._is_over = True
        found = _directives(token)
        username, cnonce, uri = (found.get(name, "") for name in ("username", "cnonce", "digest-uri"))
        authorization = found.get("authzid", "")
        if (
            found.get("nonce") != self._nonce
            or found.get("nc") != _FIRST_COUNT
            or found.get("qop", "auth") != "auth"
            or found.get("realm", "") not in ("", REALM)
            or not cnonce
            or not uri.startswith("zookeeper/")
        ):
            raise DigestLoginError("the response does not fit the challenge")
        password = self._passwords.get(username)
        realm = found.get("realm", "")
        secret = _secret(
            username, realm, _NOBODYS if password is None else password, self._nonce, cnonce, authorization
        )
        response = _response(secret, self._nonce, cnonce, "AUTHENTICATE", uri)
        is_right = is_same(found.get("response", "").encode(), response)
        if password is None or not is_right:
            raise DigestLoginError("the password is wrong, or the user unknown")
        if authorization not in ("", username):
            raise DigestLoginError("the user wants to be another")
        self.username = username
        return b"rspauth=" + _response(secret, self._nonce, cnonce, "", uri)


def _directives(data: bytes) -> dict[str, str]:
    """By name, in lower case. Raises DigestLoginError, also for a name that is there twice."""
    if len(data) > _TOKEN_BYTES_MAX:
        raise DigestLoginError("a message of too many bytes")
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        match = _DIRECTIVE.match(data, at)
        if match is None:
            raise DigestLoginError("a message is none of DIGEST-MD5")
        name = match[1].decode().lower()
        value = match[3] if match[2] is None else re.sub(rb"\\(.)", rb"\1", match[2], flags=re.DOTALL)
        # Of the directives that Java writes twice, the charset alone.
        if name in found and name != "charset":
            raise DigestLoginError("a message says something twice")
        found[name] = value.decode(errors="replace")
        at = match.end()
    return found


def _secret(username: str, realm: str, password: str, nonce: str, cnonce: str, authorization: str) -> bytes:
    """A1 of RFC 2831, hashed."""
    first = _md5(b":".join(map(_text, (username, realm, password))))
    tail = [nonce, cnonce, *([authorization] if authorization else [])]
    return _hex(b":".join((first, *(each.encode() for each in tail))))


def _response(secret: bytes, nonce: str, cnonce: str, method: str, uri: str) -> bytes:
    end = _hex(f"{method}:{uri}".encode())
    return _hex(b":".join((secret, nonce.encode(), _FIRST_COUNT.encode(), cnonce.encode(), b"auth", end)))


def _text(text: str) -> bytes:
    """In ISO 8859-1 where that has all of it (RFC 2831, 2.1.2.1)."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _md5(data: bytes) -> bytes:
    import hashlib  # loads OpenSSL, which brokers without such logins do without

    # The mechanism is defined by MD5; it is no choice of ours.
    return hashlib.md5(data, usedforsecurity=False).digest()


def _hex(data: bytes) -> bytes:
    return _md5(data).hex().encode()
