"""`ssl.principal.mapping.rules`: a short user name made of a certificate's distinguished name (KIP-371).

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT

The first rule whose expression fits the whole name counts. `L` or `U` writes the result in small or capital letters;
DEFAULT takes the name as it is. Expressions are Java's: what means something else in Python is translated, or refused,
since it would name another client without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from barnabas.tls.errors import NoPrincipalError, TlsConfigError

_KEY: Final = "ssl.principal.mapping.rules"
_DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(?:,\s*|$)")
_NAMED_GROUP: Final = re.compile(r"\(\?<([A-Za-z])")
_TOKEN: Final = re.compile(r"\\.|&&|.", re.DOTALL)
_DOT_FITS_ALL: Final = re.compile(r"\(\?[a-z]*s")
_NO_LINE_END: Final = "[^\n\r\u0085\u2028\u2029]"
_OTHER_ESCAPES: Final = (r"\v", r"\0")
"""In Java a class of characters, and the beginning of an octal number."""
_BOUNDARIES: Final = (r"\b", r"\B")
"""Of all letters and digits in Java up to 18, though its words are ASCII."""
_REFERENCE: Final = re.compile(r"\\(.)|\$([0-9]+)|\$\{([A-Za-z][A-Za-z0-9]*)\}|([^\\$]+|[\\$])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Rule:
    expression: re.Pattern[str]
    replacement: tuple[str | int, ...]
    """Texts, and the numbers of groups."""
    case: str

    def apply(self, name: str) -> str | None:
        if self.expression.fullmatch(name) is None:
            return None
        result = "".join(self._pieces(name))
        return {"L": result.lower, "U": result.upper}.get(self.case, lambda: result)()

    def _pieces(self, name: str) -> Iterator[str]:
        """As Java's `replaceAll`, which goes a character on after an empty match; Python looks for a longer one."""
        done = position = 0
        while position <= len(name):
            match = self.expression.search(name, position)
            if match is None:
                break
            yield name[done : match.start()]
            yield self._replaced(match)
            done = match.end()
            position = done + (match.start() == match.end())
        yield name[done:]

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalRules:
    """The rules of one listener."""

    __slots__ = ("_rules", "_text")

    def __init__(self, text: str = _DEFAULT) -> None:
        """Raises TlsConfigError."""
        self._text = text
        self._rules = _parse(text)

    def name(self, distinguished_name: str) -> str:
        """Whom the certificate names. Raises NoPrincipalError where no rule fits."""
        for rule in self._rules:
            if rule is None:
                return distinguished_name
            found = rule.apply(distinguished_name)
            if found is not None:
                return found
        raise NoPrincipalError(f"no rule of {_KEY} fits {distinguished_name}")


def _parse(text: str) -> list[_Rule | None]:
    rules: list[_Rule | None] = []
    text = text.strip()
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is not None:
            rules.append(_rule(match))
            end = match.end()
        elif text.startswith(_DEFAULT, position):
            rules.append(None)
            end = position + len(_DEFAULT)
        elif text[position] == ",":
            end = position
        else:
            raise TlsConfigError(
                f"{_KEY}: a rule is DEFAULT or RULE:EXPRESSION/REPLACEMENT/[LU], not {text[position:]}"
            )
        separator = _SEPARATOR.match(text, end)
        if separator is None:
            raise TlsConfigError(f"{_KEY}: {text[end:]} follows a rule; rules are separated by commas")
        position = separator.end()
    return rules


def _rule(match: re.Match[str]) -> _Rule:
    written, replacement, case = match.groups()
    try:
        # Java's \w, \d, \s and what ignores case know ASCII only.
        expression = re.compile(_NAMED_GROUP.sub(r"(?P<\1", _translated(written)), re.ASCII)
    except (re.error, ValueError) as error:
        raise TlsConfigError(f"{_KEY}: the expression {written} cannot be read here: {error}") from None
    return _Rule(expression, tuple(_parts(replacement, expression, written)), case)


def _translated(written: str) -> str:
    """In Python's words. Raises re.error for what Python would read as something else."""
    found: list[str] = []
    class_begins: int | None = None
    for match in _TOKEN.finditer(written):
        part = match[0]
        if part in _OTHER_ESCAPES or (class_begins is not None and part in ("[", "&&")):
            raise re.error(f"{part} is another thing in Java")
        if class_begins is None:
            if part == "[":
                class_begins = match.end() + (written[match.end() : match.end() + 1] == "^")
            elif part == "." and not _DOT_FITS_ALL.search(written):
                part = _NO_LINE_END
            elif part in _BOUNDARIES:
                part = f"(?u:{part})"
        elif part == "]" and match.start() > class_begins:
            class_begins = None
        found.append(part)
    return "".join(found)


def _parts(replacement: str, expression: re.Pattern[str], written: str) -> list[str | int]:
    """Texts and groups. A number that no group has is a text, less its last digits where these leave one.

    Raises TlsConfigError for what Java finds only when a client comes, whom it lets in never.
    """
    parts: list[str | int] = []
    for escaped, digits, named, plain in _REFERENCE.findall(replacement):
        has_none = named not in expression.groupindex if named else digits[:1] > "0" and not expression.groups
        if has_none or plain == "$":
            raise TlsConfigError(
                f"{_KEY}: {replacement} names a group that {written} does not have; a dollar is written as \\$"
            )
        if named:
            parts.append(expression.groupindex[named])
        elif digits:
            taken = len(digits)
            while taken > 1 and int(digits[:taken]) > expression.groups:
                taken -= 1
            if int(digits[:taken]) > expression.groups:
                parts.append(f"${digits}")
            else:
                parts += [int(digits[:taken]), digits[taken:]]
        else:
            parts.append(escaped or plain)
    return parts
