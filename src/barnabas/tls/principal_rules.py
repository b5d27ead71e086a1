"""`ssl.principal.mapping.rules`: a short user name made of a certificate's distinguished name (KIP-371).

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT

The first rule whose expression fits the whole name counts. `L` or `U` writes the result in small or capital letters;
DEFAULT takes the name as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from barnabas.tls.errors import NoPrincipalError, TlsConfigError

_KEY: Final = "ssl.principal.mapping.rules"
_DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(?:,\s*|$)")
_NAMED_GROUP: Final = re.compile(r"\(\?<([A-Za-z])")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$\{([A-Za-z][A-Za-z0-9]*)\}|([^\\$]+|[\\$])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Rule:
    expression: re.Pattern[str]
    replacement: tuple[str | int, ...]
    """Texts, and the numbers of groups."""
    case: str

    def apply(self, name: str) -> str | None:
        if self.expression.fullmatch(name) is None:
            return None
        result = self.expression.sub(self._replaced, name)
        return {"L": result.lower, "U": result.upper}.get(self.case, lambda: result)()

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
        expression = re.compile(_NAMED_GROUP.sub(r"(?P<\1", written))
    except re.error as error:
        raise TlsConfigError(f"{_KEY}: the expression {written} cannot be read here: {error}") from None
    return _Rule(expression, tuple(_parts(replacement, expression)), case)


def _parts(replacement: str, expression: re.Pattern[str]) -> list[str | int]:
    """Texts and groups. A number that no group has is a text, less its last digits where these leave one."""
    parts: list[str | int] = []
    for escaped, digits, named, plain in _REFERENCE.findall(replacement):
        if named:
            number = expression.groupindex.get(named)
            parts.append(f"${{{named}}}" if number is None else number)
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
