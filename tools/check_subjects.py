"""The rule on subjects of commits: each begins with its room, as `Controller: elect ...`.

Run as `python -m tools.check_subjects [--message FILE]`; prints one line per finding and exits 1 when there is any.
With `--message` the message that Git is about to commit is looked at, otherwise the commits that `main` does not have
yet, which can still be mended. A checkout without Git, or without `main`, has none.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
MAIN: Final = ("main", "origin/main")
COMMITS_MAX: Final = 200
SUBJECT_LENGTH_MAX: Final = 120
OTHER_ROOMS: Final = frozenset(
    "architecture benchmarks changelog ci contributing demo docs fuzz interop make makefile performance readers readme "
    "release replication requirements simulated simulation simulator spark tests tools words".split()
)
"""First words that are no room of the package's."""
# What a room's name is in a sentence: `Group coordinator`, `Simulated loop`, `ZooKeeper client`; several with commas.
_SUBJECT: Final = re.compile(r"(?P<rooms>[A-Z][\w'./ -]*(?:, [\w'./ -]+)*): \S.*")
_GITS_OWN: Final = ("Merge ", 'Revert "', "fixup! ", "squash! ", "amend! ")
"""How Git begins the subjects that it writes."""


def rooms(root: Path = PROJECT) -> frozenset[str]:
    """The words that a subject may begin with, in lower case: the rooms and the files in them, and `OTHER_ROOMS`."""
    package = root / "src" / "barnabas"
    folders = {path.name for path in package.rglob("*") if path.is_dir()}
    files = {path.stem for path in package.rglob("*.py")}
    words = {word for name in folders | files for word in (name.replace("_", ""), *name.split("_"))}
    return frozenset(words) | OTHER_ROOMS


def complaint(subject: str, known: frozenset[str]) -> str | None:
    """What is wrong with a subject, and what to do; None where nothing is."""
    if subject.startswith(_GITS_OWN):
        return None
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        return f'"{subject}": begin with the room and a colon, as in "Controller: elect ..."'
    if len(subject) > SUBJECT_LENGTH_MAX:
        return f'"{subject}": {len(subject)} characters, more than {SUBJECT_LENGTH_MAX}: move the why into the message'
    for room in match["rooms"].split(", "):
        if not known & set(re.split(r"[ ./'-]", room.lower())):
            return f'"{subject}": "{room}" is no room; src/barnabas/ has them, and tools/check_subjects.py some more'
    return None


def findings(subjects: Iterable[str]) -> list[str]:
    """One sentence per subject that breaks the rule."""
    known = rooms()
    return [found for subject in subjects if (found := complaint(subject, known)) is not None]


def subject_of(message: str) -> str:
    """The first line that is no remark of Git's."""
    lines = (line.strip() for line in message.splitlines() if not line.startswith("#"))
    return next(filter(None, lines), "")


def new_subjects(root: Path = PROJECT) -> list[str]:
    """The subjects of the commits of HEAD that no `main` has, newest first; none where that cannot be known."""
    if not (root / ".git").exists():
        return []
    there = [name for name in MAIN if _git(root, "rev-parse", "--verify", "--quiet", name)]
    if not there:
        return []
    listed = _git(root, "log", "--format=%s", f"--max-count={COMMITS_MAX}", "HEAD", "--not", *there)
    return (listed or "").splitlines()


def _git(root: Path, *arguments: str) -> str | None:
    """What Git says; None where there is none or it refuses."""
    try:
        ran = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_subjects", description=__doc__)
    parser.add_argument("--message", type=Path, metavar="FILE", help="the message that is about to be committed")
    options = parser.parse_args(arguments)
    if options.message is not None:
        subjects = [subject_of(options.message.read_text(encoding="utf-8"))]
    else:
        subjects = new_subjects()
    found = findings(subjects)
    for sentence in found:
        print(sentence)
    print(f"subjects of commits: {len(subjects)} looked at, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
