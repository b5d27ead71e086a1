"""`sasl.jaas.config`: one login module with its options, in the syntax of Java's login configuration.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

It is split into words as Kafka splits it: a word begins with a letter, `_` or `$` and goes on with digits, `.` and `-`
too; anything may stand in single or double quotes, with backslashes as in Java; `/` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.sasl.errors import LoginConfigError

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KEY: Final = "sasl.jaas.config"
_USER_PREFIX: Final = "user_"
_FLAGS: Final = frozenset(("required", "requisite", "sufficient", "optional"))
_TOKEN: Final = re.compile(
    r"""(?P<skipped>[\x00-\x20]+|/\*(?s:.*?)(?:\*/|\Z)|/[^\r\n]*)"""
    r"""|"(?P<double>(?:[^"\\\r\n]|\\[^\r\n])*)(?:"|(?=[\r\n])|\Z)"""
    r"""|'(?P<single>(?:[^'\\\r\n]|\\[^\r\n])*)(?:'|(?=[\r\n])|\Z)"""
    r"""|(?P<word>[A-Za-z_$\u00a0-\U0010ffff][A-Za-z0-9_$.\-\u00a0-\U0010ffff]*)"""
    r"""|(?P<sign>(?s:.))"""
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_ESCAPED: Final = {"a": "\x07", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_Token = tuple[str, bool, int]
"""The text, whether it is a word or was quoted, and where it begins."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A module by its Java name, and its options. They may be secret and are not shown."""

    name: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def has_token(self) -> bool:
        """Whether a ScramLoginModule's name and password are those of a delegation token (KIP-48)."""
        return self.options.get("tokenauth", "").lower() == "true"

    @property
    def passwords(self) -> dict[str, str]:
        """Those of the users that a PlainLoginModule lists as `user_NAME="PASSWORD"`, by name."""
        return {
            key.removeprefix(_USER_PREFIX): value for key, value in self.options.items() if key.startswith(_USER_PREFIX)
        }


def parse_login_module(text: str) -> LoginModule:
    """The one module of the text. Raises LoginConfigError, which quotes nothing of it."""
    tokens = list(_tokens(text))
    if not tokens:
        raise LoginConfigError(f"{KEY} is empty; write {_example()}")
    name, is_word, _ = tokens[0]
    if not is_word:
        raise LoginConfigError(f"{KEY} begins with no name of a login module; write {_example()}")
    if len(tokens) < 2 or not tokens[1][1] or tokens[1][0].lower() not in _FLAGS:
        raise LoginConfigError(f"{KEY} needs `required` after the name of its login module; write {_example()}")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and (tokens[at][1] or tokens[at][0] != ";"):
        key = tokens[at]
        sign, value = tokens[at + 1 : at + 2], tokens[at + 2 : at + 3]
        if not key[1] or not sign or sign[0][1] or sign[0][0] != "=" or not value or not value[0][1]:
            raise LoginConfigError(
                f'{KEY} has no NAME="VALUE" for its option {len(options) + 1}, at character {key[2] + 1}; put values in'
                " double quotes, with a backslash before each double quote and backslash in them"
            )
        options[key[0]] = value[0][0]
        at += 3
    if at == len(tokens):
        raise LoginConfigError(f"{KEY} lacks the semicolon at its end")
    if at + 1 < len(tokens):
        raise LoginConfigError(f"{KEY} goes on after the semicolon, and may have one login module only")
    return LoginModule(name, options)


def parse_login_file(text: str) -> dict[str, LoginModule]:
    """The first module of each section of a file for Java's logins (`java.security.auth.login.config`).

        Client {
          org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="...";
        };

    Raises LoginConfigError, which quotes nothing of it.
    """
    found: dict[str, LoginModule] = {}
    tokens = list(_tokens(text))
    at = 0
    while at < len(tokens):
        name, is_word, place = tokens[at]
        if not is_word or [token[:2] for token in tokens[at + 1 : at + 2]] != [("{", False)]:
            raise LoginConfigError(f"the file of logins has no section NAME {{ ... }}; at character {place + 1}")
        at += 2
        module: list[str] = []
        while at < len(tokens) and tokens[at][:2] != ("}", False):
            end = next((i for i in range(at, len(tokens)) if tokens[i][:2] == (";", False)), len(tokens) - 1)
            if name not in found and not module:
                stop = tokens[end][2] + 1
                found[name] = parse_login_module(text[tokens[at][2] : stop])
                module.append(name)
            at = end + 1
        if [token[:2] for token in tokens[at : at + 2]] != [("}", False), (";", False)]:
            raise LoginConfigError(f"section {name} of the file of logins has no }}; at its end")
        at += 2
    return found


def login_of(module: LoginModule) -> tuple[str, str]:
    """Name and password that a client, or a broker towards others, logs in with. Raises LoginConfigError."""
    found = [module.options.get(option) for option in ("username", "password")]
    if None in found or "" in found:
        raise LoginConfigError(f"{KEY} lacks username or password; write {_example()}")
    return str(found[0]), str(found[1])


def _example() -> str:
    return f'{SCRAM_MODULE} required username="NAME" password="PASSWORD"; (or {PLAIN_MODULE} for PLAIN)'


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        if found.lastgroup == "skipped":
            continue
        if found["sign"] is not None:
            yield found["sign"], False, found.start()
        elif found["word"] is not None:
            yield found["word"], True, found.start()
        else:
            quoted = found["double"] if found["double"] is not None else found["single"]
            yield _ESCAPE.sub(_unescaped, quoted or ""), True, found.start()


def _unescaped(found: re.Match[str]) -> str:
    escaped = found[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)
