"""Subjects of commits begin with their room."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest

from tools.check_subjects import complaint, main, new_subjects, rooms, subject_of

known = functools.cache(rooms)


@pytest.mark.parametrize(
    "subject",
    [
        "Controller: elect uncleanly only when no ISR member is registered",
        "Group coordinator: expire members in order",
        "Client, server: senders and handlers do not import who makes them",
        "DeleteTopics: delete by id only the topic that has the id",
        "Readers' simulation: drain with large fetches",
        "Makefile: say what is missing",
        "Merge branch 'habits'",
        'Revert "Elect who is there"',
    ],
)
def test_takes_subjects_with_a_room(subject: str) -> None:
    assert complaint(subject, known()) is None


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("Elect who is there", "begin with the room"),
        ("controller: elect who is there", "begin with the room"),
        ("Controller:", "begin with the room"),
        ("Wardrobe: elect who is there", '"Wardrobe" is no room'),
        ("Controller, wardrobe: elect who is there", '"wardrobe" is no room'),
        ("Controller: " + "x" * 120, "132 characters"),
        ("", "begin with the room"),
    ],
)
def test_refuses_others_and_says_what_to_do(subject: str, says: str) -> None:
    assert says in (complaint(subject, known()) or "")


def test_remarks_of_git_are_no_subject() -> None:
    assert subject_of("# On branch main\n\nLog: roll\n\nWhy.\n") == "Log: roll"


def git(directory: Path, *arguments: str) -> None:
    configured = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *configured, *arguments], cwd=directory, check=True, capture_output=True)


def test_looks_at_commits_that_main_does_not_have(tmp_path: Path) -> None:
    git(tmp_path, "init", "--initial-branch=main")
    git(tmp_path, "commit", "--allow-empty", "--message=an old one")
    git(tmp_path, "switch", "--create=branch")
    assert new_subjects(tmp_path) == []
    git(tmp_path, "commit", "--allow-empty", "--message=Log: roll\n\nWhy.")
    git(tmp_path, "commit", "--allow-empty", "--message=Log: flush")
    assert new_subjects(tmp_path) == ["Log: flush", "Log: roll"]
    git(tmp_path, "branch", "--delete", "--force", "main")
    assert new_subjects(tmp_path) == []


def test_an_exported_checkout_has_no_commits(tmp_path: Path) -> None:
    assert new_subjects(tmp_path) == []


def test_a_message_is_looked_at_before_it_is_committed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("roll the log\n", encoding="utf-8")
    assert main(["--message", str(message)]) == 1
    assert '"roll the log": begin with the room and a colon' in capsys.readouterr().out
    message.write_text("Log: roll\n", encoding="utf-8")
    assert main(["--message", str(message)]) == 0
