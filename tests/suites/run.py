"""Runs the suites of others on a cluster of ours and on Apache Kafka's: `python -m tests.suites.run`.

Exit status 1 when a test that Apache Kafka passes does not pass here, or a suite could not be run. With `--write` the
results become those of the page (`docs/test-suites.md`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.suites.catalogue import SUITES
from tests.suites.clusters import KAFKAS, OURS, running_cluster
from tests.suites.fetching import SUITES_DIRECTORY
from tests.suites.model import (
    Outcome,
    Result,
    Suite,
    SuiteOutcome,
    SuiteUnusable,
    complete,
    reason_to_exclude,
    stale_exclusions,
    wrong_with,
)
from tests.suites.page import PAGE, RESULTS, page, stored, with_outcomes


def run_suite(suite: Suite, work: Path, only: Sequence[str]) -> SuiteOutcome:
    """The suite on both clusters, one after the other, each fresh. `SuiteUnusable` where it cannot be run."""
    suite.prepare()
    names = list(suite.tests())
    stale = stale_exclusions(names, suite.excluded)
    if not names or stale:
        raise SuiteUnusable(f"{suite.name}: {'excluded, and no test: ' + ', '.join(stale) if stale else 'no tests'}")
    wanted = [name for name in names if reason_to_exclude(name, suite.excluded) is None and (not only or name in only)]
    kafkas = {} if suite.ours_alone else _on_cluster(KAFKAS, suite, work, wanted)
    ours = _on_cluster(OURS, suite, work, wanted)
    # Subtests have no other list than what was run.
    names_run = dict.fromkeys([*kafkas, *ours])
    return SuiteOutcome(
        suite.name,
        suite.version,
        suite.source,
        complete(list(names_run), ours),
        {} if suite.ours_alone else complete(list(names_run), kafkas),
        suite.excluded,
        # Of those below others, whose number a pattern does not tell, the ones that are named.
        len(names) - len(wanted) + sum("/" in each and "*" not in each for each in suite.excluded) if not only else 0,
        suite.ours_alone,
    )


def _on_cluster(kind: str, suite: Suite, work: Path, names: Sequence[str]) -> dict[str, Result]:
    """What failed is run once more, alone: pauses that are fixed in a test are not kept by a busy machine."""
    began = time.monotonic()
    directory = work / kind
    directory.mkdir()
    with running_cluster(kind, directory / "cluster", suite.broker_ids, suite.overrides) as bootstrap_servers:
        first = directory / "first"
        first.mkdir()
        results = complete(names, suite.run(bootstrap_servers, first, names))
        failed = [name for name in names if results[name].outcome in {Outcome.FAILED, Outcome.NOT_RUN}]
        if failed:
            again = directory / "again"
            again.mkdir()
            second = suite.run(bootstrap_servers, again, failed)
            # With a test those below it are run again that had passed.
            results |= {
                name: dataclasses.replace(result, is_second=True)
                for name, result in second.items()
                if name not in results or result.outcome is not results[name].outcome
            }
    for name, result in results.items():
        if result.outcome is not Outcome.PASSED or result.is_second:
            print(f"  {kind}: {name}: {result.outcome.value}{' at last' if result.is_second else ''}", flush=True)
    passed = sum(result.outcome is Outcome.PASSED for result in results.values())
    print(f"{suite.name} on {kind}: {passed} of {len(results)} in {time.monotonic() - began:.0f} s", flush=True)
    return results


@contextlib.contextmanager
def _work_directory(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="test-suites-") as directory:
        yield Path(directory)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.run", description=__doc__)
    parser.add_argument("--suite", action="append", choices=sorted(SUITES), help="only this one; may be repeated")
    parser.add_argument("--test", action="append", default=[], help="only this test of it; may be repeated")
    parser.add_argument("--keep", type=Path, help="a new directory that clusters and logs stay in")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} and {PAGE.name}")
    chosen = parser.parse_args(arguments)
    SUITES_DIRECTORY.mkdir(parents=True, exist_ok=True)
    wrong, outcomes = [], []
    with _work_directory(chosen.keep) as work:
        for number, name in enumerate(chosen.suite or SUITES):
            place = work / f"suite-{number}"
            place.mkdir()
            try:
                outcome = run_suite(SUITES[name], place, chosen.test)
            except (SuiteUnusable, OSError, RuntimeError, AssertionError) as error:
                # A suite or a cluster that cannot be started is no reason not to run the others.
                wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
            outcomes.append(outcome)
            wrong += wrong_with(outcome)
    if chosen.write:
        results = with_outcomes(stored(), outcomes)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        PAGE.write_text(page(results), "utf-8")
    print("\n".join([*wrong, f"{len(outcomes)} suites run, {len(wrong)} things wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
