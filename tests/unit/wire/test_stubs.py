"""The generated stubs say what the run-time classes are: names, fields, types."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Iterator

import pytest

from barnabas.wire import catalogue, messages, stubs
from barnabas.wire.primitives import Buffer

TREE = ast.parse(stubs.stubs())
CLASSES = {node.name: node for node in TREE.body if isinstance(node, ast.ClassDef)}


def stubbed_fields(node: ast.ClassDef) -> Iterator[tuple[str, object]]:
    """Name and type of each field, the type made from the stub's text as a type checker would."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            assert isinstance(statement.target, ast.Name)
            space = {"Buffer": Buffer, **{name: getattr(messages, name) for name in CLASSES}}
            yield statement.target.id, eval(ast.unparse(statement.annotation), space)


def test_every_message_has_a_stub_and_no_other() -> None:
    assert tuple(CLASSES) == catalogue.message_names()


@pytest.mark.parametrize("name", catalogue.message_names())
def test_fields_and_types_are_those_of_the_class(name: str) -> None:
    made = getattr(messages, name)
    inner = {node.name: node for node in CLASSES[name].body if isinstance(node, ast.ClassDef)}
    assert inner.keys() == made.SCHEMA.structs.keys()
    pairs = [(made, CLASSES[name]), *((getattr(made, struct), node) for struct, node in inner.items())]
    for run_time, node in pairs:
        assert list(stubbed_fields(node)) == [(field.name, field.type) for field in dataclasses.fields(run_time)]
        assert typing.get_type_hints(run_time).keys() >= {field.name for field in dataclasses.fields(run_time)}


def test_the_stub_is_written_beside_the_module(monkeypatch: pytest.MonkeyPatch, tmp_path: typing.Any) -> None:
    monkeypatch.setattr("barnabas.wire.stubs.importlib.resources.files", lambda _package: tmp_path)
    (tmp_path / stubs.FILE_NAME).write_text("an older and longer one" * 10_000)
    stubs.main()
    assert (tmp_path / stubs.FILE_NAME).read_text(encoding="utf-8") == stubs.stubs()
