"""What can go wrong in a client besides the codes that a broker answers (`wire.errors.KafkaError`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.client.records import OffsetAndMetadata
    from barnabas.wire.topics import TopicPartition


class ClientError(Exception):
    """Base of the errors of this room."""


class ClientClosedError(ClientError):
    """The client, or the producer or consumer, was closed."""


class ClientTimeoutError(ClientError, TimeoutError):
    """What was wanted did not come about in time; the message says what stood in the way last."""


class NoBrokerError(ClientError, ConnectionError):
    """No broker that could be asked can be reached, or the one that must be asked is not known now."""


class DeliveryTimeoutError(ClientTimeoutError):
    """A record was not acknowledged within `delivery_timeout_ms`.

    `may_be_written` is False only when it was never sent: then it surely is not in the log.
    """

    def __init__(self, message: str, *, may_be_written: bool) -> None:
        super().__init__(message)
        self.may_be_written = may_be_written


class ProducerFencedError(ClientError):
    """The transactional id is another producer's now, or its coordinator has ended the transaction, which took longer
    than `transaction.timeout.ms`, or has forgotten the id. Nothing that was not committed counts.
    """

    def __init__(self, message: str, code: ErrorCode) -> None:
        """`code` is what the coordinator said."""
        super().__init__(message)
        self.code = code


class TransactionFailedError(ClientError):
    """The transaction cannot be committed: abort it. What stood in the way is `__cause__`."""


class TransactionInDoubtError(ClientError):
    """Whether the transaction was committed is not known: another instance has to `begin`, which completes what was
    decided, and to look at what the transaction has written, such as the offset of a group.
    """


class RecordTooLargeError(KafkaError):
    """A record is larger than any batch may be, of which it would be the only one: MESSAGE_TOO_LARGE."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, detail)


class PartitionReadError(KafkaError):
    """One partition cannot be read on, whose others can: `partition`."""

    def __init__(self, partition: TopicPartition, code: ErrorCode, detail: str) -> None:
        super().__init__(code, detail)
        self.partition = partition


class BufferFullError(ClientTimeoutError):
    """No room for a record within `max_block_ms`: the brokers take less than is sent."""


class NoOffsetError(ClientError):
    """Partitions without a position: nothing is committed, or it is out of range, and the reset policy is NONE.

    `reasons` says which, by partition.
    """

    def __init__(self, reasons: Mapping[TopicPartition, str]) -> None:
        places = ", ".join(f"{partition} ({reason})" for partition, reason in reasons.items())
        verb = "has" if len(reasons) == 1 else "have"
        super().__init__(f"{places} {verb} no position; seek to one, or set an offset reset policy")
        self.reasons = reasons


class LogTruncationError(ClientError):
    """Records that were read are not in the log any more (KIP-320), and the reset policy is NONE.

    `diverging` has, for each such partition, where its log parts from what was read; reading goes on from there.
    """

    def __init__(self, diverging: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        places = ", ".join(f"{partition} from offset {place.offset}" for partition, place in diverging.items())
        super().__init__(f"records that were read are no longer in the log: {places}")
        self.diverging = diverging


class CommitFailedError(ClientError):
    """The group has moved on without this member: its offsets were not stored, and others own its partitions now."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        """`code` is the coordinator's, None where it was not asked."""
        super().__init__(message)
        self.code = code
