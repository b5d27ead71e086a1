"""What files of tests share: a Spark that files of one kind use one after the other, and for those about Spark's guide
three broker processes of `barnabas up`.

All start with the first of their tests and end with the last, because a process has one Spark at a time, and pipelines
have theirs. BARNABAS_CLIENTS_AGAINST=apache-kafka tries Spark on three brokers of Apache Kafka instead: what
fails there too is the test's fault, or Spark's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from barnabas.pipelines.class_archive import VARIABLE, ArchiveUse
from barnabas.testing import PipelineTester
from tests.spark.reading import Source
from tests.spark.topics import Topics
from tests.support.apache_kafka_cluster import apache_kafka_cluster
from tests.support.longest_first import file_of, longest_first
from tests.support.spark import spark_of_tables, spark_session
from tests.support.spark_archive import JAVA_VARIABLE, java_options
from tests.support.supervised_cluster import RunningCluster, supervised_cluster

BROKERS = 3
OVERRIDES = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "4"}
OF_GUIDE = "test_spark_guide"
# Each of their tests starts Spark. The longest first, and of one test each at the end, so that processes end together.
STARTING = (
    "test_pipelines",
    "test_pipeline_standalone",
    "test_documented_examples",
    "test_pipeline_connect",
    "test_examples",
    "test_pipeline_table_command",
    "test_pipeline_registry",
    "test_pipeline_exactly_once",
    "test_pipeline_senders",
)
# Files that share a Spark, in groups, the longest first: one process has a whole group, and starts Spark for it once.
# What uses formats of tables is two, since in one it would end when the others have long had nothing to do.
SHARING = (
    (
        "tables",
        (
            "test_pipeline_tables",
            "test_pipeline_formats",
            "test_pipeline_urls",
            "test_pipeline_changes",
            "test_pipeline_databases",
            "test_pipeline_options",
        ),
    ),
    ("tester", ("test_pipeline_cases", "test_pipeline_python", "test_pipeline_state_kinds")),
    (
        "plain",
        (
            "test_spark_guide_audit",
            "test_spark_guide_batch",
            "test_spark_guide_sink",
            "test_spark_guide_stream",
            "test_connect_questions",
            "test_pipeline_checks",
            "test_pipeline_dev",
            "test_pipeline_sql",
            "test_staged_shares",
            "test_stored_segments",
        ),
    ),
    (
        "tables",
        (
            "test_pipeline_compaction",
            "test_pipeline_fresh_tables",
            "test_pipeline_backfill",
            "test_pipeline_letters",
        ),
    ),
)
KINDS = {file: kind for kind, files in SHARING for file in files}
GROUPS = {file: files[0] for _, files in SHARING for file in files}
SHARED = pytest.StashKey[contextlib.ExitStack]()
SPARKS = pytest.StashKey[dict[str, Any]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SHARED] = contextlib.ExitStack()
    config.stash[SPARKS] = {}
    # A run that stores Spark's classes takes a minute longer.
    os.environ.setdefault(VARIABLE, ArchiveUse.USE.value)
    os.environ.setdefault(JAVA_VARIABLE, java_options())


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SHARED].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """py4j leaves the sockets by which rows arrive to the garbage collector."""
    longest_first(items, [*GROUPS, *STARTING])
    for item in filter(is_of_the_guide, items):
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    kind = KINDS.get(file_of(item))
    if kind is not None and (nextitem is None or KINDS.get(file_of(nextitem)) != kind):
        item.config.stash[SPARKS].clear()
        item.config.stash[SHARED].close()


class GroupsTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Files of tests go to workers as a whole, and those of a group as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return GROUPS.get(Path(file).stem, file)

    def _reschedule(self, node: Any) -> None:
        """No sooner than the last test of what a worker has begins, which it does not until it knows of another: else
        one worker would have several files of one test each, when others have none.
        """
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupsTogether:
    return GroupsTogether(config, log)


def is_of_the_guide(item: pytest.Item) -> bool:
    return item.path.name.startswith(OF_GUIDE)


def shared(config: pytest.Config, started: contextlib.AbstractContextManager[Any], kind: str) -> Any:
    """The Spark of a kind, which is started where there is none in this process."""
    sparks = config.stash[SPARKS]
    if kind not in sparks:
        sparks[kind] = config.stash[SHARED].enter_context(started)
    return sparks[kind]


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> RunningCluster:
    return pytestconfig.stash[SHARED].enter_context(new_cluster(tmp_path_factory.mktemp("cluster")))


def new_cluster(directory: Path) -> contextlib.AbstractContextManager[RunningCluster]:
    if os.environ.get("BARNABAS_CLIENTS_AGAINST") == "apache-kafka":
        return apache_kafka_cluster(directory, BROKERS, overrides=OVERRIDES)
    return supervised_cluster(directory, BROKERS, overrides=OVERRIDES)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one broker, of the file's own."""
    with supervised_cluster(tmp_path_factory.mktemp("broker"), 1) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture(scope="module")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session of the file's own, in a Spark that has the connector to Kafka."""
    return shared(pytestconfig, spark_session(tmp_path_factory.mktemp("spark")), "plain").newSession()


@pytest.fixture(scope="module")
def spark_with_tables(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A session of the file's own, in a Spark that has formats of tables and drivers of databases too."""
    return shared(pytestconfig, spark_of_tables(tmp_path_factory.mktemp("spark")), "tables").newSession()


@pytest.fixture(scope="module")
def tester(pytestconfig: pytest.Config) -> PipelineTester:
    """For pipelines that need no jars."""
    found: PipelineTester = shared(pytestconfig, PipelineTester(), "tester")
    return found


@pytest.fixture(scope="session")
def topics(cluster: RunningCluster) -> Topics:
    return Topics(cluster.bootstrap_servers)


@pytest.fixture
def source(spark: Any, cluster: RunningCluster, tmp_path: Path) -> Source:
    return Source(spark, cluster.bootstrap_servers, tmp_path)
