"""Every message in every version, byte for byte against kio, an independent implementation of the protocol.

For each pair of message and version, on generated values of four shapes: what we encode is what kio encodes; kio
decodes it to the same values; and we decode what kio encoded to an equal message, which encodes to the same bytes.

kio refuses unknown tagged fields, so those come from a second encoder of ours (`tests.support.wire_reference`), which
is itself held against kio.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any, Final

import pytest
from kio.serial._introspect import is_optional

from barnabas.wire import catalogue, headers
from barnabas.wire.api_keys import OWN_APIS
from barnabas.wire.codec import decode, encode
from barnabas.wire.schema import Field, Fresh, Message
from tests.support.kio_messages import inner_class, kio_class, kio_decode, kio_encode, kio_entity, paired_fields
from tests.support.wire_messages import to_message
from tests.support.wire_reference import encode_tree
from tests.support.wire_values import Shape, Tree, fields_of, make_tree

# What Apache Kafka 3.9.1 in ZooKeeper mode answers to ApiVersions, by key: name and highest version. The lowest is 0.
KAFKA_3_9: Final = {
    0: ("Produce", 11),
    1: ("Fetch", 17),
    2: ("ListOffsets", 9),
    3: ("Metadata", 12),
    4: ("LeaderAndIsr", 7),
    5: ("StopReplica", 4),
    6: ("UpdateMetadata", 8),
    7: ("ControlledShutdown", 3),
    8: ("OffsetCommit", 9),
    9: ("OffsetFetch", 9),
    10: ("FindCoordinator", 6),
    11: ("JoinGroup", 9),
    12: ("Heartbeat", 4),
    13: ("LeaveGroup", 5),
    14: ("SyncGroup", 5),
    15: ("DescribeGroups", 5),
    16: ("ListGroups", 5),
    17: ("SaslHandshake", 1),
    18: ("ApiVersions", 4),
    19: ("CreateTopics", 7),
    20: ("DeleteTopics", 6),
    21: ("DeleteRecords", 2),
    22: ("InitProducerId", 5),
    23: ("OffsetForLeaderEpoch", 4),
    24: ("AddPartitionsToTxn", 5),
    25: ("AddOffsetsToTxn", 4),
    26: ("EndTxn", 4),
    27: ("WriteTxnMarkers", 1),
    28: ("TxnOffsetCommit", 4),
    29: ("DescribeAcls", 3),
    30: ("CreateAcls", 3),
    31: ("DeleteAcls", 3),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    34: ("AlterReplicaLogDirs", 2),
    35: ("DescribeLogDirs", 4),
    36: ("SaslAuthenticate", 2),
    37: ("CreatePartitions", 3),
    38: ("CreateDelegationToken", 3),
    39: ("RenewDelegationToken", 2),
    40: ("ExpireDelegationToken", 2),
    41: ("DescribeDelegationToken", 3),
    42: ("DeleteGroups", 2),
    43: ("ElectLeaders", 2),
    44: ("IncrementalAlterConfigs", 1),
    45: ("AlterPartitionReassignments", 0),
    46: ("ListPartitionReassignments", 0),
    47: ("OffsetDelete", 0),
    48: ("DescribeClientQuotas", 1),
    49: ("AlterClientQuotas", 1),
    50: ("DescribeUserScramCredentials", 0),
    51: ("AlterUserScramCredentials", 0),
    56: ("AlterPartition", 3),
    57: ("UpdateFeatures", 1),
    58: ("Envelope", 0),
    60: ("DescribeCluster", 1),
    61: ("DescribeProducers", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 1),
    67: ("AllocateProducerIds", 0),
    68: ("ConsumerGroupHeartbeat", 0),
    69: ("ConsumerGroupDescribe", 0),
}
OTHERS: Final = {
    "RequestHeader": 2,
    "ResponseHeader": 1,
    "ConsumerProtocolSubscription": 3,
    "ConsumerProtocolAssignment": 3,
}
PAIRS_OF_APIS: Final = 572
UNKNOWN_TAGGED_FIELDS: Final = {1000: b"", 1001: b"\x00" * 200, 2**31 - 1: b"later"}
MIXED_SEEDS: Final = 3

HIGHEST_VERSIONS: Final = {
    **{f"{name}{kind}": high for name, high in KAFKA_3_9.values() for kind in ("Request", "Response")},
    **OTHERS,
}
every_message = pytest.mark.parametrize("name", HIGHEST_VERSIONS)


def versions_of(name: str) -> range:
    return range(HIGHEST_VERSIONS[name] + 1)


def trees(schema: Message, version: int) -> Iterator[tuple[str, Tree]]:
    """Values of every shape for one pair, each with what to say when it fails."""
    for shape in Shape:
        for seed in range(MIXED_SEEDS if shape is Shape.MIXED else 1):
            what = f"make_tree(catalogue.message({schema.name!r}), {version}, {shape}, {seed})"
            yield what, make_tree(schema, version, shape, seed)


NEWER: Final = {68: ("ConsumerGroupHeartbeat", 1)}
"""Of Apache Kafka 4: librdkafka speaks no other."""


def test_there_is_every_key_and_version_of_kafka_3_9_and_few_others() -> None:
    ours = {}
    for key, name in catalogue.api_names().items():
        if key in OWN_APIS:
            continue
        for schema in (catalogue.request(key), catalogue.response(key)):
            assert schema.versions.low == 0, schema.name
            ours[schema.name] = (key, name, schema.versions.high)
    assert ours == {
        f"{name}{kind}": (key, name, high)
        for key, (name, high) in {**KAFKA_3_9, **NEWER}.items()
        for kind in ("Request", "Response")
    }
    assert {name: catalogue.message(name).versions.high for name in OTHERS} == OTHERS


def test_no_pair_is_left_out() -> None:
    pairs = {(name, version) for name in HIGHEST_VERSIONS if name not in OTHERS for version in versions_of(name)}
    assert len(pairs) == PAIRS_OF_APIS
    assert all(kio_class(catalogue.message(name), version) is not None for name, version in pairs)


@every_message
def test_bytes_are_those_of_kio_both_ways(name: str) -> None:
    schema = catalogue.message(name)
    for version in versions_of(name):
        for what, tree in trees(schema, version):
            message, entity = to_message(schema, tree), kio_entity(schema, version, tree)
            ours, theirs = b"".join(encode(message, version)), kio_encode(entity)
            assert ours == theirs == encode_tree(schema, version, tree), what
            assert kio_decode(type(entity), ours) == (entity, len(ours)), what
            decoded = decode(type(message), version, theirs)
            assert decoded == message, what
            assert b"".join(encode(decoded, version)) == theirs, what


@every_message
def test_unknown_tagged_fields_are_skipped_in_every_structure(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.flexible_versions:
        for what, tree in trees(schema, version):
            message = to_message(schema, tree)
            with_unknown = encode_tree(schema, version, tree, UNKNOWN_TAGGED_FIELDS)
            assert decode(type(message), version, with_unknown) == message, what


@pytest.mark.parametrize("key", KAFKA_3_9)
def test_header_versions_are_those_of_kio(key: int) -> None:
    for schema, header_version in (
        (catalogue.request(key), headers.request_header_version),
        (catalogue.response(key), headers.response_header_version),
    ):
        for version in versions_of(schema.name):
            theirs = kio_class(schema, version).__header_schema__.__version__
            assert header_version(key, version) == theirs, f"{schema.name} v{version}"


@every_message
def test_what_may_be_null_and_what_is_the_default_agrees_with_kio(name: str) -> None:
    schema = catalogue.message(name)
    for version in versions_of(name):
        structures = [(kio_class(schema, version), schema.fields)]
        while structures:
            entity_class, fields = structures.pop()
            for theirs, ours in paired_fields(entity_class, tuple(fields_of(fields, version))):
                what = f"{name} v{version} {ours.name}"
                is_time = theirs.metadata.get("kafka_type") == "datetime_i64"  # of which kio reads -1 as None
                if theirs.default is not MISSING and not ours.absent_is_none:
                    assert (-1 if is_time else plain(theirs.default)) == plain_default(ours), what
                if not is_time and ours.type.name != "uuid":  # a UUID of zeros is None in kio
                    assert is_optional(theirs) == (version in ours.nullable_versions), what
                if ours.type.is_struct:
                    structures.append((inner_class(theirs.type), schema.structs[ours.type.name].fields))


def plain(value: Any) -> Any:
    """kio's default as what is on the wire."""
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    return list(value) if isinstance(value, tuple) else value


def plain_default(field: Field) -> Any:
    if field.type.name == "uuid" and not field.type.is_array and field.default == bytes(16):
        return None
    return [] if field.default is Fresh.LIST else field.default
