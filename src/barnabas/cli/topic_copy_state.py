"""How far a copy of a topic is, in a file: what a later run goes on from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.cli.connection import CommandError

_VERSION: Final = 1
_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class CopyState:
    """What is copied from where to where, and the offset of the next record by partition of the source.

    Clusters and the source are known by their ids, which differ where one was made anew.
    """

    source_cluster: str | None
    source: str
    source_id: str
    target_cluster: str | None
    target: str
    offsets: dict[int, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            "version": _VERSION,
            "source_cluster": self.source_cluster,
            "source": self.source,
            "source_id": self.source_id,
            "target_cluster": self.target_cluster,
            "target": self.target,
            "offsets": {str(number): offset for number, offset in sorted(self.offsets.items())},
        }

    def read(self, path: Path) -> bool:
        """Takes the offsets from the file; False where there is none. Raises CommandError for a file that is no such,
        or is of another copy, and OSError.
        """
        try:
            with path.open("rb") as opened:
                data = opened.read(_BYTES_MAX + 1)
        except FileNotFoundError:
            return False
        try:
            document = json.loads(data)
            offsets = {int(number): int(offset) for number, offset in document["offsets"].items()}
            is_known = document["version"] == _VERSION and all(offset >= 0 for offset in offsets.values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            document, offsets, is_known = {}, {}, False
        if len(data) > _BYTES_MAX or not is_known:
            raise CommandError(f"{path} is no state of a copy; name another file, or remove this one")
        mine = self.document()
        for name, told in mine.items():
            if name != "offsets" and document.get(name) != told:
                raise CommandError(
                    f"{path} is the state of another copy: its {name.replace('_', ' ')} is {document.get(name)}, and "
                    f"not {told}; name another file"
                )
        self.offsets = offsets
        return True

    def write(self, path: Path) -> None:
        """Replaces the file as a whole: who is killed meanwhile leaves the former one. Raises OSError."""
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(json.dumps(self.document()) + "\n")
        os.replace(beside, path)
