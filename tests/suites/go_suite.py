"""The tests of a package of a Go module, compiled, and run on a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.suites.fetching import called, go_module
from tests.suites.model import Result
from tests.suites.processes import plain_environment, run_bounded
from tests.suites.reports import go_json

_COMPILE_SECONDS_MAX = 1_500.0


@dataclass(frozen=True, slots=True)
class GoSuite:
    """`module` at `version`, of which the tests in `package` are run; `told` are variables that tell them of a cluster.

    Subtests are excluded by their whole names.
    """

    name: str
    module: str
    package: str
    version: str
    seconds_max: int
    told: Callable[[str], Mapping[str, str]]
    excluded: Mapping[str, str] = field(default_factory=dict)
    ours_alone: str = ""
    broker_ids: Sequence[int] = (1, 2, 3)
    only: Sequence[str] = ()
    """The tests that want a broker, where their names do not tell; all otherwise."""
    stubs: Mapping[str, str] = field(default_factory=dict)
    """Modules that tests only start a cluster with, and the source that stands in their place."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What tests read where they are run."""
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"the Go module `{self.module}`, package `{self.package}`"

    def prepare(self) -> None:
        self._binary()

    def tests(self) -> Sequence[str]:
        shown = called(
            [self._binary(), "-test.list", "."],
            self._binary().parent,
            environment=dict(self.told("127.0.0.1:1")),
        )
        return [line for line in shown.splitlines() if line.startswith("Test") and (not self.only or line in self.only)]

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        for name, text in self.files.items():
            (directory / name).write_text(text)
        log = directory / "test2json.log"
        wanted = "|".join(re.escape(name) for name in names)
        below = ["/".join(f"^{re.escape(part)}$" for part in name.split("/")) for name in self.excluded if "/" in name]
        skip = [f"-test.skip={'|'.join(below)}"] if below else []
        bound = f"-test.timeout={self.seconds_max}s"
        run_bounded(
            [
                "go",
                "tool",
                "test2json",
                "-t",
                self._binary(),
                "-test.v=test2json",
                f"-test.run=^({wanted})$",
                *skip,
                bound,
            ],
            directory,
            log,
            seconds_max=self.seconds_max + 30.0,
            environment={**plain_environment(), **self.told(bootstrap_servers)},
        )
        return go_json(log.read_text("utf-8", "replace").splitlines())

    def _binary(self) -> Path:
        package = f"{self.module}/{self.package}"
        directory = go_module(self.module, self.version, [package], self.stubs)
        binary = directory / f"{self.package.rpartition('/')[2]}.test"
        if not binary.exists():
            called(["go", "test", "-c", "-o", binary, package], directory, seconds_max=_COMPILE_SECONDS_MAX)
        return binary
