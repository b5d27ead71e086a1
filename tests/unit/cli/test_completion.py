"""`barnabas completion`: scripts that shells take, and that find commands."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from barnabas.cli.completion import command
from barnabas.cli.main import COMMANDS
from tests.support.waiting import wait_until

SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_prints_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(command, [shell])
    assert result.exit_code == 0
    assert f"_BARNABAS_COMPLETE={shell}_complete" in result.stdout
    assert f"{shell}: " in CliRunner().invoke(command, ["--help"]).stdout


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(command, ["csh"]).exit_code == 2


NAMES = (
    "00 my group*",
    "01it's;&#~",
    '02"q"$HOME',
    "03back\\slash",
    "04:colon:s=a@b<c",
    "05späß, (and) [so] {on}",
    "06one!barnabas",
)
"""Each is known by its first two characters. Group names may have any."""
_PROGRAM = f"""#!{sys.executable}
import json, os, sys
if "_BARNABAS_COMPLETE" not in os.environ:
    print("got " + json.dumps(sys.argv[1:]))
    raise SystemExit
from click.shell_completion import CompletionItem
from barnabas.cli import completed_names, shells
shells.SECONDS_MAX = 60.0  # for a machine on which Python takes seconds to start
names = {NAMES!r}
completed_names.complete_groups = lambda _context, _parameter, begin: [
    CompletionItem(name) for name in names if name.startswith(begin)
]
from barnabas.cli.main import main
main(prog_name="barnabas")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and a PATH that begins with a `barnabas` that says what it was given, in a cluster with the
    groups of NAMES.
    """
    program = tmp_path / "barnabas"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "TERM": "dumb",
    }


def script(directory: Path, shell: str) -> Path:
    path = directory / f"complete.{shell}"
    path.write_text(CliRunner().invoke(command, [shell]).stdout)
    return path


class Terminal:
    """A shell in which somebody types."""

    def __init__(self, command_line: list[str], environment: dict[str, str], directory: Path) -> None:
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            command_line,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        os.close(inside)
        self._shown = bytearray()

    def expect(self, text: str) -> str:
        """What has been shown until, and with, that text; the next call looks behind it."""

        def is_shown() -> bool:
            while select.select([self._terminal], [], [], 0)[0]:
                self._shown.extend(os.read(self._terminal, 65_536))
            return text.encode() in self._shown

        wait_until(is_shown, f"{text!r} is shown", 120, evidence=lambda: self._shown.decode("utf-8", "replace"))
        before, found, after = bytes(self._shown).partition(text.encode())
        self._shown = bytearray(after)
        return (before + found).decode()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def arguments_of(self, line: str) -> list[str]:
        """What the command is given where somebody types this line, and Enter as soon as the shell has completed it."""
        self.type(f"{line}\n")
        self.expect("got [")
        arguments: list[str] = json.loads("[" + self.expect("]\r\n"))
        self.expect("ready> ")
        return arguments

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., Terminal]]:
    with contextlib.ExitStack() as opened:

        def open_one(*arguments: Any) -> Terminal:
            terminal = Terminal(*arguments)
            opened.callback(terminal.close)
            terminal.expect("ready> ")
            return terminal

        yield open_one


def test_bash_completes_what_is_typed(
    tmp_path: Path, environment: dict[str, str], open_terminal: Callable[..., Terminal]
) -> None:
    (tmp_path / ".bashrc").write_text(f"source {script(tmp_path, 'bash')}; PS1='ready> '; shopt -s nullglob\n")
    (tmp_path / "01file").touch()
    terminal = open_terminal(["bash", "--rcfile", str(tmp_path / ".bashrc"), "-i"], environment, tmp_path)
    assert terminal.arguments_of("barnabas consu\ttopics") == ["consume", "topics"]
    assert terminal.arguments_of("true && barnabas consu\ttopics > /dev/null; barnabas consu\tx") == ["consume", "x"]
    for name in NAMES:
        assert terminal.arguments_of(f"barnabas group describe {name[:2]}\t") == ["group", "describe", name]
        if "'" not in name:
            assert terminal.arguments_of(f"barnabas group describe '{name[:2]}\t") == ["group", "describe", name]
    assert terminal.arguments_of('barnabas group describe "02\t') == ["group", "describe", '02"q"$HOME']
    assert terminal.arguments_of("barnabas consume x --group=01\t") == ["consume", "x", "--group=01it's;&#~"]
    assert terminal.arguments_of("barnabas acl list group:04\t") == ["acl", "list", "group:04:colon:s=a@b<c"]
    assert terminal.arguments_of("barnabas acl list gro\t04:\t") == ["acl", "list", "group:04:colon:s=a@b<c"]
    assert terminal.arguments_of("barnabas reassign execute 01\t") == ["reassign", "execute", "01file"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_with_whole_descriptions_and_names_as_they_are(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    lines = ["con", "topic create --js", "group describe ", "consume x --group=01", "group describe '05sp"]
    ask = "; ".join(f'complete -C "barnabas {line}"' for line in lines)
    ask = f"source {script(tmp_path, 'fish')}; {ask}"
    done = subprocess.run(
        ["fish", "-c", ask], capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.stdout.splitlines() == [
        "config\tShow and change configs of topics, brokers and loggers.",
        "console\tShow a cluster in a browser.",
        "consume\tRead records from topics.",
        "controller\tShow the controller of a cluster, or move it to another broker.",
        "--json\tPrint JSON, for programs.",
        *sorted(NAMES),
        "--group=01it's;&#~",
        NAMES[5],
    ], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_what_is_typed(
    tmp_path: Path, environment: dict[str, str], open_terminal: Callable[..., Terminal]
) -> None:
    (tmp_path / ".zshrc").write_text(
        f"autoload -Uz compinit; compinit -u; source {script(tmp_path, 'zsh')}; PS1='ready> '\n"
    )
    (tmp_path / "01file").touch()
    terminal = open_terminal(["zsh", "-i"], environment, tmp_path)
    assert terminal.arguments_of("barnabas consu\ttopics") == ["consume", "topics"]
    for name in NAMES:
        assert terminal.arguments_of(f"barnabas group describe {name[:2]}\t") == ["group", "describe", name]
    assert terminal.arguments_of("barnabas group describe '05\t") == ["group", "describe", NAMES[5]]
    assert terminal.arguments_of("barnabas consume x --group=01\t") == ["consume", "x", "--group=01it's;&#~"]
    assert terminal.arguments_of("barnabas acl list group:04\t") == ["acl", "list", "group:04:colon:s=a@b<c"]
    assert terminal.arguments_of("barnabas acl list gro\t04:\t") == ["acl", "list", "group:04:colon:s=a@b<c"]
    assert terminal.arguments_of("barnabas reassign execute 01\t") == ["reassign", "execute", "01file"]


def test_a_completion_that_hangs_is_ended(tmp_path: Path, environment: dict[str, str]) -> None:
    """As where a name service does not answer, for which a process waits even when it has given up."""
    program = tmp_path / "barnabas"
    program.write_text(
        f"#!{sys.executable}\n"
        "import threading\n"
        "from barnabas.cli import completed_names, shells\n"
        "shells.SECONDS_MAX = 0.3\n"
        "completed_names.complete_groups = lambda *_: threading.Lock().acquire() and threading.Event().wait()\n"
        "from barnabas.cli.main import main\n"
        "main(prog_name='barnabas')\n"
    )
    line = {"_BARNABAS_COMPLETE": "bash_complete", "_BARNABAS_LINE": "barnabas group describe x"}
    done = subprocess.run([program], capture_output=True, timeout=60, check=False, env={**environment, **line})
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")


def test_the_first_word_is_completed_without_importing_the_commands() -> None:
    program = (
        "import sys; from click.shell_completion import ShellComplete; from barnabas.cli.main import COMMANDS, main\n"
        "found = ShellComplete(main, {}, 'barnabas', '').get_completions([], '')\n"
        "print(*(item.value for item in found))\n"
        "print(*(module for _, (module, _) in COMMANDS.items() if module in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [" ".join(sorted(COMMANDS)), ""]
