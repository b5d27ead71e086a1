"""`barnabas.pipelines.staged_batches`: what is staged is read as it was written, in pieces, or is refused."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from barnabas.pipelines import staged_batches as module
from barnabas.pipelines.staged_batches import MANIFEST, StagedBatch, StagedBatchError, StagedBatches

MEGABYTE = 1024 * 1024


def stage(staged: StagedBatches, batch_id: int, *parts: list[bytes], keys: bool = True) -> StagedBatch:
    """Each part has the lines of one topic."""
    for number, lines in enumerate(parts):
        directory = staged.being_written(batch_id, number)
        directory.mkdir(parents=True)
        (directory / "_SUCCESS").touch()
        (directory / ".part-0.crc").write_bytes(b"crc")
        (directory / "part-1").touch()
        (directory / "part-0").write_bytes(b"".join(line + b"\n" for line in lines))
    return staged.publish(batch_id, [(f"topic-{number}", keys) for number in range(len(parts))])


def records(batch: StagedBatch) -> list[tuple[str, bytes | None, bytes | None]]:
    found: list[tuple[str, bytes | None, bytes | None]] = []
    for part in batch.parts:
        for keys, values in part.columns():
            assert values
            padded: list[bytes | None] = [None] * len(values) if keys is None else list(keys)
            found += [(part.topic, key, value) for key, value in zip(padded, values, strict=True)]
    return found


@pytest.fixture
def staged(tmp_path: Path) -> StagedBatches:
    batches = StagedBatches(tmp_path / "outbox", "one")
    batches.tidy(0)
    return batches


def test_records_come_back_as_they_were_staged_also_after_a_restart(staged: StagedBatches) -> None:
    made = stage(staged, 7, [b"k1", b"v1", b"k2", b"v2"], [b"k", b""])
    found = StagedBatches(staged.directory, "one").find(7)
    assert found == made
    assert found is not None
    assert records(found) == [("topic-0", b"k1", b"v1"), ("topic-0", b"k2", b"v2"), ("topic-1", b"k", None)]
    assert (found.record_count, found.size_bytes) == (3, 12 + 3)
    assert staged.find(6) is None
    assert StagedBatches(staged.directory, "two").find(7) is None, "of another state"


def test_keys_that_are_no_text_come_back_as_their_bytes_and_others_as_they_are(staged: StagedBatches) -> None:
    directory = staged.being_written(1, 0)
    directory.mkdir(parents=True)
    key = bytes(range(256))
    (directory / "part-0").write_bytes(base64.b64encode(key) + b"\n{}\n\nx\n")
    staged.publish(1, [("t", True)], [], ["t"])
    found = StagedBatches(staged.directory, "one").find(1)
    assert found is not None
    assert records(found) == [("t", key, b"{}"), ("t", b"", b"x")]


def test_among_values_that_are_no_json_one_without_bytes_is_no_deletion(staged: StagedBatches) -> None:
    directory = staged.being_written(1, 0)
    directory.mkdir(parents=True)
    (directory / "part-0").write_bytes(b"a\n-\nb\n\nc\nLQ==\n")
    staged.publish(1, [("t", True)], ["t"])
    found = StagedBatches(staged.directory, "one").find(1)
    assert found is not None
    assert records(found) == [("t", b"a", None), ("t", b"b", b""), ("t", b"c", b"-")]


def test_records_without_keys_have_none(staged: StagedBatches) -> None:
    assert records(stage(staged, 0, [b"a", b"b"], keys=False)) == [("topic-0", None, b"a"), ("topic-0", None, b"b")]


@pytest.mark.parametrize("keys", [True, False])
def test_records_are_read_in_pieces_whatever_their_size(staged: StagedBatches, keys: bool) -> None:
    sizes = [0, 1, MEGABYTE - 2, 3 * MEGABYTE, 5, *[50_000] * 100, 2 * MEGABYTE]
    lines = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]
    batch = stage(staged, 0, lines + ([b"last"] if keys and len(lines) % 2 else []), keys=keys)
    read: list[bytes] = []
    for found, values in batch.parts[0].columns():
        lines_of = values if found is None else [line for pair in zip(found, values, strict=True) for line in pair]
        together = [line or b"" for line in lines_of]
        largest = max(map(len, together))
        assert sum(map(len, together)) <= MEGABYTE + 2 * max(largest, MEGABYTE)
        read += together
    assert read[: len(lines)] == lines


def test_an_empty_batch_has_no_records(staged: StagedBatches) -> None:
    assert stage(staged, 0, []).record_count == 0


def test_what_was_never_whole_and_what_is_done_is_removed(staged: StagedBatches) -> None:
    for batch_id in (1, 2, 10):
        stage(staged, batch_id, [b"k", b"v"])
    staged.being_written(3, 0).mkdir(parents=True)
    staged.tidy(2)
    assert sorted(entry.name for entry in staged.directory.iterdir()) == ["batch-10", "batch-2"]
    staged.remove(10)
    assert staged.find(10) is None


def test_a_key_without_a_value_is_refused(staged: StagedBatches) -> None:
    with pytest.raises(StagedBatchError, match=r"a key without a value \(part-0\)"):
        stage(staged, 0, [b"k", b"v", b"k"])
    assert staged.find(0) is None


@pytest.mark.parametrize("harm", ["byte", "end", "gone", "manifest"])
def test_damage_is_told_and_never_sent_as_if_it_were_whole(staged: StagedBatches, harm: str) -> None:
    batch = stage(staged, 0, [b"key", b"value"])
    path = batch.parts[0].directory / "part-0"
    if harm == "byte":
        path.write_bytes(b"key\nvalve\n")
    elif harm == "end":
        os.truncate(path, 4)
    elif harm == "gone":
        path.unlink()
    else:
        (path.parents[1] / MANIFEST).write_text("{}")
    with pytest.raises(StagedBatchError):
        records(staged.find(0) or batch)


def test_batches_of_other_records_topics_or_keys_have_other_fingerprints(tmp_path: Path) -> None:
    made = [[b"k", b"v1"], [b"k", b"v2"], [b"k1", b"v"], [b"k", b"v1", b"k", b"v1"]]
    batches = [stage(StagedBatches(tmp_path / str(number), "one"), 0, lines) for number, lines in enumerate(made)]
    batches.append(stage(StagedBatches(tmp_path / "no keys", "one"), 0, made[0], keys=False))
    batches.append(stage(StagedBatches(tmp_path / "two", "one"), 0, made[0], made[1]))
    batches.append(stage(StagedBatches(tmp_path / "other order", "one"), 0, made[1], made[0]))
    assert len({batch.fingerprint for batch in batches}) == len(batches)
    again = stage(StagedBatches(tmp_path / "again", "one"), 7, made[0])
    assert again.fingerprint == batches[0].fingerprint
    assert StagedBatches(tmp_path / "again", "one").find(7) == again


def write_shares(staged: StagedBatches, batch_id: int, shares: int, bytes_each: int = 3) -> None:
    for sender in range(1, shares + 1):
        directory = staged.being_written(batch_id, 0) / f"sender={sender}"
        directory.mkdir(parents=True)
        for part in range(2):
            lines = b"k%d\n%s\n" % (sender, b"%d" % part * bytes_each)
            (directory / f"part-{part}").write_bytes(lines)


def test_shares_of_senders_come_back_as_they_were_staged(
    staged: StagedBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_PER_SENDER", 1)
    write_shares(staged, 3, 3)
    made = staged.publish(3, [("topic-0", True)])
    found = staged.find(3)
    assert found == made
    assert found is not None
    assert found.senders == (1, 2, 3)
    for sender in found.senders:
        key = b"k%d" % sender
        assert records(found.share(sender)) == [("topic-0", key, b"000"), ("topic-0", key, b"111")]
    assert found.share(4).record_count == 0


@pytest.mark.parametrize(("megabytes", "senders"), [(0.1, (1,)), (2.5, (1, 2)), (9, (1, 2, 3, 4))])
def test_a_batch_has_no_more_senders_than_are_worth_it_and_a_key_has_one(
    staged: StagedBatches, megabytes: float, senders: tuple[int, ...]
) -> None:
    write_shares(staged, 3, 4, int(megabytes * MEGABYTE / 8))
    batch = staged.publish(3, [("topic-0", True)])
    assert batch.senders == senders
    keys = [{key for _, key, _ in records(batch.share(sender))} for sender in senders]
    assert sum(map(len, keys)) == len(set[bytes | None]().union(*keys)) == 4


def test_who_sends_what_is_in_the_fingerprint(staged: StagedBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shares(staged, 3, 2)
    one = staged.publish(3, [("topic-0", True)]).fingerprint
    monkeypatch.setattr(module, "BYTES_PER_SENDER", 1)
    write_shares(staged, 3, 2)
    assert staged.publish(3, [("topic-0", True)]).fingerprint != one


def test_a_batch_that_a_former_version_has_staged_has_one_sender(staged: StagedBatches) -> None:
    made = stage(staged, 7, [b"k1", b"v1"])
    manifest = staged.directory / "batch-7" / MANIFEST
    content = json.loads(manifest.read_text())
    del content["parts"][0]["files"][0]["sender"]
    manifest.write_text(json.dumps(content))
    assert staged.find(7) == made
    assert made.senders == (1,)
