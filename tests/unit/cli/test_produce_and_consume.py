"""What `barnabas produce` and `barnabas consume` refuse before they look for a cluster."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from barnabas.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["produce"], "TOPIC"),
        (["produce", "t", "--format", "json", "--key-separator", ":"], "--key-separator needs --format lines"),
        (["produce", "t", "--key-separator", ""], "it is empty"),
        (["produce", "t", "--key-separator", ":", "--key", "k"], "a record has one key"),
        (["produce", "t", "--acks", "1", "--idempotent"], "needs --acks all"),
        (["produce", "t", "--acks", "2"], "--acks"),
        (["produce", "t", "--header", "name"], "'name' must have the form NAME=VALUE"),
        (["produce", "t", "--header", "=value"], "must have the form NAME=VALUE"),
        (["produce", "t", "--partition", "-1"], "--partition"),
        (["produce", "t", "--compression", "rar"], "--compression"),
        (["consume"], "TOPIC"),
        (["consume", "t", "--group", ""], "a group needs a name"),
        (
            ["consume", "t", "--from", "yesterday"],
            "'yesterday' is no place in a partition: write earliest, latest, an offset",
        ),
        (["consume", "t", "--max", "0"], "--max"),
        (
            ["consume", "t", "--format", "yaml"],
            "'yaml' is not value, line, raw, hex or json, nor a template such as '%t %p",
        ),
        (["consume", "t", "-f", "%t %q"], "%q means nothing: write %t topic, %p partition"),
        (["consume", "t", "--timeout", "0"], "--timeout"),
        (["consume", "t", "--isolation", "none"], "--isolation"),
        (["log", "dump"], "PATH"),
    ],
)
def test_a_command_that_is_written_wrongly_ends_with_2(arguments: list[str], what: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert what in " ".join(result.stderr.split())
