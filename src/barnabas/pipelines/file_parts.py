"""What the readers of a pipeline's parts share: views known so far, the forms of topics, choices and directories."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from barnabas.pipelines.table_urls import UrlError, file_path, scheme_of, table_url
from barnabas.pipelines.yaml_positions import Section, Text, nearest

TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
Choice = TypeVar("Choice", bound=enum.Enum)

_ONLY_HERE: Final = {
    "state": "a run keeps its lock there, and has what it notes on the disk before it goes on",
    "parquet": "a batch takes its place by a rename, all at once. Delta and Iceberg tables may be at URLs",
}
"""Why what a key names is a directory, and nothing else."""


@dataclass(frozen=True, slots=True)
class View:
    """What later parts of the file may know of a source or a step; `columns` as StepQuery has them."""

    name: str
    columns: tuple[str, ...] | None
    is_stream: bool


def refuse_unknown_column(section: Section, column: Text, key: str, columns: tuple[str, ...] | None, view: str) -> None:
    """Where a view's columns are known; where not, Spark will see."""
    if columns is None or column.value.lower() in (name.lower() for name in columns):
        return
    hint = nearest(column.value, columns) or f"; it has: {', '.join(columns)}"
    raise section.error(f'{key} "{column.value}" is not a column of {view}{hint}', column.line)


def topic_of(section: Section) -> Text:
    """The topic that a section names. Raises PipelineError for what cannot be one."""
    topic = section.text("topic")
    if not TOPIC_NAME.fullmatch(topic.value) or topic.value in {".", ".."}:
        message = f'"{topic.value}" cannot be a topic: its name is 1 to 249 letters, digits, ".", "_" and "-"'
        raise section.error(message, topic.line)
    return topic


def choice_of(section: Section, key: str, choices: type[Choice]) -> Choice:
    """One of an enum, by its value."""
    text = section.text(key)
    known = {str(choice.value): choice for choice in choices}
    if text.value not in known:
        hint = nearest(text.value, known) or f"; there is: {', '.join(known)}"
        raise section.error(f'{key} "{text.value}" is not known{hint}', text.line)
    return known[text.value]


def directory_of(section: Section, path: Path, key: str, text: Text) -> Path:
    """A path of this machine, relative to the pipeline's file, or as `file:///path`. Raises PipelineError for one that
    is elsewhere.
    """
    value = text.value.strip()
    try:
        found = file_path(value)
    except UrlError as error:
        raise section.error(f"{key} {error}", text.line) from None
    if found is None and scheme_of(value) is not None:
        why = f": {_ONLY_HERE[key]}" if key in _ONLY_HERE else ""
        shown = value if "@" not in value else f"{scheme_of(value)}:..."
        raise section.error(f'{key} "{shown}" must be a path of this machine, or of a mount{why}', text.line)
    if "\0" in value or len(value) > 4_096:
        raise section.error(f"{key} is not a usable path", text.line)
    return (beside(path) / (value if found is None else found)).resolve()


def place_of(section: Section, path: Path, key: str, text: Text) -> tuple[Path | None, str]:
    """Where a table is: its directory, as `directory_of` has it, or its URL (`table_urls`). Raises PipelineError."""
    if scheme_of(text.value) in {None, "file"}:
        return directory_of(section, path, key, text), ""
    try:
        return None, table_url(text.value)
    except UrlError as error:
        raise section.error(f"{key} {error}", text.line) from None


def beside(path: Path) -> Path:
    """The directory of the pipeline's file, which relative paths start from."""
    return path.resolve().parent
