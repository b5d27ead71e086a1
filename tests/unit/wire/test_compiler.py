"""Compiled decoders and encoders: every message in every version there and back, and bytes worked out by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from barnabas.wire import catalogue, codec, compiler, compiler_decode, compiler_encode, messages
from barnabas.wire.classes import Message
from barnabas.wire.compiler_encode import RECORDS_COPIED_BYTES_MAX
from barnabas.wire.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    ConsumerGroupHeartbeatResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    LeaderAndIsrRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    UpdateMetadataRequest,
)
from barnabas.wire.primitives import EncodeError, ProtocolError
from tests.support.wire_messages import to_message
from tests.support.wire_values import Shape, make_tree

every_message = pytest.mark.parametrize("name", catalogue.message_names())

TOPIC_ID = bytes(range(16))


def encoded(message: Message, version: int) -> bytes:
    return b"".join(codec.encode(message, version))


@every_message
def test_every_version_comes_back_as_it_was(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        for shape in Shape:
            message = to_message(schema, make_tree(schema, version, shape))
            assert codec.decode(type(message), version, encoded(message, version)) == message, (version, shape)


@every_message
def test_a_message_in_the_middle_of_a_buffer_is_found_there(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        message = to_message(schema, make_tree(schema, version, Shape.MIXED))
        data = encoded(message, version)
        decode = compiler_decode.decoder(name, version)
        for buffer in (b"abc" + data + b"\xff" * 9, bytearray(b"abc" + data + b"\xff" * 9)):
            for view in (buffer, memoryview(buffer)):
                assert decode(view, 3, 3 + len(data)) == (message, 3 + len(data))


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (
            HeartbeatRequest(group_id="g", generation_id=3, member_id="m-1"),
            0,
            "0001 67 00000003 0003 6d2d31",
        ),
        (
            HeartbeatRequest(group_id="g", generation_id=3, member_id="m-1", group_instance_id=None),
            3,
            "0001 67 00000003 0003 6d2d31 ffff",
        ),
        (
            HeartbeatRequest(group_id="g", generation_id=3, member_id="m-1", group_instance_id=""),
            4,
            "02 67 00000003 04 6d2d31 01 00",
        ),
        (ApiVersionsRequest(), 0, ""),
        (ApiVersionsRequest(client_software_name="k", client_software_version="1.0"), 3, "02 6b 04 312e30 00"),
        (MetadataRequest(topics=None, allow_auto_topic_creation=True), 4, "ffffffff 01"),
        (MetadataRequest(topics=[], allow_auto_topic_creation=False), 9, "01 00 00 00 00"),
        (
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(topic_id=TOPIC_ID, name=None)]),
            12,
            "02 000102030405060708090a0b0c0d0e0f 00 00 01 00 00",
        ),
        (
            ProduceRequest(
                acks=-1,
                timeout_ms=1500,
                topic_data=[
                    ProduceRequest.TopicProduceData(
                        name="t",
                        partition_data=[
                            ProduceRequest.PartitionProduceData(index=1, records=b"\x01\x02"),
                            ProduceRequest.PartitionProduceData(index=2, records=None),
                        ],
                    )
                ],
            ),
            3,
            "ffff ffff 000005dc 00000001 0001 74 00000002 00000001 00000002 0102 00000002 ffffffff",
        ),
        (
            FetchResponse(
                session_id=7,
                responses=[
                    FetchResponse.FetchableTopicResponse(
                        topic="t",
                        partitions=[
                            FetchResponse.PartitionData(
                                partition_index=1,
                                high_watermark=5,
                                last_stable_offset=5,
                                log_start_offset=0,
                                aborted_transactions=[FetchResponse.AbortedTransaction(producer_id=9, first_offset=4)],
                                records=b"",
                                current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=6),
                            )
                        ],
                    )
                ],
            ),
            12,
            (
                "00000000 0000 00000007 02 02 74 02"
                "00000001 0000 0000000000000005 0000000000000005 0000000000000000"
                "02 0000000000000009 0000000000000004 00"
                "ffffffff 01"
                "01 01 09 00000002 00000006 00"  # one tagged field: tag 1 of 9 bytes
                "00 00"
            ),
        ),
        (
            LeaderAndIsrRequest(
                controller_id=1,
                controller_epoch=2,
                broker_epoch=3,
                type=1,
                topic_states=[
                    LeaderAndIsrRequest.LeaderAndIsrTopicState(
                        topic_name="t",
                        topic_id=TOPIC_ID,
                        partition_states=[
                            LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                                partition_index=0,
                                controller_epoch=2,
                                leader=1,
                                leader_epoch=4,
                                isr=[1, 2],
                                partition_epoch=5,
                                replicas=[1, 2, 3],
                                adding_replicas=[],
                                removing_replicas=[3],
                                is_new=True,
                            )
                        ],
                    )
                ],
                live_leaders=[LeaderAndIsrRequest.LeaderAndIsrLiveLeader(broker_id=1, host_name="h", port=9092)],
            ),
            5,
            (
                "00000001 00000002 0000000000000003 01 02 02 74 000102030405060708090a0b0c0d0e0f 02"
                "00000000 00000002 00000001 00000004 03 00000001 00000002 00000005"
                "04 00000001 00000002 00000003 01 02 00000003 01 00"
                "00 02 00000001 02 68 00002384 00 00"
            ),
        ),
        (
            ConsumerGroupHeartbeatResponse(member_id="m", heartbeat_interval_ms=5),
            0,
            "00000000 0000 00 026d 00000000 00000005 ff 00",
        ),
        (
            ConsumerGroupHeartbeatResponse(
                assignment=ConsumerGroupHeartbeatResponse.Assignment(
                    topic_partitions=[ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=TOPIC_ID, partitions=[1])]
                )
            ),
            0,
            "00000000 0000 00 00 00000000 00000000 01 02 000102030405060708090a0b0c0d0e0f 02 00000001 00 00 00",
        ),
    ],
)
def test_bytes_worked_out_by_hand(message: Message, version: int, data: str) -> None:
    assert encoded(message, version).hex() == data.replace(" ", "")
    assert codec.decode(type(message), version, bytes.fromhex(data)) == message


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 126, 127, 128, 129, 16_383, 16_384, 40_000])
@pytest.mark.parametrize("version", [8, 9])
def test_arrays_of_any_length(count: int, version: int) -> None:
    partition = MetadataResponse.MetadataResponsePartition(
        replica_nodes=list(range(count)), isr_nodes=[1], offline_replicas=list(range(count // 2))
    )
    topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=[partition])
    message = MetadataResponse(topics=[topic])
    assert codec.decode(MetadataResponse, version, encoded(message, version)) == message


@pytest.mark.parametrize("count", [0, 1, 125, 126, 127, 128, 16_382, 16_383, 32_767])
@pytest.mark.parametrize("version", [3, 4])
def test_strings_of_any_length(count: int, version: int) -> None:
    message = HeartbeatRequest(group_id="x" * count, group_instance_id="y" * count)
    assert codec.decode(HeartbeatRequest, version, encoded(message, version)) == message


def test_the_absent_fields_of_a_version_are_at_their_defaults_after_decoding() -> None:
    message = codec.decode(FetchRequest, 0, encoded(FetchRequest(max_wait_ms=1), 0))
    assert message == FetchRequest(max_wait_ms=1)


# Tagged fields.


def test_tagged_fields_at_their_defaults_are_left_out() -> None:
    plain = encoded(FetchResponse(), 16)
    assert encoded(FetchResponse(node_endpoints=[]), 16) == plain
    assert plain.endswith(b"\x00")


def test_a_tagged_structure_that_equals_its_defaults_is_left_out_and_comes_back_as_none() -> None:
    plain = encoded(FetchRequest(), 15)
    assert encoded(FetchRequest(replica_state=FetchRequest.ReplicaState()), 15) == plain
    assert codec.decode(FetchRequest, 15, plain).replica_state is None


def test_a_tagged_structure_is_written_if_one_of_its_fields_is_not_at_its_default() -> None:
    request = FetchRequest(replica_state=FetchRequest.ReplicaState(replica_epoch=0))
    data = encoded(request, 15)
    assert data.endswith(bytes.fromhex("01 01 0d ffffffff 0000000000000000 00"))
    assert codec.decode(FetchRequest, 15, data) == request


def test_unknown_tagged_fields_are_skipped_between_known_ones() -> None:
    request = FetchRequest(cluster_id="c", replica_state=FetchRequest.ReplicaState(replica_id=4))
    data = encoded(request, 15)
    known = bytes.fromhex("02 00 02 0263 01 0d 00000004 ffffffffffffffff 00")
    assert data.endswith(known)
    more = bytes.fromhex("04 00 02 0263 01 0d 00000004 ffffffffffffffff 00 05 00 9001 03 616263")
    assert codec.decode(FetchRequest, 15, data.removesuffix(known) + more) == request


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ("02 00 02 0263 00 02 0263", "tag 0 comes after tag 0"),
        ("02 01 0d 00000004 ffffffffffffffff 00 00 02 0263", "tag 0 comes after tag 1"),
        ("01 00 03 0263 00", "tagged field 0 does not have the 3 bytes that it says"),
        ("01 00 01 0263", "tagged field 0 does not have the 1 bytes that it says"),
        ("01 07 7f 00", "tagged field 7 says that it has 127 bytes, and 1 are left"),
    ],
)
def test_tagged_fields_out_of_order_or_of_a_wrong_size_are_refused(tags: str, problem: str) -> None:
    data = encoded(FetchRequest(), 15)
    assert data.endswith(b"\x00")
    with pytest.raises(ProtocolError, match=re.escape(problem)):
        codec.decode(FetchRequest, 15, data[:-1] + bytes.fromhex(tags))


# Records.


def produce(records: Any) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=1, records=records)
    return ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[partition])])


@pytest.mark.parametrize("version", list(catalogue.message("ProduceRequest").versions))
def test_large_records_are_handed_on_without_a_copy(version: int) -> None:
    records = memoryview(bytearray(RECORDS_COPIED_BYTES_MAX + 1))
    buffers = codec.encode(produce(records), version)
    assert any(buffer is records for buffer in buffers)
    assert all(len(buffer) for buffer in buffers)


@pytest.mark.parametrize("version", [3, 9])
def test_records_are_views_of_the_buffer_and_writable_if_it_is(version: int) -> None:
    data = bytearray(encoded(produce(b"abc"), version))
    decoded = codec.decode(ProduceRequest, version, data)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0:1] = b"x"
    assert b"xbc" in data
    read_only = codec.decode(ProduceRequest, version, bytes(data)).topic_data[0].partition_data[0].records
    assert isinstance(read_only, memoryview)
    assert read_only.readonly


def test_bytes_and_strings_do_not_keep_the_buffer() -> None:
    request = produce(b"")
    request.transactional_id = "id"
    data = bytearray(encoded(request, 9))
    decoded = codec.decode(ProduceRequest, 9, data)
    data[:] = bytes(len(data))
    assert (decoded.transactional_id, decoded.topic_data[0].name) == ("id", "t")


# What cannot be written.

WRONG_NONE: Any = None
WRONG_FLOAT: Any = 1.5
WRONG_BYTES: Any = b"g"
WRONG_STRING: Any = "ab"


@pytest.mark.parametrize(
    ("message", "version", "problem"),
    [
        (
            HeartbeatRequest(generation_id=2**31),
            0,
            "generation_id: 2147483648 is not an int32 (-2147483648 to 2147483647)",
        ),
        (HeartbeatRequest(generation_id=WRONG_FLOAT), 0, "generation_id: expected an integer, not float"),
        (HeartbeatRequest(generation_id=WRONG_NONE), 0, "generation_id: may not be None in version 0"),
        (HeartbeatRequest(group_id=WRONG_NONE), 4, "group_id: may not be None in version 4"),
        (HeartbeatRequest(group_id=WRONG_BYTES), 4, "group_id: expected a string, not bytes"),
        (HeartbeatRequest(group_id="x" * 32_768), 0, "group_id: a string of 32768 bytes; at most 32767 are allowed"),
        (HeartbeatRequest(group_id="x" * 32_768), 4, "group_id: a string of 32768 bytes; at most 32767 are allowed"),
        (HeartbeatRequest(group_id="\ud800"), 4, "group_id: 'utf-8' codec can't encode"),
        (
            HeartbeatRequest(group_instance_id="i"),
            2,
            "group_instance_id: only versions 3-4 have it; leave it at its default",
        ),
        (FetchRequest(topics=WRONG_NONE), 12, "topics: may not be None in version 12"),
        (FetchRequest(topics=[WRONG_NONE]), 12, "topics[0]: expected FetchTopic, not NoneType"),
        (FetchRequest(topics=WRONG_STRING), 12, "topics: expected a list, not str"),
        (
            FetchRequest(topics=[FetchRequest.FetchTopic(topic_id=b"ab")]),
            13,
            "topics[0].topic_id: expected the 16 bytes of a UUID",
        ),
        (
            FetchRequest(
                topics=[
                    FetchRequest.FetchTopic(),
                    FetchRequest.FetchTopic(partitions=[FetchRequest.FetchPartition(fetch_offset=2**63)]),
                ]
            ),
            12,
            "topics[1].partitions[0].fetch_offset: 9223372036854775808 is not an int64",
        ),
        (
            FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=1)),
            14,
            "replica_state: only versions 15-17 have it",
        ),
        (FetchRequest(replica_id=1), 15, "replica_id: only versions 0-14 have it"),
        (UpdateMetadataRequest(type=1), 7, "type: only versions 8 have it"),
        (
            LeaderAndIsrRequest(ungrouped_partition_states=[LeaderAndIsrRequest.LeaderAndIsrPartitionState()]),
            2,
            "ungrouped_partition_states: only versions 0-1 have it",
        ),
        (
            AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction()]),
            3,
            "transactions: only versions 4-5 have it",
        ),
        (MetadataRequest(topics=None), 0, "topics: may not be None in version 0"),
        (produce([1]), 9, "records: expected bytes, not list"),
        (
            MetadataResponse(
                topics=[
                    MetadataResponse.MetadataResponseTopic(
                        name="t", partitions=[MetadataResponse.MetadataResponsePartition(isr_nodes=[1, 2**31])]
                    )
                ]
            ),
            9,
            "topics[0].partitions[0].isr_nodes[1]: 2147483648 is not an int32",
        ),
    ],
)
def test_what_cannot_be_written_is_named(message: Message, version: int, problem: str) -> None:
    with pytest.raises(EncodeError, match=re.escape(problem)) as raised:
        codec.encode(message, version)
    assert str(raised.value).startswith(f"{type(message).__name__} version {version}: ")


def test_the_wrong_message_is_named() -> None:
    with pytest.raises(EncodeError, match="expected HeartbeatRequest, not FetchRequest"):
        compiler_encode.encoder("HeartbeatRequest", 0)(FetchRequest(), bytearray())


def test_ignorable_fields_are_dropped_from_versions_that_lack_them() -> None:
    assert encoded(FetchRequest(rack_id="r", max_bytes=3), 2) == encoded(FetchRequest(), 2)


def test_nullable_means_null_may_be_written_in_its_versions_only() -> None:
    topic = MetadataResponse.MetadataResponseTopic(name=None)
    encoded(MetadataResponse(topics=[topic]), 12)
    with pytest.raises(EncodeError, match=re.escape("topics[0].name: may not be None in version 11")):
        codec.encode(MetadataResponse(topics=[topic]), 11)


# The compiler itself.


@pytest.mark.parametrize("make", [compiler_decode.decoder, compiler_encode.encoder])
def test_messages_and_versions_that_do_not_exist(make: Any) -> None:
    with pytest.raises(KeyError):
        make("FetchWish", 0)
    with pytest.raises(ValueError, match="HeartbeatRequest has versions 0-4, not 5"):
        make("HeartbeatRequest", 5)


@pytest.mark.parametrize("make", [compiler_decode.decoder, compiler_encode.encoder])
def test_what_is_compiled_is_kept(make: Any) -> None:
    assert make("HeartbeatRequest", 4) is make("HeartbeatRequest", 4)


def test_the_code_can_be_looked_at() -> None:
    assert compiler_decode.source("HeartbeatRequest", 4).startswith("def decode(buffer, position, end):")
    assert compiler_encode.source("HeartbeatRequest", 4).startswith("def encode(m, o):")


def test_tables_of_packed_arrays_are_bounded() -> None:
    table = compiler.PackTable("{}b{}b{}b")
    for first in range(16):
        for second in range(16):
            for third in range(16):
                assert len(table[first, second, third](*range(first + second + third))) == first + second + third
                assert len(table) <= compiler.PACK_TABLE_MAX


def test_every_message_is_reachable_by_attribute() -> None:
    assert all(hasattr(messages, name) for name in catalogue.message_names())
