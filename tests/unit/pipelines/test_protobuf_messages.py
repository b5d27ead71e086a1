"""Messages of Protocol Buffers as rows: types, what is absent, and what is no message."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import pickle
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

from barnabas.pipelines.definition import Framing, PipelineError
from barnabas.pipelines.protobuf_decoding import (
    KnownPlaces,
    UnknownSchemaError,
    framed,
    framed_content,
    value_reader,
)
from barnabas.pipelines.protobuf_messages import (
    ProtobufSchemaError,
    columns_of_message,
    encode_message,
    files_to_register,
    message_indexes,
)
from barnabas.pipelines.reading import read_pipeline

FLIGHT = """
  message_type { name: "Unused" field { name: "x" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }
  message_type { name: "Flight"
    field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "carrier" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
    field { name: "bytes" number: 3 type: TYPE_UINT64 label: LABEL_OPTIONAL }
    field { name: "at" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
    field { name: "gate" number: 5 type: TYPE_MESSAGE type_name: ".google.protobuf.StringValue" label: LABEL_OPTIONAL }
    field { name: "kind" number: 6 type: TYPE_ENUM type_name: ".air.Kind" label: LABEL_OPTIONAL }
    field { name: "stops" number: 7 type: TYPE_MESSAGE type_name: ".air.Flight.Stop" label: LABEL_REPEATED }
    field { name: "seats" number: 8 type: TYPE_MESSAGE type_name: ".air.Flight.SeatsEntry" label: LABEL_REPEATED }
    oneof_decl { name: "_carrier" }
    nested_type { name: "SeatsEntry" options { map_entry: true }
      field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "value" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL } }
    nested_type { name: "Stop" field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
  }
  message_type { name: "Tree"
    field { name: "left" number: 1 type: TYPE_MESSAGE type_name: ".air.Tree" label: LABEL_OPTIONAL } }
  enum_type { name: "Kind" value { name: "NONE" number: 0 } value { name: "CARGO" number: 1 } }
"""
COLUMNS = {
    "id": -7,
    "carrier": "UA",
    "bytes": 2**64 - 1,
    "at": "2013-01-01T05:00:00.123456Z",
    "gate": "A1",
    "kind": "CARGO",
    "stops": [{"name": "JFK"}, {}],
    "seats": {"first": 8},
}
ROW = (
    -7,
    "UA",
    decimal.Decimal(2**64 - 1),
    dt.datetime(2013, 1, 1, 5, 0, 0, 123456, dt.UTC),
    "A1",
    "CARGO",
    [("JFK",), ("",)],
    {"first": 8},
)


def descriptors(text: str = FLIGHT) -> bytes:
    """A descriptor set as protoc makes it, with what the file imports before it."""
    from google.protobuf import text_format

    files = descriptor_pb2.FileDescriptorSet()
    for known in (timestamp_pb2, wrappers_pb2):
        known.DESCRIPTOR.CopyToProto(files.file.add())
    head = 'name: "air.proto" package: "air" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"'
    text_format.Parse(f'{head} dependency: "google/protobuf/wrappers.proto" {text}', files.file.add())
    content: bytes = files.SerializeToString()
    return content


def test_a_message_has_columns_of_its_fields() -> None:
    assert {column.name: column.type for column in columns_of_message(descriptors(), "air.Flight")} == {
        "id": "INT",
        "carrier": "STRING",
        "bytes": "DECIMAL(20, 0)",
        "at": "TIMESTAMP",
        "gate": "STRING",
        "kind": "STRING",
        "stops": "ARRAY<STRUCT<`name`: STRING>>",
        "seats": "MAP<STRING, BIGINT>",
    }


def test_a_value_is_read_as_the_row_that_was_written_also_in_a_process_of_its_own() -> None:
    content = encode_message(descriptors(), "air.Flight", COLUMNS)
    read = value_reader(descriptors(), "air.Flight", Framing.NONE)
    assert read(content) == ROW
    # What is absent is null where the field knows it, and else its default.
    assert read(b"") == (0, None, decimal.Decimal(0), None, None, "NONE", [], {})
    # A field of a later schema is not known, and an enum's number may not be.
    assert (read(b"\x98\x06\x01") or ())[0] == 0
    assert (read(b"\x30\x05") or ())[5] == "5"
    for broken in (
        content[:-1],
        content + b"\0",
        b"\x0a\x05UA",
        b"\x12\x01\xff",
        b"\x22\x0a\x08" + b"\xff" * 8 + b"\x7f",
    ):
        assert read(broken) is None, broken
    assert read(None) is None
    assert pickle.dumps(message_indexes(descriptors(), "air.Flight"))


OLD = """
  message_type { name: "Old"
    field { name: "Id" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
    field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL default_value: "none" }
    field { name: "names" number: 3 type: TYPE_STRING label: LABEL_REPEATED }
    field { name: "kind" number: 4 type: TYPE_ENUM type_name: ".old.Kind" label: LABEL_OPTIONAL }
    field { name: "more" number: 5 type: TYPE_GROUP type_name: ".old.Old.More" label: LABEL_OPTIONAL }
    nested_type { name: "More" field { name: "x" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }
  }
  enum_type { name: "Kind" options { allow_alias: true }
    value { name: "ONE" number: 1 } value { name: "UNO" number: 1 } value { name: "TWO" number: 2 } }
"""


def old_descriptors(text: str = OLD) -> bytes:
    """A set of proto2, with one file."""
    from google.protobuf import text_format

    files = descriptor_pb2.FileDescriptorSet()
    text_format.Parse(f'name: "old.proto" package: "old" {text}', files.file.add())
    content: bytes = files.SerializeToString()
    return content


def test_messages_of_proto2_are_read_with_what_they_require_and_text_that_is_text() -> None:
    read = value_reader(old_descriptors(), "old.Old", Framing.NONE)
    assert read(b"\x08\x01") == (1, None, [], None, None)
    assert read(b"\x08\x01\x20\x01\x2b\x08\x09\x2c") == (1, None, [], "ONE", (9,))
    # An enum's number that is not known is a field that is not known.
    assert read(b"\x08\x01\x20\x07") == (1, None, [], None, None)
    for broken in (b"", b"\x08\x01\x12\x01\xff", b"\x08\x01\x1a\x01\xff"):
        assert read(broken) is None, broken


def test_fields_are_written_by_names_in_any_case() -> None:
    assert encode_message(old_descriptors(), "old.Old", {"ID": 1, "Name": "a", "KIND": "TWO"}) == (
        b"\x08\x01\x12\x01a\x20\x02"
    )
    with pytest.raises(ValueError, match="required"):
        encode_message(old_descriptors(), "old.Old", {"name": "a"})


def test_messages_that_are_in_one_another_many_times_over_are_too_many_fields() -> None:
    """Two of the next in each of twenty would be a million columns, and minutes."""
    inner = 'type: TYPE_MESSAGE type_name: ".old.M{}" label: LABEL_OPTIONAL'
    text = "".join(
        f'message_type {{ name: "M{number}" '
        + "".join(
            f'field {{ name: "{name}" number: {place} {inner.format(number + 1)} }} '
            for place, name in ((1, "a"), (2, "b"))
        )
        + "} "
        for number in range(19)
    )
    text += 'message_type { name: "M19" field { name: "x" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }'
    with pytest.raises(ProtobufSchemaError, match="has more than 10000 fields"):
        columns_of_message(old_descriptors(text), "old.M0")


def test_framing_says_which_message_of_the_schemas_file_it_is() -> None:
    content = encode_message(descriptors(), "air.Flight", COLUMNS)
    assert message_indexes(descriptors(), "air.Flight") == (1,)
    assert message_indexes(descriptors(), "air.Flight.Stop") == (1, 1)
    assert framed(descriptors(), "air.Flight", content)[5:7] == b"\x02\x02"
    assert message_indexes(descriptors(), "air.Flight.Stop", counts_maps=False) == (1, 0)
    assert framed_content(framed(descriptors(), "air.Unused", b"x", 9)) == (9, [0], b"x")
    assert framed_content(b"\0\0\0\1\7\4\2\2x") == (263, [1, 1], b"x")
    read = value_reader(descriptors(), "air.Flight", Framing.CONFLUENT)
    assert read(framed(descriptors(), "air.Flight", content)) == ROW
    head = b"\0\0\0\0\7"
    for broken in (
        content,
        b"\1" + head[1:] + b"\2\2" + content,
        head + b"\0" + content,
        head + b"\4\2\2" + content,
        head,
        head + b"\2",
        head + b"\xff\xff\xff\xff\x0f",
        head + b"\xff" * 9,
        head + b"\1",
        # A count of more indexes than anybody reads, and than there are.
        head + b"\xfe\xff\xff\xff\x0f" + b"\0" * 1_000_000,
        head + b"\xca\1" + b"\0" * 1_000_000,
    ):
        assert read(broken) is None, broken[:20]


def test_a_registry_says_by_the_id_where_the_message_is_and_what_is_another_one() -> None:
    content = encode_message(descriptors(), "air.Flight", COLUMNS)

    def framed_at(schema_id: int, place: bytes) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + place + content

    by_id = {7: frozenset({(0,)}), 8: frozenset({(2, 1), (2, 0)}), 9: frozenset[tuple[int, ...]]()}
    read = value_reader(descriptors(), "air.Flight", Framing.CONFLUENT, KnownPlaces("s", by_id, is_careful=False))
    assert read(framed_at(7, b"\0")) == read(framed_at(8, b"\4\4\2")) == read(framed_at(8, b"\4\4\0")) == ROW
    assert [read(each) for each in (framed_at(7, b"\2\2"), framed_at(9, b"\0"), content, b"", None)] == [None] * 5
    with pytest.raises(UnknownSchemaError, match=r"barnabas-unknown-schema:s:10$"):
        read(framed_at(10, b"\0"))
    careful = KnownPlaces("s", by_id, is_careful=True)
    read = value_reader(descriptors(), "air.Flight", Framing.CONFLUENT, careful, tells_others=True)
    assert read(framed_at(10, b"\0")) is None
    assert read(framed_at(7, b"\0")) == (*ROW, False)
    assert read(framed_at(9, b"\0")) == (*[None] * len(ROW), True)
    assert pickle.loads(pickle.dumps(careful)) == careful


def test_groups_in_groups_a_hundred_thousand_times_are_no_message_and_cost_no_stack() -> None:
    """Also of a field that the schema does not have, which is read past."""
    read = value_reader(descriptors(), "air.Flight", Framing.NONE)
    assert read(b"\xa3\x01\xa4\x01") is not None
    assert read(b"\xa3\x01" * 100_000 + b"\xa4\x01" * 100_000) is None


def test_files_that_others_import_are_before_them_and_those_that_all_registries_have_are_not() -> None:
    from google.protobuf import text_format

    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    for name, imports in (("a.proto", ()), ("b.proto", ("a.proto",)), ("c.proto", ("b.proto", "a.proto", "air.proto"))):
        told = " ".join(f'dependency: "{each}"' for each in imports)
        text_format.Parse(f'name: "{name}" message_type {{ name: "M{name[0]}" }} {told}', files.file.add())
    found = files_to_register(files.SerializeToString(), "Mc")
    assert {each.name: each.imports for each in found} == {
        "a.proto": (),
        "b.proto": ("a.proto",),
        "air.proto": (),
        "c.proto": ("b.proto", "a.proto", "air.proto"),
    }
    names = [each.name for each in found]
    assert names[-1] == "c.proto"
    assert names.index("a.proto") < names.index("b.proto")
    sent = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(found[-1].schema))
    assert sent.message_type[0].name == "Mc"


@pytest.mark.parametrize(
    ("content", "message", "reason"),
    [
        (b"\xff", "air.Flight", "is no descriptor set"),
        (descriptors(), "air.Flights", r"has no message air.Flights; it has: air.Flight, air.Tree, air.Unused, google"),
        (descriptors(), "air.Tree", "has a message air.Tree that contains itself"),
        (descriptors(FLIGHT + 'dependency: "other.proto"'), "air.Flight", "is not whole .* --include_imports"),
    ],
)
def test_what_is_no_schema_is_told(content: bytes, message: str, reason: str) -> None:
    with pytest.raises(ProtobufSchemaError, match=reason):
        columns_of_message(content, message)


def test_the_file_of_a_pipeline_names_descriptors_and_message(tmp_path: Path) -> None:
    (tmp_path / "air.desc").write_bytes(descriptors())
    path = tmp_path / "x.yaml"
    text = "name: x\nsources:\n  s:\n    {topic: t, format: protobuf, schema_file: air.desc, message: air.Flight}\n"
    path.write_text(f"{text}sinks: [{{topic: o, from: s}}]\n")
    (source,) = read_pipeline(path).sources
    assert (source.message, source.columns[0].type, "air" in repr(source.descriptors)) == ("air.Flight", "INT", True)
    path.write_text(path.read_text().replace("air.Flight", "air.Nothing"))
    with pytest.raises(PipelineError, match=r"x\.yaml:4: sources\.s: schema_file \S+ has no message air\.Nothing"):
        read_pipeline(path)
