"""`python -m barnabas.cli` is the `barnabas` command, also where the script is not installed."""

from __future__ import annotations

from barnabas.cli.entry import run

run()
