"""Finds what was generated of the schema files when Barnabas was built: schemas as rows, and code of classes and codec.

`generating` writes a module per schema file into the folder `generated`; Python keeps them compiled as it does all
others, so that a process need not read schemas and compile codecs at each start. What is not there is made as without:
other versions, and everything where a module is missing, broken, or of other sources than those that are here.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType
from typing import Any, Final

PACKAGE: Final = "barnabas.wire"
FOLDER: Final = os.path.join(os.path.dirname(__file__), "generated")
SCHEMAS: Final = "schemas"
WRITERS: Final = (
    "catalogue.py",
    "classes.py",
    "compiler.py",
    "compiler_decode.py",
    "compiler_encode.py",
    "generated_code.py",
    "generating.py",
    "primitives.py",
    "schema.py",
    "schema_reader.py",
    "schema_rows.py",
)
"""The files that decide what is generated of a schema file."""


def module_name(file: str) -> str:
    """The module that is generated of a schema file."""
    return f"of_{file.replace('.', '_')}"


def made_of(file: str) -> str:
    """Says from which text of the schema file, and by which code, a module was made. Raises OSError where they cannot
    be read.
    """
    return importlib.util.source_hash(_read(f"{SCHEMAS}/{file}") + _writers()).hex()


@functools.cache
def module(file: str) -> dict[str, Any] | None:
    """What the module of a schema file has, by name; None where it is not to be used."""
    try:
        spec = PathFinder.find_spec(module_name(file), [FOLDER])
        if spec is None or spec.loader is None or _is_compiled_at_each_start(spec):
            return None
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        space = vars(found)
        return space if space["MADE_OF"] == made_of(file) else None
    except Exception:  # noqa: BLE001 - whatever is wrong with it, all goes on without it
        return None


def function(file: str, name: str, version: int, kind: str) -> tuple[FunctionType, tuple[Any, ...]] | None:
    """The `kind` of function for a message in a version, and what it refers to by name; None where none was made."""
    found = module(file)
    made: tuple[FunctionType, tuple[Any, ...]] | None = (
        None if found is None else found["CODEC"].get((name, version, kind))
    )
    return made


def bound(made: FunctionType, space: dict[str, Any]) -> FunctionType:
    """The function with other globals than those of its module, as if `exec` had made it there."""
    function = FunctionType(made.__code__, space, made.__name__, made.__defaults__)
    function.__kwdefaults__ = made.__kwdefaults__
    return function


def _is_compiled_at_each_start(spec: ModuleSpec) -> bool:
    """Whether Python neither finds a module compiled nor keeps it so: then there is nothing to gain."""
    origin = spec.origin or ""
    if origin.endswith(".pyc") or (spec.cached is not None and os.path.exists(spec.cached)):
        return False
    is_in_an_archive = not os.path.exists(origin)
    return sys.dont_write_bytecode or spec.cached is None or is_in_an_archive


@functools.cache
def _writers() -> bytes:
    return importlib.util.source_hash(b"".join(map(_read, WRITERS)))


def _read(file: str) -> bytes:
    data = pkgutil.get_data(PACKAGE, file)
    if data is None:
        raise FileNotFoundError(file)
    return data
