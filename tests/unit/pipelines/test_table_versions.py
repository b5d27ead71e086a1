"""When a table is read on and when whole, and what a kill leaves of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.table_parts import rows_and_key_bytes
from barnabas.pipelines.table_versions import (
    CHANGES_MAX,
    CHANGES_MIN,
    KEYS_BYTES_MAX,
    Part,
    Seen,
    TableVersion,
    TopicLook,
    VersionFiles,
    is_behind,
    version_from_json,
    why_whole,
)


def version(**changes: object) -> TableVersion:
    parts: dict[str, object] = {
        "topic": "airlines",
        "topic_id": "a",
        "offsets": {0: 10, 1: 5},
        "base": Part("base", 12),
        "deltas": (Part("change", 2, 17),),
    }
    return TableVersion(**{**parts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("look", "age", "why"),
    [
        (TopicLook("a", {0: 0, 1: 0}, {0: 10, 1: 5}), 0.0, None),
        (TopicLook("a", {0: 10, 1: 5, 2: 0}, {0: 12, 1: 5, 2: 3}), 3_600.0, None),
        (TopicLook("", {0: 0, 1: 0}, {0: 10, 1: 5}), 0.0, None),
        (TopicLook("b", {0: 0, 1: 0}, {0: 10, 1: 5}), 0.0, "was deleted and made again"),
        (TopicLook("a", {0: 0, 1: 0}, {0: 9, 1: 5}), 0.0, "ends at 9 in partition 0, where it was read up to 10"),
        (TopicLook("a", {0: 0}, {0: 10}), 0.0, "ends at nowhere in partition 1"),
        (TopicLook("a", {0: 12, 1: 0}, {0: 20, 1: 5}), 0.0, "offsets 10 to 11 of partition 0"),
        (TopicLook("a", {0: 0, 1: 0}, {0: 11, 1: 5}), 3_601.0, "was not looked at for an hour"),
    ],
)
def test_what_is_new_is_enough_unless_the_topic_may_have_lost_something(
    look: TopicLook, age: float, why: str | None
) -> None:
    found = why_whole(version(), look, age)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (TopicLook("a", {0: 3, 1: 0}, {0: 10, 1: 5}), False),
        (TopicLook("a", {0: 0, 1: 0, 2: 7}, {0: 10, 1: 5, 2: 7}), False),
        (TopicLook("a", {0: 0, 1: 0, 2: 0}, {0: 10, 1: 5, 2: 1}), True),
        (TopicLook("a", {0: 0, 1: 0}, {0: 10, 1: 6}), True),
        (TopicLook("b", {0: 0, 1: 0}, {0: 10, 1: 5}), True),
    ],
)
def test_a_version_is_behind_when_there_is_a_record_that_it_has_not(look: TopicLook, expected: bool) -> None:
    assert is_behind(version(), look) is expected


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (10, CHANGES_MIN, False),
        (10, CHANGES_MIN + 1, True),
        (4 * CHANGES_MIN + 40, CHANGES_MIN + 10, False),
        (4 * CHANGES_MIN + 40, CHANGES_MIN + 11, True),
        (100 * CHANGES_MAX, CHANGES_MAX, False),
        (100 * CHANGES_MAX, CHANGES_MAX + 1, True),
    ],
)
def test_changes_become_part_of_the_base_when_they_are_a_quarter_of_it(base: int, changes: int, expected: bool) -> None:
    deltas = (Part("a", changes - 5), Part("b", 5))
    assert version(base=Part("base", base), deltas=deltas).is_to_be_folded() is expected


def test_changes_become_part_of_the_base_when_their_keys_are_more_than_every_task_should_be_sent() -> None:
    deltas = (Part("a", 5, KEYS_BYTES_MAX - 7), Part("b", 5, 7))
    assert not version(deltas=deltas).is_to_be_folded()
    assert version(deltas=(*deltas, Part("c", 1, 1))).is_to_be_folded()
    assert not version(base=Part("base", 12, 2 * KEYS_BYTES_MAX)).is_to_be_folded()


def test_the_bytes_of_keys_are_those_before_they_were_compressed(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as pq

    table = pa.table({"value": [b"v" * 5_000] * 100, "key": [b"%01000d" % each for each in range(100)]})
    for number in range(2):
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=30, compression="zstd")
    pq.write_table(table.slice(0, 0), tmp_path / "part-2.parquet")
    rows, key_bytes = rows_and_key_bytes(tmp_path)
    assert rows == 200
    assert 200_000 < key_bytes < 220_000


def test_a_version_is_kept_as_it_is() -> None:
    assert version_from_json(version().to_json()) == version()


def made(files: VersionFiles, *names: str) -> list[Part]:
    parts = []
    for rows, _ in enumerate(names):
        being_written = files.new_part()
        being_written.mkdir()
        (being_written / "part-0.parquet").write_bytes(b"records")
        parts.append(files.publish(being_written, rows, 3 * rows))
    return parts


def test_a_note_holds_only_while_all_of_its_parts_are_there(tmp_path: Path) -> None:
    files = VersionFiles(tmp_path / "read")
    assert files.seen("by_day") is None
    base, change = made(files, "base", "change")
    seen = Seen(3, {"airlines": version(base=base, deltas=(change,))})
    files.note("by_day", seen)
    assert files.seen("by_day") == seen
    (files.part(change.name) / "part-0.parquet").unlink()
    files.part(change.name).rmdir()
    assert files.seen("by_day") is None
    files.forget("by_day")
    files.forget("by_day")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"first_batch": 1, "versions": {"a": {}}}', '{"first_batch": 0}'])
def test_a_note_that_nobody_understands_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "by_day.json").write_text(content)
    assert VersionFiles(tmp_path).seen("by_day") is None


def test_parts_are_kept_for_versions_and_notes_alone(tmp_path: Path) -> None:
    """What a kill has left half written goes too."""
    files = VersionFiles(tmp_path / "read")
    files.keep_only([])
    noted, current, old = made(files, "noted", "current", "old")
    files.new_part().mkdir()
    files.note("by_day", Seen(0, {"airlines": version(base=noted, deltas=())}))
    files.keep_only([version(base=current, deltas=())])
    assert {path.name for path in (tmp_path / "read" / "parts").iterdir()} == {noted.name, current.name}
    assert old.name not in {noted.name, current.name}
