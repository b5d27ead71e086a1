"""Two directories that take each other's place, at once where the system can do that, and resumably everywhere."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Final

from barnabas.pipelines.durable_files import sync_directory

_HERE: Final = -100
_EXCHANGE: Final = 2
_SWAP: Final = 2
_ASIDE: Final = "~aside"
_NOT_THERE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def identity_of_directory(path: Path) -> int | None:
    """What a directory keeps through renames, among those of its file system; None where there is none. Its device is
    none of it: that may have another number when the machine has started again.
    """
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def exchange(place: Path, new: Path, identity: int) -> None:
    """Has the directory of that identity, which is at `new`, be at `place`, and what was there at `new`.

    It may be called again after it was cut short, whenever that was. Readers of `place` see the one or the other; where
    the system has no exchange of names, nothing for a moment.
    """
    aside = place.with_name(place.name + _ASIDE)
    if identity_of_directory(place) != identity:
        if place.exists() and not aside.exists() and _exchanged(place, new):
            sync_directory(place.parent)
            return
        if place.exists():
            place.rename(aside)
        new.rename(place)
    if aside.exists():
        aside.rename(new)
    sync_directory(place.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system has exchanged the names."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        call = getattr(library, "renamex_np", None)
        status = -1 if call is None else call(first, second, _SWAP)
    else:
        call = getattr(library, "renameat2", None)
        status = -1 if call is None else call(_HERE, first, _HERE, second, _EXCHANGE)
    if status == 0:
        return True
    number = ctypes.get_errno()
    if call is None or number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
