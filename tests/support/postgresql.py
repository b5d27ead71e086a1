"""A PostgreSQL of its own for tests that want a real database, where one is installed (Debian: `postgresql`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PATIENCE_SECONDS = 60


def find_postgresql() -> Path | None:
    """The directory of `initdb` and `pg_ctl`; None where there is none. Debian has them beside the PATH."""
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return Path(on_path).parent if on_path else found[-1].parent if found else None


@contextlib.contextmanager
def postgresql(programs: Path) -> Iterator[str]:
    """The address for JDBC of a database that is empty, and gone afterwards. It listens on the loopback alone."""
    # Its server refuses to be root's, and nobody else may look into the directories of tests.
    directory = Path(tempfile.mkdtemp(prefix="barnabas-postgresql-"))
    is_root = os.geteuid() == 0
    if is_root:
        shutil.chown(directory, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *arguments: str) -> None:
        user = "postgres" if is_root else None
        command = [str(programs / program), "-D", str(directory / "data"), *arguments]
        subprocess.run(
            command, user=user, cwd=directory, check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.DEVNULL
        )

    try:
        run("initdb", "--auth=trust", "--username=postgres", "--no-sync")
        settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c fsync=off"
        run("pg_ctl", "-l", str(directory / "log"), "-o", settings, "-w", "start")
        try:
            yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
