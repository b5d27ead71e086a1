"""Blocks of PEM, in files and in configs that anybody may have written."""

from __future__ import annotations

import random
import re
import time

import pytest

from barnabas.tls import pem

ONE = "-----BEGIN X-----\nAAAA\n-----END X-----\n"
OTHER = "-----BEGIN PRIVATE KEY-----BBBB-----END PRIVATE KEY-----"
BY_SEARCH = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
"""What a block is."""


def found(text: str) -> list[tuple[str, str]]:
    return [(block.label, block.body) for block in pem.blocks(text)]


def test_blocks_are_found_among_other_text_and_in_one_line() -> None:
    text = f"subject=/CN=a\n{ONE}more {OTHER} {ONE.replace(chr(10), ' ')} end"
    assert found(text) == [("X", "\nAAAA\n"), ("PRIVATE KEY", "BBBB"), ("X", " AAAA ")]
    assert "BBBB" not in repr(pem.blocks(text))


def test_blocks_are_what_a_search_for_each_end_finds() -> None:
    parts = [
        "-----BEGIN X-----",
        "-----END X-----",
        "-----BEGIN Y-----",
        "-----END Y-----",
        "-----",
        "BEGIN X",
        "a",
        "\n",
    ]
    rng = random.Random(3)
    several = 0
    for _ in range(5000):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(12)))
        assert found(text) == BY_SEARCH.findall(text), text
        several += len(found(text)) > 1
    assert several > 100


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN X-----" * 60_000,
        "-----BEGIN X-----" * 30_000 + "-----END Y-----" * 30_000,
        "".join(f"-----BEGIN {number}-----" for number in range(50_000)),
        "-" * 1_000_000,
        "-----BEGIN " * 90_000,
        "-----BEGIN " + "X" * 1_000_000,
        "".join(f"-----BEGIN {number}-----x-----END {number + 1}-----" for number in range(25_000)),
    ],
    ids=["begins", "other ends", "labels", "dashes", "halves", "one label", "shifted"],
)
def test_a_megabyte_of_marks_takes_no_longer_than_one_of_certificates(text: str) -> None:
    started = time.process_time()
    assert found(text) == []
    assert time.process_time() - started < 5
