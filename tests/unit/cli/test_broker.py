"""The module of `barnabas broker`, and what a process loads that runs one."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What only few brokers come to need. Together it is some 1.2 MiB.
LATE = ("decimal", "ipaddress", "pathlib", "urllib.parse", "rich", "barnabas.client", "barnabas.coordination.embedded")


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """All modules of a process that has made what a broker consists of."""
    program = (
        "import sys\n"
        "import barnabas.cli.broker, barnabas.cli.broker_logs, barnabas.server.broker, barnabas.kernel.real_host\n"
        "from barnabas.server.config import read_server_config\n"
        "read_server_config('broker.id=0\\nzookeeper.connect=localhost:2181\\n', 'server.properties', ())\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", LATE)
def test_a_broker_does_not_load_what_it_may_never_need(loaded: set[str], name: str) -> None:
    assert "barnabas.server.handlers" in loaded
    assert name not in loaded
