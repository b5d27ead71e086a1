"""The image of contrib/oci, built and run by means of Debian's packages (buildah, mmdebstrap, iproute2), as root.

No registry of images is asked: the base is made by mmdebstrap of Debian's packages, under the name that the
Containerfile wants. A container is a process with namespaces of its own (processes, mounts, network), in the image's
files, which it cannot write, with its user, environment and working directory. All containers are on a bridge that is
in a network namespace of its own, so that nothing reaches the network of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "oci"
BASE: Final = "docker.io/library/debian:trixie-slim"
TOOLS: Final = ("buildah", "mmdebstrap", "ip", "unshare", "nsenter", "setpriv")
BUILD_SECONDS: Final = 900
COMMAND_SECONDS: Final = 60
_NETWORK: Final = "10.231.77"
_SWITCH: Final = "bbsw"
_NOT_DOCS: Final = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale")]
"""As in Debian's own images that are called slim."""
_PID_ONE: Final = """
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --bind "$VOLUME" "$ROOT/data"
mount --bind "$HOSTS" "$ROOT/etc/hosts"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
mount -o remount,bind,ro "$ROOT"
exec "$@"
"""


def missing() -> str:
    """Why images can be neither built nor run here; empty where they can."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "only root can make namespaces of networks"
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def _buildah(*arguments: str, seconds: float = BUILD_SECONDS) -> str:
    store = ["--storage-driver", "vfs", "--root", str(CACHE / "store"), "--runroot", str(CACHE / "run")]
    done = subprocess.run(
        ["buildah", *store, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"buildah {' '.join(arguments)}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Image:
    """What the Containerfile has made: its files, its settings as Docker knows them, and its size in bytes."""

    root: Path
    config: dict[str, Any]
    size: int


@contextlib.contextmanager
def built_image() -> Iterator[Image]:
    """The image of this checkout, mounted; the base is made once, and kept below .cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    base = CACHE / "base.tar"
    if not base.exists():
        made = base.with_suffix(".part.tar")
        subprocess.run(
            ["mmdebstrap", "--mode=root", "--variant=minbase", *_NOT_DOCS, "trixie", str(made)],
            check=True,
            capture_output=True,
            timeout=BUILD_SECONDS,
        )
        made.rename(base)
    if not _buildah("images", "--quiet", "--filter", f"reference={BASE}"):
        container = _buildah("from", "scratch")
        _buildah("add", "--quiet", container, str(base), "/")
        _buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        _buildah("commit", "--quiet", "--rm", container, BASE)
    # What pip on this machine trusts, it has to trust in there.
    (CACHE / "pip.conf").write_text("[global]\ncert = /authorities.crt\n")
    authorities = os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")
    trusted = [f"--volume={CACHE}/pip.conf:/etc/pip.conf:ro", f"--volume={authorities}:/authorities.crt:ro"]
    _buildah(
        *("bud", "--pull=never", "--isolation=chroot", "--format=docker", "--layers", *trusted),
        *("--file", "contrib/oci/Containerfile", "--tag", "barnabas", "."),
    )
    container = _buildah("from", "--pull=never", "localhost/barnabas")
    try:
        about = json.loads(_buildah("inspect", "--type", "image", "localhost/barnabas"))
        listed = json.loads(_buildah("images", "--json", "localhost/barnabas"))
        size = re.fullmatch(r"([\d.]+) MB", listed[0]["size"])
        assert size is not None, listed
        config = about["Docker"]["config"]
        yield Image(Path(_buildah("mount", container)), config, round(float(size[1]) * 1_000_000))
    finally:
        _buildah("rm", container)


class ContainerStartsError(Exception):
    """The namespaces of a container are being made; it runs nothing yet."""


@dataclass(slots=True)
class Container:
    """One that runs, or ran: its name is its host's."""

    image: Image
    name: str
    volume: Path
    hosts: Path
    output: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self, arguments: list[str]) -> None:
        """Runs the image's entry point with these arguments, as the first process of a container."""
        user, group = self.image.config["User"].split(":")
        environment = {"ROOT": str(self.image.root), "VOLUME": str(self.volume), "HOSTS": str(self.hosts)}
        os.chown(self.volume, int(user), int(group))
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", _namespace(self.name)),
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _PID_ONE, "sh"),
                    *("setpriv", "--no-new-privs"),
                    *self._inside([*self.image.config["Entrypoint"], *arguments]),
                ],
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _inside(self, command: list[str]) -> list[str]:
        config = self.image.config
        return [
            *("chroot", f"--userspec={config['User']}", "--groups=", str(self.image.root)),
            *("env", "--ignore-environment", f"--chdir={config['WorkingDir']}", *config["Env"], *command),
        ]

    @property
    def first_process(self) -> int:
        """The id, out here, of the process that is 1 in there.

        Raises ContainerStartsError: it has none yet.
        """
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} has ended with {self.process.returncode}: {self.said()}"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if len(children) != 1:
            raise ContainerStartsError(self.name)
        return int(children[0])

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, as `docker exec` does."""
        entered = ["nsenter", "--target", str(self.first_process), "--mount", "--pid", "--net"]
        return subprocess.run(
            [*entered, *self._inside(command)], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )

    def is_healthy(self, test: list[str]) -> bool:
        """What a health check says, as the image or compose.yaml writes it."""
        assert test[0] == "CMD"
        with contextlib.suppress(ContainerStartsError):
            return self.run(test[1:]).returncode == 0
        return False

    def signal(self, number: signal.Signals) -> int:
        """Sends a signal to the first process, waits for its end, and returns its exit status."""
        assert self.process is not None
        os.kill(self.first_process, number)
        return self.process.wait(COMMAND_SECONDS)

    def said(self) -> str:
        return self.output.read_text("utf-8", "replace")[-3000:]


def _namespace(name: str) -> str:
    return f"bb-{name}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


_FORWARDER: Final = """
import asyncio, sys

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

async def main():
    async def served(reader, writer, address, port):
        try:
            there, back = await asyncio.open_connection(address, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    for each in sys.argv[1:]:
        outer, address, inner = each.split(":")
        await asyncio.start_server(lambda r, w, a=address, p=int(inner): served(r, w, a, p), "127.0.0.1", int(outer))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""Published ports, as an engine forwards them."""


@dataclass(frozen=True, slots=True)
class Network:
    """Containers by name, and the place of programs outside of them, where `localhost` has the published ports."""

    containers: dict[str, Container]

    def outside(self, *command: str, said: str = "") -> str:
        """What a command prints that succeeds within COMMAND_SECONDS."""
        done = subprocess.run(
            ["ip", "netns", "exec", _SWITCH, *command],
            input=said,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def network(image: Image, folder: Path, published: dict[str, dict[int, int]]) -> Iterator[Network]:
    """Containers that are not started yet, each with a volume in `folder`; ports of the outside by container, each with
    the port in there that it leads to.
    """
    addresses = {name: f"{_NETWORK}.{number}" for number, name in enumerate(published, start=11)}
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    hosts.write_text("\n".join(lines) + "\n")
    containers: dict[str, Container] = {}
    forwarder: subprocess.Popen[str] | None = None
    with contextlib.ExitStack() as undo:
        _ip("netns", "add", _SWITCH)
        undo.callback(_ip, "netns", "delete", _SWITCH)
        _ip("-n", _SWITCH, "link", "set", "lo", "up")
        _ip("-n", _SWITCH, "link", "add", "switch", "type", "bridge")
        _ip("-n", _SWITCH, "address", "add", f"{_NETWORK}.1/24", "dev", "switch")
        _ip("-n", _SWITCH, "link", "set", "switch", "up")
        for number, (name, address) in enumerate(addresses.items()):
            space = _namespace(name)
            _ip("netns", "add", space)
            undo.callback(_ip, "netns", "delete", space)
            _ip("-n", _SWITCH, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", _SWITCH, "link", "set", f"port{number}", "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            volume = folder / name
            volume.mkdir()
            containers[name] = Container(image, name, volume, hosts, folder / f"{name}.log")
        ports = [
            f"{outer}:{addresses[name]}:{inner}" for name, each in published.items() for outer, inner in each.items()
        ]
        forwarder = subprocess.Popen(
            ["ip", "netns", "exec", _SWITCH, sys.executable, "-c", _FORWARDER, *ports],
            stdout=subprocess.PIPE,
            text=True,
        )
        undo.callback(forwarder.wait, COMMAND_SECONDS)
        undo.callback(forwarder.kill)
        assert forwarder.stdout is not None
        assert forwarder.stdout.readline() == "ready\n"
        undo.callback(forwarder.stdout.close)
        try:
            yield Network(containers)
        finally:
            for container in containers.values():
                if container.process is not None and container.process.poll() is None:
                    container.process.kill()
                    container.process.wait(COMMAND_SECONDS)


def wait_until_healthy(container: Container, test: list[str], seconds: float) -> None:
    wait_until(lambda: container.is_healthy(test), f"{container.name} is healthy", seconds, container.said)
