"""The corpora that are kept: `tests/fuzz/corpus/TARGET.txt`, an input in hexadecimal per line, and remarks (`#`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
INPUTS_KEPT_MAX: Final = 150
"""Of what a fuzzer finds, for each target: the repository stays small."""
KEPT_INPUT_BYTES_MAX: Final = 300


def read_corpus(name: str) -> list[bytes]:
    """The inputs; none where there is no file yet."""
    path = CORPUS / f"{name}.txt"
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]


def write_corpus(name: str, inputs: Iterable[bytes]) -> None:
    """Replaces what a fuzzer has found. What a remark stands above, to the next empty line, was put in by hand as a
    regression case and stays.
    """
    path = CORPUS / f"{name}.txt"
    by_hand: list[str] = []
    if path.exists():
        blocks = path.read_text(encoding="ascii").split("\n\n")
        by_hand = [block.strip() for block in blocks if block.lstrip().startswith("#")]
    found = "\n".join(each.hex() for each in inputs)
    path.write_text("\n\n".join([*by_hand, found]).strip() + "\n", encoding="ascii")
