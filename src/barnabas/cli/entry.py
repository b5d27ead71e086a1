"""The entry of the `barnabas` command: whatever the process was given, and whenever Ctrl-C comes.

It imports next to nothing itself, so that Ctrl-C while the rest is imported ends as at any other time.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

_INTERRUPTED = 130
_OBJECTS_PER_COLLECTION = 50_000
"""Importing makes some 100,000 that stay; to look through them again and again takes a twentieth of a short command."""


def run() -> None:
    """Runs the command that the arguments name, and exits with its status."""
    try:
        fill_closed_descriptors()
        # At its end Python looks for cycles among all that there is, a tenth of a short command. What is still held by
        # then has nothing to tidy up; registered first, this comes after whatever else is to be done at the end.
        atexit.register(gc.freeze)
        gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
        from barnabas.cli.light_imports import lighten

        lighten()
        from barnabas.cli.main import main

        main(prog_name="barnabas")
    except BaseException as error:
        if not _comes_from_ctrl_c(error):
            raise
        sys.exit(_INTERRUPTED)


def _comes_from_ctrl_c(error: BaseException | None) -> bool:
    """Tells whether `error` is Ctrl-C, or what others made of it.

    Python 3.11 gives a RuntimeError when a `__set_name__` is interrupted, as while a class of a module is made.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__
    return False


def fill_closed_descriptors() -> None:
    """Puts something in the place of a standard stream that is closed, as with `barnabas ... >&-`.

    Otherwise the first file or socket would take its number: what is printed would end up there, and libuv aborts. What
    stands for standard output takes nothing, so that a command with results fails, and says so; there is nobody to
    whom messages on standard error could be lost.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            taken = os.open(os.devnull, flags)  # the lowest number that is free
            if taken != descriptor:
                os.dup2(taken, descriptor)
                os.close(taken)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
