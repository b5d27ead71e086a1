"""`barnabas completion`: scripts that shells take, and that find commands."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and a PATH that begins with `barnabas`."""
    program = tmp_path / "barnabas"
    program.write_text(f"#!{sys.executable}\nfrom barnabas.cli.main import main\nmain(prog_name='barnabas')\n")
    program.chmod(0o755)
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "TERM": "dumb",
    }


def script(directory: Path, shell: str) -> Path:
    path = directory / f"complete.{shell}"
    path.write_text(CliRunner().invoke(command, [shell]).stdout)
    return path


def test_bash_completes_commands(tmp_path: Path, environment: dict[str, str]) -> None:
    ask = (
        f"source {script(tmp_path, 'bash')}; COMP_WORDS=(barnabas con); COMP_CWORD=1; "
        "_barnabas_completion barnabas; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.stdout.split() == ["config", "console", "consume", "controller"], done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_with_whole_descriptions(tmp_path: Path, environment: dict[str, str]) -> None:
    ask = f"source {script(tmp_path, 'fish')}; complete -C 'barnabas con'; complete -C 'barnabas topic create --js'"
    done = subprocess.run(["fish", "-c", ask], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.stdout.splitlines() == [
        "config\tShow and change configs of topics, brokers and loggers.",
        "console\tShow a cluster in a browser.",
        "consume\tRead records from topics.",
        "controller\tShow the controller of a cluster, or move it to another broker.",
        "--json\tPrint JSON, for programs.",
    ], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_what_is_typed(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / ".zshrc").write_text(
        f"autoload -Uz compinit; compinit -u; source {script(tmp_path, 'zsh')}; PS1='ready> '\n"
    )
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-i"], stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    os.close(inside)
    shown = bytearray()

    def is_shown(text: bytes) -> bool:
        while select.select([terminal], [], [], 0)[0]:
            shown.extend(os.read(terminal, 65_536))
        return text in shown

    try:
        wait_until(lambda: is_shown(b"ready> "), "zsh asks for a command", evidence=shown.decode)
        os.write(terminal, b"barnabas consu\ttopics\x01echo \n")
        wait_until(lambda: is_shown(b"\nbarnabas consume topics\r"), "the command is complete", evidence=shown.decode)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_the_first_word_is_completed_without_importing_the_commands() -> None:
    program = (
        "import sys; from click.shell_completion import ShellComplete; from barnabas.cli.main import COMMANDS, main\n"
        "found = ShellComplete(main, {}, 'barnabas', '').get_completions([], '')\n"
        "print(*(item.value for item in found))\n"
        "print(*(module for _, (module, _) in COMMANDS.items() if module in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [" ".join(sorted(COMMANDS)), ""]
