"""The errors of this room."""

from __future__ import annotations


class TlsConfigError(ValueError):
    """What `ssl.*` configs say cannot be done. It shows no secret, and says what to do."""


class NoPrincipalError(ValueError):
    """A client's certificate names nobody: it cannot be read, or no rule of ssl.principal.mapping.rules fits it."""
