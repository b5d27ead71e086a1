"""Every error of ZooKeeper's as an exception of its own, and the faults that are found on this side of the wire.

`CoordinationError` is the base of all. `KeeperError` and its subclasses carry a code of ZooKeeper's and the path of
the operation; `error_for` makes one from a code. `MalformedFrameError` says that the peer's bytes are not ZooKeeper's
protocol.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ErrorCode(enum.IntEnum):
    """The codes of ZooKeeper 3.8, as they travel in reply headers and in the results of a multi."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    UNKNOWN_SESSION = -12
    NEW_CONFIG_NO_QUORUM = -13
    RECONFIG_IN_PROGRESS = -14
    API_ERROR = -100
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_CALLBACK = -113
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    EPHEMERAL_ON_LOCAL_SESSION = -120
    NO_WATCHER = -121
    REQUEST_TIMEOUT = -122
    RECONFIG_DISABLED = -123
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124
    QUOTA_EXCEEDED = -125
    THROTTLED_OP = -127


class CoordinationError(Exception):
    """The base of every error of this room."""


class MalformedFrameError(CoordinationError):
    """The peer sent bytes that are not ZooKeeper's protocol, or a frame above the bound; the connection is of no more
    use.
    """


class RequestTooLargeError(CoordinationError):
    """A request exceeds the servers' `jute.maxbuffer`; it was refused here because the server would drop the
    connection.
    """

    def __init__(self, path: str, size_bytes: int, size_bytes_max: int) -> None:
        """`path` is what the request is about, of a multi that of its first operation."""
        super().__init__(path, size_bytes, size_bytes_max)
        self.path = path
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max

    def __str__(self) -> str:
        return (
            f"{self.path}: a request of {self.size_bytes} bytes is above the bound of {self.size_bytes_max}; write "
            "less at once, or raise jute.maxbuffer on all servers and the bound of this client"
        )


class ReplyTooLargeError(CoordinationError):
    """A reply exceeds the bound of this client; the connection was given up. Read less at once, or raise the bound."""


class ClientClosedError(CoordinationError):
    """The client was closed, here, before the operation was done."""


class ConnectionStringError(CoordinationError, ValueError):
    """A connection string that cannot be read."""


class KeeperError(CoordinationError):
    """An error with a code of ZooKeeper's; `path` is the znode the operation was about, None where there is none."""

    code: ClassVar[ErrorCode] = ErrorCode.SYSTEM_ERROR
    meaning: ClassVar[str] = "the coordinator reported an error"

    def __init__(self, path: str | None = None, detail: str | None = None) -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        subject = "" if self.path is None else f"{self.path}: "
        detail = "" if self.detail is None else f" ({self.detail})"
        return f"{subject}{self.meaning}{detail}"


class MultiFailedError(CoordinationError):
    """A multi of which nothing happened: its operation number `index` failed with `error`.

    `outcomes` has an error for every operation; those that were only rolled back have `RuntimeInconsistencyError`.
    """

    def __init__(self, index: int, error: KeeperError, outcomes: tuple[KeeperError, ...]) -> None:
        super().__init__(index, error, outcomes)
        self.index = index
        self.error = error
        self.outcomes = outcomes

    def __str__(self) -> str:
        return f"operation {self.index} of {len(self.outcomes)} failed, so none happened: {self.error}"


class UnknownKeeperError(KeeperError):
    """A code that ZooKeeper 3.8 does not have; `detail` names it."""


class KeeperSystemError(KeeperError):
    code = ErrorCode.SYSTEM_ERROR
    meaning = "the coordinator failed"


class RuntimeInconsistencyError(KeeperError):
    """An operation of a multi that did not happen because another one failed."""

    code = ErrorCode.RUNTIME_INCONSISTENCY
    meaning = "rolled back because another operation of the multi failed"


class DataInconsistencyError(KeeperError):
    code = ErrorCode.DATA_INCONSISTENCY
    meaning = "the coordinator found its data inconsistent"


class ConnectionLossError(KeeperError):
    """The connection was lost while the operation was under way: it may have happened or not, and the caller must
    find out.
    """

    code = ErrorCode.CONNECTION_LOSS
    meaning = "the connection was lost before the answer; the operation may have happened or not"


class NotSentError(ConnectionLossError):
    """There was no connection: the operation was not sent, so it did not happen."""

    meaning = "not sent, since there is no connection"


class MarshallingError(KeeperError):
    code = ErrorCode.MARSHALLING_ERROR
    meaning = "the coordinator could not read the request"


class UnimplementedError(KeeperError):
    code = ErrorCode.UNIMPLEMENTED
    meaning = "the coordinator does not know this operation"


class OperationTimeoutError(KeeperError):
    code = ErrorCode.OPERATION_TIMEOUT
    meaning = "the operation took too long"


class BadArgumentsError(KeeperError):
    code = ErrorCode.BAD_ARGUMENTS
    meaning = "the arguments are not acceptable"


class UnknownSessionError(KeeperError):
    code = ErrorCode.UNKNOWN_SESSION
    meaning = "the coordinator does not know the session"


class NewConfigNoQuorumError(KeeperError):
    code = ErrorCode.NEW_CONFIG_NO_QUORUM
    meaning = "no quorum of the new configuration is connected and up to date"


class ReconfigInProgressError(KeeperError):
    code = ErrorCode.RECONFIG_IN_PROGRESS
    meaning = "another reconfiguration is under way"


class ApiError(KeeperError):
    code = ErrorCode.API_ERROR
    meaning = "the coordinator refused the request"


class NoNodeError(KeeperError):
    code = ErrorCode.NO_NODE
    meaning = "no such znode"


class NoAuthError(KeeperError):
    code = ErrorCode.NO_AUTH
    meaning = "the session's identities are not allowed to do this"


class BadVersionError(KeeperError):
    code = ErrorCode.BAD_VERSION
    meaning = "the znode has another version than expected"


class NoChildrenForEphemeralsError(KeeperError):
    code = ErrorCode.NO_CHILDREN_FOR_EPHEMERALS
    meaning = "an ephemeral znode cannot have children"


class NodeExistsError(KeeperError):
    code = ErrorCode.NODE_EXISTS
    meaning = "the znode exists already"


class NotEmptyError(KeeperError):
    code = ErrorCode.NOT_EMPTY
    meaning = "the znode has children"


class SessionExpiredError(KeeperError):
    """The session is over, and with it its ephemeral znodes and watches; a new client must be made."""

    code = ErrorCode.SESSION_EXPIRED
    meaning = "the session has expired"


class InvalidCallbackError(KeeperError):
    code = ErrorCode.INVALID_CALLBACK
    meaning = "invalid callback"


class InvalidAclError(KeeperError):
    code = ErrorCode.INVALID_ACL
    meaning = "the access control list is empty or names an unknown scheme or identity"


class AuthFailedError(KeeperError):
    code = ErrorCode.AUTH_FAILED
    meaning = "the coordinator refused the session's credentials"


class SessionMovedError(KeeperError):
    code = ErrorCode.SESSION_MOVED
    meaning = "the session has moved to another server"


class NotReadOnlyError(KeeperError):
    code = ErrorCode.NOT_READ_ONLY
    meaning = "the server is read-only, since it has no quorum"


class EphemeralOnLocalSessionError(KeeperError):
    code = ErrorCode.EPHEMERAL_ON_LOCAL_SESSION
    meaning = "a local session cannot own ephemeral znodes"


class NoWatcherError(KeeperError):
    code = ErrorCode.NO_WATCHER
    meaning = "no such watch"


class RequestTimeoutError(KeeperError):
    code = ErrorCode.REQUEST_TIMEOUT
    meaning = "the coordinator took too long"


class ReconfigDisabledError(KeeperError):
    code = ErrorCode.RECONFIG_DISABLED
    meaning = "reconfiguration is disabled"


class SessionClosedRequireSaslAuthError(KeeperError):
    code = ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH
    meaning = "the coordinator demands SASL authentication and closed the session"


class QuotaExceededError(KeeperError):
    code = ErrorCode.QUOTA_EXCEEDED
    meaning = "a quota of the subtree is exceeded"


class ThrottledOpError(KeeperError):
    code = ErrorCode.THROTTLED_OP
    meaning = "the coordinator is overloaded and did not do the operation"


_BY_CODE: dict[int, type[KeeperError]] = {
    int(error.code): error for error in KeeperError.__subclasses__() if error is not UnknownKeeperError
}


def error_for(code: int, path: str | None = None) -> KeeperError:
    """The exception for a code of the wire, which must not be 0 (OK); an unknown code gives `UnknownKeeperError`."""
    if code == ErrorCode.OK:
        raise ValueError("0 is no error")
    known = _BY_CODE.get(code)
    return UnknownKeeperError(path, f"code {code}") if known is None else known(path)
