"""What a suite is, what becomes of its tests, and what of that lets a run fail."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class Outcome(enum.Enum):
    """What became of one test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Result:
    """One test on one cluster; `detail` is why it failed or skipped itself, some lines at most."""

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    is_second: bool = False
    """It had failed, and was run once more."""


NOT_RUN = Result(Outcome.NOT_RUN, "the suite ended, or was ended, before it")


class SuiteUnusable(RuntimeError):
    """A suite that cannot be fetched, built or run at all, with the reason and what to do."""


class Suite(Protocol):
    """Tests that somebody else wrote, as they are run on one cluster."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def source(self) -> str:
        """Where it comes from, in words of the page."""
        ...

    @property
    def broker_ids(self) -> Sequence[int]:
        """The brokers of a cluster that it is run on."""
        ...

    @property
    def overrides(self) -> Mapping[str, object]:
        """Lines of `server.properties` that it needs beside those of all."""
        ...

    @property
    def ours_alone(self) -> str:
        """Why Apache Kafka 3.9.1 with ZooKeeper cannot be beside us; empty where it is."""
        ...

    @property
    def excluded(self) -> Mapping[str, str]:
        """Test, or a pattern with `*`, to the reason why it is not run; one that is no test's name fails the run."""
        ...

    def prepare(self) -> None:
        """Fetches and builds it below `.cache`, once. `SuiteUnusable` where that is impossible."""
        ...

    def tests(self) -> Sequence[str]:
        """The names of its tests that want a broker, those excluded too."""
        ...

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        """Runs these tests on a cluster, bounded in time; logs stay in `directory`. What is absent was not run."""
        ...


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """One suite on both clusters: all tests that were to be run are in `ours`, and in `kafkas` but on ours alone."""

    name: str
    version: str
    source: str
    ours: Mapping[str, Result]
    kafkas: Mapping[str, Result]
    excluded: Mapping[str, str] = field(default_factory=dict)
    """As the suite has it, by test or pattern."""
    excluded_tests: int = 0
    ours_alone: str = ""
    """As the suite has it."""

    def passed(self, results: Mapping[str, Result]) -> int:
        return sum(result.outcome is Outcome.PASSED for result in results.values())

    def differing(self) -> list[str]:
        """The tests that Apache Kafka passes and we do not, or that we alone fail, where it skips them or is not
        beside us: they fail the run.
        """
        if self.ours_alone:
            return [name for name, result in sorted(self.ours.items()) if result.outcome in _WRONG]
        return [
            name
            for name, result in sorted(self.ours.items())
            if (result.outcome is not Outcome.PASSED and self.kafkas[name].outcome is Outcome.PASSED)
            or (result.outcome in _WRONG and self.kafkas[name].outcome is Outcome.SKIPPED)
        ]

    def not_compared(self) -> list[str]:
        """The tests that were not run on Apache Kafka, as where its side ended before them, and failed here or were not
        run here either: they fail the run too, since nothing is known of them.
        """
        return [
            name
            for name, result in sorted(self.kafkas.items())
            if result.outcome is Outcome.NOT_RUN and self.ours[name].outcome in _WRONG
        ]

    def passed_second(self, results: Mapping[str, Result]) -> list[str]:
        """The tests that failed first, and passed alone: a busy machine's, or a fault that comes now and then."""
        return [
            name for name, result in sorted(results.items()) if result.is_second and result.outcome is Outcome.PASSED
        ]

    def failing_beside(self) -> list[str]:
        """The tests that Apache Kafka fails: the suite's fault, or this machine's."""
        return [name for name, result in sorted(self.kafkas.items()) if result.outcome in _WRONG]


_WRONG = (Outcome.FAILED, Outcome.NOT_RUN)


def reason_to_exclude(name: str, excluded: Mapping[str, str]) -> str | None:
    """Why a test is not run; None where it is."""
    return next((reason for pattern, reason in excluded.items() if fnmatch.fnmatchcase(name, pattern)), None)


def stale_exclusions(names: Sequence[str], excluded: Mapping[str, str]) -> list[str]:
    """The patterns that are the name of no test. Of tests below others (`a/b`) there is no list."""
    return [pattern for pattern in excluded if "/" not in pattern and not fnmatch.filter(names, pattern)]


def complete(names: Sequence[str], results: Mapping[str, Result]) -> dict[str, Result]:
    """A result for each of `names`; whatever else was reported (tests below them) is kept too."""
    return {**dict.fromkeys(names, NOT_RUN), **results}


def wrong_with(outcome: SuiteOutcome) -> list[str]:
    """What fails a run, one line (or more, with a failure's end) each; empty when all is well."""
    found = []
    for name in outcome.differing():
        result = outcome.ours[name]
        beside = "" if outcome.ours_alone else f", {outcome.kafkas[name].outcome.value} on Apache Kafka"
        found.append(f"{outcome.name}: {name}: {result.outcome.value} here{beside}\n{result.detail}".rstrip())
    if outcome.ours_alone:
        if not outcome.passed(outcome.ours):
            found.append(f"{outcome.name}: no test passed")
    elif not outcome.passed(outcome.kafkas):
        found.append(f"{outcome.name}: no test passed on Apache Kafka: nothing was compared")
    else:
        found += [
            f"{outcome.name}: {name}: {outcome.ours[name].outcome.value} here, and not run on Apache Kafka"
            for name in outcome.not_compared()
        ]
    return found
