"""Kafka's `ssl.*` keys, of whoever gives them."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.tls.errors import TlsConfigError
from barnabas.tls.settings import KEYS, OF_CLIENTS, ClientAuth, TlsSettings, tls_settings


def test_the_keys_that_have_an_effect_are_those_that_are_asked_for() -> None:
    asked: list[str] = []

    def value_of(key: str) -> Any:
        asked.append(key)

    TlsSettings.of(value_of)
    assert sorted(asked) == sorted(KEYS)


def test_texts_with_commas_are_lists_and_defaults_count_where_nothing_is_said() -> None:
    settings = tls_settings({"ssl.enabled.protocols": " TLSv1.3 ,", "ssl.cipher.suites": "a,b"}, OF_CLIENTS)
    assert (settings.enabled_protocols, settings.cipher_suites) == (("TLSv1.3",), ("a", "b"))
    assert settings.checks_host_name
    assert not tls_settings({"ssl.endpoint.identification.algorithm": ""}, OF_CLIENTS).checks_host_name
    assert tls_settings({}, {"ssl.client.auth": "required"}).client_auth is ClientAuth.REQUIRED


def test_who_must_show_a_certificate_is_one_of_three_words() -> None:
    with pytest.raises(TlsConfigError, match=r"ssl\.client\.auth=want: it must be required, requested or none"):
        tls_settings({"ssl.client.auth": "want"}, {})
