"""`barnabas acl` and `barnabas user` against a broker of ours, as a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.access_command_suite import AUTHORIZED, AccessCommandSuite
from tests.support.command_suite import barnabas
from tests.support.sasl_cluster import SaslCluster, sasl_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslCluster]:
    with sasl_cluster(tmp_path_factory.mktemp("access"), 1, **AUTHORIZED) as running:
        yield running


class TestOnBarnabas(AccessCommandSuite):
    @pytest.fixture
    def bootstrap(self, cluster: SaslCluster) -> str:
        return cluster.plain_servers

    @pytest.fixture
    def login_bootstrap(self, cluster: SaslCluster) -> str:
        return cluster.sasl_servers


def test_many_acls_are_added_and_removed(cluster: SaslCluster) -> None:
    bootstrap = cluster.plain_servers
    hosts = [part for number in range(600) for part in ("--host", f"10.1.{number // 200}.{number % 200}")]
    done = barnabas(bootstrap, "acl", "add", "topic:many", "--principal", "User:many", "--operation", "read", *hosts)
    assert done.status == 0, done.errors
    assert len(barnabas(bootstrap, "acl", "list", "topic:many", "--json").document["acls"]) == 600
    removed = barnabas(bootstrap, "acl", "remove", "topic:many", "--execute", "--json").document["removed"]
    assert len(removed) == 600
    assert barnabas(bootstrap, "acl", "list", "topic:many", "--json").document["acls"] == []
