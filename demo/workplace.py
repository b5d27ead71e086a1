"""Where the run works and what it leaves: `demo-results/` beside `demo/`.

Results stay there until the next run; what only the run itself needs is in a directory of its own with a name that no
earlier run had, because the processes of a run that was killed may still be writing while the next one begins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).resolve().parent.parent / "demo-results"
FREE_BYTES_MIN: Final = 1 << 30
EARLIER_PIPELINE_SECONDS_MAX: Final = 30.0
_WORK_PREFIX: Final = "work-"
_LOG_BYTES_KEPT_MAX: Final = 1 << 20


class WorkplaceError(RuntimeError):
    """The run cannot begin; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """The paths of one run."""

    results: Path
    work: Path

    @property
    def cluster(self) -> Path:
        """What the coordinator and the brokers keep."""
        return self.work / "cluster"

    @property
    def temporary(self) -> Path:
        """Temporary files of the processes that the run starts."""
        return self.work / "tmp"

    @property
    def pipeline_output(self) -> Path:
        return self.work / "pipeline.log"

    @property
    def pipeline_state(self) -> Path:
        """As demo/delays.yaml has it: how far the pipeline has come."""
        return self.results / "state"

    @property
    def table(self) -> Path:
        """As demo/delays.yaml has it: the Parquet table."""
        return self.results / "delays"

    @property
    def plot(self) -> Path:
        return self.results / "delays.png"

    @property
    def logs(self) -> Path:
        """The logs of the last run, if it failed."""
        return self.results / "logs"

    def forget(self) -> None:
        """Removes what only the run itself needed."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.pipeline_state, ignore_errors=True)

    def keep_logs(self) -> None:
        """Copies the ends of all logs to `logs`; what cannot be copied is left out."""
        for source in (*self.work.rglob("*.log"), *self.pipeline_state.rglob("*.log")):
            base = self.work if source.is_relative_to(self.work) else self.results
            # The segments of partitions have the same ending.
            if source.stem.isdecimal():
                continue
            with suppress(OSError):
                self.logs.mkdir(exist_ok=True)
                name = "-".join(source.relative_to(base).parts).removeprefix("cluster-")
                (self.logs / name).write_bytes(_end_of(source))


@contextmanager
def workplace(results: Path = RESULTS) -> Iterator[Workplace]:
    """A fresh place to work; the last run's results are removed now. Logs are kept when the block raises.

    Raises WorkplaceError when another run is going on or the disk is full, OSError when the directory cannot be made.
    """
    results.mkdir(parents=True, exist_ok=True)
    with open(results / ".lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkplaceError(f"another run is working in {results}; wait for it, or stop it") from None
        _wait_for_earlier_pipeline(results / "state" / "lock")
        _remove_what_is_left(results)
        free = shutil.disk_usage(results).free
        if free < FREE_BYTES_MIN:
            raise WorkplaceError(
                f"{results} has {free / 1e9:.1f} GB of free space; the run needs {FREE_BYTES_MIN / 1e9:.1f} GB"
            )
        place = Workplace(results, Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=results)))
        place.temporary.mkdir()
        try:
            yield place
        except BaseException:
            place.keep_logs()
            # Half a result would be taken for one.
            shutil.rmtree(place.table, ignore_errors=True)
            raise
        finally:
            place.forget()


def _wait_for_earlier_pipeline(lock_path: Path) -> None:
    """Returns when no pipeline of a run that was killed is left. Raises WorkplaceError when one does not end."""
    deadline = time.monotonic() + EARLIER_PIPELINE_SECONDS_MAX
    while True:
        try:
            with open(lock_path, encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except FileNotFoundError:
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise WorkplaceError(f"a pipeline holds {lock_path}, which names its process; stop it") from None
            time.sleep(0.1)


def _remove_what_is_left(results: Path) -> None:
    """The last run's results, and what a run that was killed could not remove."""
    names = ["state", "delays", "logs", *(path.name for path in results.glob(f"{_WORK_PREFIX}*"))]
    for name in names:
        shutil.rmtree(results / name, ignore_errors=True)
    with suppress(FileNotFoundError):
        (results / "delays.png").unlink()


def _end_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES_KEPT_MAX))
        return file.read()
