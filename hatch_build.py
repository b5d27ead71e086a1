"""Generates type stubs and code of the schema files when a wheel or an editable install is built (artifacts)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Generated(BuildHookInterface):  # type: ignore[type-arg]
    """Generates `messages.pyi` and `generated/` of the schema files in this source tree, whatever else is installed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface's names
        source = Path(self.root) / "src"
        sys.path.insert(0, str(source))
        try:
            from barnabas.wire import generating, stubs

            (source / "barnabas" / "wire" / stubs.FILE_NAME).write_text(stubs.stubs(), encoding="utf-8")
            generating.main()
        finally:
            sys.path.remove(str(source))
