"""Payloads as Apache Kafka 3.9.1 wrote them, byte for byte, and what becomes of unknown fields and garbage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination.layout.acls import (
    AclEntry,
    AclPatternType,
    AclResource,
    AclResourceType,
    ResourceAcls,
    acls_path,
    decode_acl_change,
    encode_acl_change,
)
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
from barnabas.coordination.layout.configs import ConfigChange, EntityConfig, desanitize, sanitize
from barnabas.coordination.layout.controller import (
    ControllerRegistration,
    decode_controller_epoch,
    encode_controller_epoch,
)
from barnabas.coordination.layout.delegation_tokens import DelegationToken
from barnabas.coordination.layout.notifications import IsrChange, LogDirEvent
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from barnabas.kernel.ids import Uuid
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.topics import LeaderRecoveryState, TopicPartition

PATH = "/some/znode"
Decode = Callable[[bytes, str], Any]

AS_WRITTEN: list[tuple[Decode, bytes]] = [
    (
        BrokerRegistration.decode,
        (
            b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:30867"],'
            b'"rack":"r1","jmx_port":-1,"port":30867,"host":"127.0.0.1","version":5,"timestamp":"1795233020067"}'
        ),
    ),
    (
        TopicAssignment.decode,
        b'{"partitions":{"0":[0],"1":[0]},"topic_id":"Lp621DEiRXGPTCvJPsu_ig","adding_replicas":{},"removing_replicas":{},"version":3}',
    ),
    (PartitionState.decode, b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'),
    (ClusterId.decode, b'{"version":"1","id":"xfk9x_cbS4aFyCBIqi8L2Q"}'),
    (EntityConfig.decode, b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"1000"}}'),
    (EntityConfig.decode, b'{"version":1,"config":{}}'),
    (ConfigChange.decode, b'{"version":2,"entity_path":"users/<default>/clients/c1"}'),
    (
        ControllerRegistration.decode,
        b'{"version":2,"brokerid":0,"timestamp":"1795233020191","kraftControllerEpoch":-1}',
    ),
    (FinalizedFeatures.decode, b'{"features":{},"version":2,"status":1}'),
    (
        ResourceAcls.decode,
        b'{"acls":[{"principal":"User:bob","permissionType":"Deny","host":"10.0.0.1","operation":"All"}],"version":1}',
    ),
]
DECODERS: list[Decode] = [
    *(decode for decode, _ in AS_WRITTEN),
    IsrChange.decode,
    LogDirEvent.decode,
    Reassignment.decode,
    PreferredReplicaElection.decode,
    DelegationToken.decode,
    ProducerIdBlock.decode,
    MigrationState.decode,
]
OTHERS: list[Any] = [
    IsrChange((TopicPartition("t", 3), TopicPartition("ü", 0))),
    LogDirEvent(4),
    Reassignment({TopicPartition("t", 1): (1, 2, 3)}),
    PreferredReplicaElection((TopicPartition("t", 1),)),
    DelegationToken("id", "User:a b*", "User:c~", ("User:r",), 1, 2, 3),
    ProducerIdBlock(2, 1000, 1999),
    MigrationState(3000, 1, 2**40, 4),
    PartitionState(-1, 5, (), 7, LeaderRecoveryState.RECOVERING),
    TopicAssignment({0: ReplicaAssignment((1, 2, 3), (3,), (1,))}, Uuid(bytes(range(16)))),
    TopicAssignment({}),
    BrokerRegistration((BrokerEndpoint("EXTERNAL", "::1", 9093, "SASL_SSL"),), 5, rack=None),
]


@pytest.mark.parametrize(("decode", "data"), AS_WRITTEN)
def test_what_kafka_wrote_is_written_again_byte_for_byte(decode: Decode, data: bytes) -> None:
    assert decode(data, PATH).encode() == data


@pytest.mark.parametrize("payload", OTHERS)
def test_payloads_survive_writing_and_reading(payload: Any) -> None:
    assert type(payload).decode(payload.encode(), PATH) == payload


@pytest.mark.parametrize(
    ("decode", "data"), [*AS_WRITTEN, *((type(payload).decode, payload.encode()) for payload in OTHERS)]
)
def test_unknown_fields_are_kept_on_rewrite(decode: Decode, data: bytes) -> None:
    written = json.loads(data) | {"new": {"deep": [1, None, "x"]}}
    assert json.loads(decode(json.dumps(written).encode(), PATH).encode()) == written


def test_known_values_are_read() -> None:
    state = PartitionState.decode(AS_WRITTEN[2][1], PATH)
    assert (state.leader, state.leader_epoch, state.isr, state.controller_epoch) == (0, 0, (0,), 1)
    assert state.leader_recovery_state is LeaderRecoveryState.RECOVERED
    assert PartitionState.decode(PartitionState(1, 2, (1,), 3).encode(), PATH) == PartitionState(1, 2, (1,), 3)
    topic = TopicAssignment.decode(AS_WRITTEN[1][1], PATH)
    assert topic.partitions == {0: ReplicaAssignment((0,)), 1: ReplicaAssignment((0,))}
    assert str(topic.topic_id) == "Lp621DEiRXGPTCvJPsu_ig"
    broker = BrokerRegistration.decode(AS_WRITTEN[0][1], PATH)
    assert broker.endpoints == (BrokerEndpoint("PLAINTEXT", "127.0.0.1", 30867, "PLAINTEXT"),)
    assert (broker.rack, broker.timestamp_ms) == ("r1", 1795233020067)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (ControllerRegistration, b'{"version":1,"brokerid":3,"timestamp":null,"kraftControllerEpoch":null}'),
        (BrokerRegistration, b'{"version":4,"endpoints":["PLAINTEXT://h:9092"],"timestamp":null,"rack":null}'),
        (ClusterId, b'{"version":null,"id":"i"}'),
    ],
)
def test_a_null_is_as_if_the_field_was_not_there(kind: Any, data: bytes) -> None:
    read = kind.decode(data, PATH)
    assert kind.decode(read.encode(), PATH) == read
    fields = {name: value for name, value in json.loads(data).items() if value is not None}
    assert kind.decode(json.dumps(fields).encode(), PATH) == read


def test_payloads_of_older_brokers_are_read() -> None:
    topic = TopicAssignment.decode(b'{"version":1,"partitions":{"0":[1,2]}}', PATH)
    assert (topic.partitions, topic.topic_id, topic.version) == ({0: ReplicaAssignment((1, 2))}, None, 1)
    broker = BrokerRegistration.decode(b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}', PATH)
    assert broker.endpoints == (BrokerEndpoint("PLAINTEXT", "h", 9092, "PLAINTEXT"),)
    controller = ControllerRegistration.decode(b'{"version":1,"brokerid":3,"timestamp":"1"}')
    assert (controller.broker_id, controller.kraft_controller_epoch) == (3, None)
    change = ConfigChange.decode(b'{"version":1,"entity_type":"topics","entity_name":"t"}', PATH)
    assert change.entity_path == "topics/t"
    features = b'{"features":{"f":{"max_version_level":2,"min_version_level":2}},"version":1,"status":1}'
    assert FinalizedFeatures.decode(features).encode() == features


@pytest.mark.parametrize(
    ("decode", "data", "complaint"),
    [
        (PartitionState.decode, b"", "the znode has no data"),
        (PartitionState.decode, b"\xff", "not UTF-8"),
        (PartitionState.decode, b"{", "not JSON"),
        (PartitionState.decode, b"[1]", "a JSON object was expected"),
        (PartitionState.decode, b"{}", "leader is missing"),
        (PartitionState.decode, b'{"leader":"1"}', "leader should be an integer of 32 bits, but is"),
        (PartitionState.decode, b'{"leader":true}', "leader should be an integer"),
        (PartitionState.decode, b'{"leader":4294967296}', "leader should be an integer"),
        (PartitionState.decode, b'{"leader_recovery_state":2}', "leader_recovery_state should be 0 or 1"),
        (PartitionState.decode, b'{"x":"\\ud800"}', "not JSON"),
        (PartitionState.decode, b'{"x":NaN}', "NaN is not JSON"),
        (PartitionState.decode, b'{"x":1e999}', "too large"),
        (PartitionState.decode, b"[" * 100_000, "not JSON"),
        (TopicAssignment.decode, b'{"partitions":{"-1":[1]}}', "'-1' is not a partition number"),
        (PartitionState.decode, b'{"leader":1,"leader_epoch":2147483647}', "leader_epoch should be an epoch from 0 to"),
        (PartitionState.decode, b'{"leader":1,"leader_epoch":-1}', "leader_epoch should be an epoch from 0 to"),
        (TopicAssignment.decode, b'{"partitions":{"2147483648":[1]}}', "'2147483648' is not a partition number"),
        (TopicAssignment.decode, b'{"partitions":{"0":[1,-7]}}', "partitions.0 should be a list of broker ids from 0"),
        (BrokerRegistration.decode, b'{"version":5,"endpoints":[]}', "endpoints should name a listener"),
        (TopicAssignment.decode, b'{"partitions":{"0":[null]}}', "partitions.0 should be a list of broker ids"),
        (TopicAssignment.decode, b'{"partitions":{},"topic_id":"x"}', "topic_id: "),
        (BrokerRegistration.decode, b'{"version":5,"endpoints":["nonsense"]}', "'nonsense' is not an endpoint"),
        (BrokerRegistration.decode, b'{"version":5,"endpoints":["X://h:1"]}', "no protocol for the listener 'X'"),
        (BrokerRegistration.decode, b'{"version":0}', "version should be 1 or more"),
        (FinalizedFeatures.decode, b'{"version":3}', "version should be 1 or 2"),
        (FinalizedFeatures.decode, b'{"version":2,"status":1}', "features is missing"),
        (ProducerIdBlock.decode, b'{"broker":1,"block_start":"9","block_end":"1"}', "from 9 to 1 is impossible"),
        (ProducerIdBlock.decode, b'{"broker":1,"block_start":9}', "block_start should be a number in a string"),
        (ConfigChange.decode, b'{"version":2,"entity_path":"topics"}', "entity_path should be TYPE/NAME"),
        (EntityConfig.decode, b'{"config":{"a":1}}', "config.a should be a string"),
        (ResourceAcls.decode, b'{"version":2,"acls":[]}', "version should be 1"),
        (ResourceAcls.decode, b'{"version":1,"acls":[{}]}', r"acls\[0\].principal is missing"),
        (DelegationToken.decode, b'{"version":4}', "version should be from 1 to 3"),
        (DelegationToken.decode, b'{"version":2,"owner":"alice"}', "a principal is TYPE:NAME, and not 'alice'"),
        (
            DelegationToken.decode,
            b'{"version":3,"owner":"User%3Aa","tokenRequester":""}',
            "a principal is TYPE:NAME, and not ''",
        ),
        (
            DelegationToken.decode,
            b'{"version":2,"owner":"User%3Aa","renewers":["User%3Ab","b"]}',
            "a principal is TYPE:NAME, and not 'b'",
        ),
        (MigrationState.decode, b'{"version":1}', "version should be 0"),
    ],
)
def test_garbage_is_a_clear_error_that_names_the_znode(decode: Decode, data: bytes, complaint: str) -> None:
    with pytest.raises(LayoutError, match=complaint) as caught:
        decode(data, PATH)
    assert caught.value.path == PATH
    assert str(caught.value).startswith(f"{PATH}: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(range(len(DECODERS))), st.sampled_from(range(len(AS_WRITTEN))), st.text(), JSON, st.data())
def test_any_json_is_read_or_refused_and_what_is_read_can_be_written(
    decoder: int, written: int, name: str, value: Any, data: st.DataObject
) -> None:
    fields = json.loads(AS_WRITTEN[written][1])
    fields[data.draw(st.sampled_from(sorted(fields))) if data.draw(st.booleans()) else name] = value
    try:
        payload = DECODERS[decoder](json.dumps(fields).encode(), PATH)
    except LayoutError:
        return
    assert DECODERS[decoder](payload.encode(), PATH) == payload


def test_numbers_alone() -> None:
    assert encode_controller_epoch(12) == b"12"
    assert decode_controller_epoch(b"12") == 12
    assert decode_consumer_offset(encode_consumer_offset(-1), PATH) == -1
    with pytest.raises(LayoutError, match="/controller_epoch: a number was expected"):
        decode_controller_epoch(b"12x")
    for epoch in (b"-1", b"2147483647", b"9999999999999999999"):
        with pytest.raises(LayoutError, match="/controller_epoch: an epoch from 0 to"):
            decode_controller_epoch(epoch)


def test_announcements_of_acls_differ_by_pattern() -> None:
    literal = AclResource(AclResourceType.TRANSACTIONAL_ID, "a:b")
    prefixed = AclResource(AclResourceType.TOPIC, "pre", AclPatternType.PREFIXED)
    assert acls_path(literal) == "/kafka-acl/TransactionalId/a:b"
    assert acls_path(prefixed) == "/kafka-acl-extended/prefixed/Topic/pre"
    assert encode_acl_change(literal) == b"TRANSACTIONAL_ID:a:b"
    written = b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}'
    assert encode_acl_change(prefixed) == written
    assert decode_acl_change(b"TRANSACTIONAL_ID:a:b", "/kafka-acl-changes/acl_changes_0000000000") == literal
    assert decode_acl_change(b"Topic:x", "/kafka-acl-changes/acl_changes_1").name == "x"
    assert decode_acl_change(written, "/kafka-acl-extended-changes/acl_changes_0000000000") == prefixed
    for data in (b"nothing", b"Planet:x"):
        with pytest.raises(LayoutError, match="/kafka-acl-changes/acl_changes_1: "):
            decode_acl_change(data, "/kafka-acl-changes/acl_changes_1")


def test_acls_of_a_resource_keep_their_order() -> None:
    acls = ResourceAcls((AclEntry("User:a", "Allow", "*", "Write"), AclEntry("User:a", "Allow", "*", "Read")))
    assert ResourceAcls.decode(acls.encode(), PATH) == acls
    assert ResourceAcls.decode(None, PATH) == ResourceAcls(())


def test_names_are_made_safe_as_kafka_does() -> None:
    assert sanitize("ali ce*~/ü-._") == "ali%20ce%2A%7E%2F%C3%BC-._"
    assert desanitize(sanitize("ali ce*~/ü-._+")) == "ali ce*~/ü-._+"


def test_a_registration_of_an_old_version_counts_for_what_is_in_it() -> None:
    """Kafka's decode goes by what is there, and so does ours; written again, nothing of it is lost."""
    fields = {
        "version": 2,
        "host": None,
        "port": -1,
        "jmx_port": -1,
        "timestamp": "5",
        "endpoints": ["CLIENT://h:9092"],
        "listener_security_protocol_map": {"CLIENT": "SSL"},
        "rack": "r1",
        "features": {"f": {"min_version": 1, "max_version": 2}},
    }
    registration = BrokerRegistration.decode(json.dumps(fields).encode(), "/brokers/ids/1")
    assert [endpoint.security_protocol for endpoint in registration.endpoints] == ["SSL"]
    assert (registration.rack, list(registration.features)) == ("r1", ["f"])
    assert json.loads(registration.encode()) == fields


@pytest.mark.parametrize(
    "renewers",
    [tuple(f"User:{number}" for number in range(20_000)), ("User:" + "\u00fc" * 16_000,) * 12],
    ids=["many", "long"],
)
def test_a_token_of_very_many_or_very_long_names_is_read_and_written_in_steps(renewers: tuple[str, ...]) -> None:
    token = DelegationToken("id", "User:a", "User:a", renewers, 1, 2, 3)
    assert sum(1 for _ in token.encode_in_steps()) > 3
    data = token.encode()
    assert sum(1 for _ in DelegationToken.decode_in_steps(data, "x")) > 10
    assert DelegationToken.decode(data, "x") == token
