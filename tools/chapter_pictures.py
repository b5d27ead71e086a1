"""Draws what happens in the chapters of docs/how-it-works.md: `PYTHONHASHSEED=0 python -m tools.chapter_pictures`.

A chapter's block is run as it stands, on a cluster that is looked at every 50 ms of virtual time, from outside of all
processes: who leads the partition, who is in sync, who is down or paused, who is the controller, log ends and high
watermarks; and what the block calls. Of that trace docs/images/chapter-N.svg is made, which carries it. The same trace
gives the same bytes. Code that draws other random numbers gives another trace, of the same story: `differences` says
whether it is, whichever broker it is that leads, and a second earlier or later.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

import barnabas.testing
from barnabas.testing.simulated_cluster import APP, Place, SimulatedCluster
from barnabas.testing.simulated_host import SimulatedProcess

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGE: Final = DOCS / "how-it-works.md"
LOOK_SECONDS: Final = 0.05
SHORTEST_SECONDS: Final = 0.3
"""What is over sooner is left out: whether it is seen depends on when it is looked."""
MORE_SECONDS: Final = 0.2
"""How much of its time a block is looked at further, when it has ended: what came last is to be seen."""
SECONDS_APART_MAX: Final = 2.0
"""By how much the same story may be earlier or later."""
BLOCKS: Final = {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0}
"""Which block of a chapter is drawn."""
_CALLS: Final = "kill power_fail stop_broker start_broker pause resume partition heal settle".split()
_CHAPTER: Final = re.compile(r"^## (\d+)\. (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_BLOCK: Final = re.compile(r"```python\n(.*?)```", re.DOTALL)
_TRACE: Final = re.compile(r"<metadata>(.*)</metadata>")


@dataclass(slots=True)
class Lane:
    """A broker, or what a reader has of a partition: what it was from when to when, and what changed at which time."""

    name: str
    spans: list[tuple[float, float, str]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """What was seen of a block: seconds are since the cluster was usable."""

    chapter: int
    title: str
    seconds: float
    lanes: list[Lane]
    calls: list[tuple[float, str]]


def chapters(page: str) -> dict[int, tuple[str, list[str]]]:
    """The title and the blocks of each chapter."""
    return {int(number): (title, _BLOCK.findall(text)) for number, title, text in _CHAPTER.findall(page)}


class _Watcher:
    """What is seen of the cluster of one block."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.began = 0.0
        self.states: dict[str, list[tuple[float, str]]] = {}
        self.ends: dict[str, list[tuple[float, str]]] = {}
        self.calls: list[tuple[float, str]] = []
        self.cluster: SimulatedCluster | None = None
        self.seconds = 0.0
        self.paused: set[object] = set()

    def watch(self, cluster: SimulatedCluster) -> None:
        self.cluster, self.began = cluster, cluster.now
        self._again()

    def called(self, cluster: SimulatedCluster, what: str) -> None:
        """A call that is the former one, again, is one."""
        if self.cluster is cluster and (not self.calls or self.calls[-1][1] != what):
            self.calls.append((self._now(), what))

    def _now(self) -> float:
        assert self.cluster is not None
        return round(self.cluster.now - self.began, 1)

    def look(self) -> None:
        """Sees what is there before and after a call that may change it at once."""
        if self.cluster is not None:
            self._look(self.cluster)

    def _again(self) -> None:
        if self.cluster is not None:
            self._look(self.cluster)
            self.cluster.simulation.after(LOOK_SECONDS, self._again)

    def _look(self, cluster: SimulatedCluster) -> None:
        number = self.names.get("number", 0) if "slow" in self.names else 0
        text = cluster.znode(f"/brokers/topics/flights/partitions/{number}/state")
        state = json.loads(text) if text else {"isr": []}
        controller = json.loads(cluster.znode("/controller") or "{}").get("brokerid")
        for broker_id in cluster.broker_ids:
            name = f"broker {broker_id}"
            found = cluster.replica(broker_id, "flights", number)
            if not cluster.is_running(broker_id):
                said = "down"
            elif broker_id in self.paused:
                said = "paused"
            elif found is None:
                said = "no replica"
            elif found.is_leader:
                said = "leader" if broker_id == state.get("leader") else "believes to lead"
            else:
                said = "in sync" if broker_id in state["isr"] else "out of sync"
            self._seen(self.states, name, said + (", controller" if broker_id == controller else ""))
            if found is not None:
                self._seen(self.ends, name, f"end {found.log_end_offset}, hw {found.high_watermark}")
        if "write" in self.names and "leader" in self.names:
            waiting = cluster.waiting(self.names["leader"])
            said = ", ".join(f"{waiting[what]} {what}" for what in ("Fetch", "Produce") if waiting[what])
            self._seen(self.ends, f"broker {self.names['leader']}, waiting", said or "nothing waits")
        for reader, records in sorted(self.names.get("seen", {}).items()):
            for partition in (0, 1):
                count = sum(1 for each, _ in records if each == partition)
                self._seen(self.ends, f"reader {reader}, partition {partition}", f"{count} read")

    def _seen(self, what: dict[str, list[tuple[float, str]]], name: str, said: str) -> None:
        found = what.setdefault(name, [])
        if not found or found[-1][1] != said:
            found.append((self._now(), said))

    def end(self) -> None:
        if self.cluster is not None:
            self.seconds = self._now()
            self.cluster = None

    def story(self, chapter: int, title: str) -> Story:
        lanes = [
            Lane(name, _spans(self.states.get(name, []), self.seconds), self.ends.get(name, []))
            for name in sorted({*self.states, *self.ends})
        ]
        return Story(chapter, title, self.seconds, lanes, self.calls)


def _spans(changes: list[tuple[float, str]], ends: float) -> list[tuple[float, float, str]]:
    spans: list[tuple[float, float, str]] = []
    for (start, said), (end, _) in zip(changes, [*changes, (ends, "")][1:], strict=False):
        if end - start < SHORTEST_SECONDS and len(changes) > 1:
            continue
        if spans and spans[-1][2] == said:
            spans[-1] = (spans[-1][0], end, said)
        else:
            # What was left out before belongs to what comes next.
            spans.append((spans[-1][1] if spans else 0.0, end, said))
    return spans


def watched(block: str, chapter: int, title: str) -> Story:
    """Runs a block, whose assertions hold or raise, and tells what was seen of its first cluster."""
    names: dict[str, Any] = {"__name__": "how_it_works"}
    watcher = _Watcher(names)

    class Watched(SimulatedCluster):
        """The cluster of the block, which tells the watcher what it is told."""

        def __enter__(self) -> Self:
            entered = super().__enter__()
            watcher.watch(entered)
            return entered

        def __exit__(self, *error: object) -> None:
            if error[0] is None and watcher.cluster is self:
                self.run_for(MORE_SECONDS * max(1.0, watcher.cluster.now - watcher.began))
            watcher.end()
            super().__exit__(*error)  # type: ignore[arg-type]

        def produce(self, topic: str, *values: bytes, **options: Any) -> list[int]:
            records = "1 record" if len(values) == 1 else f"{len(values)} records"
            watcher.look()
            try:
                offsets = super().produce(topic, *values, **options)
            except Exception as error:
                watcher.called(self, f"produce {records}: {type(error).__name__}")
                raise
            watcher.look()
            watcher.called(self, f"produce {records}: acknowledged, offset {offsets[-1]}")
            return offsets

        def run(self, function: Any, *arguments: Any, **options: Any) -> Any:
            told = ", ".join(str(each) for each in arguments if isinstance(each, int))
            watcher.called(self, f"{function.__name__} to brokers {told}")
            return super().run(function, *arguments, **options)

        def start(self, function: Any, *arguments: Any, machine: str = APP) -> SimulatedProcess:
            if _called_by_the_page():
                watcher.look()
                watcher.called(self, f"start {machine}")
            return super().start(function, *arguments, machine=machine)

        def reset_connections(self, one: Place, two: Place) -> int:
            watcher.called(self, "connections break, again and again")
            return super().reset_connections(one, two)

    for name in _CALLS:
        setattr(Watched, name, _telling(name, watcher))
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(barnabas.testing, "SimulatedCluster", Watched))
        for name in ("pause", "resume"):
            patches.enter_context(mock.patch.object(SimulatedProcess, name, _told_of_process(name, watcher)))
        exec(compile(block, str(PAGE), "exec"), names)
    return watcher.story(chapter, title)


def _telling(name: str, watcher: _Watcher) -> Callable[..., Any]:
    original = getattr(SimulatedCluster, name)

    def call(cluster: SimulatedCluster, *arguments: Any, **options: Any) -> Any:
        places = [
            "brokers " + ", ".join(map(str, each)) if isinstance(each, (list, tuple)) else _place(each)
            for each in arguments
        ]
        if name == "pause":
            watcher.paused.update(arguments)
        elif name == "resume":
            watcher.paused.difference_update(arguments)
        # What `settle` calls is its own.
        if _called_by_the_page():
            watcher.called(cluster, f"{name.replace('_broker', '').replace('_', ' ')} {' | '.join(places)}".strip())
        return original(cluster, *arguments, **options)

    return call


def _told_of_process(name: str, watcher: _Watcher) -> Callable[[SimulatedProcess], None]:
    original = getattr(SimulatedProcess, name)

    def call(process: SimulatedProcess) -> None:
        if _called_by_the_page() and watcher.cluster is not None:
            watcher.called(watcher.cluster, f"{name} {process.machine.name}")
        original(process)

    return call


def _called_by_the_page() -> bool:
    """Whether the function that is asked about is called by a block itself."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame else None
    return frame is not None and frame.f_code.co_filename == str(PAGE)


def _place(place: object) -> str:
    return f"broker {place}" if isinstance(place, int) else str(place)


# Whether two stories are the same.


def differences(one: Story, other: Story) -> list[str]:
    """In what the second is another story than the first; which broker plays which part does not matter."""
    wrong = []
    for what, (first, second) in {
        "calls": (_told(one.calls), _told(other.calls)),
        "parts": (_parts(one), _parts(other)),
    }.items():
        if first != second:
            wrong.append(f"{what}: {first} is now {second}")
    if not wrong:
        late = [
            f"{text}: at {time} s, and now at {at} s"
            for (time, text), (at, _) in zip(one.calls, other.calls, strict=True)
            if abs(time - at) > SECONDS_APART_MAX + 0.1 * time
        ]
        wrong += late
    return wrong


def _told(calls: list[tuple[float, str]]) -> list[str]:
    return [re.sub(r"(?<=brokers )[\d, ]+|\bbroker \d", "a broker", text) for _, text in calls]


def _parts(story: Story) -> list[list[str]]:
    """What each broker goes through, and what its log has in the end, without who is the controller, and without what
    is over soon: a broker that dies at once may have led, or not yet.
    """
    shortest = min(1.0, story.seconds / 4)
    parts = []
    for lane in story.lanes:
        said = [what.replace(", controller", "") for start, end, what in lane.spans if end - start >= shortest]
        if said:
            parts.append([*(what for what, _ in itertools.groupby(said)), *(text for _, text in lane.marks[-1:])])
    return sorted(parts)


# The picture.

WIDTH: Final = 900
LEFT: Final = 170
LANE: Final = 40
BAR: Final = 16
LINE: Final = 18
LOOKS: Final = {
    "leader": ("#1f5fa8", "", "leads"),
    "believes to lead": ("#1f5fa8", "6 4", "believes that it leads"),
    "in sync": ("#a9cbee", "", "in sync (ISR)"),
    "out of sync": ("#f3d9a4", "2 2", "not in sync"),
    "paused": ("#c9c9c9", "3 3", "paused"),
    "down": ("#ffffff", "1 4", "down"),
    "no replica": ("#f4f4f4", "", "has no replica"),
}
"""Fill, dashes of the border, and name of what a broker is."""


def svg(story: Story) -> str:
    """The picture of a story, which has the story in it."""
    top = 34
    bottom = top + LANE * len(story.lanes)
    used = {said.replace(", controller", "") for lane in story.lanes for _, _, said in lane.spans}
    legend = [state for state in LOOKS if state in used]
    height = bottom + 34 + LINE * len(story.calls) + (34 if legend else 0)
    trace = escape(json.dumps(asdict(story), separators=(",", ":")), quote=False)
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="12" fill="#222">',
        f"<title>{escape(story.title)}</title>",
        f"<metadata>{trace}</metadata>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_axis(story, bottom),
        *_calls(story, bottom),
    ]
    for number, lane in enumerate(story.lanes):
        parts += _lane(story, lane, top + LANE * number)
    parts += _legend(
        legend, height - 22, any("controller" in said for lane in story.lanes for _, _, said in lane.spans)
    )
    return "\n".join([*parts, "</svg>", ""])


def _x(story: Story, seconds: float) -> float:
    return round(LEFT + (WIDTH - LEFT - 20) * seconds / max(story.seconds, 0.1), 1)


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{more}>{escape(said)}</text>'


def _axis(story: Story, bottom: int) -> list[str]:
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if story.seconds / each <= 12)
    parts = [_text(8, 18, "seconds", ' fill="#666"')]
    for number in range(int(story.seconds / step) + 1):
        x = _x(story, number * step)
        parts.append(f'<path d="M{x} 24V{bottom}" stroke="#ddd"/>')
        parts.append(_text(x, 18, f"{number * step:g}", ' fill="#666" text-anchor="middle"'))
    return parts


def _calls(story: Story, bottom: int) -> list[str]:
    parts = []
    free = 0.0
    for number, (seconds, said) in enumerate(story.calls, start=1):
        x, y = _x(story, seconds), bottom + 12 + LINE * number
        free = max(free + 14, x)
        parts.append(f'<path d="M{x} 24V{bottom + 8}" stroke="#c2410c" stroke-dasharray="4 2"/>')
        parts.append(_text(free, bottom + 18, str(number), ' fill="#c2410c" text-anchor="middle" font-weight="bold"'))
        parts.append(_text(LEFT, y + 12, f"{number}   {seconds:.1f} s   {said}", ' fill="#8a2f0a"'))
    return parts


def _lane(story: Story, lane: Lane, y: int) -> list[str]:
    parts = [_text(8, y + 13, lane.name)]
    for start, end, said in lane.spans:
        state = said.replace(", controller", "")
        fill, dashes, _ = LOOKS[state]
        x, width = _x(story, start), round(_x(story, end) - _x(story, start), 1)
        border = f' stroke="#1f3f68" stroke-dasharray="{dashes}"' if dashes else ' stroke="#1f3f68"'
        opacity = ' fill-opacity="0.45"' if state == "believes to lead" else ""
        parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{BAR}" fill="{fill}"{opacity}{border}/>')
        if said != state:
            parts.append(f'<path d="M{x} {y - 4}h{width}" stroke="#7a1fa2" stroke-width="3"/>')
    for x, seconds, said in _placed(story, lane.marks):
        parts.append(f'<path d="M{_x(story, seconds)} {y + BAR}v3" stroke="#444"/>')
        parts.append(_text(x, y + BAR + 13, said, ' font-size="11" fill="#444"'))
    return parts


def _placed(story: Story, marks: list[tuple[float, str]]) -> list[tuple[float, float, str]]:
    """Which marks have room below their bar, and where: those that hold longest first, since what holds is worth more
    than what passes.
    """
    ends = [seconds for seconds, _ in marks[1:]] + [story.seconds + 1] * bool(marks)
    placed: list[tuple[float, float, str]] = []
    for _, (seconds, said) in sorted(
        zip(ends, marks, strict=True), key=lambda each: (each[1][0] - each[0], each[1][0])
    ):
        wide = 6.4 * len(said) + 8
        x = round(min(_x(story, seconds), WIDTH - wide), 1)
        if all(x + wide <= other or other + 6.4 * len(text) + 8 <= x for other, _, text in placed):
            placed.append((x, seconds, said))
    return sorted(placed)


def _legend(states: list[str], y: int, controller: bool) -> list[str]:
    parts, x = [], 8
    for state in states:
        fill, dashes, name = LOOKS[state]
        opacity = ' fill-opacity="0.45"' if state == "believes to lead" else ""
        border = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<rect x="{x}" y="{y}" width="18" height="12" fill="{fill}"{opacity} stroke="#1f3f68"{border}/>')
        parts.append(_text(x + 24, y + 11, name))
        x += 40 + 7 * len(name)
    if controller:
        parts.append(f'<path d="M{x} {y + 6}h18" stroke="#7a1fa2" stroke-width="3"/>')
        parts.append(_text(x + 24, y + 11, "is the controller"))
    return parts


def read(text: str) -> Story:
    """The story that a picture has in it."""
    found = _TRACE.search(text)
    if found is None:
        raise ValueError("no trace is in the picture")
    told = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    lanes = [
        Lane(each["name"], [tuple(span) for span in each["spans"]], [tuple(mark) for mark in each["marks"]])
        for each in told["lanes"]
    ]
    return Story(told["chapter"], told["title"], told["seconds"], lanes, [tuple(call) for call in told["calls"]])


def picture(chapter: int) -> Path:
    return DOCS / "images" / f"chapter-{chapter}.svg"


def main() -> int:
    for number, (title, blocks) in chapters(PAGE.read_text("utf-8")).items():
        picture(number).write_text(svg(watched(blocks[BLOCKS[number]], number, title)), "utf-8")
        print(f"wrote {picture(number)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
