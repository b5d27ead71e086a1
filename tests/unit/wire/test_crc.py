"""The checksum of record batches, and what it costs to load."""

from __future__ import annotations

import subprocess
import sys

import crc32c
import pytest

from barnabas.wire import crc


@pytest.mark.parametrize(
    ("data", "checksum"),
    # RFC 3720, B.4, and the check value of the CRC's definition.
    [
        (b"\0" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_the_checksum_is_castagnolis(data: bytes, checksum: int) -> None:
    assert crc.crc32c(data) == checksum
    assert crc.crc32c(data[3:], crc.crc32c(data[:3])) == checksum


def test_it_is_the_librarys_own_beside_an_import_of_the_library() -> None:
    data = bytes(range(256)) * 300
    assert crc.crc32c(memoryview(data)) == crc32c.crc32c(data)
    assert crc.hardware_based == crc32c.hardware_based


def test_loading_it_does_not_load_the_package_around_it() -> None:
    program = (
        "import sys\n"
        "from barnabas.wire import crc\n"
        "crc.crc32c(b'')\n"
        "print(*sorted({'importlib.metadata', 'email', 'zipfile'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
