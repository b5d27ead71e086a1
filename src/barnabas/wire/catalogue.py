"""Which messages there are: finds and reads the schema files, each on first use.

The file of an API is named by key and name, so that a key or a message's name leads to its file without reading any
other. The names are known here rather than looked for, which keeps the start of a process short.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping
from typing import Final

from barnabas.wire import generated_code, schema_rows
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.schema import Message, SchemaError

_KEY_AND_VALUE: Final = ("Key", "Value")
_REQUEST_AND_RESPONSE: Final = ("Request", "Response")
_OTHER_FILES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "consumer_group_current_member_assignment.record": ("ConsumerGroupCurrentMemberAssignment", _KEY_AND_VALUE),
    "consumer_group_member_metadata.record": ("ConsumerGroupMemberMetadata", _KEY_AND_VALUE),
    "consumer_group_metadata.record": ("ConsumerGroupMetadata", _KEY_AND_VALUE),
    "consumer_group_partition_metadata.record": ("ConsumerGroupPartitionMetadata", _KEY_AND_VALUE),
    "consumer_group_target_assignment_member.record": ("ConsumerGroupTargetAssignmentMember", _KEY_AND_VALUE),
    "consumer_group_target_assignment_metadata.record": ("ConsumerGroupTargetAssignmentMetadata", _KEY_AND_VALUE),
    "consumer_protocol.api": ("ConsumerProtocol", ("Subscription", "Assignment")),
    "default_principal.api": ("DefaultPrincipal", ("Data",)),
    "group_metadata.record": ("GroupMetadata", _KEY_AND_VALUE),
    "header.api": ("", ("RequestHeader", "ResponseHeader")),
    "offset_commit.record": ("OffsetCommit", _KEY_AND_VALUE),
    "remote_log_metadata.record": (
        "Remote",
        ("LogSegmentMetadataRecord", "LogSegmentMetadataUpdateRecord", "PartitionDeleteMetadataRecord"),
    ),
    "transaction_log.record": ("TransactionLog", _KEY_AND_VALUE),
}
"""The files that belong to no API, with how their messages' names begin and end, in order."""


def _api_file(key: ApiKey) -> str:
    return f"{key:02}_{key.name.lower()}.api"


def file_names() -> tuple[str, ...]:
    """The names of all schema files."""
    return (*(_api_file(key) for key in ApiKey), *_OTHER_FILES)


def messages_of(file: str) -> tuple[Message, ...]:
    """The messages of a schema file. Raises `SchemaError` if it is wrong."""
    return _messages_of(file)


@functools.cache
def _messages_of(file: str) -> tuple[Message, ...]:
    generated = generated_code.module(file)
    if generated is not None:
        return tuple(map(schema_rows.message, generated["MESSAGES"]))
    return _read(file)


def _read(file: str) -> tuple[Message, ...]:
    from barnabas.wire.schema_reader import read_schema

    data = pkgutil.get_data(generated_code.PACKAGE, f"{generated_code.SCHEMAS}/{file}")
    if data is None:
        raise SchemaError(file, 1, "the file cannot be read from where Barnabas is installed; install it again")
    messages = read_schema(file, data.decode("utf-8"))
    if file not in _OTHER_FILES:
        key = ApiKey(int(file.partition("_")[0]))
        if (messages[0].api_key, messages[0].name) != (key, f"{key.api_name}Request"):
            raise SchemaError(file, 1, f"the file of {key.api_name} (key {key}) declares another API")
    elif tuple(message.name for message in messages) != _names_in(file):
        raise SchemaError(file, 1, f"it does not declare {', '.join(_names_in(file))}, which it is known for")
    return messages


def _names_in(other_file: str) -> tuple[str, ...]:
    beginning, ends = _OTHER_FILES[other_file]
    return tuple(beginning + end for end in ends)


@functools.cache
def api_names() -> Mapping[int, str]:
    """Every API by key: {12: "Heartbeat", ...}."""
    return {key.value: key.api_name for key in ApiKey}


@functools.cache
def _other_places() -> Mapping[str, str]:
    """The file of every message that belongs to no API, by its name."""
    return {name: file for file in _OTHER_FILES for name in _names_in(file)}


def _api_place(name: str) -> str | None:
    """The file of a request or a response; None for another name."""
    for kind in _REQUEST_AND_RESPONSE:
        if name.endswith(kind):
            words = name.removesuffix(kind)
            key = ApiKey.__members__.get("".join(f"_{each}" if each.isupper() else each.upper() for each in words)[1:])
            return None if key is None or key.api_name != words else _api_file(key)
    return None


def message_names() -> tuple[str, ...]:
    """The names of all messages, sorted."""
    names = [f"{api_name}{kind}" for api_name in api_names().values() for kind in _REQUEST_AND_RESPONSE]
    return tuple(sorted([*names, *_other_places()]))


@functools.cache
def message(name: str) -> Message:
    """The schema of the message `name`, such as `FetchRequest`.

    Raises `KeyError` if there is none, `SchemaError` if it is wrong.
    """
    return next(found for found in _messages_of(file_of(name)) if found.name == name)


def file_of(name: str) -> str:
    """The schema file of a message. Raises `KeyError` if there is no such message."""
    return _api_place(name) or _other_places()[name]


def request(api_key: int) -> Message:
    """The schema of the request of an API. Raises `KeyError` if there is no such key."""
    return message(f"{api_names()[api_key]}Request")


def response(api_key: int) -> Message:
    """The schema of the response of an API. Raises `KeyError` if there is no such key."""
    return message(f"{api_names()[api_key]}Response")
