"""no-kafka's tests, out of its package on npm: a client in JavaScript that speaks the protocol of Kafka 0.9."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.suites.fetching import npm_package
from tests.suites.model import Outcome, Result
from tests.suites.processes import plain_environment, run_bounded
from tests.suites.reports import DETAIL_CHARACTERS_MAX, junit

# What it names for its development, as far as its tests load it.
_BESIDE = {
    "mocha": "3.5.3",
    "chai": "3.5.0",
    "chai-as-promised": "6.0.0",
    "sinon": "2.4.1",
    "sinon-chai": "2.14.0",
}
_FIXED_ADDRESS = "wants a broker at the port 9092, wherever the cluster is"
_TOPIC, _PARTITIONS = "kafka-test-topic", 3
_TOPIC_SECONDS = 60.0


class NoKafka:
    """no-kafka; each file of its tests is a process of mocha's, and a test of it `file/test`."""

    name = "no-kafka"
    version = "3.4.4"
    source = "its package on npm"
    broker_ids = (1, 2, 3)
    overrides: Mapping[str, object] = {"auto.create.topics.enable": "false"}
    seconds_max = 180.0
    ours_alone = ""
    excluded: Mapping[str, str] = {
        "06.strategies.js": "wants no broker",
        "08.connection.js": _FIXED_ADDRESS,
        "09.partitioners.js": "wants no broker",
        "05.other.js/brokerRedirection::*": _FIXED_ADDRESS,
    }

    def prepare(self) -> None:
        self._package()

    def tests(self) -> Sequence[str]:
        return sorted(path.name for path in (self._package() / "test").glob("[0-9]*.js"))

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        _make_topic(bootstrap_servers)
        results: dict[str, Result] = {}
        for name in names:
            results |= self._run_file(name, bootstrap_servers, directory)
        return results

    def _run_file(self, name: str, bootstrap_servers: str, directory: Path) -> Mapping[str, Result]:
        report, log = directory / f"{name}.xml", directory / f"{name}.log"
        mocha = self._package().parent / "mocha" / "bin" / "_mocha"
        # Its tests allow mocha's two seconds, which a machine that others use too does not keep.
        below = [pattern.partition("/")[2].partition("::")[0] for pattern in self.excluded if "/" in pattern]
        without = ["--grep", f"^({'|'.join(below)})", "--invert"]
        how = ["--require", "test/globals", "--timeout", "20000", "--reporter", "xunit"]
        status = run_bounded(
            [
                "node",
                mocha,
                "--opts",
                "/dev/null",
                *how,
                *without,
                "--reporter-options",
                f"output={report}",
                f"test/{name}",
            ],
            self._package(),
            log,
            seconds_max=self.seconds_max,
            environment={**plain_environment(), "KAFKA_URL": bootstrap_servers},
        )
        text = report.read_text("utf-8", "replace") if report.exists() else ""
        if "</testsuite>" not in text:
            end = log.read_text("utf-8", "replace")[-DETAIL_CHARACTERS_MAX:]
            return {name: Result(Outcome.FAILED, f"ended with {status}, None is for a time-out\n{end}")}
        cases = {f"{name}/{case}": result for case, result in junit(text).items()}
        failed = [case for case, result in cases.items() if result.outcome is Outcome.FAILED]
        if failed or not cases:
            return {name: Result(Outcome.FAILED, json.dumps(failed)), **cases}
        is_any = any(result.outcome is Outcome.PASSED for result in cases.values())
        return {name: Result(Outcome.PASSED if is_any else Outcome.SKIPPED), **cases}

    def _package(self) -> Path:
        return npm_package(self.name, self.version, _BESIDE)


def _make_topic(bootstrap_servers: str) -> None:
    """The topic that a comment in its tests wants, with one replica: they read what was acknowledged by the leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    (future,) = admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)], request_timeout=_TOPIC_SECONDS).values()
    try:
        future.result(_TOPIC_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
