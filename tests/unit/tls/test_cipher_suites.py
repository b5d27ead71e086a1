"""`barnabas.tls.cipher_suites`: every name that both sides know."""

from __future__ import annotations

import ssl

import pytest

from barnabas.tls.cipher_suites import openssl_names
from barnabas.tls.errors import TlsConfigError

NAMES = {
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": "DHE-RSA-AES256-GCM-SHA384",
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "DHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": "ECDHE-ECDSA-AES256-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA256": "AES256-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
}


@pytest.mark.parametrize(("name", "openssl"), NAMES.items())
def test_a_suite_of_java_is_one_of_openssl(name: str, openssl: str) -> None:
    assert openssl_names([name, "TLS_AES_128_GCM_SHA256"]) == ([openssl], ["TLS_AES_128_GCM_SHA256"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(f"{openssl}:@SECLEVEL=0")
    assert openssl in {cipher["name"] for cipher in context.get_ciphers()}


@pytest.mark.parametrize("name", ["", "HIGH", "ALL:!MD5", "TLS_RSA", "SSL_RSA_WITH_X", "@SECLEVEL=0"])
def test_what_is_no_suite_is_refused(name: str) -> None:
    with pytest.raises(TlsConfigError, match="no cipher suite"):
        openssl_names([name])
