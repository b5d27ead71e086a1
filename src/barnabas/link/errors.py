"""The errors of a connection."""

from __future__ import annotations


class FrameSizeError(ValueError):
    """The peer announced a frame of a size that is not allowed; the stream cannot be cut into frames any more."""


class ConnectionLostError(ConnectionError):
    """The connection ended, or was ended by us, before the response had come; the request may have been processed."""


class AuthenticationFailedError(ConnectionLostError):
    """The broker refused our login, or could not show that it is the one that has our credentials. It has no secret in
    it. Another attempt is in vain until somebody changes something.
    """


class RequestTimeoutError(TimeoutError):
    """The response did not come in time. The connection is closed, because the response may still arrive."""


class InFlightLimitError(RuntimeError):
    """The connection has as many requests in flight as it may; the caller waits for one of them."""


class UnsupportedVersionError(ValueError):
    """The broker does not speak any version of an API that we can use."""
