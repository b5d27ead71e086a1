"""The rule on what is ambient: production rooms reach time, randomness, files, processes and sleep through the host.

Run as `python -m tools.check_ambient [ROOT]`; prints one line per finding, `path:line: what, and what to use instead`,
and exits 1 when there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "src" / "barnabas"

EXEMPT_ROOMS = ("cli", "console", "pipelines")
"""Rooms that talk to a person or to Spark, never hosted by the simulator."""
EXEMPT_FILES = (("tiered", "spark_source.py"),)
"""What the processes of Spark run, and no broker."""
EXEMPT_FILE_PREFIX = "real_"
"""Where the world comes in: the host of a real machine, and clusters on it for users' tests."""
ROOMS_WITH_REAL_FILES = ("kernel", "testing")

_CLOCK = "the host's clock (wall time) or host.loop.time() (durations)"
_RANDOM = "host.random, or host.entropy for ids and secrets"
_SLEEP = "a timer of host.loop, or wait for the condition itself"
_FILES = "host.files"
_THREADS = "host.offload"
_CHILD = "host.spawn"
_NETWORK = "host.loop.create_server and create_connection"

FORBIDDEN: dict[str, str] = {
    "time.time": _CLOCK,
    "time.time_ns": _CLOCK,
    "time.monotonic": _CLOCK,
    "time.monotonic_ns": _CLOCK,
    "time.perf_counter": _CLOCK,
    "time.perf_counter_ns": _CLOCK,
    "time.process_time": _CLOCK,
    "time.sleep": _SLEEP,
    "datetime.datetime.now": _CLOCK,
    "datetime.datetime.utcnow": _CLOCK,
    "datetime.datetime.today": _CLOCK,
    "datetime.date.today": _CLOCK,
    "os.urandom": _RANDOM,
    "os.getrandom": _RANDOM,
    "uuid.uuid1": _RANDOM,
    "uuid.uuid4": _RANDOM,
    "asyncio.sleep": _SLEEP,
    "asyncio.to_thread": _THREADS,
    "asyncio.open_connection": _NETWORK,
    "asyncio.start_server": _NETWORK,
    "asyncio.create_subprocess_exec": _CHILD,
    "asyncio.create_subprocess_shell": _CHILD,
    "io.open": _FILES,
    "os.fork": _CHILD,
    "os.system": _CHILD,
    "os.popen": _CHILD,
    "os.kill": _CHILD,
    "open": _FILES,
}
FORBIDDEN_MODULES: dict[str, str] = {
    "secrets": _RANDOM,
    "random": _RANDOM,
    "threading": _THREADS,
    "concurrent": _THREADS,
    "multiprocessing": _CHILD,
    "subprocess": _CHILD,
    "tempfile": _FILES,
    "shutil": _FILES,
    "pathlib": _FILES,
    "glob": _FILES,
    "mmap": "positional reads of host.files; the files port has no mmap on purpose",
    "socket": _NETWORK,
    "select": _NETWORK,
    "selectors": _NETWORK,
}
ALLOWED: frozenset[str] = frozenset(
    {
        "random.Random",  # the type, and generators that are seeded by an argument
        "socket.AF_INET",
        "socket.AF_INET6",
        "socket.AF_UNSPEC",
        "socket.IPPROTO_TCP",
        "socket.SOCK_STREAM",
        "socket.SOL_SOCKET",
        "socket.TCP_NODELAY",
        "socket.SO_RCVBUF",
        "socket.SO_SNDBUF",
        "socket.SO_KEEPALIVE",
        "socket.gaierror",
        "socket.EAI_NONAME",
        "socket.socket",  # the type, for getsockopt on a transport's own socket
    }
)
OS_FILE_CALLS = frozenset(
    "open close read write readv writev pread preadv pwrite pwritev fsync fdatasync ftruncate truncate stat lstat "
    "fstat listdir scandir mkdir makedirs rename replace renames unlink remove rmdir removedirs link symlink walk "
    "sendfile statvfs fstatvfs access chmod utime sync".split()
)
LOOP_CALLS: dict[str, str] = {"run_in_executor": _THREADS}


@dataclass(frozen=True, slots=True)
class Finding:
    """One use of something ambient."""

    path: Path
    line: int
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: use {self.instead}"


class _Names(ast.NodeVisitor):
    """Finds uses by full dotted name, following `import a as b` and `from a import b as c`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.full_names: dict[str, str] = {}
        self.findings: list[Finding] = []

    def _report(self, node: ast.AST, what: str, instead: str) -> None:
        self.findings.append(Finding(self.path, getattr(node, "lineno", 0), what, instead))

    def _check(self, node: ast.AST, name: str) -> None:
        if name in ALLOWED:
            return
        module, _, attribute = name.rpartition(".")
        if name in FORBIDDEN:
            self._report(node, name, FORBIDDEN[name])
        elif module == "os" and attribute in OS_FILE_CALLS:
            self._report(node, name, _FILES)
        elif module.split(".")[0] in FORBIDDEN_MODULES:
            self._report(node, name, FORBIDDEN_MODULES[module.split(".")[0]])

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.split(".")[0]
            self.full_names[alias.asname or first] = alias.name if alias.asname else first

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            self.full_names[alias.asname or alias.name] = name
            self._check(node, name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in LOOP_CALLS:
            self._report(node, node.attr, LOOP_CALLS[node.attr])
        parts: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            if value.id in self.full_names:
                self._check(node, ".".join([self.full_names[value.id], *reversed(parts)]))
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute | ast.Name) and not node.args and not node.keywords:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else self.full_names.get(node.func.id, "")
            if called in {"Random", "random.Random"}:
                self._report(node, "random.Random() without a seed", _RANDOM)
        if _is_anonymous_memory(node):
            return
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "open" and "open" not in self.full_names and isinstance(node.ctx, ast.Load):
            self._check(node, "open")


def _is_anonymous_memory(node: ast.Call) -> bool:
    """Whether the call is `mmap.mmap(-1, ...)`, which maps no file."""
    return ast.unparse(node.func) == "mmap.mmap" and bool(node.args) and ast.unparse(node.args[0]) == "-1"


def findings_in(path: Path) -> list[Finding]:
    """Everything ambient in one Python file. Raises SyntaxError when it is not one."""
    names = _Names(path)
    names.visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    return names.findings


def checked_files(root: Path) -> Iterator[Path]:
    """The Python files below `root` (a checkout's `src/barnabas`) that the rule holds for, sorted."""
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts in EXEMPT_FILES or place.parts[0] in EXEMPT_ROOMS:
            continue
        if place.parts[0] in ROOMS_WITH_REAL_FILES and path.name.startswith(EXEMPT_FILE_PREFIX):
            continue
        yield path


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else SOURCE_ROOT
    files = list(checked_files(root))
    if not files:
        print(f"{root}: no Python files here; give the folder of the package", file=sys.stderr)
        return 2
    findings = [finding for path in files for finding in findings_in(path)]
    for finding in findings:
        print(finding)
    print(f"ambient rule: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
