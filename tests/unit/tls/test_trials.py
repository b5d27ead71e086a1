"""`barnabas.tls.trials`: a handshake in memory, beside connections that are made by the same contexts."""

from __future__ import annotations

import ssl
from typing import Any

from barnabas.tls.trials import try_handshake
from tests.support.certificates import broker_certificate, other_authority, shared_authority


def server() -> ssl.SSLContext:
    certified = broker_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified.certificate, certified.key)
    return context


def client(authority: Any) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


class Watched:
    """A server's context, at a moment when another thread may connect by the client's."""

    def __init__(self, context: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self._context = context
        self._client = client
        self.seen: list[bool] = []

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self.seen.append(self._client.check_hostname)
        return self._context.wrap_bio(*arguments, **named)


def test_a_trial_asks_for_no_host_and_connections_made_meanwhile_do() -> None:
    clients = client(shared_authority())
    watched: Any = Watched(server(), clients)
    assert try_handshake(watched, clients) is None
    assert watched.seen == [True], "another broker's host would not be looked at"


def test_who_is_not_trusted_is_found_by_the_client() -> None:
    failure = try_handshake(server(), client(other_authority()))
    assert failure is not None
    assert "self-signed" in str(failure.error) or "unable to get local issuer" in str(failure.error)
    assert not failure.of_server
