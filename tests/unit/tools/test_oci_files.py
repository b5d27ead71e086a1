"""The files of contrib/oci: commands and configs in them are ours, ports meet, and health checks tell. The image is
built and run in tests/oci.
"""

from __future__ import annotations

import re
import shlex
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from barnabas.cli import broker, coordinator, up
from barnabas.config.broker_config import read_broker_config
from barnabas.server.config import OWN_KEYS
from tests.support.ports import free_port

FOLDER: Final = Path(__file__).resolve().parents[3] / "contrib" / "oci"
CONTAINERFILE: Final = (FOLDER / "Containerfile").read_text("utf-8").replace("\\\n", "")
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]
BROKERS: Final = {name: each for name, each in SERVICES.items() if each["command"][0] == "broker"}
"""Of its documentation of services, what compose.yaml uses."""
SERVICE_KEYS: Final = {
    "image", "build", "command", "restart", "read_only", "tmpfs", "cap_drop", "security_opt", "depends_on",
    "stop_grace_period", "ports", "volumes", "healthcheck",
}  # fmt: skip


def instruction(name: str) -> list[str]:
    """The last of its kind in the Containerfile, which is in exec form."""
    text = re.findall(rf"^{name} (?:--.*? )*(\[.*\])$", CONTAINERFILE, re.MULTILINE)[-1]
    found = yaml.safe_load(text)
    assert isinstance(found, list)
    return [str(each) for each in found]


def overrides(words: list[str]) -> list[str]:
    return [words[number + 1] for number, word in enumerate(words) if word == "--override"]


def health_check() -> list[str]:
    (line,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    found = yaml.safe_load(line)
    assert isinstance(found, list)
    return found


def test_what_the_image_runs_is_a_command_of_ours_as_the_first_process() -> None:
    assert instruction("ENTRYPOINT") == ["barnabas"]
    name, *arguments = instruction("CMD")
    assert name == "up"
    parameters = up.command.make_context(name, arguments).params
    assert parameters["data_directory"] == "/data"
    assert re.findall(r"^USER (.*)$", CONTAINERFILE, re.MULTILINE) == ["10001:10001"]
    assert re.findall(r"^VOLUME (.*)$", CONTAINERFILE, re.MULTILINE) == ["/data"]


def test_every_file_that_the_containerfile_copies_is_there() -> None:
    for line in re.findall(r"^COPY (.*)$", CONTAINERFILE, re.MULTILINE):
        if not line.startswith("--from"):
            for source in shlex.split(line)[:-1]:
                assert (FOLDER.parents[1] / source).exists(), source


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_a_command_that_there_is_and_keeps_its_data(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    assert service.keys() <= SERVICE_KEYS
    command, *arguments = service["command"]
    if command == "coordinator":
        assert coordinator.command.make_context(command, arguments).params["data_directory"] == "/data"
    else:
        file = tmp_path / "server.properties"
        file.write_text((FOLDER / "server.properties").read_text("utf-8"))
        assert arguments[0] == "/etc/barnabas/server.properties"
        broker.command.make_context(command, [str(file), *arguments[1:]])
    (volume,) = service["volumes"]
    assert volume == f"{name}:/data"
    assert name in COMPOSE["volumes"]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_advertises_what_leads_to_it(name: str) -> None:
    file = (FOLDER / "server.properties").read_text("utf-8")
    given = overrides(BROKERS[name]["command"])
    assert read_broker_config(file, "the image's", given, OWN_KEYS).notices == (), "a key without effect"
    lines = [line for line in (*file.splitlines(), *given) if "=" in line and not line.startswith("#")]
    configs = dict(line.split("=", 1) for line in lines)
    assert configs["zookeeper.connect"] == "coordinator:2181"
    assert name == f"broker-{configs['broker.id']}"
    listening = dict(each.split("://") for each in configs["listeners"].split(","))
    advertised = dict(each.split("://") for each in configs["advertised.listeners"].split(","))
    (port,) = BROKERS[name]["ports"]
    address, outer, inner = port.split(":")
    assert address == "127.0.0.1", "without a login it is for this machine only"
    assert advertised["CLIENTS"] == f"localhost:{outer}"
    assert listening["CLIENTS"].endswith(f":{inner}")
    assert advertised["CLUSTER"] == name + listening["CLUSTER"].removeprefix("0.0.0.0")
    assert configs["barnabas.metrics.port"] in health_check()[-1]


@pytest.fixture
def server() -> Iterator[Callable[[bytes, int], int]]:
    """Starts servers that answer everything with the same bytes, after so many bytes have come; returns their port."""
    running: list[socketserver.ThreadingTCPServer] = []

    def start(answer: bytes, expected: int) -> int:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.rfile.read(expected)
                self.wfile.write(answer)

        made = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(made)
        return int(made.server_address[1])

    yield start
    for each in running:
        each.shutdown()
        each.server_close()


@pytest.mark.parametrize(
    ("check", "port", "good", "bad"),
    [
        (
            health_check(),
            9102,
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (SERVICES["coordinator"]["healthcheck"]["test"][1:], 2181, b"imok", b""),
    ],
    ids=["broker", "coordinator"],
)
def test_a_health_check_tells_well_from_ill(
    check: list[str], port: int, good: bytes, bad: bytes, server: Callable[[bytes, int], int]
) -> None:
    assert check[:2] == ["python3", "-c"]
    for answer, expected in ((good, 0), (bad, 1)):
        program = check[2].replace(str(port), str(server(answer, 4)))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
        assert done.returncode == expected, done.stderr
    program = check[2].replace(str(port), str(free_port()))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
