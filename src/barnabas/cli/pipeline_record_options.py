"""Options of `barnabas pipeline table` about how records are written, besides those that are older than it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The message of values in Protocol Buffers; of keys with a format its file, and the message of those; the address
    of a schema registry.
    """

    message: str | None = None
    key_schema_file: Path | None = None
    key_message: str | None = None
    registry: str | None = None


def record_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and gives them as `records`."""

    @click.option("--message", metavar="NAME", help="Records are this message of Protobuf; --schema-file has it.")
    @click.option(
        "--key-schema-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Keys are in Avro, or with --key-message in Protobuf; --confluent holds for them too.",
    )
    @click.option("--key-message", metavar="NAME", help="Of keys in Protobuf: the message.")
    @click.option(
        "--registry",
        metavar="URL",
        help="A schema registry, which has the schemas of records with its framing: in Avro none need be given.",
    )
    @functools.wraps(function)
    def given(
        *arguments: Any,
        message: str | None,
        key_schema_file: Path | None,
        key_message: str | None,
        registry: str | None,
        **others: Any,
    ) -> Any:
        records = RecordOptions(message, key_schema_file, key_message, registry)
        return function(*arguments, records=records, **others)

    return given
