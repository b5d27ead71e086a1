"""Every schema file is found, is named by what is in it, and holds what the format promises."""

from __future__ import annotations

import importlib.resources
import re

import pytest

from barnabas.wire import catalogue
from barnabas.wire.schema import Kind, Message, SchemaError, Struct


def test_every_message_is_found_by_its_name() -> None:
    names = catalogue.message_names()
    # APIs of Kafka, our own, headers, records by key and value, consumer protocol, principal, remote segments.
    assert len(names) == 2 * 62 + 2 * 2 + 2 + 2 * 9 + 2 + 1 + 3
    for name in names:
        assert catalogue.message(name).name == name


def test_every_file_in_the_folder_is_known_and_every_known_one_is_there() -> None:
    folder = importlib.resources.files("barnabas.wire").joinpath("schemas")
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(catalogue.file_names())


def test_a_file_that_declares_another_api_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"api Other: key 12, versions 0\nrequest # Asks.\nresponse # Answers.\n"
    monkeypatch.setattr("barnabas.wire.catalogue.pkgutil.get_data", lambda _package, _file: text)
    read = catalogue._read
    with pytest.raises(
        SchemaError, match=re.escape("12_heartbeat.api:1: the file of Heartbeat (key 12) declares another")
    ):
        read("12_heartbeat.api")


@pytest.mark.parametrize("name", catalogue.message_names())
def test_meanings_are_sentences(name: str) -> None:
    message = catalogue.message(name)
    fields = [*message.fields, *(field for struct in message.structs.values() for field in struct.fields)]
    for meaning in [message.meaning, *(field.meaning for field in fields)]:
        assert meaning.endswith("."), meaning
        assert "TODO" not in meaning


@pytest.mark.parametrize("name", catalogue.message_names())
def test_a_structure_uses_only_structures_ahead_of_it(name: str) -> None:
    message = catalogue.message(name)
    seen: set[str] = set()

    def check(struct: Struct) -> None:
        assert {field.type.name for field in struct.fields if field.type.is_struct} <= seen
        seen.add(struct.name)

    for struct in message.structs.values():
        check(struct)
    assert {field.type.name for field in message.fields if field.type.is_struct} <= seen


def test_requests_and_responses_by_key() -> None:
    assert catalogue.api_names()[12] == "Heartbeat"
    assert (catalogue.request(12).name, catalogue.request(12).kind) == ("HeartbeatRequest", Kind.REQUEST)
    assert (catalogue.response(12).name, catalogue.response(12).kind) == ("HeartbeatResponse", Kind.RESPONSE)


@pytest.mark.parametrize("find", [catalogue.request, catalogue.response])
def test_a_key_that_does_not_exist_is_a_key_error(find: type) -> None:
    with pytest.raises(KeyError):
        find(99)


def test_a_message_is_found_without_reading_any_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    messages_of = catalogue._messages_of

    def noted(file: str) -> tuple[Message, ...]:
        read.append(file)
        return messages_of(file)

    monkeypatch.setattr(catalogue, "_messages_of", noted)
    catalogue._other_places.cache_clear()
    for name in ("RequestHeader", "OffsetForLeaderEpochResponse"):
        assert catalogue.message.__wrapped__(name).name == name
    assert read == ["header.api", "23_offset_for_leader_epoch.api"]


@pytest.mark.parametrize(
    "name", ["Request", "offset_fetchRequest", "Offset_FetchRequest", "NothingResponse", "PRODUCERequest", ""]
)
def test_a_name_that_no_message_has_is_told_so(name: str) -> None:
    with pytest.raises(KeyError):
        catalogue.message(name)
