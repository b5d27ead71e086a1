"""What Ctrl-C and other signals do to a run of a pipeline, and the end of its parent."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn

from barnabas.cli.connection import ExitStatus

if TYPE_CHECKING:
    from types import FrameType

_INPUT_BYTES: Final = 4_096
_STOPPING_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP ask for an end in order at first, then interrupt, and then end the process at once.

    Must be entered on the main thread. SIGHUP that is ignored (nohup) stays ignored.
    """
    asked = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            stop.set()
            # Python's own streams may be at a write of theirs just now.
            os.write(2, b"\rstopping; Ctrl-C again cuts it short\n")
        elif asked == 2:
            _interrupt()
        else:
            os._exit(ExitStatus.INTERRUPTED)

    with _handling_signals(handle):
        yield


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt the block as Ctrl-C does, so that it leaves nothing behind."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        _interrupt()

    with _handling_signals(handle):
        yield


def _interrupt() -> NoReturn:
    """Ends what goes on. A call to Spark that is cut short is no error, which py4j would log with a traceback."""
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _handling_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _STOPPING_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        logging.disable(logging.NOTSET)


def end_with_input() -> None:
    """Ends this process at once when its standard input is over, which says that its parent is gone.

    Nobody waits for the batch under way then, and brokers that the parent had started are gone too. What the run has
    done is safe at any moment, and Spark's process ends with this one.
    """

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, _INPUT_BYTES):
                pass
        os._exit(ExitStatus.INTERRUPTED)

    threading.Thread(target=read, name="parent", daemon=True).start()
