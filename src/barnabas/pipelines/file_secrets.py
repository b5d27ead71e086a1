"""Secrets that a pipeline's file names, and does not have: `${env:NAME}`, a variable, and `${file:PATH}`, a file.

What is read of a file keeps the references, so that no plan, state or message can show what they stand for; it is
resolved where it is used.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import Pipeline, PipelineError

SECRET_BYTES_MAX: Final = 256 * 1024
_SECRET_CHARACTERS_MIN: Final = 4
_SECRET_NAME: Final = re.compile(
    r"(?i)(password|passphrase|secret|token|credential|jaas|(secret|secret.access|account|private|keystore|encryption)[._-]?key)$"
    r"|[.]account[.]key[.]|[.]sas[.]|[.]client[.]secret[.]"
)
_SECRET_IN_ADDRESS: Final = re.compile(
    r"(?i)[?&;](password|pwd|secret|token)=(?!\$\{)[^&;]|//[^/?@:]*:(?!\$\{)[^/?@]+@|:thin:[^/@]+/(?!\$\{)[^@]+@"
)
_LOGIN_IN_ADDRESS: Final = re.compile(r"(?<=//)[^/?@]*@|(?<=:thin:)[^@]*@")
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")


def has_reference(text: str) -> bool:
    """Whether the text names a secret."""
    return _REFERENCE.search(text) is not None


def stands_open(name: str, value: str) -> bool:
    """Whether a setting of that name is a secret, or an address that has one, which the value does not name."""
    if _SECRET_IN_ADDRESS.search(value) is not None:
        return True
    return bool(value.strip()) and _SECRET_NAME.search(name) is not None and not has_reference(value)


def without_login(address: str) -> str:
    """An address as it may be shown: without a login, and what may follow it, which may be a secret."""
    return _LOGIN_IN_ADDRESS.sub("", re.split(r"[?;]", address, maxsplit=1)[0])


def resolved(text: str, path: Path, line: int) -> str:
    """The text with what its references stand for; paths are relative to the pipeline's file at `path`. A line break at
    the end of a file is none of the secret.

    Raises PipelineError, which shows no secret, for a variable that is not set and a file that cannot be read.
    """

    def found(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            value = os.environ.get(name)
            if value is None:
                raise PipelineError(f"${{env:{name}}}: the variable {name} is not set", path=path, line=line)
            return value
        try:
            with (path.resolve().parent / name).open("rb") as file:
                content = file.read(SECRET_BYTES_MAX + 1)
            if len(content) > SECRET_BYTES_MAX:
                message = f"${{file:{name}}} has more than {SECRET_BYTES_MAX} bytes"
                raise PipelineError(message, path=path, line=line)
            return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise PipelineError(f"${{file:{name}}} cannot be read: {reason}", path=path, line=line) from None

    return _REFERENCE.sub(found, text)


def hidden(said: str, given: str, path: Path, line: int) -> str:
    """What somebody said who knows what the references in `given` stand for, with *** in its place. What cannot be read
    any more is left; and what is so short is no secret, and stands in every message.
    """
    for match in _REFERENCE.finditer(given):
        with contextlib.suppress(PipelineError):
            secret = resolved(match.group(), path, line)
            said = said.replace(secret, "***") if len(secret) >= _SECRET_CHARACTERS_MIN else said
    return said


def without_secrets(said: str, pipeline: Pipeline) -> str:
    """What Spark, or a store, said, with *** in place of what references in the file's settings stand for."""
    for _, value in pipeline.spark:
        said = hidden(said, value, pipeline.path, pipeline.line)
    return said


def spark_settings_of_file(pipeline: Pipeline) -> tuple[tuple[str, str], ...]:
    """The settings of Spark that the file has, resolved. Raises PipelineError."""
    return tuple((name, resolved(value, pipeline.path, pipeline.line)) for name, value in pipeline.spark)
