"""`tests.support.certificates`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_certificates_of_a_run_of_tests_go_with_its_process(tmp_path: Path) -> None:
    script = (
        "from tests.support.certificates import broker_certificate, other_authority;"
        "print(broker_certificate().both, other_authority().certificate)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    for path in done.stdout.split():
        assert path.startswith(str(tmp_path))
        assert not Path(path).exists()
    assert list(tmp_path.iterdir()) == []
