"""demo/delays.yaml, run by the installed command in a process of its own, and how far it is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from barnabas.kernel.real_program import RealProgram, start_program

FILE: Final = Path(__file__).resolve().with_name("delays.yaml")
NAME: Final = "delays"
GROUP: Final = f"barnabas-pipeline-{NAME}"
COMMAND: Final = (sys.executable, "-P", "-m", "barnabas.cli", "pipeline", "run", "--stop-with-parent")
STOP_SECONDS_MAX: Final = 10.0
QUIET_SECONDS_MAX: Final = 180.0
"""Without a word or a batch for so long it hangs."""
_LOOK_EVERY_SECONDS: Final = 0.2
_OUTPUT_TAIL_BYTES: Final = 8_192


class PipelineFailedError(RuntimeError):
    """The pipeline ended otherwise than it should; the message is what it said last."""


@dataclass(slots=True)
class Progress:
    """What the run said so far."""

    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    rows_dropped_by_watermark: int = 0
    doing: str = "starting"
    summary: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """One line of the command's JSON."""
        match event.get("event"):
            case "batch":
                self.batches += 1
                self.rows = int(event["totals"]["rows_in"])
                self.rows_per_second = float(event["rows_per_second"])
                self.rows_dropped_by_watermark = int(event["totals"]["rows_dropped_by_watermark"])
                self.doing = f"batch {self.batches}, {self.rows_per_second:,.0f} rows/s"
            case "summary":
                self.summary = event
                self.rows = int(event["rows_in"])
                self.rows_dropped_by_watermark = int(event["rows_dropped_by_watermark"])
            case _:
                # Later versions may say more than is needed here.
                pass


class Pipeline:
    """One bounded run: everything that is in the topics when it starts. Use it with `async with`; leaving stops it."""

    def __init__(
        self, bootstrap_servers: str, output: Path, temporary: Path, changed: Callable[[Progress], None]
    ) -> None:
        """`output` takes what the command writes to its standard error; `changed` hears of progress."""
        self._bootstrap_servers = bootstrap_servers
        self._output = output
        self._temporary = temporary
        self._changed = changed
        self._program: RealProgram | None = None
        self._said_something = asyncio.Event()
        self.progress = Progress()

    async def __aenter__(self) -> Self:
        arguments = ["--once", "--json", "--bootstrap-server", self._bootstrap_servers]
        descriptor = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._program = await start_program(
                asyncio.get_running_loop(),
                [*COMMAND, *arguments, str(FILE)],
                errors_to=descriptor,
                environment={"TMPDIR": str(self._temporary)},
            )
        finally:
            os.close(descriptor)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._program is not None and self._program.is_running:
            # Asked once, it would finish its batch first, which nobody waits for any more.
            self._program.terminate()
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            await self._program.stop(STOP_SECONDS_MAX)

    async def finish(self) -> Progress:
        """Returns when the run has ended well. Raises PipelineFailedError."""
        program = self._running()
        listening = asyncio.create_task(self._listen(program))
        loop = asyncio.get_running_loop()
        heard, quiet_since = (0, ""), loop.time()
        try:
            while not listening.done():
                await asyncio.wait([listening], timeout=_LOOK_EVERY_SECONDS)
                said = self._last_line()
                if not self.progress.batches:
                    self.progress.doing = said or "starting"
                self._changed(self.progress)
                if heard != (self.progress.batches, said):
                    heard, quiet_since = (self.progress.batches, said), loop.time()
                elif loop.time() - quiet_since > QUIET_SECONDS_MAX:
                    raise PipelineFailedError(f"nothing happened for {QUIET_SECONDS_MAX:.0f} s; it said last: {said}")
            listening.result()
        finally:
            listening.cancel()
        status = await program.wait()
        if status or self.progress.summary is None:
            said = self._last_line() or "it said nothing"
            raise PipelineFailedError(f"it ended with status {status} after {self.progress.batches} batches: {said}")
        return self.progress

    async def after_batch(self, count: int) -> None:
        """Returns when so many batches are done, or the run has ended."""
        while self.progress.batches < count and self._running().is_running:
            self._said_something.clear()
            await self._said_something.wait()

    async def _listen(self, program: RealProgram) -> None:
        try:
            while (line := await program.read_line()) is not None:
                self.progress.take(json.loads(line))
                self._said_something.set()
            await program.wait()
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineFailedError(f"its output cannot be understood: {error!r}") from error
        finally:
            self._said_something.set()

    def _last_line(self) -> str:
        with open(self._output, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _OUTPUT_TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def _running(self) -> RealProgram:
        if self._program is None:
            raise RuntimeError("the pipeline was not started: use async with")
        return self._program
