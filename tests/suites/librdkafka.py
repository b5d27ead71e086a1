"""librdkafka's own tests, out of the crate `rdkafka-sys`, which has all of librdkafka's source: `tests/`.

Each test is a process of librdkafka's `test-runner`, so that one that crashes or hangs takes no other with it. Those
that want no broker are not run: they say nothing about one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.suites.fetching import called, crate, source_archive
from tests.suites.model import Outcome, Result
from tests.suites.processes import plain_environment, run_bounded
from tests.suites.reports import DETAIL_CHARACTERS_MAX, librdkafka_state
from tests.support.apache_kafka import TOPIC_COMMAND
from tests.support.apache_kafka_jars import apache_kafka_jars
from tests.support.java import java

_CRATE = "4.10.0+2.12.1"
# Headers only, which some tests read JSON with: they come with a package of PyPI too.
_RAPIDJSON = "1.25"
_PROCESSES = 2
# Each of its command line tools is a JVM, which takes seconds to start on a busy machine.
_PATIENCE = 4
_BUILD_SECONDS_MAX = 1_500.0
_TEST = re.compile(
    r"^    _TEST\(\s*(?P<name>\w+),(?P<rest>.*?)\),\n(?=    _TEST|\n|#|    /\*)", re.DOTALL | re.MULTILINE
)
_TOOLS = {"kafka-topics.sh": TOPIC_COMMAND, "kafka-acls.sh": "kafka.admin.AclCommand", "kafka-run-class.sh": ""}
_LEFT_OUT = ("WITH_SASL", "WITH_SSL", "WITH_CURL", "WITH_ZSTD", "ENABLE_LZ4_EXT", "RDKAFKA_BUILD_EXAMPLES")


class Librdkafka:
    """librdkafka, on brokers that make topics by themselves, or (`scenario`, as its tests call it) on others."""

    version = _CRATE.partition("+")[2]
    source = f"the crate `rdkafka-sys` {_CRATE}, which has librdkafka's source with its tests"
    broker_ids = (1, 2, 3)
    seconds_max = 300.0

    def __init__(self, scenario: str, excluded: Mapping[str, str]) -> None:
        self.name = "librdkafka" if scenario == "default" else f"librdkafka, {scenario}"
        self.excluded = excluded
        self.overrides: Mapping[str, object] = (
            {"auto.create.topics.enable": "false"} if scenario == "noautocreate" else {}
        )
        self._scenario = scenario

    def prepare(self) -> None:
        self._runner()

    def tests(self) -> Sequence[str]:
        return broker_tests((self._source() / "tests" / "test.c").read_text("utf-8"), self._scenario)

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        tools = directory / "kafka"
        _write_tools(tools)
        tests = directory / "tests"
        _write_java_clients(self._source() / "tests" / "java", tests, tools)
        (directory / "src").mkdir()
        shutil.copy(self._source() / "src" / "statistics_schema.json", directory / "src")
        (directory / "test.conf").write_text(
            f"metadata.broker.list={bootstrap_servers}\ntest.timeout.multiplier={_PATIENCE}\n"
        )
        environment = {
            **plain_environment(),
            "TEST_KAFKA_VERSION": "3.9.1",
            "KAFKA_PATH": str(tools),
            "BROKERS": bootstrap_servers,
            "RDKAFKA_TEST_CONF": str(directory / "test.conf"),
            "TEST_SCENARIO": self._scenario,
            **{f"BROKER_ADDRESS_{number}": address for number, address in enumerate(bootstrap_servers.split(","), 1)},
        }
        with ThreadPoolExecutor(_PROCESSES) as threads:
            results = threads.map(lambda name: self._run_one(name, tests, directory, environment), names)
            return dict(zip(names, results, strict=True))

    def _run_one(self, name: str, tests: Path, directory: Path, environment: Mapping[str, str]) -> Result:
        log, report = directory / f"{name}.log", directory / f"{name}.json"
        # -L: without tests that want no broker; -Q: fewer records where a test has both.
        status = run_bounded(
            [self._runner(), "-p1", "-L", "-Q", name],
            tests,
            log,
            seconds_max=self.seconds_max,
            environment={**environment, "TEST_REPORT": str(report)},
        )
        text = log.read_text("utf-8", "replace")
        outcome = librdkafka_state(report.read_text("utf-8"), name) if report.exists() else None
        if outcome is Outcome.PASSED:
            return Result(outcome)
        said = re.findall(rf"\|\S* {name} .*\|(.*)", text)
        detail = _plain(said[-1]).strip() if said else _plain(text)[-DETAIL_CHARACTERS_MAX:]
        if outcome is None:
            return Result(Outcome.FAILED, f"ended with {status}, None is for a time-out\n{detail}")
        return Result(outcome, detail)

    def _source(self) -> Path:
        # As the compiler names it.
        return crate("rdkafka-sys", _CRATE).resolve() / "librdkafka"

    def _runner(self) -> Path:
        source = self._source()
        build = source / "build"
        runner = build / "tests" / "test-runner"
        if not runner.exists():
            # Its header includes curl's whether it is built with it or not.
            stub = source / "stub" / "curl"
            stub.mkdir(parents=True, exist_ok=True)
            (stub / "curl.h").write_text("/* Built without curl. */\n")
            rapidjson = source_archive("python-rapidjson", _RAPIDJSON) / "rapidjson" / "include"
            # Topics are named by the file of the test, as it is named to the compiler.
            flags = f"-I{stub.parent} -fmacro-prefix-map={source / 'tests'}/= -w"
            how: list[str | Path] = [
                *(f"-D{option}=OFF" for option in _LEFT_OUT),
                *(f"-D{option}=ON" for option in ("RDKAFKA_BUILD_TESTS", "RDKAFKA_BUILD_STATIC")),
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DCMAKE_C_FLAGS={flags}",
                f"-DCMAKE_CXX_FLAGS={flags} -DWITH_RAPIDJSON=1 -I{rapidjson}",
            ]
            called(["cmake", "-S", ".", "-B", build, *how], source)
            compile_all: list[str | Path] = ["cmake", "--build", build, "--target", "test-runner", "-j", "2"]
            called(compile_all, source, seconds_max=_BUILD_SECONDS_MAX)
        return runner


def broker_tests(source: str, scenario: str) -> list[str]:
    """The tests in librdkafka's `test.c` for a scenario that want a broker, in its order."""
    found = []
    for match in _TEST.finditer(source):
        rest = match["rest"]
        named = re.search(r'\.scenario\s*=\s*"([^"]*)"', rest)
        scenarios = named[1].split(",") if named else ["default"]
        if scenario in scenarios and not re.search(r"TEST_F_(LOCAL|MANUAL)\b", rest):
            found.append(match["name"])
    return found


def _write_tools(kafka: Path) -> None:
    """As much of an unpacked Kafka as the tests call: tools and jars of the same version for both clusters."""
    (kafka / "bin").mkdir(parents=True)
    for name, main in _TOOLS.items():
        tool = kafka / "bin" / name
        run = f'"{java().executable}" -Xmx256m -Dlog4j.configuration=none -cp'
        tool.write_text(f'#!/bin/sh\nexec {run} "$CLASSPATH:{apache_kafka_jars()}/*" {main} "$@"\n')
        tool.chmod(0o755)
    (kafka / "libs").symlink_to(apache_kafka_jars())


def _write_java_clients(source: Path, tests: Path, kafka: Path) -> None:
    """The directory that tests are run in, with the programs in Java that two of them start, compiled."""
    shutil.copytree(source, tests / "java")
    (tests / "Makefile").write_text(".PHONY: java\njava:\n\t@$(MAKE) -s -C java\n")
    called(["make", "-s", "java"], tests, environment={"KAFKA_PATH": str(kafka)})


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
