"""What lets somebody in is in no text that is made of an object, and so in no log and no traceback."""

from __future__ import annotations

import pytest

from barnabas.console.pages.page import Visitor
from barnabas.coordination.embedded.sessions import StoredSession
from barnabas.coordination.protocol import ConnectRequest, ConnectResponse
from barnabas.coordination.session_settings import ClientSettings, SessionTicket
from barnabas.sasl.scram_messages import ClientFinal
from barnabas.security.login_files import PasswordHash, User

SECRET = "hunter2"
BYTES = SECRET.encode()


@pytest.mark.parametrize(
    "holder",
    [
        Visitor(SECRET, "anna", SECRET),
        StoredSession(1, 2, BYTES),
        ConnectRequest(0, 1, 2, BYTES),
        ConnectResponse(1, 2, BYTES),
        SessionTicket(1, BYTES),
        ClientSettings("localhost:2181", credentials=(("digest", BYTES),), ticket=SessionTicket(1, BYTES)),
        ClientFinal("c=biws", b"", "nonce", BYTES),
        User(PasswordHash(1, 2, 3, BYTES, BYTES)),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_it_is_in_no_text(holder: object) -> None:
    assert SECRET not in f"{holder!r} {holder}"
