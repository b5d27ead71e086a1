"""The command in processes that are started in unusual ways, or stopped at once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from barnabas.cli.connection import CommandError
from barnabas.cli.elect import is_anybody_there
from barnabas.cli.entry import run
from barnabas.cli.partition_files import STANDARD_INPUT, read_text

SOURCE = Path(__file__).resolve().parents[3] / "src"
COMMAND = f"exec {sys.executable} -m barnabas.cli"
NOBODY = "--bootstrap-server 127.0.0.1:1"


def start(line: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sh", "-c", f"{COMMAND} {line}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def test_commands_with_closed_streams_end_with_their_status() -> None:
    """Sockets would be 0, 1 or 2 otherwise, for which libuv aborts the process."""
    ways = [("topic list", how) for how in ("<&-", ">&-", "2>&-")]
    ways += [(command, "<&- >&- 2>&-") for command in ("topic list", "produce t", "consume t --json")]
    started = [(*way, start(f"{way[0]} {NOBODY} {way[1]}")) for way in ways]
    for command, how, process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 3, (command, how, errors)
        assert "2>&-" in how or "no broker answers" in errors


def test_who_needs_standard_input_says_that_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `<&-`: Python has no stream for it."""
    process = start("console --new-login ada <&-")
    assert process.communicate(timeout=120)[1].endswith(": standard input is closed\n")
    assert process.returncode == 2
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CommandError, match="standard input is closed: name a file"):
        read_text(STANDARD_INPUT, 1, "lines")
    assert not is_anybody_there()


@pytest.mark.parametrize("command", ["--help", "topic --help", "completion bash"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (">&-", "standard output is closed"),
        pytest.param(
            ">/dev/full",
            "No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full"),
        ),
    ],
)
def test_output_that_goes_nowhere_is_an_error_in_one_line(command: str, where: str, reason: str) -> None:
    process = start(f"{command} {where}")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert errors.endswith(f"the output cannot be written: {reason}\n")


def test_ctrl_c_while_a_class_is_made_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def import_something(**_: object) -> None:
        type("Imported", (), {"attribute": Interrupted()})

    monkeypatch.setattr("barnabas.cli.main.main", import_something)
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 130


def test_another_error_than_ctrl_c_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("barnabas.cli.main.main", fail)
    with pytest.raises(ValueError, match="a fault of ours"):
        run()


def test_ctrl_c_ends_a_command_with_130_however_soon_it_comes() -> None:
    ended = 0
    # On a slow machine Python itself takes long to start: the last moments are behind that.
    for milliseconds in itertools.chain(range(20, 320, 20), range(400, 10_000, 400), (15_000, 30_000, 60_000)):
        if milliseconds > 320 and ended > 3:
            break
        process = subprocess.Popen(
            [sys.executable, "-m", "barnabas.cli", "topic", "list", "--bootstrap-server", "127.0.0.1:1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        time.sleep(milliseconds / 1_000)  # the moments are what is tested
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        if "interrupted" not in errors and ", in run\n" not in errors:
            continue  # Python was still starting, or finding our entry, and ended by the signal
        # A shell reports 130 for both. Python ends by the signal, after all is tidied up, where it interrupted `exec`.
        assert process.returncode in (130, -signal.SIGINT), (milliseconds, errors)
        assert "Traceback" not in errors
        assert "Aborted" not in errors
        ended += 1
    assert ended > 3


def test_at_the_end_nothing_is_left_for_the_collector_to_look_at() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000))\n"
        "from barnabas.cli.entry import run\n"
        "sys.argv[1:] = ['--help']\n"
        "run()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("True True\n")


ASKS = ("barnabas.client.client", "barnabas.kernel.real_host")
USED: dict[str, tuple[str, ...]] = {
    "--help": (),
    "topic list": ("barnabas.cli.topic", "barnabas.client.admin", *ASKS),
    "group list": ("barnabas.cli.group", "barnabas.client.admin", "barnabas.client.groups", *ASKS),
    "txn list": ("barnabas.cli.txn", "barnabas.client.transaction_admin", *ASKS),
    "cluster health": ("barnabas.cli.cluster", "barnabas.client.admin", "barnabas.client.cluster_health", *ASKS),
    "consume": ("barnabas.cli.consume", "barnabas.cli.record_consuming", *ASKS),
    "consume --group": (
        *("barnabas.cli.consume", "barnabas.cli.record_consuming"),
        *("barnabas.client.group_coordinator", "barnabas.client.group_member", *ASKS),
    ),
    "produce": ("barnabas.cli.produce", "barnabas.cli.record_producing", *ASKS),
    "config set": ("barnabas.cli.config", "barnabas.cli.config_changes", "barnabas.client.admin", *ASKS),
    "topic alter": ("barnabas.cli.topic", "barnabas.cli.topic_alter", "barnabas.cli.config_changes", *ASKS),
    "reassign plan": (
        *("barnabas.cli.reassign", "barnabas.cli.reassignment_planner", "barnabas.cli.reassignment_view"),
        *("barnabas.cli.starts", "barnabas.client.admin", *ASKS),
    ),
    "doctor": (
        *(f"barnabas.cli.{name}" for name in ("doctor", "doctor_java", "doctor_machine", "doctor_cluster", "cluster")),
        *("barnabas.cli.doctor_security", "barnabas.pipelines.java", "barnabas.client.admin"),
        *("barnabas.client.broker_views", "barnabas.client.cluster_health", "barnabas.client.log_directories", *ASKS),
    ),
}
"""What a command imports before it ends, in this order behind `connection.load_loops`."""
HEAVY = (
    "_ssl",
    "numpy",
    "zstandard",
    "email",
    "http",
    "urllib.request",
    "importlib.metadata",
    "rich",
    "decimal",
    "json",
    "pathlib",
    "shutil",
    "barnabas.config.keys",
)
RARE = tuple(
    f"barnabas.client.{name}"
    for name in (
        "config_entries",
        "elections",
        "new_topics",
        "quotas_of_clients",
        "reassignments",
        "transactional_producer",
    )
)
OF_PRODUCERS = ("barnabas.client.producer_settings", "barnabas.client.batches")
OF_CONSUMERS = ("barnabas.client.assignors", "barnabas.client.consumer_settings")
OF_GROUPS = ("barnabas.client.group_coordinator", "barnabas.client.group_member")
OF_CONFIGS = (
    "barnabas.cli.starts",
    "barnabas.client.admin",
    "barnabas.client.config_admin",
    "barnabas.client.quota_admin",
)
"""What a consumer that begins at an end has no use for."""


@pytest.mark.parametrize("command", USED)
def test_a_command_loads_nothing_that_only_others_need(command: str) -> None:
    """What a module costs, everybody waits for: 0.15 s is all that a command may take."""
    code = (
        "import sys\n"
        "import barnabas.cli.main\n"
        "from barnabas.cli.connection import load_loops\n"
        f"names = {USED[command]!r}\n"
        "if names: load_loops()\n"
        "for name in names: __import__(name)\n"
        "print(*sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    unwanted = {*HEAVY, *RARE}
    if command != "produce":
        unwanted |= {*OF_PRODUCERS}
    if not command.startswith("consume"):
        unwanted |= {*OF_CONSUMERS}
    else:
        unwanted |= {*OF_CONFIGS}
    if command != "consume --group":
        unwanted |= {*OF_GROUPS}
    if command in ("config set", "topic alter"):
        unwanted -= {"barnabas.client.config_entries"}
    assert {*USED[command]} <= loaded
    assert loaded & unwanted == set()


def test_what_commands_import_makes_no_message_that_few_of_them_need() -> None:
    code = (
        "import barnabas.cli.topic, barnabas.cli.group, barnabas.cli.controller\n"
        "import barnabas.client.admin, barnabas.client.consumer\n"
        "import sys\n"
        "from barnabas.wire import messages\n"
        "print(*(name for name in vars(messages) if name.endswith(('Request', 'Response', 'Subscription'))))\n"
        "print(*(name for name in sys.modules if name.startswith('barnabas.cli.')))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    made, loaded = (set(line.split()) for line in ran.stdout.splitlines())
    assert made <= {"ApiVersionsRequest", "ApiVersionsResponse", "MetadataRequest", "FetchRequest"}
    assert not loaded & {f"barnabas.cli.{name}" for name in ("topic_copy", "group_reset", "controller_show")}
