"""`barnabas completion`: scripts that shells take, and that find commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from barnabas.cli.completion import command

SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_prints_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(command, [shell])
    assert result.exit_code == 0
    assert f"_BARNABAS_COMPLETE={shell}_complete" in result.stdout
    assert f"{shell}: " in CliRunner().invoke(command, ["--help"]).stdout


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(command, ["csh"]).exit_code == 2


def test_bash_completes_commands(tmp_path: Path) -> None:
    program = tmp_path / "barnabas"
    program.write_text(f"#!{sys.executable}\nfrom barnabas.cli.main import main\nmain(prog_name='barnabas')\n")
    program.chmod(0o755)
    script = CliRunner().invoke(command, ["bash"]).stdout
    (tmp_path / "complete.bash").write_text(script)
    ask = (
        f"source {tmp_path}/complete.bash; COMP_WORDS=(barnabas con); COMP_CWORD=1; "
        f"_barnabas_completion {program}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", ask],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout.split() == ["consume", "controller"], done.stderr
