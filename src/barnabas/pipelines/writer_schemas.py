"""The schemas that records of topics were written with, or are, by their ids, as far as a run knows them by now."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

UNKNOWN_SCHEMA = "barnabas-unknown-schema:"
"""Begins the message of the error of a record whose id nobody has looked up; the source's name, `.key` where it is the
key's schema, a colon, the id.
"""
REFUSED_IDS_MAX: Final = 50_000
"""How many ids that no registry knows are kept in mind; the one that was met longest ago is asked for again."""
REFERENCED_MAX: Final = 200
REFERENCED_CHARACTERS_MAX: Final = 8 * 1024 * 1024
"""How many answers about schemas that others refer to are kept, the last ones, and how long all of them together."""


class Referenced(NamedTuple):
    """What a registry says of a schema that others refer to; None where that is none."""

    text: str | None
    places: tuple[tuple[str, int], ...] | None
    """Subjects and versions of those that it refers to itself."""


class RegisteredSchema:
    """The id of a schema that a run registers before it writes; -1 until then."""

    def __init__(self) -> None:
        self.schema_id = -1


class WriterSchemas:
    """Grows while a run lasts. Until a registry was asked nothing is known, and ids are not looked at.

    A query that meets an id that is not in `by_id` fails, and begins again once it is; until an id was met that the
    registry does not know, or whose schema is none of the format's (`is_careful`). From then on ids are looked at
    before a batch is begun, and a record with one that is not in `by_id` does not fit.
    """

    def __init__(self) -> None:
        self.was_asked = False
        self.is_careful = False
        self.by_id: dict[int, str] = {}
        """Of Avro the schema in JSON; of Protocol Buffers the places of the source's message, a list of lists."""
        self._referenced: OrderedDict[tuple[str, int], Referenced] = OrderedDict()
        self._referenced_characters = 0
        self._refused: OrderedDict[int, None] = OrderedDict()
        self._on_thread = threading.local()

    @property
    def usable(self) -> Mapping[int, str]:
        """Of `by_id` what records are read by, on this thread, as of now."""
        held: frozenset[int] = getattr(self._on_thread, "held", frozenset())
        return {schema_id: schema for schema_id, schema in self.by_id.copy().items() if schema_id not in held}

    def hold_back(self, ids: frozenset[int]) -> None:
        """From now on records with these ids do not fit, on this thread, whatever is known of their schemas."""
        self._on_thread.held = ids

    def refuse(self, schema_id: int) -> None:
        """Takes note of an id whose records do not fit."""
        self._refused[schema_id] = None
        self._refused.move_to_end(schema_id)
        if len(self._refused) > REFUSED_IDS_MAX:
            self._refused.popitem(last=False)

    def referenced_at(self, place: tuple[str, int]) -> Referenced | None:
        """What the registry says of a subject and version; None where it is to be asked."""
        return self._referenced.get(place)

    def keep_referenced(self, place: tuple[str, int], answer: Referenced) -> None:
        """Takes note of what the registry says of a subject and version, which it was not asked for lately."""
        self._referenced[place] = answer
        self._referenced_characters += len(answer.text or "")
        while len(self._referenced) > REFERENCED_MAX or self._referenced_characters > REFERENCED_CHARACTERS_MAX:
            _, oldest = self._referenced.popitem(last=False)
            self._referenced_characters -= len(oldest.text or "")

    def is_settled(self, schema_id: int) -> bool:
        """Whether it is known what becomes of records with this id."""
        return schema_id in self.by_id or schema_id in self._refused
