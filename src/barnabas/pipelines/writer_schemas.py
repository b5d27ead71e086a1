"""The schemas that records of topics were written with, or are, by their ids, as far as a run knows them by now."""

from __future__ import annotations

UNKNOWN_SCHEMA = "barnabas-unknown-schema:"
"""Begins the message of the error of a record whose id nobody has looked up; the source's name, a colon, the id."""


class RegisteredSchema:
    """The id of a schema that a run registers before it writes; -1 until then."""

    def __init__(self) -> None:
        self.schema_id = -1


class WriterSchemas:
    """Grows while a run lasts: a query that meets an id that is not here fails, and begins again once it is.

    Of an id that the registry does not know, or whose schema is none of Avro's, the schema is None: its records do not
    fit. Until a registry was asked nothing is known, and ids are not looked at.
    """

    def __init__(self) -> None:
        self.was_asked = False
        self.by_id: dict[int, str | None] = {}
