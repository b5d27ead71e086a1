"""Fixtures of the commands that ask a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from barnabas.cli.main import main
from tests.unit.cli.fake_cluster import FakeCluster, fake_cluster


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    output: str
    errors: str

    @property
    def document(self) -> Any:
        """The one JSON document that it printed."""
        (line,) = self.output.splitlines()
        return json.loads(line)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """What the commands talk to."""
    with fake_cluster(monkeypatch) as fake:
        yield fake


@pytest.fixture
def barnabas() -> Callable[..., Done]:
    """Runs `barnabas` with these arguments in this process, its output no terminal."""

    def run(*arguments: str) -> Done:
        result = CliRunner().invoke(main, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return run
