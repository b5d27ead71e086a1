"""franz-go's tests of its client, out of the Go module: package `kgo`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.suites.fetching import called, go_module
from tests.suites.model import Result
from tests.suites.processes import plain_environment, run_bounded
from tests.suites.reports import go_json

_MODULE = "github.com/twmb/franz-go"
_PACKAGE = f"{_MODULE}/pkg/kgo"
# Half a million by their default, for some twenty consumers each.
_RECORDS = 50_000


class FranzGo:
    """franz-go's package `kgo`."""

    name = "franz-go"
    version = "v1.20.6"
    source = "the Go module"
    broker_ids = (1, 2, 3)
    overrides: Mapping[str, object] = {}
    seconds_max = 900
    excluded: Mapping[str, str] = {}

    def prepare(self) -> None:
        self._binary()

    def tests(self) -> Sequence[str]:
        # Its package asks for no broker before a test runs.
        shown = called([self._binary(), "-test.list", "."], self._binary().parent)
        return [line for line in shown.splitlines() if line.startswith("Test")]

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        log = directory / "test2json.log"
        run = "|".join(re.escape(name) for name in names)
        bound = f"-test.timeout={self.seconds_max}s"
        run_bounded(
            ["go", "tool", "test2json", "-t", self._binary(), "-test.v=test2json", f"-test.run=^({run})$", bound],
            directory,
            log,
            seconds_max=self.seconds_max + 30.0,
            environment={
                **plain_environment(),
                "KGO_SEEDS": bootstrap_servers,
                "KGO_TEST_RECORDS": str(_RECORDS),
                "KGO_LOG_LEVEL": "none",
            },
        )
        return go_json(log.read_text("utf-8", "replace").splitlines())

    def _binary(self) -> Path:
        directory, _ = go_module(_MODULE, self.version, [_PACKAGE])
        binary = directory / "kgo.test"
        if not binary.exists():
            called(["go", "test", "-c", "-o", binary, _PACKAGE], directory, seconds_max=900.0)
        return binary
