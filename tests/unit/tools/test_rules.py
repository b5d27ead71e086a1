"""The project's own lint rules find what they are there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_ambient, check_sizes


def ambient(tmp_path: Path, source: str) -> list[str]:
    path = tmp_path / "module.py"
    path.write_text(source)
    return [finding.what for finding in check_ambient.findings_in(path)]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time\nnow = time.time()", "time.time"),
        ("import time as clock\nnow = clock.monotonic()", "time.monotonic"),
        ("from time import sleep", "time.sleep"),
        ("import random\nrandom.random()", "random.random"),
        ("import random\nrandom.Random()", "random.Random() without a seed"),
        ("import mmap\nmmap.mmap(3, 10)", "mmap.mmap"),
        ("import os\nos.urandom(4)", "os.urandom"),
        ("import os\nos.fsync(3)", "os.fsync"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(1)", "asyncio.sleep"),
        ("def f():\n    with open('x'):\n        pass", "open"),
        ("import datetime\ndatetime.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("def f(loop):\n    loop.run_in_executor(None, f)", "run_in_executor"),
        ("import threading\nthreading.Thread()", "threading.Thread"),
        ("def f():\n    import subprocess\n    subprocess.run(['x'])", "subprocess.run"),
        ("from pathlib import Path", "pathlib.Path"),
    ],
)
def test_finds_what_is_ambient(tmp_path: Path, source: str, what: str) -> None:
    assert what in ambient(tmp_path, source)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nFLAGS = os.O_RDWR | os.O_CREAT",
        "import random\ndef f(generator: random.Random) -> int:\n    return generator.randrange(3)",
        "def f(host):\n    return host.files.open('x', 0), host.clock.time_ms(), host.loop.time()",
        "import asyncio\nasync def f():\n    async with asyncio.timeout(1):\n        pass",
        "import os\nos.path.join('a', 'b')",
        "import mmap\nmmap.mmap(-1, 10)",
    ],
)
def test_lets_the_host_and_constants_pass(tmp_path: Path, source: str) -> None:
    assert ambient(tmp_path, source) == []


def test_exempts_only_the_real_host_and_the_rooms_for_people(tmp_path: Path) -> None:
    for place in ("kernel/real_host.py", "cli/main.py", "kernel/timers.py", "log/real_segment.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("")
    checked = [str(path.relative_to(tmp_path)) for path in check_ambient.checked_files(tmp_path)]
    assert checked == ["kernel/timers.py", "log/real_segment.py"]


def test_finds_long_files_and_long_functions(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "long.py").write_text("x = 1\n" * (check_sizes.FILE_LINES_MAX + 1))
    (tmp_path / "src" / "tall.py").write_text("def tall():\n" + "    x = 1\n" * check_sizes.FUNCTION_LINES_MAX)
    (tmp_path / "src" / "fine.py").write_text("x = 1\n" * check_sizes.FILE_LINES_MAX)
    found = check_sizes.findings(tmp_path)
    assert [sentence.split(":")[0] for sentence in found] == ["src/long.py", "src/tall.py"]
