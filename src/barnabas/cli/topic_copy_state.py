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

    Clusters and topics are known by their ids, which differ where one was made anew.
    """

    source_cluster: str | None
    source: str
    source_id: str
    target_cluster: str | None
    target: str
    target_id: str = ""
    """Empty until `found_target`."""
    offsets: dict[int, int] = field(default_factory=dict)
    runs: dict[str, Any] = field(default_factory=dict)
    """For the offsets of groups, as `CopiedGroups` has it; empty where none go along."""

    def document(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            "version": _VERSION,
            "source_cluster": self.source_cluster,
            "source": self.source,
            "source_id": self.source_id,
            "target_cluster": self.target_cluster,
            "target": self.target,
            "target_id": self.target_id,
            "offsets": {str(number): offset for number, offset in sorted(self.offsets.items())},
            **({"runs": self.runs} if self.runs else {}),
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
            if name not in ("offsets", "runs", "target_id") and document.get(name) != told:
                raise CommandError(
                    f"{path} is the state of another copy: its {name.replace('_', ' ')} is {document.get(name)}, and "
                    f"not {told}; name another file"
                )
        self.offsets = offsets
        runs = document.get("runs")
        self.runs = runs if isinstance(runs, dict) else {}
        self.target_id = str(document.get("target_id"))
        return True

    def found_target(self, target_id: str, path: Path | None) -> None:
        """The target has this id. Raises CommandError where the file that was read is of a former one."""
        if self.target_id and self.target_id != target_id:
            raise CommandError(
                f"{path} is the state of a copy to a former topic {self.target}, which was deleted and made again "
                "since; name another file, or remove this one, to begin anew"
            )
        self.target_id = target_id

    def write(self, path: Path) -> None:
        """Replaces the file as a whole: who is killed meanwhile leaves the former one. Raises CommandError."""
        path = path.resolve()  # a link stays one
        beside = path.with_name(f".{path.name}.new")
        try:
            beside.write_text(json.dumps(self.document()) + "\n")
            os.replace(beside, path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise CommandError(f"{path}: the state cannot be kept there: {error.strerror or error}") from error
