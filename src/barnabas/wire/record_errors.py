"""What can be wrong with records that a peer sent, or with records on disk: one exception for each answer that Kafka
gives.

All of them derive from the codec's `ProtocolError`: the bytes are at fault, not this program. `error` is the code that
belongs into the response.
"""

from __future__ import annotations

from typing import ClassVar

from barnabas.kernel.facts import fact
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import ProtocolError


@fact
class RecordError:
    """One record that made its batch unacceptable: `BatchIndexAndErrorMessage` of a Produce response (KIP-467)."""

    batch_index: int
    """Position of the record in its batch, from 0."""
    message: str


class RecordsError(ProtocolError):
    """Base of all faults of records."""

    error: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    is_of_request = False
    """The request may not carry such records, whatever the log is like."""


class CorruptRecordError(RecordsError):
    """A batch whose frame or checksum is wrong: what arrived is not what was sent."""

    error = ErrorCode.CORRUPT_MESSAGE


class InvalidRecordError(RecordsError):
    """A batch that is intact but breaks a rule; `record_errors` names single records where the fault is theirs."""

    error = ErrorCode.INVALID_RECORD

    def __init__(self, message: str, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidTimestampError(InvalidRecordError):
    """Timestamps outside of what `message.timestamp.before.max.ms`, `message.timestamp.after.max.ms` and the timestamp
    type allow.
    """

    error = ErrorCode.INVALID_TIMESTAMP


class RecordTooLargeError(RecordsError):
    """A batch larger than `max.message.bytes`."""

    error = ErrorCode.MESSAGE_TOO_LARGE


class DecompressedTooLargeError(RecordTooLargeError):
    """Compressed data that would become larger than the given bound. Producers split the batch at this code."""


class UnsupportedCompressionTypeError(RecordsError):
    """A codec that is unknown, or that the request's version or the message format does not allow."""

    error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class UnsupportedForMessageFormatError(RecordsError):
    """Something that the older message format has no field for."""

    error = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
