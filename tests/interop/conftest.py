"""Fixtures for the suites that meet real servers: Apache Kafka 3.9.1 and ZooKeeper 3.8.4.

Without Java or without the jars these fixtures fail with the reason; they never skip.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.apache_kafka import ApacheKafkaBroker, apache_kafka_broker
from tests.support.apache_kafka_jars import JarsMissing, apache_kafka_jars
from tests.support.java import JavaMissing
from tests.support.longest_first import longest_first
from tests.support.processes import running_servers
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, zookeeper, zookeeper_ensemble

# With few tests each, which take a minute or more.
LONGEST = (
    "test_kazoo_suite",
    "test_mixed_cluster_failures",
    "test_mixed_cluster",
    "test_object_store",
    "test_kafka_on_coordinator",
    "test_mixed_cluster_coordinators_of_transactions",
    "test_mixed_cluster_administration",
    "test_kafka_tools",
    "test_reassign_partitions_tool",
    "test_older_protocol",
    "test_connection_rates",
    "test_zookeeper_security",
    "test_stored_passwords",
    "test_consumer_protocol",
    "test_copy_command",
    "test_client",
    "test_log_directory_exchange",
    "test_cleaned_directory",
    "test_differential_directed",
    "test_coordination_client",
)
_OTHER_LOOP = "a minute to meet real servers on another event loop, and no commit says that it has found anything"
_INTEROP_DIRECTORY = Path(__file__).resolve().parent
_missing = ""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each of two event loops meets real servers by night."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.callspec.params.get("run") == "uvloop":
        item.add_marker(pytest.mark.night(_OTHER_LOOP))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items, LONGEST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetches the jars before the first test, where no time limit of a test counts. S3Proxy's are fetched by the one
    process that needs them, while others have tests.
    """
    global _missing
    if session.config.option.collectonly or not any(_INTEROP_DIRECTORY in item.path.parents for item in session.items):
        return
    try:
        apache_kafka_jars()
    except (JavaMissing, JarsMissing) as error:
        _missing = str(error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows the end of the log of every server that runs."""
    report = yield
    if report.failed:
        report.sections.extend((f"log of {server.name}", server.log_tail()) for server in running_servers())
    return report


@pytest.fixture(scope="session")
def oracle_jars() -> Path:
    """The directory of Apache Kafka's jars."""
    if _missing:
        pytest.fail(_missing, pytrace=False)
    return apache_kafka_jars()


@pytest.fixture(scope="session")
def zookeeper_server(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One real ZooKeeper for the whole run; a test uses a chroot or paths of its own."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def ensemble(oracle_jars: Path, tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """A fresh ensemble of three whose members the test may kill and restart."""
    with zookeeper_ensemble(tmp_path) as servers:
        yield servers


@pytest.fixture(scope="session")
def kafka_broker(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheKafkaBroker]:
    """One Apache Kafka broker, id 0, in a chroot of `zookeeper_server`, for the whole run.

    The tests' records have fixed times of the past.
    """
    directory, chroot = tmp_path_factory.mktemp("kafka"), f"{zookeeper_server.address}/kafka"
    with apache_kafka_broker(directory, chroot, overrides=RETENTION_DOES_NOT_RUN) as broker:
        yield broker
