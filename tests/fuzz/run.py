"""Fuzzes decoders, guided by coverage: `python -m tests.fuzz.run [--seconds N] [--keep] [TARGET ...]`.

Each target runs in a process of its own for so many seconds, with libFuzzer (atheris). It begins with its seeds, the
corpus in the repository, and what earlier runs on this machine have found (`.cache/fuzz/TARGET`). An input that breaks
a rule is written there, told in hexadecimal, and makes the exit status 1: it belongs into `tests/fuzz/corpus`, where
the usual tests play it. `--keep` takes some of what was found into that corpus.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from tests.fuzz.corpora import INPUTS_KEPT_MAX, KEPT_INPUT_BYTES_MAX, read_corpus, write_corpus
from tests.fuzz.target_names import TARGET_NAMES

PROJECT: Final = Path(__file__).resolve().parents[2]
FOUND: Final = PROJECT / ".cache" / "fuzz"
INPUT_SECONDS_MAX: Final = 10
"""For one input, which is instrumented code on a machine with other work."""
MEMORY_MEGABYTES_MAX: Final = 2_048
_REPORT: Final = re.compile(r"^#\d+.*", re.MULTILINE)
_NOTEWORTHY: Final = re.compile(r"^(?:SUMMARY|ALARM|.*ERROR).*", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGET_NAMES))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="take what was found into tests/fuzz/corpus")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.targets if name not in TARGET_NAMES]:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(TARGET_NAMES)}")
    if options.seconds < 1:
        parser.error(f"{options.seconds} is no number of seconds; 1 is the least")
    failed = [name for name in options.targets or TARGET_NAMES if not fuzz(name, options.seconds, keep=options.keep)]
    print(f"fuzzed {len(options.targets or TARGET_NAMES)} targets; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def fuzz(name: str, seconds: int, *, keep: bool) -> bool:
    """Whether nothing was found."""
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    for old in found.glob("broken-*"):
        old.unlink()
    print(f"{name}: {seconds} s ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="barnabas-fuzz-") as directory:
        begun = Path(directory)
        _write_inputs(begun, read_corpus(name))
        limits = [f"-timeout={INPUT_SECONDS_MAX}", f"-rss_limit_mb={MEMORY_MEGABYTES_MAX}"]
        ran = _child(
            name, *limits, f"-max_total_time={seconds}", f"-artifact_prefix={found}/broken-", str(found), str(begun)
        )
    broken = sorted(found.glob("broken-*"))
    for path in broken:
        print(f"{name} is broken by this input ({path.relative_to(PROJECT)}):\n{path.read_bytes().hex()}")
        path.rename(path.with_name(f"input-{path.name}"))  # begins the next run, so that it is told until it is mended
    if ran.returncode or broken:
        print(ran.stdout[-4_000:], "\n".join(_NOTEWORTHY.findall(ran.stderr)) or ran.stderr[-3_000:], sep="\n")
        return False
    reports = _REPORT.findall(ran.stderr)
    print("  " + (reports[-1] if reports else "no report"))
    if keep:
        _keep(name, found)
    return True


def _keep(name: str, found: Path) -> None:
    """Each input that was found reaches what none before it did. Kept are some, evenly over the sizes."""
    inputs = {path.read_bytes() for path in found.iterdir()} | set(read_corpus(name))
    usable = sorted(
        (each for each in inputs if 0 < len(each) <= KEPT_INPUT_BYTES_MAX), key=lambda each: (len(each), each)
    )
    step = max(1.0, len(usable) / INPUTS_KEPT_MAX)
    chosen = [usable[int(number * step)] for number in range(min(len(usable), INPUTS_KEPT_MAX))]
    write_corpus(name, chosen)
    print(f"  kept {len(chosen)} of {len(inputs)} inputs")


def _write_inputs(directory: Path, inputs: Iterable[bytes]) -> None:
    for each in inputs:
        (directory / hashlib.sha256(each).hexdigest()[:16]).write_bytes(each)


def _child(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", name, *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, errors="replace", check=False)


def child(name: str, arguments: Sequence[str]) -> None:
    """Fuzzes in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["barnabas", "json", "tests.fuzz"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    seeds = target.seeds()
    for seed in seeds:
        target.check(seed)
    _instrument_generated_code(atheris)
    with tempfile.TemporaryDirectory(prefix="barnabas-fuzz-") as directory:
        _write_inputs(Path(directory), seeds)
        atheris.Setup([sys.argv[0], f"-max_len={target.bytes_max}", *arguments, directory], target.check)
        atheris.Fuzz()


def _instrument_generated_code(atheris: Any) -> None:
    """The codec's functions are made of the schemas when they are wanted, past any hook on imports."""
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and " version " in function.__code__.co_filename:
            atheris.instrument_func(function)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
