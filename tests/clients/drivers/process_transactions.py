"""A producer with a transactional id in a process of another language, which is told what to do in lines of JSON."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.clients.drivers.model import Fenced

_FENCED: Final = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


class ProcessTransactions:
    """It answers each line with one: null, or the name of an error. The first one says that it may begin."""

    def __init__(self, client: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`client` is whose producer it is, for messages. Raises `Fenced`, or RuntimeError with another error's name,
        as all the rest does."""
        self._client = client
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        try:
            self._answer()
        except Exception:
            self.close()
            raise

    def begin(self) -> None:
        self._ask(command="begin")

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        encoded = [base64.b64encode(value).decode() for value in values]
        self._ask(command="send", topic=topic, partition=partition, values=encoded)

    def commit(self) -> None:
        self._ask(command="commit")

    def abort(self) -> None:
        self._ask(command="abort")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self._client} has ended")
        error = json.loads(line)
        if error in _FENCED:
            raise Fenced
        if error is not None:
            raise RuntimeError(f"{self._client}: {error}")
