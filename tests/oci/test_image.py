"""The image and compose.yaml of contrib/oci: built, and run as containers. Minutes; see tests/support/containers.py."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.containers import Image, Network, built_image, missing, network, wait_until_healthy

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final = ROOT / "contrib" / "oci" / "compose.yaml"
SIZE_MAX: Final = 200_000_000
HEALTHY_SECONDS: Final = 60.0
pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built_image() as found:
        yield found


def barnabas(running: Network, *arguments: str, said: str = "") -> str:
    """A command of this checkout, outside of the containers."""
    return running.outside(
        "env", f"PYTHONPATH={ROOT / 'src'}", sys.executable, "-m", "barnabas.cli", *arguments, said=said
    )


def test_the_image_is_small_runs_nothing_as_root_and_can_install_nothing(image: Image) -> None:
    assert image.size < SIZE_MAX
    assert image.config["User"] == "10001:10001"
    assert not [path for path in (image.root / "opt/barnabas").rglob("*") if path.name == "pip"]
    for path in (image.root / "opt/barnabas", image.root / "etc/barnabas/server.properties"):
        assert path.stat().st_uid == 0, "the user must not change what it runs"
    assert (image.root / "data").stat().st_uid == 10001


def test_signals_reach_the_command_and_no_shell_is_between(image: Image) -> None:
    assert image.config["Entrypoint"] == ["barnabas"]
    assert image.config["StopSignal"] == "SIGTERM"
    assert list(image.config["Volumes"]) == ["/data"]


def test_one_container_takes_a_record_stops_in_order_and_has_it_again(image: Image, tmp_path: Path) -> None:
    health = image.config["Healthcheck"]["Test"]
    with network(image, tmp_path, {"alone": {9092: 9092}}) as running:
        alone = running.containers["alone"]
        alone.start(image.config["Cmd"])
        assert not alone.is_healthy(health), "it cannot be ready at once"
        wait_until_healthy(alone, health, HEALTHY_SECONDS)
        assert alone.run(["cat", "/proc/1/cmdline"]).stdout.split("\0")[1:3] == ["/opt/barnabas/bin/barnabas", "up"]
        assert alone.run(["touch", "/etc/barnabas/x"]).returncode != 0
        barnabas(running, "topic", "create", "flights", "--partitions", "1")
        barnabas(running, "produce", "flights", said="one\ntwo\n")
        assert alone.signal(signal.SIGTERM) == 0, alone.said()
        alone.start(image.config["Cmd"])
        wait_until_healthy(alone, health, HEALTHY_SECONDS)
        assert barnabas(running, "consume", "flights", "--from", "earliest", "--until-end") == "one\ntwo\n"
        assert alone.signal(signal.SIGTERM) == 0, alone.said()


def services() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    assert isinstance(found, dict)
    return found


def published(service: dict[str, Any]) -> dict[int, int]:
    """`127.0.0.1:9093:9092` is port 9093 of this machine, which leads to 9092."""
    return {int(port.split(":")[1]): int(port.split(":")[2]) for port in service.get("ports", [])}


def test_the_cluster_of_compose_lives_through_kill_9_of_a_broker(image: Image, tmp_path: Path) -> None:
    by_name = services()
    with network(image, tmp_path, {name: published(each) for name, each in by_name.items()}) as running:

        def start(name: str) -> None:
            """Waits for those that it depends on first, as compose does."""
            for other in by_name[name].get("depends_on", {}):
                wait_until_healthy(running.containers[other], by_name[other]["healthcheck"]["test"], HEALTHY_SECONDS)
            running.containers[name].start(by_name[name]["command"])

        def wait_for(name: str) -> None:
            test = by_name[name].get("healthcheck", {}).get("test", image.config["Healthcheck"]["Test"])
            wait_until_healthy(running.containers[name], test, HEALTHY_SECONDS)

        for name in by_name:
            start(name)
        for name in by_name:
            wait_for(name)
        everywhere = ("--bootstrap-server", "localhost:9092,localhost:9093,localhost:9094")
        said = barnabas(running, "topic", "create", "flights", "--partitions", "6", *everywhere)
        assert "6 partitions, 3 replicas" in said
        barnabas(running, "produce", "flights", *everywhere, said="".join(f"{number}\n" for number in range(100)))
        running.containers["broker-2"].signal(signal.SIGKILL)
        barnabas(running, "produce", "flights", *everywhere, said="".join(f"{number}\n" for number in range(100, 200)))
        start("broker-2")
        wait_for("broker-2")
        values = barnabas(running, "consume", "flights", "--from", "earliest", "--until-end", *everywhere).split()
        assert sorted(values, key=int) == [str(number) for number in range(200)]
        for name in reversed(by_name):
            assert running.containers[name].signal(signal.SIGTERM) == 0, running.containers[name].said()
