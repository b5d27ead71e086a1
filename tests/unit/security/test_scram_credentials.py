"""Who can log in, by what `/config/users` says."""

from __future__ import annotations

import logging

import pytest

from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.security.scram_credentials import ScramCredentials

SHA_256, SHA_512 = ScramMechanism
LOGGER = logging.getLogger("tests.scram")
ONE = ScramCredential(b"salt", bytes(32), bytes(32), 4096)
OTHER = ScramCredential(b"salt", bytes(64), bytes(64), 8192)


def test_the_last_configs_of_a_user_count() -> None:
    credentials = ScramCredentials(LOGGER)
    credentials.set("alice", {"SCRAM-SHA-256": ONE.encode(), "producer_byte_rate": "1"})
    assert credentials.find(SHA_256, "alice") == ONE
    assert credentials.find(SHA_512, "alice") is None
    credentials.set("alice", {"SCRAM-SHA-512": OTHER.encode()})
    assert credentials.find(SHA_256, "alice") is None
    assert credentials.find(SHA_512, "alice") == OTHER
    credentials.set("alice", {})
    assert credentials.find(SHA_512, "alice") is None


def test_who_is_no_more_is_forgotten() -> None:
    credentials = ScramCredentials(LOGGER)
    for user in ("alice", "bob"):
        credentials.set(user, {"SCRAM-SHA-256": ONE.encode()})
    credentials.retain({"bob", "carol"})
    assert credentials.find(SHA_256, "alice") is None
    assert credentials.find(SHA_256, "bob") == ONE


def test_a_credential_that_cannot_be_read_is_none_and_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    credentials = ScramCredentials(LOGGER)
    credentials.set("alice", {"SCRAM-SHA-256": ONE.encode()})
    credentials.set("alice", {"SCRAM-SHA-256": "salt=hush", "SCRAM-SHA-512": OTHER.encode()})
    assert credentials.find(SHA_256, "alice") is None
    assert credentials.find(SHA_512, "alice") == OTHER
    assert "'alice' cannot log in" in caplog.text
    assert "hush" not in caplog.text
