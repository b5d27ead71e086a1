"""The plugin of pytest, which finds it by itself (entry point `pytest11`): fixtures `kafka_cluster`, `kafka_topic`,
`kafka_simulation` and `pipeline_tester`.

Nothing else of Barnabas is imported before a test asks for one of them. Each worker of pytest-xdist has clusters of its
own, as each is a process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from barnabas.testing.kafka_cluster import KafkaCluster
    from barnabas.testing.real_pipelines import PipelineTester
    from barnabas.testing.simulated_cluster import SimulatedCluster

_MARKER = "kafka_cluster"
_OPTIONS = frozenset({"brokers", "config", "processes", "session_timeout_ms", "durable", "scope"})
_SIMULATION = "kafka_simulation"
_SIMULATION_OPTIONS = frozenset({"brokers", "config", "session_timeout_ms", "profile", "seeds"})
_SCOPES = ("function", "session")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")
_NAME_LENGTH_MAX = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("kafka_brokers", "Brokers of the cluster that tests share (kafka_cluster).", default="1")
    parser.addini("kafka_config", "Broker configs of kafka_cluster, KEY=VALUE, one a line.", type="linelist")
    parser.addini("kafka_processes", "Run kafka_cluster in processes, not in this one.", type="bool", default=False)
    parser.addini("kafka_session_timeout_ms", "How long a silent broker is taken for alive.", default="6000")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(brokers, config, processes, session_timeout_ms, durable, scope): what kafka_cluster is for this"
        ' test: a cluster of its own, or, with scope="session", one that all tests with the same options share',
    )
    config.addinivalue_line(
        "markers",
        f"{_SIMULATION}(brokers, config, session_timeout_ms, profile, seeds): what kafka_simulation is for this test,"
        " and with how many seeds it runs",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _SIMULATION in metafunc.fixturenames:
        from barnabas.testing.simulation import simulation_seeds

        marker = metafunc.definition.get_closest_marker(_SIMULATION)
        options = {} if marker is None else _checked(marker, metafunc.definition.nodeid, _SIMULATION_OPTIONS)
        metafunc.parametrize(_SIMULATION, simulation_seeds(options.get("seeds", 1)), indirect=True)


@pytest.fixture(scope="session")
def _kafka_clusters(request: pytest.FixtureRequest) -> Iterator[SharedClusters]:
    shared = SharedClusters(request.config)
    try:
        yield shared
    finally:
        shared.close()


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest, _kafka_clusters: SharedClusters) -> Iterator[KafkaCluster]:
    """A running Kafka cluster (`barnabas.testing.KafkaCluster`), which all tests of the session share; with the marker
    `kafka_cluster(brokers=3, config={...})` one for this test alone. Faults that a test leaves are ended after it.
    """
    marker = request.node.get_closest_marker(_MARKER)
    options = {} if marker is None else _checked(marker, request.node.nodeid, _OPTIONS)
    scope = options.pop("scope", "session" if marker is None else "function")
    if scope == "session":
        with _kafka_clusters.lent(options) as cluster:
            yield cluster
    else:
        with _kafka_clusters.made(options) as cluster:
            yield cluster


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_cluster: KafkaCluster) -> str:
    """The name of a fresh topic of one partition, for this test alone."""
    name = _NOT_IN_NAMES.sub("-", request.node.name).strip("-")[:_NAME_LENGTH_MAX]
    return kafka_cluster.create_topic(kafka_cluster.free_name(name))


@pytest.fixture
def kafka_simulation(request: pytest.FixtureRequest) -> Iterator[SimulatedCluster]:
    """A cluster in virtual time (`barnabas.testing.SimulatedCluster`) for this test alone, once for each seed: as many
    as the marker `kafka_simulation(seeds=20)` or, where that is more, the environment's BARNABAS_SIMULATION_SEEDS says.
    """
    from barnabas.testing.simulated_cluster import SimulatedCluster

    marker = request.node.get_closest_marker(_SIMULATION)
    options = {} if marker is None else dict(marker.kwargs)
    options.pop("seeds", None)
    with SimulatedCluster(request.param, **options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pipeline_tester() -> Iterator[PipelineTester]:
    """Runs pipelines over rows, without a cluster (`barnabas.testing.PipelineTester`): one Spark for the session."""
    from barnabas.testing.real_pipelines import PipelineTester

    with PipelineTester() as tester:
        yield tester


class SharedClusters:
    """The clusters of a session, by their options: each is started when a test first asks for it."""

    def __init__(self, config: pytest.Config) -> None:
        self._defaults = _defaults(config)
        self._open = contextlib.ExitStack()
        self._clusters: dict[str, KafkaCluster] = {}

    def made(self, options: dict[str, Any]) -> KafkaCluster:
        """A new cluster, to be used as a context. Options that are not given are those of the ini file."""
        from barnabas.testing.kafka_cluster import KafkaCluster

        given = {**self._defaults, **options}
        given["config"] = {**self._defaults["config"], **options.get("config", {})}
        return KafkaCluster(**given)

    @contextlib.contextmanager
    def lent(self, options: dict[str, Any]) -> Iterator[KafkaCluster]:
        """The cluster with these options, mended afterwards: faults are ended, brokers that are down started."""
        key = repr(sorted((name, _sorted(value)) for name, value in options.items()))
        cluster = self._clusters.get(key)
        if cluster is None:
            cluster = self._clusters[key] = self._open.enter_context(self.made(options))
        try:
            yield cluster
        finally:
            try:
                cluster.mend()
            except Exception:
                del self._clusters[key]  # the next test gets another
                raise

    def close(self) -> None:
        """Stops all."""
        self._open.close()


def _sorted(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


def _checked(marker: pytest.Mark, test: str, known: frozenset[str]) -> dict[str, Any]:
    if marker.args or not set(marker.kwargs) <= known:
        raise pytest.UsageError(
            f"{test}: the marker {marker.name} takes {', '.join(sorted(known))}, each by its name, not "
            f"{', '.join([*map(repr, marker.args), *(set(marker.kwargs) - known)])}"
        )
    if marker.kwargs.get("scope", "function") not in _SCOPES:
        raise pytest.UsageError(f"{test}: the marker {marker.name} takes a scope of {' or '.join(_SCOPES)}")
    return dict(marker.kwargs)


def _defaults(config: pytest.Config) -> dict[str, Any]:
    """What the ini file says. Raises UsageError."""
    settings: dict[str, str] = {}
    for line in config.getini("kafka_config"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_config: {line!r} must have the form KEY=VALUE")
        settings[name.strip()] = value.strip()
    numbers = {}
    for name, option in (("kafka_brokers", "brokers"), ("kafka_session_timeout_ms", "session_timeout_ms")):
        try:
            numbers[option] = int(config.getini(name))
        except ValueError:
            raise pytest.UsageError(f"{name} must be a number, not {config.getini(name)!r}") from None
    return {**numbers, "config": settings, "processes": config.getini("kafka_processes")}
