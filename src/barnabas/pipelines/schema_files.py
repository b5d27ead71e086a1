"""A schema that was found in a sample, in a file beside the pipeline: frozen there, and wider when somebody asks.

A file that is there only ever gets columns more, behind those that it has, whose types stay what they are: so tables
behind the pipeline get columns, and no other types.
"""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.spark_schema import SchemaError, parse_schema, quoted_name


@dataclass(frozen=True, slots=True)
class WidenedSchema:
    """What the file is to be, Spark's DDL with a column in each line, and the columns that are new in it."""

    text: str
    added: tuple[str, ...]


def widened(before: str | None, found: str) -> WidenedSchema:
    """The schema of the file, if there is one, and the columns of the one that was found that it lacks.

    Raises PipelineError for a file that is no schema.
    """
    try:
        kept = () if before is None else parse_schema(before)
    except SchemaError as error:
        raise PipelineError(f"the file that is there is no schema: {error}") from None
    known = {column.name.lower() for column in kept}
    added = tuple(column for column in parse_schema(found) if column.name.lower() not in known)
    lines = (f"{quoted_name(column.name)} {column.type}" for column in (*kept, *added))
    return WidenedSchema(",\n".join(lines) + "\n", tuple(column.name for column in added))
