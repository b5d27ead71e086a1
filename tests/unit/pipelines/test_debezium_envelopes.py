"""Envelopes of Debezium by their schema: the rows that are in them, and what is no envelope."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.pipelines.avro_encoding import encode
from barnabas.pipelines.debezium_envelopes import EnvelopeError, envelope_of, key_fields_of
from tests.unit.pipelines.test_protobuf_messages import descriptors

NAMESPACE = "shop.public.customers"
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "full_name", "type": ["null", "string"], "default": None},
        {"name": "born", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {
            "name": "total",
            "type": [
                "null",
                {
                    "type": "bytes",
                    "scale": 2,
                    "precision": 10,
                    "connect.version": 1,
                    "connect.name": "org.apache.kafka.connect.data.Decimal",
                    "logicalType": "decimal",
                },
            ],
            "default": None,
        },
    ],
    "connect.name": f"{NAMESPACE}.Value",
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [{"name": "lsn", "type": ["null", "long"], "default": None}, {"name": "table", "type": "string"}],
}
ENVELOPE = json.dumps(
    {
        "type": "record",
        "name": "Envelope",
        "namespace": NAMESPACE,
        "fields": [
            {"name": "before", "type": ["null", ROW], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": SOURCE},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.name": f"{NAMESPACE}.Envelope",
    }
)
"""As Confluent's converter writes it of a table: `after` names the type that `before` defines."""
KEY = json.dumps({"type": "record", "name": "Key", "namespace": NAMESPACE, "fields": [{"name": "id", "type": "int"}]})
COLUMNS = (("id", "INT"), ("full_name", "STRING"), ("born", "DATE"), ("total", "DECIMAL(10, 2)"))
_MESSAGES = """
message_type {
  name: "Value"
  field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "full_name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
  oneof_decl { name: "_full_name" }
}
message_type {
  name: "Envelope"
  field { name: "before" number: 1 type: TYPE_MESSAGE type_name: ".air.Value" label: LABEL_OPTIONAL }
  field { name: "after" number: 2 type: TYPE_MESSAGE type_name: ".air.Value" label: LABEL_OPTIONAL }
  field { name: "op" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "ts_ms" number: 5 type: TYPE_INT64 label: LABEL_OPTIONAL }
}
"""


def envelope_descriptors() -> bytes:
    """Of the messages air.Value and air.Envelope."""
    return descriptors(_MESSAGES)


def test_rows_have_the_columns_of_what_is_behind_a_change() -> None:
    envelope = envelope_of(ENVELOPE.encode(), None)
    assert envelope.columns == COLUMNS
    assert envelope.before == {"id", "full_name", "born", "total"}
    assert key_fields_of(KEY.encode(), None) == ("id",)
    assert key_fields_of(b'"long"', None) == ()
    of_message = envelope_of(envelope_descriptors(), "air.Envelope")
    assert of_message.columns == (("id", "INT"), ("full_name", "STRING"))
    assert key_fields_of(envelope_descriptors(), "air.Value") == ("id", "full_name")


def test_columns_are_known_without_regard_to_case() -> None:
    row = {"type": "record", "name": "Row", "fields": [{"name": "ID", "type": "int"}]}
    schema = _changed(before=["null", row], after=["null", "Row"], op="string")
    envelope = envelope_of(schema, None)
    assert envelope.columns == (("ID", "INT"),)
    assert envelope.before == {"id"}


def _changed(**types: Any) -> bytes:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "E", "fields": fields}).encode()


@pytest.mark.parametrize(
    ("schema", "message", "told"),
    [
        (_changed(before=["null", ROW], op="string"), None, r"it has no after that is a record \(it has before, op\)"),
        (_changed(after="string", op="string"), None, "it has no after that is a record"),
        (_changed(after=["null", ROW], op="int"), None, "it has no op that is a text"),
        (_changed(after=["null", ROW]), None, "it has no op that is a text"),
        (b"\xff", None, "cannot be read"),
        (b"{", None, "is not JSON"),
        (
            _changed(after={**ROW, "fields": [{"name": "x", "type": "null"}]}, op="string"),
            None,
            "a column that a table",
        ),
        (envelope_descriptors(), "air.Value", "it has no after that is a record"),
        (envelope_descriptors(), "air.None", "has no message air.None"),
    ],
)
def test_what_is_no_envelope_is_told(schema: bytes, message: str | None, told: str) -> None:
    with pytest.raises(EnvelopeError, match=told):
        envelope_of(schema, message)


def test_a_row_of_a_test_may_leave_out_the_branch_that_defines_a_type() -> None:
    """`after` is of the type that is defined in `before`, which is null of a row that is new."""
    row = {"id": 1, "full_name": "a"}
    change = {"before": None, "after": row, "op": "c", "source": {"table": "customers"}}
    assert encode(ENVELOPE, change) == b"\0\2\2\2\2a\0\0\0\x12customers\2c\0"
