from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from barnabas.kernel.system_errors import reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "/data/x: no space is left on the disk"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "/data/x: permission is denied"),
        (OSError(errno.EADDRINUSE, "error while attempting to bind"), "the port is in use by another program"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "the name cannot be resolved"),
        (OSError(errno.EXDEV, "Invalid cross-device link"), "Invalid cross-device link"),
        (OSError("no number"), "no number"),
        (OSError(), "OSError"),
    ],
)
def test_a_reason_is_in_words(error: OSError, expected: str) -> None:
    assert reason(error) == expected


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        (tmp_path / "file" / "below").mkdir()
    assert reason(caught.value) == f"{tmp_path}/file/below: it is not a directory"
