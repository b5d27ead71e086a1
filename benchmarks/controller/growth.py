"""How the controller's work grows with the partitions: `python -m benchmarks.controller.growth [--sizes N ...]`.

The core alone, in a process for each size: a takeover of live brokers, whose connections answer at once, and then the
death of one of them. Prints a table, and writes a plot of processor time over partitions; straight lines are linear.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SIZES = (25_000, 50_000, 100_000, 200_000)
BROKERS = 100
PARTITIONS_PER_TOPIC = 100
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 640, 360, 60, 40, 20
_LINES = (
    ("failover_cpu_seconds", "takeover", "#1f5fa8"),
    ("failure_cpu_seconds", "death of one broker", "#b5471b"),
)
Figures = Mapping[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How the controller's work grows with the partitions.")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--brokers", type=int, default=BROKERS)
    parser.add_argument("--plot", type=Path, default=Path("docs/controller-growth.svg"))
    given = parser.parse_args(arguments)
    measured = [measure(size, given.brokers) for size in sorted(given.sizes)]
    print("| partitions, three replicas each | takeover, processor time | one broker dies | longest turn | memory |")
    print("|---|---|---|---|---|")
    for figures in measured:
        longest = max(figures["failover_longest_stall_seconds"], figures["failure_longest_stall_seconds"])
        print(
            f"| {figures['partitions']:,} | {figures['failover_cpu_seconds']:.1f} s |"
            f" {figures['failure_cpu_seconds']:.2f} s | {longest * 1000:.0f} ms |"
            f" {figures['memory_bytes'] / 2**20:.0f} MiB |"
        )
    given.plot.write_text(plot(measured))
    return 0


def measure(partitions: int, brokers: int) -> Figures:
    """One run in a process of its own. What it says of long turns goes to standard error."""
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.controller", "--live", "--core", "--json", str(found)]
        options = {
            "--partitions": partitions,
            "--topics": max(1, partitions // PARTITIONS_PER_TOPIC),
            "--brokers": brokers,
        }
        for name, value in options.items():
            command += [name, str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures: Figures = json.loads(found.read_text())
        return figures


def plot(measured: Sequence[Figures]) -> str:
    """Processor time over partitions, as SVG; both axes begin at zero."""
    partitions_max = max(figures["partitions"] for figures in measured)
    seconds_max = max(figures[name] for figures in measured for name, _, _ in _LINES)

    def place(partitions: float, seconds: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _MARGIN) * partitions / partitions_max
        return x, _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _MARGIN) * seconds / seconds_max

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
            ' font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for figures in measured:
        x, y = place(figures["partitions"], 0)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="end">{figures["partitions"]:,.0f}</text>')
    for share in (0.0, 0.5, 1.0):
        x, y = place(0, seconds_max * share)
        parts.append(f'<text x="{x - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{seconds_max * share:.1f} s</text>')
        parts.append(f'<path d="M{x:.0f} {y:.0f}H{_WIDTH - _MARGIN}" stroke="#ddd"/>')
    for number, (name, title, color) in enumerate(_LINES):
        points = [place(0, 0), *(place(figures["partitions"], figures[name]) for figures in measured)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points[1:]]
        parts.append(f'<text x="{_LEFT + 12}" y="{_MARGIN + 14 + 16 * number}" fill="{color}">{title}</text>')
    parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}" text-anchor="end">partitions</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
