"""Files that name partitions: how they are read, and the list of partitions in those that are JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.cli.connection import CommandError, ExitStatus

if TYPE_CHECKING:
    from typing import BinaryIO

STANDARD_INPUT: Final = "-"


class FileText(NamedTuple):
    """What a file says, and what it is called in errors."""

    name: str
    text: str


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """A file that a user named; `-` is standard input. Raises CommandError where that is closed, and OSError."""
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise CommandError("standard input is closed: name a file, or give it what is to be read", ExitStatus.USAGE)
        yield sys.stdin.buffer
        return
    with open(path, "rb") as stream:
        yield stream


def read_text(path: str, bytes_max: int, form: str) -> FileText:
    """A file in UTF-8. Raises CommandError, which says of which `form` it must be, for what is none or is larger than
    `bytes_max`; OSError where it cannot be read.
    """
    with _opened(path) as stream:
        data = stream.read(bytes_max + 1)
    name = "standard input" if path == STANDARD_INPUT else path
    if len(data) > bytes_max:
        raise CommandError(f"{name}: the file is larger than {bytes_max:,} bytes; give it in several")
    try:
        return FileText(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: byte {error.start + 1} is not UTF-8; it must be {form}") from None


def json_partitions(file: FileText, form: str, number: Callable[[str], int]) -> tuple[dict[str, Any], list[Any]]:
    """The document in a file, and the list of its partitions, of which nothing is known yet. `number` reads numbers,
    since Python refuses those of very many digits with an error of its own. Raises CommandError.
    """
    name, text = file
    try:
        document = json.loads(text, parse_int=number)
    except ValueError as error:
        raise CommandError(f"{name}: it is not JSON ({error}); it must be {form}") from None
    except RecursionError:
        raise CommandError(f"{name}: it is not JSON (too deep); it must be {form}") from None
    partitions = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(partitions, list):
        raise CommandError(f"{name}: it has no list of partitions; it must be {form}")
    return document, partitions


def topic_of(where: str, entry: Any, form: str) -> str:
    """The topic of one partition of the list. Raises CommandError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("topic"), str) or not entry["topic"]:
        raise CommandError(f"{where}: it names no topic; it must be {form}")
    topic: str = entry["topic"]
    return topic
