"""Reading YAML strictly, and knowing the line of everything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.definition import PipelineError, PipelineMissingError
from barnabas.pipelines.yaml_positions import FILE_BYTES_MAX, Section, Text, nearest, read_document

KEYS = ("name", "sql", "count", "flag", "block", "list")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


def read(path: Path, content: str) -> Section:
    path.write_text(content, encoding="utf-8")
    return read_document(path, KEYS)


def refusal(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PipelineError) as caught:
        read_document(path, KEYS)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}:")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "1: this file is empty: `barnabas pipeline init` writes one to begin with"),
        ("# only a comment\n", "1: this file is empty: `barnabas pipeline init` writes one to begin with"),
        ("- a\n", "1: a pipeline is a block of keys (name, sources, steps, sinks)"),
        ("name: a\nnam: b\n", '2: unknown key "nam"; did you mean "name"?'),
        ("name: a\nzzz: b\n", '2: unknown key "zzz"; there are: name, sql, count, flag, block, list'),
        ("name: a\n\nname: b\n", '3: the key "name" occurs twice, first in line 1: keep one of them'),
        ("<<: {name: a}\n", '1: unknown key "<<"; there are: name, sql, count, flag, block, list'),
        ("? [a, b]\n: c\n", "1: a key must be plain text"),
    ],
)
def test_refuses_a_file_that_is_no_block_of_known_keys(path: Path, content: str, message: str) -> None:
    assert refusal(path, content) == message


@pytest.mark.parametrize(
    ("content", "beginning"),
    [
        ("name: a\n  sql: b\n", "2: this is not YAML (mapping values are not allowed here): check colons, quotes"),
        ("name: a\n\tsql: b\n", "2: this is not YAML ("),
        ('name: "a\n', "2: this is not YAML (while scanning a quoted scalar, found unexpected end of stream): check"),
        ("name: a\n---\nname: b\n", "2: this is not YAML (expected a single document in the stream"),
        ("name: *nobody\n", "1: this is not YAML (found undefined alias 'nobody')"),
        ("name: a\nsql: \x01\n", "2: a character that YAML does not allow, '\\x01': remove it"),
        ("name: " + "[" * 1_500, "1: lists or blocks are nested too deeply for a pipeline"),
        (b"name: a\nsql: \xff\n", "2: this is not UTF-8: save the file as UTF-8"),
    ],
)
def test_refuses_what_is_no_yaml_at_the_line_where_it_ceases_to_be(
    path: Path, content: str | bytes, beginning: str
) -> None:
    assert refusal(path, content).startswith(beginning)


def test_advises_spaces_where_tabs_indent(path: Path) -> None:
    assert refusal(path, "block:\n\tname: b\n").endswith("indent with spaces, not with tabs")


def test_says_how_to_begin_without_a_file(path: Path) -> None:
    with pytest.raises(PipelineMissingError) as caught:
        read_document(path, KEYS)
    assert str(caught.value) == f"{path} does not exist: `barnabas pipeline init {path}` writes one to begin with"


def test_refuses_a_directory_and_a_huge_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(PipelineError, match="cannot be read: Is a directory"):
        read_document(path, KEYS)
    huge = path / "huge.yaml"
    huge.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(PipelineError, match="has more than 262144 bytes: that is not a pipeline"):
        read_document(huge, KEYS)


def test_reads_a_file_that_begins_with_a_byte_order_mark_and_has_windows_line_ends(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nsql: |\r\n  one\r\n  two\r\n")
    document = read_document(path, KEYS)
    assert document.text("name").value == "a"
    assert document.text("sql") == Text("one\ntwo\n", 2, ((0, 3), (4, 4)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sql: a\n", '1: the key "name" is missing'),
        ("sql: a\nname:\n", "2: name is nothing; it must be text"),
        ("name: ''\n", "1: name is empty: give it a value, or remove the line"),
        ("name: |\n\n\n", "1: name is empty: give it a value, or remove the line"),
        ("name: 5\n", '1: name is a whole number; it must be text: write it in quotes, "5"'),
        ("name: yes\n", '1: name is true or false; it must be text: write it in quotes, "yes"'),
        ("name: 2013-01-01\n", '1: name is a time; it must be text: write it in quotes, "2013-01-01"'),
        ("name: [a]\n", "1: name is a list; it must be text"),
        ("name: {a: b}\n", "1: name is a block of keys; it must be text"),
        ("name: !!python/name:os.system ''\n", "1: name is of the tag tag:yaml.org,2002:python/name:os.system, which "),
        ("name: !secret x\n", "1: name is of the tag !secret, which pipelines do not support; it must be text"),
    ],
)
def test_takes_only_text_for_text(path: Path, content: str, message: str) -> None:
    document = read(path, content)
    with pytest.raises(PipelineError) as caught:
        document.text("name")
    assert str(caught.value).startswith(f"{path}:{message}")


def test_takes_other_scalars_for_text_where_the_reader_says_so(path: Path) -> None:
    assert read(path, "name: 2013-01-01\n").text("name", also=("timestamp",)).value == "2013-01-01"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("count: many\n", "count is text; it must be a whole number such as 500000"),
        ("count: 1.5\n", "count is a number; it must be a whole number such as 500000"),
        ("count: 0x10\n", "count must be a plain decimal number such as 500000, not 0x10"),
        ("count: 010\n", "count must be a plain decimal number such as 500000, not 010"),
        ("count: 0\n", "count must be between 1 and 100"),
        ("count: 101\n", "count must be between 1 and 100"),
        ("count: " + "9" * 9_000 + "\n", "count must be between 1 and 100"),
    ],
)
def test_takes_only_whole_numbers_within_bounds(path: Path, content: str, message: str) -> None:
    document = read(path, content)
    with pytest.raises(PipelineError) as caught:
        document.integer("count", 1, 100)
    assert str(caught.value) == f"{path}:1: {message}"


def test_reads_numbers_and_flags(path: Path) -> None:
    document = read(path, "count: 500_000\nflag: true\n")
    assert document.integer("count", 1, 1_000_000) == 500_000
    assert document.flag("flag")
    assert not read(path, "flag: False\n").flag("flag")
    with pytest.raises(PipelineError, match=r"file\.yaml:1: flag is text; it must be true or false"):
        read(path, "flag: 'true'\n").flag("flag")


def test_names_the_place_of_what_stands_deeper(path: Path) -> None:
    document = read(path, "block:\n  one: {a: 1}\nlist:\n- a: x\n- b: y\n  c: z\n")
    with pytest.raises(PipelineError, match=r'file\.yaml:2: block\.one: unknown key "a"; there are: b'):
        document.section("block", None).section("one", ["b"])
    with pytest.raises(PipelineError, match=r'file\.yaml:6: list\[2\]: unknown key "c"'):
        document.sections("list", ["a", "b"], 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "list: {a: 1}\n",
            'list is a block of keys; it must be a list, each item of it on a line that begins with "- "',
        ),
        ("list: []\n", "list has 0 items: there must be 1 to 3"),
        ("list: [{}, {}, {}, {}]\n", "list has 4 items: there must be 1 to 3"),
        ("list: [a]\n", "list[1] is text; it must be a block of keys, each as `key: value`"),
        ("list: [~]\n", "list[1] is nothing; it must be a block of keys, each as `key: value`"),
    ],
)
def test_takes_only_lists_of_blocks(path: Path, content: str, message: str) -> None:
    document = read(path, content)
    with pytest.raises(PipelineError) as caught:
        document.sections("list", ["a"], 3)
    assert str(caught.value) == f"{path}:1: {message}"


def test_takes_a_text_for_a_list_of_one(path: Path) -> None:
    assert [text.value for text in read(path, "list: a\n").texts("list", 2)] == ["a"]
    assert [text.value for text in read(path, "list: [a, b]\n").texts("list", 2)] == ["a", "b"]
    with pytest.raises(PipelineError, match=r"list\[2\] is a whole number; it must be text"):
        read(path, "list: [a, 2]\n").texts("list", 2)


@pytest.mark.parametrize(
    ("scalar", "value", "lines"),
    [
        ("one two", "one two", {"one": 1, "two": 1}),
        ("one\n  two", "one two", {"one": 1, "two": 2}),
        ("|\n  one\n   two\n\n  three", "one\n two\n\nthree\n", {"one": 2, "two": 3, "three": 5}),
        ("|2- # why\n\n    one\n  two", "\n  one\ntwo", {"one": 3, "two": 4}),
        (">-\n  one\n  two\n\n  three", "one two\nthree", {"one": 2, "two": 3, "three": 5}),
        ('"one\n  two"', "one two", {"one": 1, "two": 2}),
        (r'"one\n two"', "one\n two", {"one": 1, "two": 1}),
        ("'it''s one\n  two'", "it's one two", {"one": 1, "two": 2}),
        ("|\n  # one\n  two", "# one\ntwo\n", {"one": 2, "two": 3}),
        ("|\n  ž one\n  two\n", "ž one\ntwo\n", {"one": 2, "two": 3}),
    ],
)
def test_knows_the_line_of_every_word_however_the_text_is_written(
    path: Path, scalar: str, value: str, lines: dict[str, int]
) -> None:
    text = read(path, f"sql: {scalar}\nname: x\n").text("sql")
    assert (text.value.rstrip("\n"), text.line) == (value.rstrip("\n"), 1)
    assert {word: text.line_at(text.value.index(word)) for word in lines} == lines


def test_finds_the_nearest_name_without_regard_to_case() -> None:
    assert nearest("FLIGHT", ["flights", "airlines"]) == '; did you mean "flights"?'
    assert nearest("zebra", ["flights", "airlines"]) == ""
    assert nearest("a", []) == ""
