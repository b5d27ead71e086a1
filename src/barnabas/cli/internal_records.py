"""What the records of Kafka's internal topics mean: committed offsets, groups, transactions.

The version ahead of a key says which kind of record it is; the one ahead of the value, how its fields are written.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any, Final

from barnabas.kernel.ids import UUID_BYTES, Uuid
from barnabas.wire import messages
from barnabas.wire.codec import decode_prefixed
from barnabas.wire.primitives import ProtocolError

_VERSION_BYTES: Final = 2
_OFFSET: Final = ("offset", messages.OffsetCommitKey, messages.OffsetCommitValue)
# Topic -> version of the key -> what the record is, its key, its value.
_KINDS: Final[dict[str, dict[int, tuple[str, Any, Any]]]] = {
    "__consumer_offsets": {
        0: _OFFSET,
        1: _OFFSET,
        2: ("group", messages.GroupMetadataKey, messages.GroupMetadataValue),
        3: ("consumer_group", messages.ConsumerGroupMetadataKey, messages.ConsumerGroupMetadataValue),
        4: (
            "consumer_group_partitions",
            messages.ConsumerGroupPartitionMetadataKey,
            messages.ConsumerGroupPartitionMetadataValue,
        ),
        5: (
            "consumer_group_member",
            messages.ConsumerGroupMemberMetadataKey,
            messages.ConsumerGroupMemberMetadataValue,
        ),
        6: (
            "consumer_group_target",
            messages.ConsumerGroupTargetAssignmentMetadataKey,
            messages.ConsumerGroupTargetAssignmentMetadataValue,
        ),
        7: (
            "consumer_group_target_member",
            messages.ConsumerGroupTargetAssignmentMemberKey,
            messages.ConsumerGroupTargetAssignmentMemberValue,
        ),
        8: (
            "consumer_group_current_member",
            messages.ConsumerGroupCurrentMemberAssignmentKey,
            messages.ConsumerGroupCurrentMemberAssignmentValue,
        ),
    },
    "__transaction_state": {0: ("transaction", messages.TransactionLogKey, messages.TransactionLogValue)},
}
_CONSUMER_PROTOCOL: Final = "consumer"


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Type, key and value (None for a tombstone) of a record as JSON can have them; None for what is not known.

    Bytes that cannot be read as what they should be are an `error` beside what could be read.
    """
    kinds = _KINDS.get(topic)
    if kinds is None or key is None or len(key) < _VERSION_BYTES:
        return None
    kind = kinds.get(int.from_bytes(key[:_VERSION_BYTES], "big", signed=True))
    if kind is None:
        return None
    name, key_class, value_class = kind
    decoded: dict[str, Any] = {"type": name}
    try:
        decoded["key"] = _document(decode_prefixed(key_class, key)[1])
        decoded["value"] = None
        if value is not None:
            message = decode_prefixed(value_class, value)[1]
            decoded["value"] = _document(message)
            if name == "group" and message.protocol_type == _CONSUMER_PROTOCOL:
                for member, document in zip(message.members, decoded["value"]["members"], strict=True):
                    _decode_member(member, document)
    except ProtocolError as error:
        decoded["error"] = str(error)
    return decoded


def _decode_member(member: Any, document: dict[str, Any]) -> None:
    """Puts what the bytes of a consumer mean in place of the bytes; those that mean nothing stay."""
    for name, message_class in (
        ("subscription", messages.ConsumerProtocolSubscription),
        ("assignment", messages.ConsumerProtocolAssignment),
    ):
        data = getattr(member, name)
        try:
            if len(data):
                document[name] = _document(decode_prefixed(message_class, data)[1])
                document.pop(f"{name}_base64", None)
        except ProtocolError:
            continue


def _document(message: Any) -> dict[str, Any]:
    """A message as JSON can have it."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        _add(fields, field.name, getattr(message, field.name))
    return fields


def _add(fields: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, bytes | bytearray | memoryview):
        if name.endswith("_id") and len(value) == UUID_BYTES:
            fields[name] = str(Uuid(value))
        else:
            fields[f"{name}_base64"] = base64.b64encode(value).decode()
    elif dataclasses.is_dataclass(value):
        fields[name] = _document(value)
    elif isinstance(value, list | tuple):
        fields[name] = [_document(item) if dataclasses.is_dataclass(item) else item for item in value]
    else:
        fields[name] = value
