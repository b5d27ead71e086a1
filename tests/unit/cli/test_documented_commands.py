"""Every command that README, docs/ and our own messages tell users to type: it exists, and takes what it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from barnabas.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`barnabas ([^`]*)`")
_SHELLS = {"", "console", "sh", "bash"}
_PROGRAMS = {"barnabas", ".venv/bin/barnabas"}
_CONNECTORS = {"|", "&", ";", "&&", ">", "<"}


def _commands_of_line(line: str) -> Iterator[list[str]]:
    """The arguments of each `barnabas` in a line of a shell; lines with placeholders in angle brackets have none."""
    if re.search(r"<[a-z][^>]*>", line):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _CONNECTORS:
            words.append(word)
            continue
        if words and words[0] in _PROGRAMS:
            yield words[1:]
        words = []


def in_blocks(text: str) -> Iterator[list[str]]:
    """The commands in blocks for a shell; of a block with output, those behind the prompt."""
    for language, block in _FENCED.findall(text):
        if language not in _SHELLS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if language == "console" and not line.startswith("$ "):
                continue
            if "barnabas" in line:
                yield from _commands_of_line(line.removeprefix("$ "))


def _typed() -> list[tuple[str, list[str]]]:
    found = [(page, words) for page in PAGES for words in in_blocks(page.read_text("utf-8"))]
    return [(f"{page.name}: {' '.join(words)}", words) for page, words in found]


def _leaf(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, as far as they do, and what is behind it."""
    command: click.Command = main
    for place, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, words[place:]
        following = command.get_command(click.Context(command), word)
        if following is None:
            return command, words[place:]
        command = following
    return command, []


TYPED = _typed()


@pytest.mark.parametrize("words", [words for _, words in TYPED], ids=[name for name, _ in TYPED])
def test_a_command_in_a_block_is_taken_as_it_stands(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command, _ = _leaf(words)
    monkeypatch.setattr(command, "callback", lambda **_parameters: None)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output) == (0, "") or "--help" in words, done.output


def _problem(text: str) -> str | None:
    """What is wrong with a command within a sentence, in which much may be left out."""
    words = re.sub(r"[][|]", " ", text).replace("...", " ").split()
    command, rest = _leaf(words)
    if isinstance(command, click.Group) and rest and re.fullmatch("[a-z][a-z-]+", rest[0]):
        return f"there is no `barnabas {text}`"
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    unknown = [word for word in rest if re.fullmatch("--?[a-z][a-z-]*", word) and word not in options]
    return f"`barnabas {text}`: no {unknown[0]}" if unknown else None


def _spans(page: Path) -> Iterator[str]:
    """What stands between backticks and is a command; the page of commands leaves `barnabas` out."""
    text = _FENCED.sub("", page.read_text("utf-8"))
    yield from _SPAN.findall(text)
    if page.name == "commands.md":
        names = "|".join(COMMANDS)
        yield from re.findall(rf"`((?:{names}) [^`]*)`", text.replace("\\|", "|"))


def test_commands_in_sentences_of_the_docs_exist() -> None:
    spans = [(page.name, text) for page in PAGES for text in _spans(page)]
    assert len(spans) > 100
    assert [f"{name}: {problem}" for name, text in spans if (problem := _problem(" ".join(text.split())))] == []


def test_commands_that_our_own_messages_name_exist() -> None:
    """Of a message that is put together only what stands in one piece."""
    told = [
        (path.name, re.split(r"[{\"\n]", text)[0])
        for path in sorted((ROOT / "src" / "barnabas").rglob("*.py"))
        for text in re.findall(r"`barnabas ([^`]*)`", path.read_text("utf-8"))
    ]
    assert len(told) > 50
    assert [f"{name}: {problem}" for name, text in told if (problem := _problem(text.strip()))] == []
