"""`barnabas.cli.typed_line`: what somebody has typed so far, as the command would get it."""

from __future__ import annotations

import pytest

from barnabas.cli.typed_line import Quote, read_line

BASH_BREAKS = " \t\n\"'@><=;|&(:"


@pytest.mark.parametrize(
    ("line", "words", "incomplete"),
    [
        ("", [], ""),
        ("barnabas", [], "barnabas"),
        ("barnabas ", ["barnabas"], ""),
        ("barnabas  topic\tli", ["barnabas", "topic"], "li"),
        ("b 'my gr' x", ["b", "my gr"], "x"),
        ("b 'my gr", ["b"], "my gr"),
        ('b "a\\"b \\n', ["b"], 'a"b \\n'),
        ("b my\\ gr", ["b"], "my gr"),
        ("b a'b'\"c\"d", ["b"], "abcd"),
        ("b '' ", ["b", ""], ""),
        ("b 'it'\\''s' x", ["b", "it's"], "x"),
        ("b \\", ["b"], ""),
        ("b 'a\\' c", ["b", "a\\"], "c"),
    ],
)
def test_words_are_those_that_the_command_would_get(line: str, words: list[str], incomplete: str) -> None:
    read = read_line(line)
    assert (read.words, read.incomplete) == (words, incomplete)


@pytest.mark.parametrize(
    ("line", "incomplete", "stem", "quote"),
    [
        ("b config get topic:fl", "topic:fl", "topic:", Quote.NONE),
        ("b --group=re", "--group=re", "--group=", Quote.NONE),
        ("b topic\\:fl", "topic:fl", "", Quote.NONE),
        ("b 'topic:fl", "topic:fl", "", Quote.SINGLE),
        ('b topic:"fl', "topic:fl", "topic:", Quote.DOUBLE),
        ("b 'topic:'fl", "topic:fl", "", Quote.NONE),
        ("b a:b:c", "a:b:c", "a:b:", Quote.NONE),
        ("b a:b c", "c", "", Quote.NONE),
    ],
)
def test_a_shell_thinks_that_a_word_begins_behind_a_break_or_an_open_quote(
    line: str, incomplete: str, stem: str, quote: Quote
) -> None:
    read = read_line(line, BASH_BREAKS)
    assert (read.incomplete, read.stem, read.quote) == (incomplete, stem, quote)


@pytest.mark.parametrize(
    ("line", "words", "is_redirection"),
    [
        ("b topic list > ", ["b", "topic", "list"], True),
        ("b topic list >ou", ["b", "topic", "list"], True),
        ("b topic list 2> ou", ["b", "topic", "list"], True),
        ("b topic list > out ", ["b", "topic", "list"], False),
        ("b produce x<in --k", ["b", "produce", "x"], False),
        ("b produce '>' x", ["b", "produce", ">"], False),
    ],
)
def test_where_the_output_goes_is_no_word_of_the_command(line: str, words: list[str], is_redirection: bool) -> None:
    read = read_line(line, BASH_BREAKS)
    assert (read.words, read.is_redirection) == (words, is_redirection)
