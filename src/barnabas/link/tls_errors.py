"""What OpenSSL says when a handshake fails, in words that say what to look at."""

from __future__ import annotations

from typing import Any, Final

PLAIN_HTTP: Final = "HTTP_REQUEST"
"""OpenSSL's reason where a client speaks HTTP and no TLS."""
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "what came is not TLS; is the other end's security.protocol without SSL?",
    PLAIN_HTTP: "what came is HTTP",
    "HTTPS_PROXY_REQUEST": "what came is HTTP",
    "UNEXPECTED_EOF_WHILE_READING": "the other end went away",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate, which ssl.client.auth requires",
    "NO_SHARED_CIPHER": "both ends have no cipher suite in common (ssl.cipher.suites), or the key's kind does not fit",
    "UNSUPPORTED_PROTOCOL": "both ends have no version in common (ssl.enabled.protocols)",
    "NO_PROTOCOLS_AVAILABLE": "both ends have no version in common (ssl.enabled.protocols)",
}
_ALERTS: Final = {
    "UNKNOWN_CA": "the other end does not trust the issuer of our certificate",
    "BAD_CERTIFICATE": "the other end does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "the other end does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "the other end does not accept our certificate's kind",
    "CERTIFICATE_EXPIRED": "the other end says that our certificate has expired",
    "CERTIFICATE_REVOKED": "the other end says that our certificate was revoked",
    "CERTIFICATE_REQUIRED": "the other end requires a certificate of us (ssl.keystore.*)",
    "HANDSHAKE_FAILURE": "the other end refuses; it may require a certificate of us (ssl.keystore.*), or share no"
    " cipher suite with us",
    "PROTOCOL_VERSION": "both ends have no version in common (ssl.enabled.protocols)",
    "ACCESS_DENIED": "the other end denies access",
}


def as_words(error: Any, *, is_server: bool) -> str:
    """Why a handshake failed; `error` is what OpenSSL raised."""
    reason = getattr(error, "reason", None)
    verification = getattr(error, "verify_message", None)
    if verification:
        whose = "the client's" if is_server else "the broker's"
        return f"{whose} certificate is not accepted: {verification.rstrip('.')}"
    if not reason:
        return "the other end went away" if isinstance(error, EOFError) else str(error) or type(error).__name__
    if reason in _REASONS:
        return _REASONS[reason]
    alert = reason.partition("_ALERT_")[2]
    if alert in _ALERTS:
        return _ALERTS[alert]
    return str(reason).lower().replace("_", " ")
