"""`barnabas doctor`: what it judges, what it says of addresses that do not work, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.cli import doctor, doctor_aside, doctor_java, doctor_machine
from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.doctor_container import check_container, memory_limit, processor_limit
from barnabas.cli.doctor_findings import Finding, State
from barnabas.cli.doctor_machine import (
    Space,
    check_clock,
    check_directory,
    check_endpoints,
    check_file_system,
    check_host_name,
    check_open_files,
    check_python,
    check_space,
    is_loopback,
)
from barnabas.cli.doctor_security import check_security, secured_directories
from barnabas.config.listeners import Endpoint, SecurityProtocol
from barnabas.link.errors import AuthenticationFailedError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeLogDirsResponse
from tests.support.certificates import broker_certificate, shared_authority
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import BROKERS, FakeCluster, partition, topic

Barnabas = Callable[..., Done]
GIB = 1024**3


@pytest.mark.parametrize(
    ("limit", "partitions", "state"),
    [
        (None, 10**6, State.OK),
        (4_096, 0, State.OK),
        (1_024, 0, State.WARNING),
        (1_024, 300, State.CRITICAL),
        (100_000, 10_000, State.OK),
        (50_000, 10_000, State.WARNING),
        (20_000, 10_000, State.CRITICAL),
    ],
)
def test_the_limit_of_open_files(limit: int | None, partitions: int, state: State) -> None:
    found = check_open_files(limit, partitions)
    assert found.state is state
    assert bool(found.advice) is found.is_problem


@pytest.mark.parametrize(
    ("space", "state"),
    [
        (Space(100 * GIB, 50 * GIB, 0, 0), State.OK),
        (Space(100 * GIB, 4 * GIB, 0, 0), State.WARNING),
        (Space(100 * GIB, GIB // 2, 0, 0), State.CRITICAL),
        (Space(2 * GIB, GIB // 2, 0, 0), State.WARNING),
        (Space(GIB, 0, 0, 0), State.CRITICAL),
        (Space(100 * GIB, 50 * GIB, 1_000, 10), State.WARNING),
        (Space(100 * GIB, 50 * GIB, 1_000, 500), State.OK),
    ],
)
def test_room_on_a_disk(space: Space, state: State) -> None:
    assert check_space("d", space).state is state


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("ext4", State.OK),
        ("xfs", State.OK),
        ("apfs", State.OK),
        (None, State.OK),
        ("nfs4", State.WARNING),
        ("cifs", State.WARNING),
        ("tmpfs", State.WARNING),
        ("overlay", State.WARNING),
    ],
)
def test_file_systems(kind: str | None, state: State) -> None:
    assert check_file_system("d", kind).state is state


def test_other_facts_of_a_machine() -> None:
    assert check_python((3, 10)).state is State.CRITICAL
    assert check_python((3, 11)).state is State.OK
    assert [finding.state for finding in check_clock(5)] == [State.NOTE]
    assert [finding.state for finding in check_clock(0)] == [State.OK]
    assert check_clock(None) == []
    for addresses, state in (
        ([], State.WARNING),
        (["127.0.1.1"], State.NOTE),
        (["::1", "127.0.0.1"], State.NOTE),
        (["127.0.1.1", "10.0.0.5"], State.OK),
    ):
        assert check_host_name("name", lambda _, found=addresses: found).state is state  # type: ignore[misc]
    assert [is_loopback(each) for each in ("127.9.9.9", "::1", "10.0.0.1", "fe80::1%eth0", "host")] == [
        *(True, True, False, False, False)
    ]


def test_a_directory_that_is_no_directory_or_must_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert [each.check for each in check_directory(str(tmp_path / "new" / "newer"))] == ["disk_space", "file_system"]
    (found,) = check_directory(str(file / "below"))
    assert (found.state, found.what) == (State.CRITICAL, f"{file} is no directory")
    monkeypatch.setattr(os, "access", lambda *_: False)
    (found,) = check_directory(str(tmp_path))
    assert found.state is State.CRITICAL


def test_the_file_system_of_a_directory_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {tmp_path} rw - tmpfs tmpfs rw\n"
        f"3 1 0:6 / {tmp_path}-other rw - nfs4 host:/x rw\n"
        f"4 1 0:7 / {tmp_path}/a\\040b rw shared:1 - xfs /dev/sdb rw\n"
        "nonsense\n"
    )
    (tmp_path / "a b").mkdir()
    for directory, kind in ((tmp_path, "tmpfs"), (tmp_path / "a b", "xfs"), (tmp_path.parent, "ext4")):
        assert doctor_machine._file_system_of(directory, str(mounts)) == kind


def test_a_directory_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    (found,) = check_directory(f"{tmp_path}/data")
    assert (found.state, "Permission denied" in found.what) == (State.CRITICAL, True)
    assert asyncio.run(doctor_machine.existing([f"{tmp_path}/data"])) == [f"{tmp_path}/data"]
    with pytest.raises(PermissionError):
        list(secured_directories([f"{tmp_path}/data"]))


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_ports() -> None:
    with listening() as port:
        endpoints = [Endpoint("A", SecurityProtocol.PLAINTEXT, host, port) for host in ("127.0.0.1", "192.0.2.1")]
        taken, elsewhere = check_endpoints(endpoints)
    assert (taken.state, elsewhere.state) == (State.NOTE, State.CRITICAL)
    (free,) = check_endpoints([*endpoints[:1], Endpoint("B", SecurityProtocol.PLAINTEXT, None, 0)])
    assert free.state is State.OK


def findings(done: Done) -> dict[str, list[str]]:
    """What is wrong, by check."""
    found: dict[str, list[str]] = {}
    for each in json.loads(done.output)["findings"]:
        assert each.keys() == {"check", "state", "what", "advice"}
        if each["state"] in ("critical", "warning"):
            assert each["advice"]
            found.setdefault(each["check"], []).append(each["what"])
    return found


def test_a_cluster_that_does_not_answer_is_looked_at_from_here(barnabas: Barnabas) -> None:
    with listening() as port:
        servers = f"127.0.0.1:1,no-such-host.invalid:9092,127.0.0.1:{port}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("barnabas.cli.connection.CONNECT_TIMEOUT_MS", 300)
            done = barnabas("doctor", "-b", servers, "--json")
    assert done.status == 1
    refused, unresolved, silent = findings(done)["bootstrap_server"]
    assert "nothing listens there" in refused
    assert "has no address here" in unresolved
    assert "does not answer as a broker" in silent
    assert "problems" in done.errors


def test_this_machine_alone_is_asked_of_no_cluster(cluster: FakeCluster, barnabas: Barnabas, tmp_path: Path) -> None:
    cluster.error = CommandError("asked", ExitStatus.FAILED)
    done = barnabas("doctor", "--local", "--data", str(tmp_path), "--all")
    assert "asked" not in done.errors
    assert any(row.startswith("ok Python 3.") for row in done.rows)
    assert any(f"{tmp_path}: " in row for row in done.rows)


@pytest.mark.parametrize(
    "error", [AuthenticationFailedError("no such user"), KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
)
def test_a_login_that_fails_hides_nothing_of_this_machine(
    cluster: FakeCluster, barnabas: Barnabas, error: Exception
) -> None:
    cluster.error = error
    for node_id in list(cluster.cluster.brokers):
        cluster.api_versions[node_id] = {0: (0, 1)}
    done = barnabas("doctor", "--json")
    assert done.status == 1
    assert str(error) in findings(done)["login"][0]
    assert '"check":"python"' in done.output


def test_properties_of_a_broker(barnabas: Barnabas, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    with listening() as port:
        file.write_text(
            f"broker.id=1\nzookeeper.connect=localhost:2181\nlog.dirs={tmp_path}/data\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port}\n"
        )
        rows = barnabas("doctor", "--local", "--all", "--file", str(file)).rows
    assert any("something listens on this port already" in row for row in rows)
    assert any(f"{tmp_path}/data: " in row for row in rows)
    file.write_text("broker.id=many\n")
    done = barnabas("doctor", "--local", "--file", str(file), "--json")
    assert done.status == 1
    assert "broker.id" in findings(done)["properties"][0]
    assert barnabas("doctor", "--local", "--file", f"{file}-gone").status == 4


@pytest.fixture
def stuck() -> Iterator[Callable[..., None]]:
    """What does not come back before the test has ended."""
    end = threading.Event()
    yield lambda *_arguments: assert_ended(end)
    end.set()


def assert_ended(end: threading.Event) -> None:
    assert end.wait(60)


def test_a_file_system_that_does_not_answer_is_told_and_hides_nothing(
    cluster: FakeCluster,
    barnabas: Barnabas,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stuck: Callable[..., None],
) -> None:
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: stuck() if Path(path).name == "dead" else real(path))
    for name in ("dead", "alive"):
        (tmp_path / name).mkdir()
    late = f"{tmp_path}/alive: its file system does not end in time"
    seconds, done = 0.1, None  # what answers takes a while, too, on a busy machine
    while done is None or (late in done.output and seconds < 100):
        monkeypatch.setattr(doctor_aside, "ANSWER_SECONDS", seconds)
        done = barnabas("doctor", "--local", "--json", "--data", f"{tmp_path}/dead", "--data", f"{tmp_path}/alive")
        seconds *= 10
    assert findings(done)["directory"] == [f"{tmp_path}/dead: its file system does not end in time"]
    assert f"{tmp_path}/alive: " in done.output


def test_a_name_service_that_does_not_answer_is_told(
    barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch, stuck: Callable[..., None]
) -> None:
    monkeypatch.setattr(doctor_aside, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(doctor_machine, "_addresses_of", stuck)
    assert "does not end in time" in findings(barnabas("doctor", "--local", "--json"))["host_name"][0]


def test_a_file_of_properties_that_cannot_be_read_ends_the_command(
    barnabas: Barnabas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_aside, "ANSWER_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    done = barnabas("doctor", "--local", "--file", str(tmp_path / "pipe"))
    os.close(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK))  # lets the thread go
    assert (done.status, "cannot be read within" in done.errors) == (1, True)


def test_the_process_ends_though_something_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = (
        "import sys\nfrom barnabas.cli import doctor_aside\ndoctor_aside.ANSWER_SECONDS = 0.1\n"
        "from barnabas.cli.main import main\nmain()"
    )
    arguments = [sys.executable, "-c", script, "doctor", "--local", "--file", str(tmp_path / "pipe")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "cannot be read within" in done.stderr) == (1, True)


def test_a_directory_that_cannot_be_looked_at_hides_nothing(
    barnabas: Barnabas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(os, "statvfs", stale)
    done = barnabas("doctor", "--local", "--json", "--data", str(tmp_path))
    assert os.strerror(errno.ESTALE) in findings(done)["directory"][0]
    assert '"check":"python"' in done.output


@pytest.mark.parametrize(
    ("files", "memory", "processors"),
    [
        ({}, None, None),
        ({"proc/self/cgroup": "0::/\n"}, None, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "1048576\n",
                "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "max 100000\n",
            },
            1_048_576,
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "2048\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2_048,
            None,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/elsewhere\n4:memory:/elsewhere\nnonsense\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4_096,
            2.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1 0\n", "sys/fs/cgroup/memory.max": "x"}, None, None),
    ],
)
def test_limits_of_a_container(
    tmp_path: Path, files: dict[str, str], memory: int | None, processors: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (memory_limit(tmp_path), processor_limit(tmp_path)) == (memory, processors)
    found = {each.check: each.is_problem for each in check_container(tmp_path)}
    assert found.get("memory") == (None if memory is None else True)
    assert found.get("processors") == (None if processors is None else processors < 1)


def test_what_brokers_tell_and_how_they_are_reached(
    cluster: FakeCluster, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add(topic("t", partition(1, isr=(1,))))
    with listening() as port:
        hosts = {1: ("127.0.0.1", port), 2: ("127.0.0.1", 1), 3: ("no-such-host.invalid", 9092)}
        for node_id, (host, its_port) in hosts.items():
            node = BROKERS[node_id]
            monkeypatch.setitem(
                cluster.cluster.brokers,
                node_id,
                type(node)(node_id, host, its_port, None),
            )
        cluster.api_versions = {1: {0: (0, 1)}, 2: {0: (0, 2)}, 3: ConnectionError("gone")}
        done = barnabas("doctor", "-b", "192.0.2.1:9092", "--json")
    found = findings(done)
    first, second, third = found["advertised_listener"]
    assert "broker 1 at 127.0.0.1" in first
    assert "an address that means their own machine (127.0.0.1)" in second
    assert "broker 3 at no-such-host.invalid:9092: its name has no address here" in third
    (unreachable,) = found["reachability"]
    assert unreachable.startswith("broker 2 at 127.0.0.1:1 cannot be reached from here: ")
    assert any("brokers 3 take connections" in each for each in found["versions"])


def test_directories_and_logs_of_brokers_here_are_looked_at(
    cluster: FakeCluster, barnabas: Barnabas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "_open_files_limit", lambda: 8_192)
    log = DescribeLogDirsResponse.DescribeLogDirsPartition
    logs = [log(partition_index=number) for number in range(3_000)]
    of_topic = DescribeLogDirsResponse.DescribeLogDirsTopic(name="t", partitions=logs)
    result = DescribeLogDirsResponse.DescribeLogDirsResult
    with listening() as port:
        for node_id in list(cluster.cluster.brokers):
            node = type(BROKERS[node_id])(node_id, "127.0.0.1", port, None)
            monkeypatch.setitem(cluster.cluster.brokers, node_id, node)
            cluster.api_versions[node_id] = {0: (0, 1)}
        cluster.log_directories[1] = [result(log_dir=str(tmp_path), topics=[of_topic])]
        cluster.log_directories[2] = [result(log_dir="/not/on/this/machine", topics=[])]
        done = barnabas("doctor", "--json")
    assert "8,192 files open; a broker with these logs wants 24,000" in findings(done)["open_files"][0]
    assert f"{tmp_path}: " in done.output
    assert "/not/on/this/machine" not in done.output


def test_looking_for_java_loads_nothing_else_of_pipelines() -> None:
    program = (
        "import sys\n"
        "from barnabas.cli.doctor_java import check_java\n"
        "check_java()\n"
        "print(*(name for name in sys.modules if name.startswith('barnabas.pipelines')))"
    )
    env = {**os.environ, "JAVA_HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    loaded = {"barnabas.pipelines", "barnabas.pipelines.decorator", "barnabas.pipelines.java"}
    assert set(done.stdout.split()) <= loaded


def test_this_machine_is_looked_at_without_a_client_and_without_tables_of_other_alphabets() -> None:
    program = (
        "import atexit, sys\n"
        "from barnabas.cli.entry import run\n"
        "atexit.register(lambda: print('loaded:', *sys.modules))\n"
        "sys.argv[1:] = ['doctor', '--local', '--all']\n"
        "run()\n"
    )
    env = {**os.environ, "JAVA_HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    shown, _, loaded = done.stdout.partition("loaded:")
    assert "this machine's name" in shown or " means " in shown
    assert "barnabas.cli.doctor_machine" in loaded.split()
    assert not {"encodings.idna", "_ssl", "barnabas.client.client", "barnabas.cli.doctor_cluster"} & {*loaded.split()}


def secured(directory: Path) -> Path:
    """The directory of a cluster of `barnabas up --secure`, with certificates that hold for two days."""
    security = directory / "security"
    security.mkdir(mode=0o700)
    for name, path in (("authority", shared_authority().certificate), ("broker-1", broker_certificate().both)):
        (security / f"{name}.pem").write_bytes(path.read_bytes())
    for path in security.iterdir():
        path.chmod(0o600)
    return security


def test_secrets_and_certificates_of_a_secured_cluster_are_looked_at(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    security = secured(tmp_path)
    brokers = tmp_path / "broker-1" / "data"
    brokers.mkdir(parents=True)
    # By its data directory and by those of its brokers; once.
    assert list(secured_directories([str(tmp_path), str(brokers), "/nowhere", "/"])) == [str(security)]

    def states(now: dt.datetime = now) -> list[tuple[str, State]]:
        return [(finding.check, finding.state) for finding in check_security(str(security), now)]

    assert states(now - dt.timedelta(days=40)) == [("security", State.OK), ("certificates", State.OK)]
    assert states() == [("security", State.OK), ("certificates", State.WARNING)]
    assert states(now + dt.timedelta(days=3)) == [("security", State.OK), ("certificates", State.CRITICAL)]
    (security / "broker-1.pem").chmod(0o640)
    assert states()[0] == ("security", State.WARNING)
    security.chmod(0o755)
    assert states()[0] == ("security", State.CRITICAL)
    (security / "broker-1.pem").write_bytes(b"-----BEGIN CERT")
    assert states(now - dt.timedelta(days=40))[1] == ("certificates", State.CRITICAL)
    assert "broker-1.pem" in check_security(str(security), now)[1].what


def test_java_is_asked_while_the_cluster_is(
    cluster: FakeCluster, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than all the rest."""
    begun = threading.Event()
    answered: list[bool] = []

    def java() -> list[Finding]:
        begun.set()
        return [Finding("java", State.OK, "Java 17")]

    async def of_cluster(*_arguments: object) -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        answered.append(begun.wait(10))
        return 0

    monkeypatch.setattr(doctor_java, "check_java", java)
    monkeypatch.setattr(doctor, "_of_cluster", of_cluster)
    found = barnabas("doctor", "--json").document["findings"]
    assert answered == [True]
    assert [each["what"] for each in found if each["check"] == "java"] == ["Java 17"]
