"""`barnabas produce` while nothing is acknowledged; what it writes is in tests/support/data_command_suite.py."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from barnabas.cli import output, record_producing, silence
from barnabas.cli.record_lines import LineFormat
from barnabas.client.batches import ColumnFate
from barnabas.wire.record_columns import ValueColumn
from barnabas.wire.topics import TopicPartition


class SilentProducer:
    """Takes every record, and is told by the test when brokers acknowledge."""

    unacknowledged: ClassVar[list[asyncio.Future[Any]]] = []

    def __init__(self, client: Any, settings: Any) -> None:
        self.client = client
        self.settings = settings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    def send_now(self, _record: Any) -> asyncio.Future[Any]:
        self.client.logger.info("A batch of %s was refused: %s", "t-0", "NOT_ENOUGH_REPLICAS")
        future: asyncio.Future[Any] = self.client.host.loop.create_future()
        self.unacknowledged.append(future)
        return future


def test_says_why_nothing_is_acknowledged_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n")
    monkeypatch.setattr(record_producing, "Producer", SilentProducer)
    monkeypatch.setattr(record_producing, "PROGRESS_SECONDS", 0.01)
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.1)

    def say_and_acknowledge(text: str) -> None:
        output.say(text)
        written = SimpleNamespace(partition=SimpleNamespace(partition=0), offset=7)
        while SilentProducer.unacknowledged:
            SilentProducer.unacknowledged.pop().set_result(written)

    monkeypatch.setattr(silence, "say", say_and_acknowledge)

    async def topics_are_there(*_arguments: object) -> None:
        pass

    monkeypatch.setattr(record_producing, "topics_at_start", topics_are_there)
    monkeypatch.setattr(record_producing, "message_bytes_max", topics_are_there)
    logger = logging.getLogger("tests.silent-producer")

    async def run() -> None:
        client: Any = SimpleNamespace(host=SimpleNamespace(loop=asyncio.get_running_loop()), logger=logger)
        lines = LineFormat(topic="t")
        await record_producing.produce(
            client, lines, str(path), acks="all", compression="none", idempotent=None, as_json=True
        )

    asyncio.run(run())
    said = capsys.readouterr()
    assert "no record was acknowledged for " in said.err
    assert " s (A batch of t-0 was refused: NOT_ENOUGH_REPLICAS)" in said.err
    assert '"records":1' in said.out
    assert logger.handlers == []


class ColumnProducer(SilentProducer):
    """Takes columns as a producer does, and says at once that they are written."""

    def __init__(self, client: Any, settings: Any) -> None:
        super().__init__(client, settings)
        self.next_offset = 0

    async def send_column(
        self, topic: str, column: ValueColumn, fate: ColumnFate, partition: int | None = None
    ) -> None:
        if column.size_bytes > self.settings.buffer_bytes_max:
            raise ValueError("a column that is larger than the whole buffer")
        fate.written(0, len(column), TopicPartition(topic, partition or 0), self.next_offset)
        self.next_offset += len(column)

    async def partitions_of(self, _topic: str, keys: Sequence[bytes]) -> list[int]:
        return [number % 2 for number in range(len(keys))]


@pytest.mark.parametrize("separator", [None, b":"])
def test_many_short_lines_with_long_headers_are_no_larger_than_the_buffer(
    separator: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    count = 100_000
    path.write_bytes(b":\n" * count)
    monkeypatch.setattr(record_producing, "Producer", ColumnProducer)

    async def topics_are_there(*_arguments: object) -> None:
        pass

    monkeypatch.setattr(record_producing, "topics_at_start", topics_are_there)
    monkeypatch.setattr(record_producing, "message_bytes_max", topics_are_there)

    async def run() -> None:
        host = SimpleNamespace(loop=asyncio.get_running_loop())
        client: Any = SimpleNamespace(host=host, logger=logging.getLogger("tests.column-producer"))
        lines = LineFormat(topic="t", headers=((b"token", b"x" * 1000),), key_separator=separator)
        await record_producing.produce(
            client, lines, str(path), acks="all", compression="none", idempotent=None, as_json=True
        )

    asyncio.run(run())
    summary = json.loads(capsys.readouterr().out)
    assert summary["records"] == count
    assert sum(each["records"] for each in summary["partitions"]) == count
