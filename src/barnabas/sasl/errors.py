"""What goes wrong in SASL. No message of these holds a password, a key, or a proof."""

from __future__ import annotations


class SaslError(Exception):
    """The exchange has failed. The message is for the log: the other end is told only that its credentials are invalid,
    since more would tell who has an account."""


class SaslAuthenticationError(SaslError):
    """The exchange has failed, and the message may be told to the other end. `reason` says more, for the log."""

    def __init__(self, told: str, reason: str | None = None) -> None:
        super().__init__(told)
        self.reason = told if reason is None else reason


class LoginConfigError(ValueError):
    """A login that is configured in a way that cannot work; the message says how it is to be written."""
