"""The line that somebody types in a shell, up to the cursor: its words, as the command would get them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

_SPACES: Final = " \t\n"
_REDIRECTIONS: Final = "<>"
_QUOTED_WITHIN_QUOTES: Final = '\\"$`'
"""What a backslash quotes between double quotes; ahead of anything else it stays."""


class Quote(enum.Enum):
    """What is open at the cursor."""

    NONE = ""
    SINGLE = "'"
    DOUBLE = '"'


@dataclass(slots=True)
class TypedLine:
    """A line up to the cursor. Variables and the like are taken for what they look like."""

    words: list[str] = field(default_factory=list)
    """The words before that in which the cursor is, the command first; no redirections."""
    incomplete: str = ""
    """The word in which the cursor is, without its quotes."""
    stem: str = ""
    """How `incomplete` begins, up to where a shell thinks that a word begins: behind the last character that breaks
    words, or behind the quote that is open."""
    quote: Quote = Quote.NONE
    is_redirection: bool = False
    """The word is a file, from which the input comes or to which the output goes."""


def read_line(line: str, breaks: str = "") -> TypedLine:
    """What was typed; `breaks` are the characters that break words where a shell completes (`COMP_WORDBREAKS`)."""
    read = TypedLine()
    characters = iter(line)
    broken = opened = ""
    is_word = False
    for character in characters:
        if read.quote is not Quote.NONE and character == read.quote.value:
            read.quote = Quote.NONE
        elif character == "\\" and read.quote is not Quote.SINGLE:
            quoted = next(characters, "")
            if read.quote is Quote.DOUBLE and quoted not in _QUOTED_WITHIN_QUOTES:
                quoted = character + quoted
            read.incomplete += quoted
            is_word = True
        elif read.quote is not Quote.NONE:
            read.incomplete += character
        elif character in "'\"":
            read.quote = Quote(character)
            opened = read.incomplete
            is_word = True
        elif character in _SPACES or character in _REDIRECTIONS:
            begins_file = character in _REDIRECTIONS
            is_descriptor = begins_file and read.incomplete.isdigit()
            if is_word and not read.is_redirection and not is_descriptor:
                read.words.append(read.incomplete)
            if is_word or begins_file:
                read.is_redirection = begins_file
            read.incomplete = broken = ""
            is_word = False
        else:
            read.incomplete += character
            is_word = True
            if character in breaks:
                broken = read.incomplete
    read.stem = broken if read.quote is Quote.NONE else opened
    return read
