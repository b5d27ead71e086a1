"""An identity provider for tests, on the loopback: keys of its own, tokens of any shape, and the two addresses that
Kafka's OAUTHBEARER asks: `/keys` and, by client credentials, `/token`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.support.certificates import Certified

CLIENT_ID, CLIENT_SECRET = "alice", "alice's own/secret+1"
MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
VALIDATOR_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LIFETIME_SECONDS: Final = 600
ISSUER, AUDIENCE = "https://issuer.example", "kafka"


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """The same each time, for a number."""
    del number
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def curve_key(name: str) -> Any:
    """Of a curve, by its name in a key set."""
    curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    return ed25519.Ed25519PrivateKey.generate() if name == "Ed25519" else ec.generate_private_key(curves[name])


def public(algorithm: str, key: Any, key_id: str | None, **more: Any) -> dict[str, Any]:
    """As a key set has it."""
    found: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    found.pop("key_ops", None)
    return found | ({} if key_id is None else {"kid": key_id}) | more


def key_set() -> list[dict[str, Any]]:
    """The provider's: one key of each kind."""
    return [
        public("RS256", rsa_key(), "rsa", use="sig"),
        public("ES256", curve_key("P-256"), "p256", use="sig"),
        public("ES384", curve_key("P-384"), "p384"),
        public("ES512", curve_key("P-521"), "p521"),
    ]


def encoded(data: bytes | Mapping[str, Any] | str) -> str:
    """A section of a token."""
    if isinstance(data, Mapping):
        data = json.dumps(data)
    if isinstance(data, str):
        data = data.encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(subject: Any = "alice", **more: Any) -> dict[str, Any]:
    """Those of a token that is good now; None takes one away."""
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + LIFETIME_SECONDS, "scope": "all"}
    return {name: value for name, value in (found | more).items() if value is not None}


def signed(
    body: Mapping[str, Any] | str, algorithm: str = "RS256", key: Any = None, key_id: str | None = "rsa", **header: Any
) -> str:
    """A token; `body` may be the JSON itself, and `header` has more than alg and kid."""
    head = {"alg": algorithm} | ({} if key_id is None else {"kid": key_id}) | header
    return sign(encoded(head), encoded(body), algorithm, rsa_key() if key is None else key)


def sign(head: str, body: str, algorithm: str, key: Any) -> str:
    """A token of two sections."""
    signer = jwt.get_algorithm_by_name(algorithm)
    return f"{head}.{body}.{encoded(signer.sign(f'{head}.{body}'.encode(), signer.prepare_key(key)))}"


def unsecured(body: Mapping[str, Any] | str, signature: str = "", **header: Any) -> str:
    """A token that nobody has signed."""
    return f"{encoded({'alg': 'none'} | header)}.{encoded(body)}.{signature}"


class IdentityProvider:
    """Serves while it is a context; by TLS where it is given a key with its certificate."""

    def __init__(self, certified: Certified | None = None, *, authority: Path | None = None) -> None:
        """With an `authority` clients have to show a certificate of it."""
        self.keys: list[dict[str, Any]] = key_set()
        self.asked: list[str] = []
        """The paths, in order."""
        self.status = 200
        self.secrets = {CLIENT_ID: CLIENT_SECRET}
        self.hangs = threading.Event()
        """Set: nothing is answered."""
        self.lifetime_seconds = LIFETIME_SECONDS
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._answer(self, {"keys": provider.keys} if self.path == "/keys" else None)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider._answer(self, provider._token(self.headers["Authorization"] or "", form))

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # a client that does not trust it, as is meant
                    super().handle()

            def log_message(self, *_arguments: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http" if certified is None else "https"
        if certified is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certified.both)
            if authority is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(authority)
            # The handshake is done by the thread that answers, and not by the one that accepts.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    @property
    def keys_address(self) -> str:
        return f"{self.address}/keys"

    @property
    def token_address(self) -> str:
        return f"{self.address}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hangs.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _token(self, authorization: str, form: Mapping[str, list[str]]) -> dict[str, Any] | None:
        user, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if form.get("grant_type") != ["client_credentials"] or self.secrets.get(user) != secret:
            return None
        now = int(time.time())
        body = claims(user, exp=now + self.lifetime_seconds)
        return {"access_token": signed(body), "token_type": "Bearer", "expires_in": self.lifetime_seconds}

    def _answer(self, handler: BaseHTTPRequestHandler, found: dict[str, Any] | None) -> None:
        self.asked.append(handler.path)
        while self.hangs.is_set():
            time.sleep(0.02)
        status = self.status if found is not None else 401
        body = json.dumps(found if status == 200 else {"error": "invalid_client", "error_description": "no"}).encode()
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)


@contextlib.contextmanager
def identity_provider(
    certified: Certified | None = None, *, authority: Path | None = None
) -> Iterator[IdentityProvider]:
    with IdentityProvider(certified, authority=authority) as provider:
        yield provider


def client_properties(provider: IdentityProvider, **options: str) -> dict[str, str]:
    """Of one of Kafka's clients, or of ours, beside its security.protocol."""
    given = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, **options}
    module = " ".join(f'{name}="{value}"' for name, value in given.items())
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": LOGIN_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": provider.token_address,
        "sasl.jaas.config": f"{MODULE} required {module};",
    }
