"""Where the messages of a .proto file are: of texts as people and registries write them, and of hostile ones."""

from __future__ import annotations

import base64
import contextlib
import time

import pytest
from google.protobuf import descriptor_pb2

from barnabas.pipelines.proto_outline import ProtoOutlineError, messages_of, places_of
from tests.unit.pipelines.test_protobuf_messages import FLIGHT, descriptors

TEXT = """\
syntax = "proto3"; // message No { }
package air.v1; /* message No {} */
import "google/protobuf/timestamp.proto";
option (x) = { message: "message No {" other { a: 1 } };
enum Kind { NONE = 0; }
message First { string message = 1; First message2 = 2; }
service S { rpc Get (First) returns (Second) { option (y) = {}; } }
message Second {
  option deprecated = true;
  map<string, First> seats = 1 [(z) = { k: '}' }];
  oneof one { First a = 2; }
  message Inner { message Innermost { } }
  extend First { }
  message Other { reserved 1; }
  repeated group Result = 3 { message Hidden { } }
}
"""


def test_messages_are_found_where_java_counts_them_and_where_a_descriptor_does() -> None:
    places = {
        (0,): "air.v1.First",
        (1,): "air.v1.Second",
        (1, 0): "air.v1.Second.Inner",
        (1, 0, 0): "air.v1.Second.Inner.Innermost",
        (1, 1): "air.v1.Second.Other",
    }
    # protoc has a message for the map, ahead of those two: whose place is free there, is found by it.
    by_descriptor = {(1, 1, 0): "air.v1.Second.Inner.Innermost", (1, 2): "air.v1.Second.Other"}
    assert messages_of(TEXT) == {**by_descriptor, **places}
    assert places_of(TEXT, "air.v1.Second.Other") == "[[1, 1], [1, 2]]"
    assert places_of(TEXT, "air.v1.Nothing") == "[]"
    assert messages_of('syntax = "proto3";') == {}


def test_a_descriptor_in_base64_says_the_same_as_its_text() -> None:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors(FLIGHT)).file[-1]
    found = messages_of(base64.b64encode(file.SerializeToString()).decode())
    assert found == {(0,): "air.Unused", (1,): "air.Flight", (1, 1): "air.Flight.Stop", (2,): "air.Tree"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message A {", "ends too early"),
        ("message A { } }", "closes more than it opens"),
        ("message A { } message", "ends too early"),
        ("message A {" * 100_000 + "}" * 100_000, "is deeper than 100 levels"),
        ("message A { }" * 10_001, "has more than 10000 messages"),
        (f"message {'A' * 4_095} {{ message B {{ }} }}", "has a name of more than 4096 characters"),
        (f"package {'p' * 4_095}; message A {{ }}", "has a name of more than 4096 characters"),
        ("AAAA", "is no descriptor of a file"),
        ("A", "is no descriptor of a file"),
    ],
)
def test_what_is_no_schema_or_too_much_of_one_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ProtoOutlineError, match=reason):
        messages_of(text)


@pytest.mark.parametrize("part", ["/*", '"', "'", "\\", "/", " ", "a", ".", "{}", ";", "/*/", '"\\', "map<"])
def test_much_of_anything_takes_a_moment(part: str) -> None:
    began = time.process_time()
    with contextlib.suppress(ProtoOutlineError):
        messages_of("message A { }" + part * (200_000 // len(part)))
    assert time.process_time() - began < 3


def test_a_long_name_that_has_many_messages_in_it_is_not_written_out_for_each_of_them() -> None:
    """In text and in a descriptor: two megabytes that a registry may send took nine gigabytes."""
    file = descriptor_pb2.FileDescriptorProto()
    outer = file.message_type.add(name="A" * 300_000)
    for _ in range(2_000):
        outer.nested_type.add(name="B")
    descriptor = base64.b64encode(file.SerializeToString()).decode()
    for schema in (descriptor, f"message {'A' * 300_000} {{ {'message B { } ' * 2_000} }}"):
        with pytest.raises(ProtoOutlineError, match="has a name of more than 4096 characters"):
            messages_of(schema)
    assert len(messages_of(f"message {'A' * 4_096} {{ }}")) == 1
