"""The classes of messages: lazily made, slotted, compared by value, shown without secrets and in bounds."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest

from barnabas.wire import catalogue, messages
from barnabas.wire.classes import Message, Structure, message_class
from barnabas.wire.messages import (
    ConsumerGroupDescribeResponse,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    SaslAuthenticateRequest,
)


def test_importing_the_module_reads_no_schema_and_using_a_message_reads_one() -> None:
    program = (
        "from barnabas.wire import catalogue, messages\n"
        "print(catalogue._messages_of.cache_info().currsize)\n"
        "messages.HeartbeatRequest\n"
        "print(catalogue._messages_of.cache_info().currsize)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    read_before, read_after = map(int, done.stdout.split())
    assert read_before == 0
    assert read_after == 1


@pytest.mark.parametrize("name", catalogue.message_names())
def test_every_message_can_be_made_without_arguments_and_equals_another_such(name: str) -> None:
    made = getattr(messages, name)
    assert [field.name for field in dataclasses.fields(made)] == [field.name for field in made.SCHEMA.fields]
    assert made() == made()
    assert made is getattr(messages, name) is message_class(name)
    assert issubclass(made, Message)


def test_asking_for_the_fields_of_a_base_takes_no_message_its_own() -> None:
    bases: tuple[Any, ...] = (Message, Structure)
    for base in bases:
        assert dataclasses.fields(base) == ()
    assert [field.name for field in dataclasses.fields(ProduceRequest.TopicProduceData)] == ["name", "partition_data"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'FetchWish'"):
        _ = messages.FetchWish  # type: ignore[attr-defined]
    assert not hasattr(messages, "__path__")


def test_dir_names_every_message() -> None:
    assert set(catalogue.message_names()) <= set(dir(messages))


def test_fields_have_the_defaults_of_the_schema() -> None:
    request = FetchRequest()
    assert (request.replica_id, request.max_bytes, request.rack_id) == (-1, 0x7FFFFFFF, "")
    assert (request.cluster_id, request.replica_state) == (None, None)


def test_empty_lists_and_structures_are_not_shared() -> None:
    one, other = FetchRequest(), FetchRequest()
    one.topics.append(FetchRequest.FetchTopic(topic="a"))
    assert other.topics == []
    first, second = ConsumerGroupDescribeResponse.Member(), ConsumerGroupDescribeResponse.Member()
    assert first.assignment == ConsumerGroupDescribeResponse.Assignment()
    assert first.assignment is not second.assignment


def test_arguments_are_keywords_only_and_known() -> None:
    with pytest.raises(TypeError):
        FetchRequest("cluster")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        FetchRequest(bytes_max=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        FetchRequest().bytes_max = 3  # type: ignore[attr-defined]


def test_messages_differ_by_class_and_by_any_field() -> None:
    one = FetchRequest.FetchPartition(partition=1)
    assert one != FetchRequest.FetchPartition(partition=2)
    assert one != FetchResponse.PartitionData(partition_index=1)
    assert (one == "partition") is False
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_messages_can_be_copied_replaced_and_pickled() -> None:
    request = FetchRequest(topics=[FetchRequest.FetchTopic(topic="a")], max_bytes=7)
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request
    changed = dataclasses.replace(request, max_bytes=8)
    assert (changed.max_bytes, changed.topics, request.max_bytes) == (8, request.topics, 7)


def test_repr_names_class_and_fields() -> None:
    partition = FetchRequest.ReplicaState(replica_id=3)
    assert repr(partition) == "FetchRequest.ReplicaState(replica_id=3, replica_epoch=-1)"


def test_repr_shows_large_bytes_by_their_size_and_no_secrets() -> None:
    partition = ProduceRequest.PartitionProduceData(index=1, records=memoryview(bytearray(5000)))
    assert repr(partition) == "ProduceRequest.PartitionProduceData(index=1, records=<5000 bytes>)"
    assert repr(ProduceRequest.PartitionProduceData(records=memoryview(b"ab"))).endswith("records=b'ab')")
    assert repr(SaslAuthenticateRequest(auth_bytes=b"pw")) == "SaslAuthenticateRequest(auth_bytes=<secret>)"
