"""Target `znodes`: the payload of every kind of znode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from barnabas.coordination.layout.acls import ResourceAcls, decode_acl_change, encode_acl_change
from barnabas.coordination.layout.admin import PreferredReplicaElection, Reassignment
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.coordination.layout.cluster import (
    ClusterId,
    FinalizedFeatures,
    MigrationState,
    ProducerIdBlock,
    decode_consumer_offset,
    encode_consumer_offset,
)
from barnabas.coordination.layout.configs import ConfigChange, EntityConfig
from barnabas.coordination.layout.controller import (
    ControllerRegistration,
    decode_controller_epoch,
    encode_controller_epoch,
)
from barnabas.coordination.layout.delegation_tokens import DelegationToken, decode_token_change, encode_token_change
from barnabas.coordination.layout.notifications import IsrChange, LogDirEvent
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import PartitionState, TopicAssignment
from tests.unit.coordination.layout.test_payloads import AS_WRITTEN

PATH: Final = "/some/znode"
_OBJECTS: Final[tuple[Any, ...]] = (
    BrokerRegistration,
    TopicAssignment,
    PartitionState,
    ControllerRegistration,
    ClusterId,
    FinalizedFeatures,
    ProducerIdBlock,
    MigrationState,
    EntityConfig,
    ConfigChange,
    IsrChange,
    LogDirEvent,
    Reassignment,
    PreferredReplicaElection,
    ResourceAcls,
    DelegationToken,
)
_FUNCTIONS: Final[tuple[tuple[Callable[[bytes, str], Any], Callable[[Any], bytes]], ...]] = (
    (decode_controller_epoch, encode_controller_epoch),
    (decode_consumer_offset, encode_consumer_offset),
    (decode_acl_change, encode_acl_change),
    (decode_token_change, encode_token_change),
)
_KINDS: Final[tuple[tuple[Callable[[bytes, str], Any], Callable[[Any], bytes]], ...]] = (
    *((kind.decode, kind.encode) for kind in _OBJECTS),
    *_FUNCTIONS,
)


def check_znode(data: bytes) -> bool:
    """A byte that chooses the kind of znode, then its payload."""
    if not data:
        return False
    decode, encode = _KINDS[data[0] % len(_KINDS)]
    try:
        payload = decode(data[1:], PATH)
    except LayoutError:
        return False
    encoded = encode(payload)
    if (again := decode(encoded, PATH)) != payload:
        raise AssertionError(f"{payload} was written as {encoded!r}, which is {again}")
    return True


def znode_seeds() -> list[bytes]:
    """The payloads that Apache Kafka has written, and a byte or a number of every kind."""
    decoders = [decode for decode, _ in _KINDS]
    written = [bytes([decoders.index(decode)]) + payload for decode, payload in AS_WRITTEN if decode in decoders]
    return written + [bytes([kind]) + payload for kind in range(len(_KINDS)) for payload in (b"{}", b"12")]
