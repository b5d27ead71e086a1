"""The same command of Apache Kafka's tools to a cluster of ours and to one of Apache Kafka's: the same output."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import ToolRun, tool_run
from tests.support.apache_kafka_cluster import ApacheKafkaCluster, apache_kafka_cluster
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.waiting import wait_until

BROKERS: Final = 3
PATIENCE_SECONDS: Final = 60.0
_ASKING: Final = frozenset({"--describe", "--list"})
Command = tuple[str, ...]
"""The main class, and its arguments but for `--bootstrap-server`."""

_LOG_LINE: Final = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+\] ")
_STACK_LINE: Final = re.compile(r"^(\s+at |\s+\.\.\. \d+ more|Caused by: )")
_REASON: Final = re.compile(r"(under strategy [A-Z][A-Za-z]+(\(\w+\))?): .*")
_TOPIC_ID: Final = re.compile(r"(TopicId: |topic IDs? ')[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool said: its status, its lines, without stack traces, times and ids of topics, and without the reasons
    that a controller of ours gives behind Kafka's words where nobody is elected (0012).
    """

    status: int
    lines: tuple[str, ...]
    errors: tuple[str, ...]

    def only(self, shown: Callable[[str], bool] | None) -> Said:
        """With those lines of the output that are to be shown."""
        return self if shown is None else replace(self, lines=tuple(filter(shown, self.lines)))


class TwoClusters:
    """Three brokers of each kind, with the same configuration."""

    def __init__(self, ours: BrokerCluster, theirs: ApacheKafkaCluster) -> None:
        self.ours = ours
        self.theirs = theirs
        self.running = set(range(1, BROKERS + 1))
        """The brokers that were not killed: tools are told of these only."""
        self._pool = ThreadPoolExecutor(2)

    @property
    def bootstrap_servers(self) -> tuple[str, str]:
        """Ours, theirs."""
        return self.ours.bootstrap_servers, self.theirs.bootstrap_servers

    def run(self, command: Command) -> tuple[Said, Said]:
        """What the tool says of ours and of theirs, both at once."""

        def said(servers: str) -> Said:
            main_class, *arguments = command
            alive = ",".join(each for number, each in enumerate(servers.split(","), 1) if number in self.running)
            return _said(tool_run(main_class, ["--bootstrap-server", alive, *arguments]), servers)

        ours, theirs = self._pool.map(said, self.bootstrap_servers)
        return ours, theirs

    def differences(self, commands: Sequence[Command], shown: Callable[[str], bool] | None = None) -> list[str]:
        """Runs all of them, and tells of those whose outputs differ; `shown` says which lines count.

        What only asks is asked again while the answers differ: brokers hear of changes one after the other.
        """
        found = []
        for command in commands:
            ours, theirs = self.run(command)

            def are_alike() -> bool:
                nonlocal ours, theirs
                ours, theirs = self.run(command)  # noqa: B023
                return ours.only(shown) == theirs.only(shown)

            if ours.only(shown) != theirs.only(shown) and _ASKING.intersection(command):
                with contextlib.suppress(TimeoutError):
                    wait_until(are_alike, "both say the same", PATIENCE_SECONDS)
            if ours.only(shown) != theirs.only(shown):
                found.append(f"{' '.join(command)}\n  ours:   {ours.only(shown)}\n  theirs: {theirs.only(shown)}")
        return found

    def kill_broker(self, broker_id: int) -> None:
        self.running.discard(broker_id)
        self.ours.brokers[broker_id].kill()
        self.theirs.kill_broker(broker_id)

    def start_broker(self, broker_id: int) -> None:
        self.ours.brokers[broker_id].start()
        self.theirs.start_broker(broker_id)
        self.running.add(broker_id)


@contextlib.contextmanager
def two_clusters(directory: Path, overrides: Mapping[str, str]) -> Iterator[TwoClusters]:
    """Both of them, killed with the block."""
    with (
        broker_cluster(directory / "ours", BROKERS, overrides=overrides) as ours,
        apache_kafka_cluster(directory / "theirs", BROKERS, overrides=overrides) as theirs,
    ):
        yield TwoClusters(ours, theirs)


def _said(run: ToolRun, servers: str) -> Said:
    replaced = {address: f"broker-{number}" for number, address in enumerate(servers.split(","), 1)}
    return Said(run.status, _lines(run.output, replaced), _lines(run.errors, replaced))


def _lines(text: str, replaced: Mapping[str, str]) -> tuple[str, ...]:
    for old, new in replaced.items():
        text = text.replace(old, new)
    kept = (_LOG_LINE.sub("", line).rstrip() for line in text.splitlines())
    return tuple(
        _REASON.sub(r"\1", _TOPIC_ID.sub(r"\1ID", line)) for line in kept if line and not _STACK_LINE.match(line)
    )
