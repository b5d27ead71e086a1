"""What `barnabas produce` and `barnabas consume` do on any cluster of the Kafka protocol, as processes with pipes.

Run on Barnabas in tests/cluster and on Apache Kafka in tests/interop.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from barnabas.cli.main import main
from tests.support.command_suite import barnabas, fresh, new_topic

SOURCE = Path(__file__).resolve().parents[2] / "src"
COMMAND_SECONDS = 120.0
_PIPE_BYTES = 65_536


@contextlib.contextmanager
def started(bootstrap: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`barnabas ARGUMENTS` with pipes, killed at the end of the block if it has not ended."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "BARNABAS_BOOTSTRAP_SERVERS": bootstrap}
    command = [sys.executable, "-m", "barnabas.cli", *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(bootstrap: str, *arguments: str, data: bytes = b"", status: int = 0) -> tuple[bytes, str]:
    """Standard output and errors of a command that must end with `status`. It runs in the test's process, on files."""
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as output, io.StringIO() as errors:
        given.buffer.write(data)
        given.seek(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BARNABAS_BOOTSTRAP_SERVERS", bootstrap)
            for name, stream in (("stdin", given), ("stdout", output), ("stderr", errors)):
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                main(arguments, prog_name="barnabas")
        assert ended.value.code == status, errors.getvalue()
        output.seek(0)
        return bytes(output.buffer.read()), errors.getvalue()


def produce(bootstrap: str, topic: str, data: bytes, *options: str) -> Any:
    """Its summary."""
    return json.loads(run(bootstrap, "produce", topic, "--json", *options, data=data)[0])


def consumed(bootstrap: str, topic: str, *options: str) -> list[dict[str, Any]]:
    """All that is in the topic, or what the options leave of it, in the order of partitions."""
    output, _ = run(bootstrap, "consume", topic, "--until-end", "--json", *options)
    records = [json.loads(line) for line in output.splitlines()]
    return sorted(records, key=lambda record: (record["partition"], record["offset"]))


def values(records: Iterable[dict[str, Any]]) -> list[str]:
    return [record["value"] for record in records]


def read_until(process: subprocess.Popen[bytes], is_enough: Callable[[bytes], bool]) -> bytes:
    """What a process prints until that is enough; AssertionError where it does not come."""
    assert process.stdout is not None
    received = b""
    deadline = time.monotonic() + COMMAND_SECONDS
    while not is_enough(received):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"after {received!r} nothing comes"
        data = os.read(process.stdout.fileno(), _PIPE_BYTES)
        assert data, f"it has ended after {received!r}"
        received += data
    return received


class DataCommandSuite:
    """Subclasses give the fixture `bootstrap`, the address of one broker."""

    @pytest.fixture
    def topic(self, bootstrap: str) -> Iterator[str]:
        """Of three partitions, without retention by time: some of the records are from 1970."""
        options = ("--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=-1")
        with new_topic(bootstrap, *options) as name:
            yield name

    def test_a_rate_is_kept(self, bootstrap: str, topic: str) -> None:
        done = produce(bootstrap, topic, b"value\n" * 16, "--rate", "20")
        assert done["records"] == 16
        assert done["seconds"] >= 15 / 20

    def test_reading_begins_some_records_before_the_end_or_some_time_ago(self, bootstrap: str, topic: str) -> None:
        lines = b"".join(b'{"partition":%d,"value":"%d"}\n' % (number % 3, number) for number in range(30))
        produce(bootstrap, topic, lines, "--format", "json")
        assert values(consumed(bootstrap, topic, "--from", "-2")) == ["24", "27", "25", "28", "26", "29"]
        assert len(consumed(bootstrap, topic, "--from", "-1000")) == 30
        options = ("--until-end", "--partition", "1", "--from", "-2", "-f", "%t %p %o %k %s")
        assert run(bootstrap, "consume", topic, *options)[0].decode().splitlines() == [
            f"{topic} 1 8 null 25",
            f"{topic} 1 9 null 28",
        ]
        assert len(consumed(bootstrap, topic, "--from", "2h")) == 30
        produce(bootstrap, topic, b'{"partition":0,"value":"old","timestamp_ms":5}\n', "--format", "json")
        assert len(consumed(bootstrap, topic, "--from", "1h", "--partition", "1")) == 10

    def test_a_topic_becomes_files_and_a_topic_again(self, bootstrap: str, topic: str, tmp_path: Path) -> None:
        lines = b"".join(
            b'{"partition":%d,"key":"k%d","value":"%d","headers":{"h":"x"}}\n' % (number % 3, number, number)
            for number in range(300)
        )
        produce(bootstrap, topic, lines, "--format", "json")
        run(bootstrap, "topic", "export", topic, str(tmp_path / "export"))
        copy = fresh("import")
        run(bootstrap, "topic", "import", str(tmp_path / "export"), copy, "--create", "--replication-factor", "1")
        try:
            names = ("partition", "offset", "timestamp_ms", "key", "value", "headers")
            both = [
                [[each[name] for name in names] for each in consumed(bootstrap, name_of)] for name_of in (topic, copy)
            ]
            assert len(both[0]) == 300
            assert both[0] == both[1]
        finally:
            run(bootstrap, "topic", "delete", copy)

    def test_statistics_count_keys_and_offsets(self, bootstrap: str, topic: str) -> None:
        lines = b"".join(b"%s:v\n" % (b"often" if number % 4 else b"rarely") for number in range(400))
        produce(bootstrap, topic, lines, "--key-separator", ":", "--partition", "1")
        output, _ = run(bootstrap, "topic", "stats", topic, "--measure", "0s", "--json")
        (found,) = [each for each in json.loads(output)["partitions"] if each["partition"] == 1]
        assert (found["start_offset"], found["end_offset"], found["sampled_records"]) == (0, 400, 400)
        assert (found["distinct_keys"], found["top_keys"][0]["key"], found["top_keys"][0]["records"]) == (
            2,
            "often",
            300,
        )
        assert found["size_bytes"] > 400

    def test_lines_become_records_and_lines_again(self, bootstrap: str, topic: str) -> None:
        lines = [f"line {number}" for number in range(500)]
        summary = produce(bootstrap, topic, "\n".join(lines).encode())
        assert (summary["topic"], summary["records"]) == (topic, 500)
        assert sum(each["records"] for each in summary["partitions"]) == 500
        for each in summary["partitions"]:
            assert (each["first_offset"], each["last_offset"]) == (0, each["records"] - 1)
        output, errors = run(bootstrap, "consume", topic, "--until-end")
        assert sorted(output.decode().splitlines()) == sorted(lines)
        assert errors == ""

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_every_codec(self, bootstrap: str, topic: str, codec: str) -> None:
        produce(bootstrap, topic, b"a" * 5_000 + b"\nb\n", "--compression", codec, "--partition", "1")
        assert values(consumed(bootstrap, topic)) == ["a" * 5_000, "b"]

    @pytest.mark.parametrize("acks", ["all", "1", "0"])
    def test_every_acknowledgement(self, bootstrap: str, topic: str, acks: str) -> None:
        summary = produce(bootstrap, topic, b"a\nb\n", "--acks", acks, "--partition", "2")
        offsets = (None, None) if acks == "0" else (0, 1)
        assert summary["partitions"] == [
            {"partition": 2, "records": 2, "first_offset": offsets[0], "last_offset": offsets[1]}
        ]
        output, _ = run(bootstrap, "consume", topic, "--from", "earliest", "--max", "2")
        assert output == b"a\nb\n"

    def test_keys_headers_and_partitions(self, bootstrap: str, topic: str) -> None:
        produce(bootstrap, topic, b"k:v:w\n:e\n", "--key-separator", ":", "--partition", "0", "--header", "h=1")
        produce(bootstrap, topic, b"x\n", "--key", "fixed", "--partition", "0")
        records = consumed(bootstrap, topic)
        assert [(record["key"], record["value"]) for record in records] == [("k", "v:w"), ("", "e"), ("fixed", "x")]
        assert [record["headers"] for record in records] == [[{"key": "h", "value": "1"}]] * 2 + [[]]
        output, _ = run(bootstrap, "consume", topic, "--until-end", "--format", "line")
        assert output == b"k\tv:w\n\te\nfixed\tx\n"

    def test_the_partition_of_a_key_is_that_of_every_other_client(self, bootstrap: str, topic: str) -> None:
        lines = b"".join(b"key %d:%d\n" % (number, number) for number in range(50))
        produce(bootstrap, topic, lines, "--key-separator", ":")
        ours = {record["key"]: record["partition"] for record in consumed(bootstrap, topic)}
        theirs: dict[str, int] = {}
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        for key in ours:

            def delivered(_error: object, message: Any, key: str = key) -> None:
                theirs[key] = message.partition()

            producer.produce(topic, b"", key=key.encode(), on_delivery=delivered)
        assert producer.flush(COMMAND_SECONDS) == 0
        assert theirs == ours
        assert len(set(ours.values())) == 3

    def test_what_was_read_as_json_is_written_as_it_was(self, bootstrap: str, topic: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        producer.produce(
            topic, b"\xff\x00", key=b"\xfe", headers=[("h", b"\xfd"), ("h", None)], partition=1, timestamp=5
        )
        producer.produce(topic, None, key="ž".encode(), partition=2, timestamp=6)
        producer.produce(topic, b"line\nbreak", partition=0, timestamp=7)
        assert producer.flush(COMMAND_SECONDS) == 0
        output, _ = run(bootstrap, "consume", topic, "--until-end", "--json")
        with new_topic(bootstrap, "--partitions", "3", "--replication-factor", "1") as copy:
            assert produce(bootstrap, copy, output, "--format", "json")["records"] == 3
            originals, copies = consumed(bootstrap, topic), consumed(bootstrap, copy)
        assert [{**record, "topic": topic} for record in copies] == originals
        assert copies[1]["value_base64"] == "/wA="

    def test_a_large_input_goes_through_bounded_buffers(self, bootstrap: str, topic: str, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        path.write_bytes(b"".join(b"%040d\n" % number for number in range(60_000)))
        assert produce(bootstrap, topic, b"", "--file", str(path))["records"] == 60_000
        output, _ = run(bootstrap, "consume", topic, "--until-end")
        assert sorted(map(int, output.split())) == list(range(60_000))

    # What cannot be written.

    def test_the_line_that_is_no_record_is_named_and_those_before_are_written(self, bootstrap: str, topic: str) -> None:
        _, errors = run(
            *(bootstrap, "produce", topic, "--format", "json", "--partition", "0"),
            data=b'{"value": "a"}\n\n{"value": "b"}\n{"vale": "c"}\n{"value": "d"}\n',
            status=1,
        )
        assert "line 4: a record has no 'vale'" in errors
        assert "2 records are written, and nothing from line 4 on" in errors
        assert len(errors.splitlines()) == 1
        assert values(consumed(bootstrap, topic)) == ["a", "b"]

    def test_a_key_that_is_missing_loses_none_of_the_lines_before(self, bootstrap: str, topic: str) -> None:
        data = b"".join(b"k:%d\n" % number for number in range(5_000)) + b"no key\nk:behind\n"
        _, errors = run(bootstrap, "produce", topic, "--key-separator", ":", data=data, status=1)
        assert "line 5001: there is no ':' in it. 5,000 records are written" in errors
        assert sorted(map(int, values(consumed(bootstrap, topic)))) == list(range(5_000))

    def test_the_line_that_the_brokers_refuse_is_named(self, bootstrap: str) -> None:
        with new_topic(bootstrap, "--partitions", "1", "--config", "max.message.bytes=500") as topic:
            data = b"a\n" + b"x" * 1_000 + b"\nb\n"
            _, errors = run(bootstrap, "produce", topic, data=data, status=1)
            assert "line 2: " in errors
            assert "MESSAGE_TOO_LARGE" in errors
            assert values(consumed(bootstrap, topic))[0] == "a"

    def test_the_line_that_the_brokers_refuse_is_named_among_many(self, bootstrap: str) -> None:
        """They are sent together, and apart when brokers refuse them."""
        with new_topic(bootstrap, "--partitions", "1", "--config", "max.message.bytes=20000") as topic:
            lines = [b"%d" % number for number in range(3_000)]
            lines[2_500] = b"x" * 30_000
            _, errors = run(bootstrap, "produce", topic, data=b"\n".join(lines), status=1)
            assert "line 2501: the record is larger than max.message.bytes" in errors
            written = values(consumed(bootstrap, topic))
            assert written[:2_500] == [str(number) for number in range(2_500)]
            assert "x" not in "".join(written)

    def test_many_lines_with_a_key_and_headers_go_to_the_partition_of_the_key(self, bootstrap: str, topic: str) -> None:
        lines = [f"line {number}" for number in range(1_000)]
        options = ("--key", "fixed", "--header", "a=1", "--header", "b=" + "2" * 80, "--compression", "lz4")
        summary = produce(bootstrap, topic, "\n".join(lines).encode(), *options)
        (partition,) = summary["partitions"]
        assert (partition["records"], partition["first_offset"], partition["last_offset"]) == (1_000, 0, 999)
        produce(bootstrap, topic, b"alone\n", *options)
        records = consumed(bootstrap, topic)
        assert values(records) == [*lines, "alone"]
        assert {(record["key"], json.dumps(record["headers"])) for record in records} == {
            ("fixed", json.dumps([{"key": "a", "value": "1"}, {"key": "b", "value": "2" * 80}]))
        }
        assert {record["partition"] for record in records} == {partition["partition"]}
        assert all(abs(record["timestamp_ms"] / 1_000 - time.time()) < 600 for record in records)

    def test_bytes_of_any_kind_come_out_as_they_went_in(self, bootstrap: str, topic: str) -> None:
        data = bytes(range(256)).replace(b"\n", b"") * 20
        produce(bootstrap, topic, data + b"\n" + data[::-1], "--partition", "0", "--key", "k")
        output, _ = run(bootstrap, "consume", topic, "--until-end", "--format", "raw")
        assert output == data + b"\n" + data[::-1] + b"\n"
        output, _ = run(bootstrap, "consume", topic, "--until-end", "--format", "hex")
        assert output.decode().splitlines() == [f"6b\t{value.hex()}" for value in (data, data[::-1])]

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_many_lines_with_keys_go_to_the_partitions_of_their_keys_in_order(
        self, bootstrap: str, topic: str, compression: str
    ) -> None:
        keys = ["", "a", "key", *[f"key {number}" for number in range(200)]]
        lines = [f"{keys[number * 7 % len(keys)]}:{number}:x" for number in range(5_000)]
        options = ("--key-separator", ":", "--compression", compression, "--header", "h=1")
        summary = produce(bootstrap, topic, "\n".join(lines).encode(), *options)
        assert summary["records"] == 5_000
        assert summary["value_bytes"] == sum(len(line.partition(":")[2]) for line in lines)
        for line in lines[:5]:  # one by one they go where they went together
            produce(bootstrap, topic, line.encode(), *options)
        records = consumed(bootstrap, topic)
        assert sorted(f"{record['key']}:{record['value']}" for record in records) == sorted(lines + lines[:5])
        by_partition: dict[int, list[int]] = {}
        partition_of = {record["key"]: record["partition"] for record in records}
        for record in records:
            assert record["partition"] == partition_of[record["key"]]
            assert record["headers"] == [{"key": "h", "value": "1"}]
            by_partition.setdefault(record["partition"], []).append(int(record["value"].partition(":")[0]))
        assert len(by_partition) == 3
        for found in by_partition.values():
            assert list(dict.fromkeys(found)) == sorted(set(found))
        for each in summary["partitions"]:
            assert each["last_offset"] == each["records"] - 1

    def test_of_many_lines_with_keys_the_first_that_is_refused_is_named(self, bootstrap: str) -> None:
        """Whichever partition it goes to, and whichever is heard of first."""
        with new_topic(bootstrap, "--partitions", "3", "--config", "max.message.bytes=20000") as topic:
            lines = [b"key %d:%d" % (number, number) for number in range(4_000)]
            for number in (1_500, 1_501, 1_502, 1_503):
                lines[number] += b"x" * 30_000
            _, errors = run(bootstrap, "produce", topic, "--key-separator", ":", data=b"\n".join(lines), status=1)
            assert "line 1501: the record is larger than max.message.bytes" in errors

    def test_a_record_for_a_partition_that_is_not_there(self, bootstrap: str, topic: str) -> None:
        _, errors = run(bootstrap, "produce", topic, "--partition", "3", data=b"a\n", status=4)
        assert f"line 1: {topic} has partitions 0 to 2, not 3" in errors

    def test_topics_and_partitions_that_are_not_there(self, bootstrap: str, topic: str) -> None:
        for command in ("produce", "consume"):
            missing = fresh("missing")
            _, errors = run(bootstrap, command, missing, data=b"a\n", status=4)
            assert f"barnabas {command}: there is no topic {missing}" in errors.replace(
                "python -m barnabas.cli", "barnabas"
            )
            assert missing not in [row.split()[0] for row in barnabas(bootstrap, "topic", "list").rows]
        _, errors = run(bootstrap, "consume", topic, "--partition", "3", status=4)
        assert "it has 0 to 2" in errors

    # Where to begin and to end.

    def test_begins_at_offsets_and_times(self, bootstrap: str, topic: str) -> None:
        lines = [json.dumps({"value": str(number), "timestamp_ms": 1_000_000 * number}) for number in range(1, 6)]
        produce(bootstrap, topic, "\n".join(lines).encode(), "--format", "json", "--partition", "1")
        only = ("--partition", "1")
        assert values(consumed(bootstrap, topic, *only)) == ["1", "2", "3", "4", "5"]
        assert values(consumed(bootstrap, topic, *only, "--from", "3")) == ["4", "5"]
        assert values(consumed(bootstrap, topic, *only, "--from", "5")) == []
        assert values(consumed(bootstrap, topic, "--from", "1970-01-01T00:50:00Z")) == ["3", "4", "5"]
        assert values(consumed(bootstrap, topic, "--from", "1970-01-01T00:50:00.001Z")) == ["4", "5"]
        assert values(consumed(bootstrap, topic, "--from", "1971-01-01")) == []
        assert values(consumed(bootstrap, topic, "--from", "latest")) == []
        assert values(consumed(bootstrap, topic, "--max", "2")) == ["1", "2"]
        _, errors = run(bootstrap, "consume", topic, *only, "--from", "6", status=1)
        assert f"{topic}-1 has offsets 0 to 5, and no 6" in errors

    def test_waits_for_what_comes_and_for_no_longer_than_it_may(self, bootstrap: str, topic: str) -> None:
        produce(bootstrap, topic, b"before\n")
        output, errors = run(bootstrap, "consume", topic, "--timeout", "1.5")
        assert (output, errors) == (b"", "")
        _, errors = run(bootstrap, "consume", topic, "--from", "earliest", "--max", "2", "--timeout", "1.5", status=3)
        assert "1 record read, and not all that were wanted" in errors

    def test_both_isolations_read_what_no_transaction_wrote(self, bootstrap: str, topic: str) -> None:
        produce(bootstrap, topic, b"a\nb\n", "--partition", "0")
        both = consumed(bootstrap, topic, "--isolation", "committed")
        assert both == consumed(bootstrap, topic, "--isolation", "uncommitted")
        assert values(both) == ["a", "b"]

    # Groups, signals, pipes.

    def test_a_group_goes_on_where_it_was(self, bootstrap: str, topic: str) -> None:
        group = fresh("group")
        produce(bootstrap, topic, b"a\nb\nc\n", "--partition", "1")
        output, _ = run(bootstrap, "consume", topic, "--group", group, "--from", "earliest", "--max", "2")
        assert output == b"a\nb\n"
        output, _ = run(bootstrap, "consume", topic, "--group", group, "--until-end")
        assert output == b"c\n"
        assert run(bootstrap, "consume", topic, "--group", group, "--until-end")[0] == b""
        produce(bootstrap, topic, b"d\n", "--partition", "1")
        assert run(bootstrap, "consume", topic, "--group", group, "--partition", "1", "--until-end")[0] == b"d\n"

    def test_ctrl_c_ends_a_member_with_0_and_commits_what_it_printed(self, bootstrap: str, topic: str) -> None:
        group = fresh("group")
        produce(bootstrap, topic, b"a\nb\n", "--partition", "0")
        with started(bootstrap, "consume", topic, "--group", group, "--from", "earliest") as process:
            assert read_until(process, lambda received: received.count(b"\n") == 2) == b"a\nb\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=COMMAND_SECONDS)
            assert (process.returncode, errors) == (0, b"")
        assert run(bootstrap, "consume", topic, "--group", group, "--until-end")[0] == b""

    def test_a_closed_pipe_ends_quietly(self, bootstrap: str, topic: str) -> None:
        produce(bootstrap, topic, b"%01000d\n" % 7 * 500)
        with started(bootstrap, "consume", topic, "--from", "earliest") as process:
            read_until(process, lambda received: len(received) > 1_000)
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(COMMAND_SECONDS) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""

    def test_a_member_whose_reader_pauses_still_ends_in_order(self, bootstrap: str, topic: str) -> None:
        """The pipe is full; heartbeats go on meanwhile, and what could not be printed is left to others."""
        group = fresh("group")
        produce(bootstrap, topic, b"%01000d\n" % 7 * 1_000, "--partition", "0")

        def members() -> int:
            (found,) = barnabas(bootstrap, "group", "describe", group, "--json").document["groups"]
            return len(found["members"])

        with started(bootstrap, "consume", topic, "--group", group, "--from", "earliest") as process:
            read_until(process, lambda received: len(received) > 1_000)
            assert members() == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(COMMAND_SECONDS) == 0
        assert members() == 0
        assert len(run(bootstrap, "consume", topic, "--group", group, "--until-end")[0]) == 1_001 * 1_000

    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_records_are_as_large_as_the_topic_allows(self, bootstrap: str, compression: str) -> None:
        large = b"x" * 3_000_000
        with new_topic(bootstrap, "--partitions", "2", "--config", "max.message.bytes=4000000") as name:
            for number in (0, 1):
                lines = b"\n".join((b"before", large, b"after"))
                options = ("--partition", str(number), "--compression", compression)
                assert produce(bootstrap, name, lines, *options)["records"] == 3
            output, _ = run(bootstrap, "consume", name, "--until-end")
            assert sorted(map(len, output.splitlines())) == [5, 5, 6, 6, 3_000_000, 3_000_000]

    @pytest.mark.parametrize("size", [1_500_000, 5_000_000])
    def test_what_is_too_large_for_the_topic_is_told_in_kafkas_names(
        self, bootstrap: str, topic: str, size: int
    ) -> None:
        _, errors = run(bootstrap, "produce", topic, data=b"a\n" + b"x" * size, status=1)
        assert "line 2: the record is larger than max.message.bytes of topic" in errors
        assert "raise it (`barnabas config set topic:" in errors
        assert "MESSAGE_TOO_LARGE" in errors
        assert "_bytes_max" not in errors

    def test_what_is_typed_is_written_at_once_and_ctrl_c_keeps_it(self, bootstrap: str, topic: str) -> None:
        with (
            started(bootstrap, "consume", topic, "--from", "earliest") as reader,
            started(bootstrap, "produce", topic) as writer,
        ):
            assert writer.stdin is not None
            for number in range(3):
                writer.stdin.write(b"%d\n" % number)
                writer.stdin.flush()
                assert read_until(reader, lambda received: received.endswith(b"\n")) == b"%d\n" % number
            writer.send_signal(signal.SIGINT)
            assert writer.wait(COMMAND_SECONDS) == 130
            assert writer.stderr is not None
            assert b"3 records are written" in writer.stderr.read()
