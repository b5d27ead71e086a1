"""The error table of the Kafka protocol: code, name, whether a retry can help, and what it means.

The codes are those of Apache Kafka 3.9 (-1 to 127). A code is an int16 in responses; `ErrorCode` members are integers,
so that a member can be put into a message's field and a field can be compared with a member.

Whether an error is retriable is part of the protocol's contract: clients send the same request again after a retriable
error, possibly with newer metadata, and report every other error to the application.
"""

from __future__ import annotations

import enum
from typing import Final, Self

_RETRIABLE: Final = True
_FINAL: Final = False


class ErrorCode(enum.IntEnum):
    """Every error that a broker may answer with, under the name that Kafka gives it.

    A member is its int16 code; `retriable` and `message` come from the table below.
    """

    retriable: bool
    """True if the same request may succeed later without being changed."""
    message: str
    """One or two sentences: what happened and, where something can be done, what to do."""

    def __new__(cls, code: int, retriable: bool, message: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = (
        -1,
        _FINAL,
        "The broker failed for a reason that has no code of its own; its log has the cause.",
    )
    NONE = 0, _FINAL, "No error."
    OFFSET_OUT_OF_RANGE = (
        1,
        _FINAL,
        "The log does not hold this offset; list the earliest and latest offsets and start there.",
    )
    CORRUPT_MESSAGE = (
        2,
        _RETRIABLE,
        "A batch has a wrong checksum or size, or lacks the key that a compacted topic needs.",
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRIABLE, "This broker knows no such topic or partition; refresh the metadata."
    INVALID_FETCH_SIZE = 4, _FINAL, "The number of bytes asked for is not acceptable."
    LEADER_NOT_AVAILABLE = (
        5,
        _RETRIABLE,
        "The partition has no leader now; an election is under way or no replica is alive.",
    )
    NOT_LEADER_OR_FOLLOWER = (
        6,
        _RETRIABLE,
        "This broker does not have the role for this partition; refresh the metadata.",
    )
    REQUEST_TIMED_OUT = (
        7,
        _RETRIABLE,
        "The work was not finished within the request's time limit; it may still take effect.",
    )
    BROKER_NOT_AVAILABLE = 8, _FINAL, "The broker that the request is about is not alive."
    REPLICA_NOT_AVAILABLE = 9, _RETRIABLE, "The partition's replica cannot be used on this broker at the moment."
    MESSAGE_TOO_LARGE = (
        10,
        _FINAL,
        "A batch is larger than max.message.bytes allows; send smaller batches or raise the limit.",
    )
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "The sender is no longer the controller: a newer controller epoch is known."
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "The text stored with an offset is longer than offset.metadata.max.bytes."
    NETWORK_EXCEPTION = (
        13,
        _RETRIABLE,
        "The connection ended before the answer arrived; the request may have taken effect.",
    )
    COORDINATOR_LOAD_IN_PROGRESS = (
        14,
        _RETRIABLE,
        "The coordinator is still reading its state from its topic; try again.",
    )
    COORDINATOR_NOT_AVAILABLE = (
        15,
        _RETRIABLE,
        "No broker can act as the coordinator now; look it up again in a moment.",
    )
    NOT_COORDINATOR = (
        16,
        _RETRIABLE,
        "Another broker coordinates this group or transaction; look the coordinator up again.",
    )
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "The topic's name is not legal, or the topic does not allow this operation."
    RECORD_LIST_TOO_LARGE = (
        18,
        _FINAL,
        "A batch does not fit into one log segment; send smaller batches or raise segment.bytes.",
    )
    NOT_ENOUGH_REPLICAS = (
        19,
        _RETRIABLE,
        "Fewer replicas are in sync than min.insync.replicas asks for; nothing was written.",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        _RETRIABLE,
        "Written, but fewer replicas hold it than min.insync.replicas asks for; a retry may repeat it.",
    )
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be 0, 1 or -1 (all)."
    ILLEGAL_GENERATION = 22, _FINAL, "The group has moved to another generation; rejoin it."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        _FINAL,
        "The member shares no protocol with the group's members, or named none; use the assignor that they use.",
    )
    INVALID_GROUP_ID = 24, _FINAL, "The group id is empty or not allowed here."
    UNKNOWN_MEMBER_ID = (
        25,
        _FINAL,
        "The group has no such member, perhaps because it was expelled; rejoin as a new member.",
    )
    INVALID_SESSION_TIMEOUT = (
        26,
        _FINAL,
        "The session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms of the broker.",
    )
    REBALANCE_IN_PROGRESS = 27, _FINAL, "The group is rebalancing; rejoin it to get an assignment."
    INVALID_COMMIT_OFFSET_SIZE = (
        28,
        _FINAL,
        "The committed offset cannot be stored, its record being too large for the topic.",
    )
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "The principal lacks an ACL that allows this operation on the topic."
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "The principal lacks an ACL that allows this operation on the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "The principal lacks an ACL that allows this operation on the cluster."
    INVALID_TIMESTAMP = 32, _FINAL, "A record's timestamp is further from the broker's clock than the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "The SASL mechanism is not enabled; the answer lists those that are."
    ILLEGAL_SASL_STATE = 34, _FINAL, "The request may not come at this point of the authentication."
    UNSUPPORTED_VERSION = (
        35,
        _FINAL,
        "The broker does not speak this version of the request; ApiVersions lists those it speaks.",
    )
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, _FINAL, "The number of partitions is not possible; it must be positive and may only grow."
    INVALID_REPLICATION_FACTOR = (
        38,
        _FINAL,
        "The replication factor must be positive and at most the number of live brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = (
        39,
        _FINAL,
        "The given placement of replicas is incomplete, repeats a broker or names none known.",
    )
    INVALID_CONFIG = 40, _FINAL, "A config key is not known or its value is not acceptable."
    NOT_CONTROLLER = 41, _RETRIABLE, "This broker is not the controller; refresh the metadata and ask the controller."
    INVALID_REQUEST = 42, _FINAL, "The request contradicts itself or the protocol; the broker's log says how."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "The log's record format is too old for this request."
    POLICY_VIOLATION = 44, _FINAL, "The broker's policy for creating topics or altering configs refuses this request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FINAL, "Batches of an idempotent producer are missing before this one."
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "The batch was written before, too long ago to tell its offset."
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "A producer with the same id and a newer epoch exists; this one must stop."
    INVALID_TXN_STATE = 48, _FINAL, "The transaction's state does not allow this operation."
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        _FINAL,
        "The producer id does not belong to this transactional id; initialise again.",
    )
    INVALID_TRANSACTION_TIMEOUT = (
        50,
        _FINAL,
        "The transaction timeout is not positive or above transaction.max.timeout.ms.",
    )
    CONCURRENT_TRANSACTIONS = 51, _RETRIABLE, "The transactional id's last change is still being completed; try again."
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "The markers came from a coordinator whose epoch is outdated."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "The principal lacks an ACL for this transactional id."
    SECURITY_DISABLED = 54, _FINAL, "The broker has no authorizer; set authorizer.class.name to use ACLs."
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "Not tried, because another part of the same request failed."
    KAFKA_STORAGE_ERROR = (
        56,
        _RETRIABLE,
        "The disk that holds the log failed on this broker; another replica may take over.",
    )
    LOG_DIR_NOT_FOUND = 57, _FINAL, "The directory is not among the broker's log.dirs."
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = (
        59,
        _FINAL,
        "The broker keeps no state for this producer id, all its records being deleted or expired.",
    )
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "The partition is being reassigned; wait for that or cancel it."
    DELEGATION_TOKEN_AUTH_DISABLED = (
        61,
        _FINAL,
        "Delegation tokens are off; set delegation.token.secret.key on all brokers.",
    )
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "The principal neither owns the delegation token nor may renew it."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        _FINAL,
        "Delegation tokens can be handled only over a connection that is authenticated by other means than a token.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "The principal lacks an ACL for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "The delegation token has expired; create another."
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "Principals of this type cannot be used here; the type is User."
    NON_EMPTY_GROUP = 68, _FINAL, "The group still has members; stop them first."
    GROUP_ID_NOT_FOUND = 69, _FINAL, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRIABLE, "The fetch session was evicted; start one with a full fetch."
    INVALID_FETCH_SESSION_EPOCH = (
        71,
        _RETRIABLE,
        "The fetch session is at another epoch; start a new one with a full fetch.",
    )
    LISTENER_NOT_FOUND = (
        72,
        _RETRIABLE,
        "The partition's leader has no listener of the name that the client is connected to.",
    )
    TOPIC_DELETION_DISABLED = 73, _FINAL, "Topics cannot be deleted here; delete.topic.enable is false."
    FENCED_LEADER_EPOCH = 74, _RETRIABLE, "The leader epoch of the request is outdated; refresh the metadata."
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE, "The leader epoch of the request is newer than the broker knows; try again."
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        _FINAL,
        "The log holds batches of a compression that this request's version cannot carry.",
    )
    STALE_BROKER_EPOCH = 77, _FINAL, "The broker has registered anew since the sender learnt of its epoch."
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE, "The new leader does not know yet how far its log is committed; try again."
    MEMBER_ID_REQUIRED = 79, _FINAL, "Join again with the member id that the answer carries."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRIABLE, "The preferred replica is not alive or not in sync."
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "The group has as many members as group.max.size allows."
    FENCED_INSTANCE_ID = 82, _FINAL, "Another member has joined with the same group.instance.id; this one must stop."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRIABLE, "No replica that may lead the partition is alive."
    ELECTION_NOT_NEEDED = 84, _RETRIABLE, "The partition already has the leader that the election would choose."
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "The partition is not being reassigned, so nothing can be cancelled."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "The group is subscribed to the topic, so its offsets cannot be deleted."
    INVALID_RECORD = 87, _FINAL, "A record breaks a rule of the topic or of the format; the answer tells which one."
    UNSTABLE_OFFSET_COMMIT = 88, _RETRIABLE, "Offsets of a transaction that is not finished are pending; try again."
    THROTTLING_QUOTA_EXCEEDED = (
        89,
        _RETRIABLE,
        "The quota on such requests is used up; try again after the throttle time.",
    )
    PRODUCER_FENCED = 90, _FINAL, "A newer producer has taken the transactional id; this one must stop."
    RESOURCE_NOT_FOUND = 91, _FINAL, "The request names a resource that does not exist."
    DUPLICATE_RESOURCE = 92, _FINAL, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "The credential is too weak, for example in its number of iterations."
    INCONSISTENT_VOTER_SET = 94, _FINAL, "Sender or receiver is not among the quorum's voters (KRaft mode only)."
    INVALID_UPDATE_VERSION = 95, _FINAL, "The version given for the update is not the one after the current."
    FEATURE_UPDATE_FAILED = (
        96,
        _FINAL,
        "The finalized features could not be stored; the controller's log has the cause.",
    )
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "The principal inside a forwarded request could not be read."
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "There is no such snapshot of the metadata log (KRaft mode only)."
    POSITION_OUT_OF_RANGE = 99, _FINAL, "The position is outside the snapshot (KRaft mode only)."
    UNKNOWN_TOPIC_ID = 100, _RETRIABLE, "This broker knows no topic of this id; refresh the metadata."
    DUPLICATE_BROKER_REGISTRATION = (
        101,
        _FINAL,
        "A live broker has this id already; give each broker its own broker.id.",
    )
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = (
        103,
        _RETRIABLE,
        "The log belongs to a topic of the same name with another id; refresh the metadata.",
    )
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "The request was meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "There is no such transactional id, or it has expired."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRIABLE, "The fetch session mixes topic names and ids; start a new one."
    INELIGIBLE_REPLICA = 107, _FINAL, "The new ISR holds a replica that is not alive or is shutting down."
    NEW_LEADER_ELECTED = 108, _FINAL, "The change was made and moved the leadership to another replica."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "The offset is no longer on local disks, only in tiered storage."
    FENCED_MEMBER_EPOCH = 110, _FINAL, "The member's epoch is outdated; give up all partitions and rejoin with epoch 0."
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "Another member still holds this group.instance.id; it must leave first."
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "The group cannot use this assignor; choose one that the broker offers."
    STALE_MEMBER_EPOCH = (
        113,
        _FINAL,
        "The member must first learn its new epoch from its next heartbeat, then try again.",
    )
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "The request was sent to a broker but is for controllers, or the reverse."
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "Endpoints of this type are not supported."
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "No controller of this id is known."
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "The telemetry subscription has changed; ask for the current one."
    TELEMETRY_TOO_LARGE = 118, _FINAL, "The pushed telemetry is larger than telemetry.max.bytes."
    INVALID_REGISTRATION = 119, _FINAL, "The controller refuses the registration of this broker."
    TRANSACTION_ABORTABLE = (
        120,
        _FINAL,
        "The transaction cannot be committed; abort it, then go on with the same producer.",
    )
    INVALID_RECORD_STATE = (
        121,
        _FINAL,
        "The records' delivery cannot be acknowledged in the state they are in (share groups).",
    )
    SHARE_SESSION_NOT_FOUND = 122, _RETRIABLE, "There is no such share session; start a new one (share groups)."
    INVALID_SHARE_SESSION_EPOCH = (
        123,
        _RETRIABLE,
        "The share session is at another epoch; start a new one (share groups).",
    )
    FENCED_STATE_EPOCH = 124, _FINAL, "The share group's state has a newer epoch (share groups)."
    INVALID_VOTER_KEY = 125, _FINAL, "The voter's directory id is not the receiver's (KRaft mode only)."
    DUPLICATE_VOTER = 126, _FINAL, "The quorum has this voter already (KRaft mode only)."
    VOTER_NOT_FOUND = 127, _FINAL, "The quorum has no such voter (KRaft mode only)."

    @classmethod
    def for_code(cls, code: int) -> ErrorCode:
        """Returns the member for an int16 from the wire.

        A code that this table lacks, such as one of a newer Kafka, reads as UNKNOWN_SERVER_ERROR, which is what Kafka's
        own clients make of it: not retriable, reported to the application.
        """
        return _BY_CODE.get(code, cls.UNKNOWN_SERVER_ERROR)


_BY_CODE: Final[dict[int, ErrorCode]] = {int(member): member for member in ErrorCode}


# A text of the protocol has 32,767 bytes at most, and a character up to four.
DETAIL_LENGTH_MAX = 8_000


class KafkaError(Exception):
    """An error that the protocol has a code for.

    Handlers raise it to answer with its code; clients raise it for a code that a broker answered with. It is not raised
    for bytes that cannot be understood (that is the codec's ProtocolError) nor for mistakes of our own.

    `code` is the table's entry. `wire_code` is the number itself, which differs from `code` only when the table lacks
    it. `detail` says what the table cannot know (which topic, which limit), or is None. It may quote what was sent, so
    it is cut off after `DETAIL_LENGTH_MAX` characters: what is longer fits into no response.
    """

    def __init__(self, code: int, detail: str | None = None) -> None:
        """Takes a member of `ErrorCode` or a number from the wire; ValueError for NONE, which is no error."""
        if code == 0:
            raise ValueError("code 0 (NONE) is no error and cannot be raised")
        if detail is not None and len(detail) > DETAIL_LENGTH_MAX:
            detail = detail[: DETAIL_LENGTH_MAX - 3] + "..."
        super().__init__(code, detail)
        self.code = ErrorCode.for_code(code)
        self.wire_code = int(code)
        self.detail = detail

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed later without being changed."""
        return self.code.retriable

    @property
    def message(self) -> str:
        """The text for a response's error message: the detail where there is one, the table's sentence otherwise."""
        return self.detail if self.detail is not None else self.code.message

    def __str__(self) -> str:
        return f"{self.code.name} ({self.wire_code}): {self.message}"


def raise_for_code(code: int, detail: str | None = None) -> None:
    """Raises `KafkaError` for an error code of a response; returns for 0."""
    if code != 0:
        raise KafkaError(code, detail)
