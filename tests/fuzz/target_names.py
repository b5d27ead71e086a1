"""The names of the targets, to be had without importing what is fuzzed, which has to be instrumented as it is."""

from __future__ import annotations

from typing import Final

TARGET_NAMES: Final = (
    "messages",
    "records",
    "log-files",
    "coordinator-files",
    "coordinator-frames",
    "znodes",
    "logins",
    "pipelines",
)
