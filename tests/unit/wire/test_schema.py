"""The reader of schema files: what it understands, and how it refuses everything else."""

from __future__ import annotations

import pytest

from barnabas.wire.schema import NO_VERSIONS, FieldType, Fresh, Kind, Message, SchemaError, Versions
from barnabas.wire.schema_reader import read_schema

HEAD = "record Thing: versions 0-5, flexible 3+ # A thing."


def read_record(*lines: str) -> Message:
    (message,) = read_schema("thing.record", "\n".join([HEAD, *lines]))
    return message


def test_reads_an_api_as_request_and_response() -> None:
    text = """
api Echo: key 99, versions 1-4, flexible 3+

request   # Says something.
    words: []string     # What is said.
    loud: bool, 2+, default true, ignorable  # True to shout.

response  # Says it back.
"""
    request, response = read_schema("99_echo.api", text)
    assert (request.name, request.kind, request.api_key, request.meaning) == (
        "EchoRequest",
        Kind.REQUEST,
        99,
        "Says something.",
    )
    assert (request.versions, request.flexible_versions) == (Versions(1, 4), Versions(3, 4))
    words, loud = request.fields
    assert (words.type, words.versions, words.default) == (
        FieldType("string", is_array=True),
        Versions(1, 4),
        Fresh.LIST,
    )
    assert (loud.versions, loud.default, loud.ignorable, loud.line) == (Versions(2, 4), True, True, 6)
    assert (response.name, response.kind, response.fields) == ("EchoResponse", Kind.RESPONSE, ())


@pytest.mark.parametrize(
    ("text", "versions"),
    [("", Versions(0, 5)), (", 2", Versions(2, 2)), (", 1-3", Versions(1, 3)), (", 4+", Versions(4, 5))],
)
def test_versions_of_a_field(text: str, versions: Versions) -> None:
    assert read_record(f"    size: int32{text} # How large.").fields[0].versions == versions


@pytest.mark.parametrize(
    ("declaration", "default"),
    [
        ("int8", 0),
        ("int64, default -1", -1),
        ("uint16, default 0xffff", 65535),
        ("float64", 0.0),
        ("float64, default 1.5", 1.5),
        ("bool", False),
        ("bool, default true", True),
        ("string", ""),
        ("string?, default null", None),
        ("bytes", b""),
        ("records?", None),
        ("uuid", bytes(16)),
        ("[]int32", Fresh.LIST),
        ("[]int32?, default null", None),
    ],
)
def test_default_of_a_field(declaration: str, default: object) -> None:
    found = read_record(f"    size: {declaration} # How large.").fields[0].default
    assert found == default
    assert type(found) is type(default)


def test_nullable_versions_are_those_of_the_question_mark_or_as_said() -> None:
    message = read_record(
        "    all: string?, 1+ # Null in all.",
        "    some: string, 1+, nullable 2+ # In some.",
        "    none: string # In none.",
    )
    assert [field.nullable_versions for field in message.fields] == [Versions(1, 5), Versions(2, 5), NO_VERSIONS]


def test_structures_are_nested_by_indentation_and_kept_inner_ones_first() -> None:
    message = read_record(
        "    struct Shared                # Used twice.",
        "        number: int32            # A number.",
        "    outer: []Outer               # Many.",
        "        inner: Inner?            # One or none.",
        "            shared: Shared       # A shared one.",
        "    again: []Shared, 3+, tag 0   # More.",
    )
    assert list(message.structs) == ["Shared", "Inner", "Outer"]
    assert message.structs["Outer"].fields[0].type == FieldType("Inner", is_array=False)
    assert message.structs["Outer"].meaning == "Many."
    assert [field.name for field in message.fields] == ["outer", "again"]


def test_a_tagged_field_is_tagged_in_all_its_versions_or_as_said() -> None:
    message = read_record(
        "    all: int32, 3+, tag 0 # Always.",
        "    late: int32, tag 1 in 4+ # First plain, then tagged.",
        "    absent: Thing2, 3+, tag 2 # A structure.",
        "        size: int32 # How large.",
    )
    assert [field.tagged_versions for field in message.fields] == [Versions(3, 5), Versions(4, 5), Versions(3, 5)]
    assert [field.absent_is_none for field in message.fields] == [False, False, True]
    assert message.fields[2].default is None


def test_options_of_fields_and_of_messages() -> None:
    message, other = read_schema(
        "things.record",
        "data Thing: versions 0-5, flexible 3+, open ended # A thing.\n"
        "    name: string, int16 length, secret # Its name.\n"
        "record Other: versions 2 # Another.\n",
    )
    assert (message.open_ended, other.open_ended) == (True, False)
    assert (message.fields[0].int16_length, message.fields[0].secret) == (True, True)
    assert (other.versions, other.flexible_versions) == (Versions(2, 2), NO_VERSIONS)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("    size: int33 # What.", "unknown type 'int33'"),
        ("    size: Size # What.", "unknown type 'Size'"),
        ("    size: int32", "say after a # what it means"),
        ("    size int32 # What.", "expected `name: type"),
        ("    Size: int32 # What.", "not a name for a field: 'Size'"),
        ("    class: int32 # What.", "not a name for a field: 'class'"),
        ("    size: int32, 2-7 # What.", "versions 2-7 are not within 0-5"),
        ("    size: int32, 4-2 # What.", "versions 4-2 are not within 0-5"),
        ("    size: int32, 2+, 3+ # What.", "'3+' is said twice"),
        ("    size: int32, ignorable, ignorable # What.", "'ignorable' is said twice"),
        ("    size: int32, ignorable yes # What.", "does not belong here: 'ignorable yes'"),
        ("    size: int32, hidden # What.", "does not belong here: 'hidden'"),
        ("    size: int32? # What.", "int32 cannot be null"),
        ("    size: string, 2+, nullable 1+ # What.", "versions 1+ are not within 2-5"),
        ("    size: string, nullable x # What.", "not versions: 'x'"),
        ("    size: string, default null # What.", "nullable in no version"),
        ("    size: int8, default 128 # What.", "not a default for int8: '128'"),
        ("    size: int8, default many # What.", "not a default for int8: 'many'"),
        ("    size: bool, default 1 # What.", "not a default for bool"),
        ("    size: string, default x # What.", "not a default for string"),
        ("    size: []int32, default 0 # What.", "the default of []int32 can only be null"),
        ("    size: []records # What.", "no arrays of records"),
        ("    size: int32, int16 length # What.", "only a string has an int16 length"),
        ("    size: int32, tag 0 # What.", "tagged fields need flexible versions (3-5), not 0-5"),
        ("    size: int32, 3+, tag x # What.", "not a tag: 'x'"),
        ("    size: int32, 3+, tag 1 # What.", "tags count up from 0 in the order of the fields; this is 1"),
        ("    size: string?, 3+, tag 0 # What.", "a tagged field that may be null needs `default null`"),
        ("  size: int32 # What.", "indent by 4 spaces"),
        ("\tsize: int32 # What.", "indent by 4 spaces"),
        ("        size: int32 # What.", "indented too far"),
        ("    struct size # What.", "not a name for a structure: 'size'"),
        ("    struct Size # What.", "the structure Size has no fields"),
    ],
)
def test_refuses_a_wrong_line_and_says_where(line: str, problem: str) -> None:
    with pytest.raises(SchemaError) as raised:
        read_record("", line)
    assert str(raised.value).startswith("thing.record:3: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "where", "problem"),
    [
        (["    a: int32 # A.", "    a: int32 # A."], 3, "the field a is declared twice"),
        (["    a: int32, 3+, tag 0 # A.", "    b: int32, 3+, tag 0 # B."], 3, "tags count up from 0"),
        (["    a: int32 # A.", "        b: int32 # B."], 3, "int32 has no fields"),
        (["    a: int32 # A.", "    struct B # B."], 3, "shared structures come ahead"),
        (["    struct B # B.", "        c: int32 # C."], 1, "no field is of the structure B"),
        (
            ["    a: B # A.", "        c: int32 # C.", "    d: B # D.", "        c: int32 # C."],
            4,
            "the structure B is declared twice",
        ),
    ],
)
def test_refuses_lines_that_do_not_go_together(lines: list[str], where: int, problem: str) -> None:
    with pytest.raises(SchemaError) as raised:
        read_record(*lines)
    assert str(raised.value).startswith(f"thing.record:{where}: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("message A: versions 0 # A.", "expected `data` or `header` or `record`, not 'message'"),
        ("record A: versions 0", "say after a # what it means"),
        ("record a: versions 0 # A.", "expected `record Name: versions"),
        ("record A: flexible 0+ # A.", "say which versions there are"),
        ("record A: versions 0+ # A.", "the highest version must be a number"),
        ("record A: versions 1, flexible 0+ # A.", "versions 0+ are not within 1"),
        ("record A: versions 0, key 3 # A.", "does not belong here: 'key 3'"),
        ("record A: versions 0 # A.\nrecord A: versions 0 # A.", "A is declared twice"),
        ("api A: versions 0", "an api line needs its key"),
        ("api A: key 1, versions 0\nrequest # Asks.", "here the file needs a line `response`"),
        ("api A: key 1, versions 0\nresponse # Answers.", "expected `request`, not 'response'"),
        ("api A: key 1, versions 0\nrequest now # Asks.", "here the file needs a line `request`"),
        (
            "api A: key 1, versions 0\nrequest # Asks.\nresponse # Answers.\nrequest # Asks.",
            "an api file ends after its request and response",
        ),
    ],
)
def test_refuses_a_wrong_declaration(text: str, problem: str) -> None:
    with pytest.raises(SchemaError) as raised:
        read_schema("a.api", text)
    assert problem in str(raised.value)
