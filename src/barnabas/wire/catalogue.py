"""Which messages there are: finds and reads the schema files, each on first use.

The file of an API is named by key and name, so that a key or a message's name leads to its file without reading any
other. The names are known here rather than looked for, which keeps the start of a process short.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping
from typing import Final

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.schema import Message, SchemaError, read_schema

_FOLDER: Final = "schemas"
_OTHER_FILES: Final = (
    "consumer_group_current_member_assignment.record",
    "consumer_group_member_metadata.record",
    "consumer_group_metadata.record",
    "consumer_group_partition_metadata.record",
    "consumer_group_target_assignment_member.record",
    "consumer_group_target_assignment_metadata.record",
    "consumer_protocol.api",
    "default_principal.api",
    "group_metadata.record",
    "header.api",
    "offset_commit.record",
    "remote_log_metadata.record",
    "transaction_log.record",
)
"""The files that belong to no API."""


def _api_file(key: ApiKey) -> str:
    return f"{key:02}_{key.name.lower()}.api"


def file_names() -> tuple[str, ...]:
    """The names of all schema files."""
    return (*(_api_file(key) for key in ApiKey), *_OTHER_FILES)


@functools.cache
def _messages_of(file: str) -> tuple[Message, ...]:
    data = pkgutil.get_data("barnabas.wire", f"{_FOLDER}/{file}")
    if data is None:
        raise SchemaError(file, 1, "the file cannot be read from where Barnabas is installed; install it again")
    messages = read_schema(file, data.decode("utf-8"))
    if file not in _OTHER_FILES:
        key = ApiKey(int(file.partition("_")[0]))
        if (messages[0].api_key, messages[0].name) != (key, f"{key.api_name}Request"):
            raise SchemaError(file, 1, f"the file of {key.api_name} (key {key}) declares another API")
    return messages


@functools.cache
def api_names() -> Mapping[int, str]:
    """Every API by key: {12: "Heartbeat", ...}."""
    return {key.value: key.api_name for key in ApiKey}


@functools.cache
def _api_places() -> Mapping[str, str]:
    """The file of every request and response by the message's name."""
    return {f"{key.api_name}{kind}": _api_file(key) for key in ApiKey for kind in ("Request", "Response")}


@functools.cache
def _other_places() -> Mapping[str, str]:
    """The file of every other message by its name, for which these files are read."""
    return {message.name: file for file in _OTHER_FILES for message in _messages_of(file)}


def message_names() -> tuple[str, ...]:
    """The names of all messages, sorted."""
    return tuple(sorted([*_api_places(), *_other_places()]))


@functools.cache
def message(name: str) -> Message:
    """The schema of the message `name`, such as `FetchRequest`.

    Raises `KeyError` if there is none, `SchemaError` if it is wrong.
    """
    file = _api_places().get(name) or _other_places()[name]
    return next(found for found in _messages_of(file) if found.name == name)


def request(api_key: int) -> Message:
    """The schema of the request of an API. Raises `KeyError` if there is no such key."""
    return message(f"{api_names()[api_key]}Request")


def response(api_key: int) -> Message:
    """The schema of the response of an API. Raises `KeyError` if there is no such key."""
    return message(f"{api_names()[api_key]}Response")
