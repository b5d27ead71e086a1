"""Commands of `barnabas` in the test's own process, which saves the start of Python for each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from barnabas.cli.main import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    output: str
    errors: str

    @property
    def document(self) -> Any:
        """The one JSON document that it printed; AssertionError with what it complained of, if it failed."""
        assert self.status == 0, self.errors
        (line,) = self.output.splitlines()
        return json.loads(line)

    @property
    def rows(self) -> list[str]:
        """The lines of output with single spaces."""
        return [" ".join(line.split()) for line in self.output.splitlines()]


def run_barnabas(*arguments: str, stdin: str | None = None) -> Done:
    """Runs `barnabas ARGUMENTS`, its input and output no terminal. What no command may let through is raised."""
    result = CliRunner().invoke(main, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)
