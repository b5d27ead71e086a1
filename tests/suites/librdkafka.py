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
from tests.suites.librdkafka_access import Access, access
from tests.suites.model import Outcome, Result, SuiteUnusable
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
_NOT_QUICK = ("0082_fetch_max_bytes", "0142_reauthentication")
"""What skips itself, or all parts of itself, in quick mode."""
_TOOLS = {"kafka-topics.sh": TOPIC_COMMAND, "kafka-acls.sh": "kafka.admin.AclCommand", "kafka-run-class.sh": ""}
# SCRAM and OAUTHBEARER are librdkafka's own; what Cyrus' library adds is GSSAPI, which neither cluster has.
_LEFT_OUT = ("WITH_SASL", "WITH_CURL", "ENABLE_LZ4_EXT", "RDKAFKA_BUILD_EXAMPLES")
_BUILT_IN = (
    "WITH_SSL", "WITH_ZSTD", "WITH_SASL_SCRAM", "WITH_SASL_OAUTHBEARER", "RDKAFKA_BUILD_TESTS", "RDKAFKA_BUILD_STATIC",
)  # fmt: skip
_HEADERS = {"openssl/ssl.h": "libssl-dev", "zstd.h": "libzstd-dev", "zlib.h": "zlib1g-dev"}


class Librdkafka:
    """librdkafka, on brokers that make topics by themselves, or (`scenario`, as its tests call it) on others."""

    version = _CRATE.partition("+")[2]
    source = (
        f"the crate `rdkafka-sys` {_CRATE}, which has librdkafka's source with its tests; they run in its quick mode, "
        "which leaves long parts of some out"
    )
    broker_ids = (1, 2, 3)
    seconds_max = 600.0

    def __init__(
        self,
        excluded: Mapping[str, str],
        *,
        variant: str = "",
        scenario: str = "default",
        overrides: Mapping[str, object] | None = None,
        protocol: str = "PLAINTEXT",
        mechanism: str = "",
        group_protocol: str = "classic",
        only: Sequence[str] = (),
        ours_alone: str = "",
    ) -> None:
        """`variant` is added to the name; `protocol` and `mechanism` say how its clients come; `group_protocol` is
        that of its consumers; of `only` some tests it has no others. With `ours_alone`, Kafka's lack is why.
        """
        self.name = f"librdkafka, {variant}" if variant else "librdkafka"
        self.excluded = excluded
        self.overrides: Mapping[str, object] = overrides or {}
        self.ours_alone = ours_alone
        self._scenario = scenario
        self._protocol, self._mechanism = protocol, mechanism
        self._group_protocol = group_protocol
        self._only = only
        self._access: Access | None = None

    def prepare(self) -> None:
        self._runner()
        if self._protocol != "PLAINTEXT" and self._access is None:
            self._access = access(self._protocol, self._mechanism, self.broker_ids)
            self.overrides = {**self.overrides, **self._access.overrides}

    def tests(self) -> Sequence[str]:
        found = broker_tests((self._source() / "tests" / "test.c").read_text("utf-8"), self._scenario)
        missing = [name for name in self._only if name not in found]
        if missing:
            raise SuiteUnusable(f"{self.name}: no tests of its: {', '.join(missing)}")
        return list(self._only) or found

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        tools = directory / "kafka"
        _write_tools(tools)
        tests = directory / "tests"
        _write_java_clients(self._source() / "tests" / "java", tests, tools)
        (directory / "src").mkdir()
        shutil.copy(self._source() / "src" / "statistics_schema.json", directory / "src")
        # Beside what they are given some read keys of the suite's own.
        shutil.copytree(self._source() / "tests" / "fixtures", tests / "fixtures")
        config = {"metadata.broker.list": bootstrap_servers, "test.timeout.multiplier": str(_PATIENCE)}
        if self._access is not None:
            self._access.make_users(bootstrap_servers)
            config |= self._access.config
        (directory / "test.conf").write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        environment = {
            **plain_environment(),
            "TEST_KAFKA_VERSION": "3.9.1",
            "KAFKA_PATH": str(tools),
            "BROKERS": bootstrap_servers,
            "RDKAFKA_TEST_CONF": str(directory / "test.conf"),
            "TEST_SCENARIO": self._scenario,
            **({} if self._group_protocol == "classic" else {"TEST_CONSUMER_GROUP_PROTOCOL": self._group_protocol}),
            **({} if self._access is None else self._access.environment),
            **{f"BROKER_ADDRESS_{number}": address for number, address in enumerate(bootstrap_servers.split(","), 1)},
        }
        with ThreadPoolExecutor(_PROCESSES) as threads:
            results = threads.map(lambda name: self._run_one(name, tests, directory, environment), names)
            return dict(zip(names, results, strict=True))

    def _run_one(self, name: str, tests: Path, directory: Path, environment: Mapping[str, str]) -> Result:
        log, report = directory / f"{name}.log", directory / f"{name}.json"
        # -L: without tests that want no broker; -Q: fewer records, and without long parts of tests.
        fewer = [] if name in _NOT_QUICK else ["-Q"]
        status = run_bounded(
            [self._runner(), "-p1", "-L", *fewer, name],
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
        build = source / "build-tls"
        runner = build / "tests" / "test-runner"
        if not runner.exists():
            _check_headers(source)
            # Its header includes curl's whether it is built with it or not.
            stub = source / "stub" / "curl"
            stub.mkdir(parents=True, exist_ok=True)
            (stub / "curl.h").write_text("/* Built without curl. */\n")
            rapidjson = source_archive("python-rapidjson", _RAPIDJSON) / "rapidjson" / "include"
            # Topics are named by the file of the test, as it is named to the compiler.
            flags = f"-I{stub.parent} -fmacro-prefix-map={source / 'tests'}/= -w"
            how: list[str | Path] = [
                *(f"-D{option}=OFF" for option in _LEFT_OUT),
                *(f"-D{option}=ON" for option in _BUILT_IN),
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DCMAKE_C_FLAGS={flags}",
                f"-DCMAKE_CXX_FLAGS={flags} -DWITH_RAPIDJSON=1 -I{rapidjson}",
            ]
            called(["cmake", "-S", ".", "-B", build, *how], source)
            compile_all: list[str | Path] = ["cmake", "--build", build, "--target", "test-runner", "-j", "2"]
            called(compile_all, source, seconds_max=_BUILD_SECONDS_MAX)
        return runner


def _check_headers(source: Path) -> None:
    """`SuiteUnusable` where what librdkafka is to be built with is not installed: cmake's word for that is long."""
    for header, package in _HEADERS.items():
        wanted = source / "wanted.c"
        wanted.write_text(f"#include <{header}>\n")
        try:
            called(["cc", "-E", "-o", "/dev/null", wanted], source)
        except SuiteUnusable as error:
            raise SuiteUnusable(f"librdkafka is built with {header}: install it, Debian's {package}") from error


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
