"""The error table: held against three clients' tables, each written independently of ours and of each other."""

from __future__ import annotations

import pickle
import struct

import confluent_kafka
import pytest

from barnabas.wire.codec import encode
from barnabas.wire.errors import DETAIL_LENGTH_MAX, ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import DescribeConfigsResponse

LOWEST_CODE = -1
HIGHEST_CODE_OF_KAFKA_3_9 = 127

# kafka-python keeps some names that Kafka has since changed, and two of its own.
NAMES_OF_KAFKA_PYTHON = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UNKNOWN",
    ErrorCode.NONE: "NO_ERROR",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
    ErrorCode.MESSAGE_TOO_LARGE: "MESSAGE_SIZE_TOO_LARGE",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "INVALID_TOPIC",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "INVALID_REPLICATION_ASSIGNMENT",
}
# Kafka's exception for a corrupt batch is retriable (a bit may have flipped on the way); kafka-python does not follow.
RETRIABLE_UNLIKE_KAFKA_PYTHON = {ErrorCode.CORRUPT_MESSAGE}

# librdkafka has names of its own for some codes and lacks those that no client ever receives.
NAMES_OF_LIBRDKAFKA = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UNKNOWN",
    ErrorCode.NONE: "NO_ERROR",
    ErrorCode.CORRUPT_MESSAGE: "INVALID_MSG",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC_OR_PART",
    ErrorCode.INVALID_FETCH_SIZE: "INVALID_MSG_SIZE",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
    ErrorCode.MESSAGE_TOO_LARGE: "MSG_SIZE_TOO_LARGE",
    ErrorCode.STALE_CONTROLLER_EPOCH: "STALE_CTRL_EPOCH",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "TOPIC_EXCEPTION",
}


def test_has_every_code_of_kafka_3_9_and_no_other() -> None:
    assert sorted(ErrorCode) == list(range(LOWEST_CODE, HIGHEST_CODE_OF_KAFKA_3_9 + 1))


def test_names_and_retriable_flags_are_those_of_kio() -> None:
    import kio.schema.errors

    ours = {(int(code), code.name, code.retriable) for code in ErrorCode}
    theirs = {(int(code.value), code.name.upper(), code.retriable) for code in kio.schema.errors.ErrorCode}
    assert ours == theirs


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_name_and_retriable_flag_are_those_of_kafka_python(code: ErrorCode) -> None:
    import kafka.errors

    theirs = kafka.errors.for_code(int(code))
    assert theirs.errno == code
    assert theirs.message == NAMES_OF_KAFKA_PYTHON.get(code, code.name)
    assert theirs.retriable == (code.retriable and code not in RETRIABLE_UNLIKE_KAFKA_PYTHON)


def test_names_are_those_of_librdkafka() -> None:
    names = {code: confluent_kafka.KafkaError(int(code)).name() for code in ErrorCode}
    known = {code: name for code, name in names.items() if not name.startswith("ERR_")}
    assert len(known) >= 100
    assert known == {code: NAMES_OF_LIBRDKAFKA.get(code, code.name) for code in known}


def test_each_message_is_a_sentence_of_its_own() -> None:
    messages = [code.message for code in ErrorCode]
    assert len(set(messages)) == len(messages)
    for message in messages:
        assert message[0].isupper() or message.startswith("acks")
        assert message.endswith((".", ")."))


def test_a_member_works_as_the_int16_it_stands_for() -> None:
    assert struct.pack(">h", ErrorCode.UNKNOWN_SERVER_ERROR) == b"\xff\xff"
    assert struct.pack(">h", ErrorCode.NOT_CONTROLLER) == b"\x00\x29"
    assert struct.unpack(">h", b"\x00\x29")[0] == ErrorCode.NOT_CONTROLLER
    assert {41: "found"}[ErrorCode.NOT_CONTROLLER] == "found"
    assert not ErrorCode.NONE


def test_for_code_finds_the_member() -> None:
    assert [ErrorCode.for_code(int(code)) for code in ErrorCode] == list(ErrorCode)


@pytest.mark.parametrize("code", [-2, HIGHEST_CODE_OF_KAFKA_3_9 + 1, 32767, -32768])
def test_a_code_that_the_table_lacks_is_an_unknown_server_error(code: int) -> None:
    assert ErrorCode.for_code(code) is ErrorCode.UNKNOWN_SERVER_ERROR
    error = KafkaError(code)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error.wire_code == code
    assert not error.retriable
    assert str(code) in str(error)


def test_an_error_carries_its_code_and_detail() -> None:
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders-3 is led by broker 2")
    assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error.retriable
    assert error.message == "orders-3 is led by broker 2"
    assert str(error) == "NOT_LEADER_OR_FOLLOWER (6): orders-3 is led by broker 2"


def test_an_error_without_detail_says_what_the_table_says() -> None:
    error = KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    assert error.message == ErrorCode.INVALID_REQUIRED_ACKS.message
    assert error.detail is None


def test_an_error_crosses_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(KafkaError(300, "from a newer broker")))
    assert (error.wire_code, error.detail) == (300, "from a newer broker")


def test_no_error_cannot_be_raised() -> None:
    with pytest.raises(ValueError, match="NONE"):
        KafkaError(ErrorCode.NONE)


def test_raise_for_code_raises_for_errors_only() -> None:
    raise_for_code(0)
    with pytest.raises(KafkaError, match="REBALANCE_IN_PROGRESS") as caught:
        raise_for_code(27, "group g")
    assert caught.value.code is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("character", ["x", "\U0001d11e"])
def test_a_detail_that_quotes_much_still_fits_into_a_response(character: str) -> None:
    error = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "no topic is called " + character * 40_000)
    assert error.detail is not None
    assert len(error.detail) == DETAIL_LENGTH_MAX
    assert error.detail.endswith(character + "...")
    response = DescribeConfigsResponse.DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=2,
        resource_name="x",
        configs=[],
    )
    # The oldest version has two bytes for the length.
    encode(DescribeConfigsResponse(throttle_time_ms=0, results=[response]), 0)
