"""What is generated of the schema files when Barnabas is built: the same as without it, and never what does not fit."""

from __future__ import annotations
import __future__

import py_compile
import struct
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from barnabas.wire import catalogue, classes, codec, compiler_decode, compiler_encode, generated_code, generating
from barnabas.wire.messages import HeartbeatRequest
from barnabas.wire.schema_rows import message as message_of_row
from barnabas.wire.schema_rows import row

FILE = "12_heartbeat.api"
NAME, VERSION = "HeartbeatRequest", 4
MODULE = f"{generated_code.module_name(FILE)}.py"
CACHES: Any = (
    generated_code.module,
    generated_code._writers,
    catalogue._messages_of,
    catalogue.message,
    compiler_decode.decoder,
    compiler_encode.encoder,
)


def clear() -> None:
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which generated modules are looked for; Python may keep them compiled."""
    monkeypatch.setattr(generated_code, "FOLDER", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(classes, "_MADE", {})
    clear()
    yield tmp_path
    clear()


@pytest.fixture(scope="module")
def text() -> str:
    return generating.text(FILE)


def works() -> bool:
    """Whether a message is there and comes back, however it is made."""
    made: Any = classes.message_class(NAME)
    message = made(group_id="g", generation_id=3)
    (data,) = compiler_encode.encoder(NAME, VERSION)(message, bytearray())
    return bool(codec.decode(made, VERSION, data) == message)


def compiled_anew(name: str, version: int, kind: str) -> CodeType:
    writer = compiler_decode if kind == "decode" else compiler_encode
    code: CodeType = writer.written(name, version).build(kind).__code__
    return code


@pytest.mark.parametrize("file", catalogue.file_names())
def test_what_is_generated_is_what_would_be_made_without_it(file: str) -> None:
    space: dict[str, Any] = {}
    exec(compile(generating.text(file), file, "exec"), space)
    assert tuple(map(message_of_row, space["MESSAGES"])) == catalogue._read(file)
    assert space["MESSAGES"] == tuple(map(row, catalogue._read(file)))
    messages = catalogue._read(file)
    assert set(space["CODEC"]) == {
        (message.name, version, kind)
        for message in messages
        for version in {*generating._ALSO.get(message.name, ()), message.versions.high}
        for kind in ("decode", "encode")
    }
    for (name, version, kind), (function, references) in space["CODEC"].items():
        source = (compiler_decode if kind == "decode" else compiler_encode).written(name, version)
        assert without_place(function.__code__) == without_place(compiled_anew(name, version, kind))
        assert dict(references) == source.references
    for message in messages:
        anew: dict[str, Any] = {"FRESH": space["FRESH"]}
        exec("\n".join(classes.initialisers(message)), anew)
        for name in (*message.structs, message.name):
            made, known = space["INITIALISERS"].pop((message.name, name)), anew[f"init_{name}"]
            assert without_place(made.__code__) == without_place(known.__code__)
            # As texts, which tell 0 from False.
            assert repr((made.__defaults__, made.__kwdefaults__)) == repr((known.__defaults__, known.__kwdefaults__))
    assert space["INITIALISERS"] == {}


def without_place(code: CodeType) -> CodeType:
    """All that is compared of code but where it stands, and that annotations of its module would be texts."""
    return code.replace(co_firstlineno=1, co_flags=code.co_flags & ~__future__.annotations.compiler_flag)


def test_a_generated_message_is_used_and_nothing_is_read_or_written_for_it(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / MODULE).write_text(text)

    def refused(*_arguments: object) -> Any:
        raise AssertionError("made anew")

    for module, name in ((catalogue, "_read"), (classes, "initialisers"), (compiler_decode, "written")):
        monkeypatch.setattr(module, name, refused)
    monkeypatch.setattr(compiler_encode, "written", refused)
    assert works()
    decoder: Any = compiler_decode.decoder(NAME, VERSION)
    assert decoder.__code__.co_filename == str(folder / MODULE)
    monkeypatch.undo()


def test_versions_that_were_not_generated_are_compiled(folder: Path, text: str) -> None:
    (folder / MODULE).write_text(text)
    made: Any = classes.message_class(NAME)
    message = made(group_id="g")
    (data,) = compiler_encode.encoder(NAME, 0)(message, bytearray())
    assert codec.decode(type(message), 0, data) == message


def test_messages_of_one_module_do_not_share_what_they_refer_to(folder: Path) -> None:
    file = "03_metadata.api"
    (folder / f"{generated_code.module_name(file)}.py").write_text(generating.text(file))
    made: Any = classes.message_class("MetadataResponse")
    one, other = made(), made(brokers=[])
    one.brokers.append(made.MetadataResponseBroker(node_id=1))
    assert (other.brokers, made().brokers) == ([], [])
    request: Any = classes.message_class("MetadataRequest")
    assert request(topics=[request.MetadataRequestTopic()]).topics[0].name is not made
    decoder: FunctionType = compiler_decode.decoder("MetadataResponse", 12)  # type: ignore[assignment]
    assert decoder.__globals__["Message"] is made


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[: text.rindex("MADE_OF")],
        lambda _: "",
        lambda _: "raise RuntimeError",
        lambda _: "MADE_OF = 1",
        lambda text: text.replace('MADE_OF = "', 'MADE_OF = "0'),
        lambda text: "\0" * len(text),
    ],
)
def test_a_module_that_is_broken_or_of_other_sources_is_not_used(folder: Path, text: str, spoil: Any) -> None:
    (folder / MODULE).write_text(spoil(text))
    assert generated_code.module(FILE) is None
    assert works()


@pytest.mark.parametrize("changed", [FILE, "compiler_decode.py", "primitives.py"])
def test_a_module_is_not_used_after_a_change_of_what_it_was_made_of(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (folder / MODULE).write_text(text)
    assert generated_code.module(FILE) is not None
    read = generated_code._read
    monkeypatch.setattr(generated_code, "_read", lambda file: read(file) + b"\n" * file.endswith(changed))
    clear()
    assert generated_code.module(FILE) is None
    assert works()


def test_a_module_is_not_used_where_its_sources_are_not_there(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / MODULE).write_text(text)
    monkeypatch.setattr(generated_code, "WRITERS", ("compiler_gone.py",))
    assert generated_code.module(FILE) is None


@pytest.mark.parametrize("kind", ["directory", "dangling link", "no folder"])
def test_something_else_in_the_place_of_a_module(folder: Path, kind: str) -> None:
    match kind:
        case "directory":
            (folder / MODULE).mkdir()
        case "dangling link":
            (folder / MODULE).symlink_to(folder / "nowhere.py")
        case _:
            folder.rmdir()
    assert generated_code.module(FILE) is None
    assert works()


@pytest.mark.parametrize("length", [0, 8, 16, 17, 1_000])
def test_compiled_code_that_was_cut_off_is_no_reason_to_fail(folder: Path, text: str, length: int) -> None:
    (folder / MODULE).write_text(text)
    kept = Path(py_compile.compile(str(folder / MODULE), doraise=True) or "")
    kept.write_bytes(kept.read_bytes()[:length])
    assert works()


def test_compiled_code_of_another_python_or_another_text_is_compiled_again(folder: Path, text: str) -> None:
    (folder / MODULE).write_text(text)
    kept = Path(py_compile.compile(str(folder / MODULE), doraise=True) or "")
    whole = kept.read_bytes()
    other_text = whole[:8] + struct.pack("<I", 1) + whole[12:]
    for header in (b"\x01\x02\r\n" + whole[4:16] + b"garbage", other_text[:16] + b"garbage"):
        kept.write_bytes(header)
        clear()
        assert generated_code.module(FILE) is not None
        assert kept.read_bytes() == whole


def test_it_is_used_where_no_compiled_code_can_be_kept(folder: Path, text: str) -> None:
    (folder / MODULE).write_text(text)
    (folder / "__pycache__").write_text("no directory")
    assert generated_code.module(FILE) is not None
    assert works()


def test_what_python_would_compile_at_each_start_is_not_used(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (folder / MODULE).write_text(text)
    assert generated_code.module(FILE) is None
    py_compile.compile(str(folder / MODULE), doraise=True)
    clear()
    assert generated_code.module(FILE) is not None


def test_in_an_archive_what_is_not_compiled_is_not_used(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / MODULE).write_text(text)
    compiled = Path(py_compile.compile(str(folder / MODULE), str(folder / f"{MODULE}c"), doraise=True) or "")
    for place, is_used in ((folder / MODULE, False), (compiled, True)):
        archive = folder / f"{place.suffix}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.write(place, f"generated/{place.name}")
        monkeypatch.setattr(generated_code, "FOLDER", str(archive / "generated"))
        clear()
        assert (generated_code.module(FILE) is not None) is is_used
        assert works()


def test_those_that_write_at_once_leave_whole_files_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.wire.generating.os.getpid", threading.get_ident)
    files = {f"of_{number}.py": f"{number}\n" * 20_000 for number in range(20)}
    (tmp_path / "of_removed.py").write_text("")
    (tmp_path / "of_3.py").symlink_to(tmp_path.parent / "elsewhere.py")
    writers = [threading.Thread(target=generating.write, args=(str(tmp_path), files)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
    assert not (tmp_path.parent / "elsewhere.py").exists()


def test_there_is_a_module_of_each_schema_file(folder: Path) -> None:
    generating.main()
    clear()
    names = {f"{generated_code.module_name(file)}.py" for file in catalogue.file_names()}
    assert {path.name for path in folder.iterdir()} == names
    assert all(generated_code.module(file) is not None for file in catalogue.file_names())


def test_the_classes_of_generated_messages_are_found_as_ever(folder: Path, text: str) -> None:
    (folder / MODULE).write_text(text)
    made = classes.message_class(NAME)
    assert (made.__module__, made.__qualname__, made.SCHEMA) == (
        HeartbeatRequest.__module__,
        NAME,
        HeartbeatRequest.SCHEMA,
    )
