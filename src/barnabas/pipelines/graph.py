"""A picture of a pipeline: which topics become which views, and what is written, as text, Mermaid, DOT or SVG."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.definition import OnError, Pipeline, ReadMode, Sink, Source, Step, TableSink
from barnabas.pipelines.durations import format_duration
from barnabas.pipelines.sql_steps import parse_query


class NodeKind(enum.Enum):
    """What a node of the picture is; the value is its colour in SVG and DOT."""

    TOPIC = "#dce9f7"
    TABLE = "#e6e0f5"
    """A topic that is read as a table."""
    STEP = "#f4f4f0"
    SINK = "#dff0dd"
    LETTERS = "#f9e0dc"


@dataclass(frozen=True, slots=True)
class Node:
    """One box: `title` in its first line, then `notes`, a line each."""

    kind: NodeKind
    title: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Rows go from one node to another, by their places in the list; those of dead letters are dotted."""

    start: int
    end: int
    is_dotted: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order of the file, sources first, and the edges between them."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def graph_of(pipeline: Pipeline) -> Graph:
    """The picture of a pipeline, with the parts that no sink needs."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    places: dict[str, int] = {}
    for source in pipeline.sources:
        places[source.name] = len(nodes)
        nodes.append(_source_node(source))
    for step in pipeline.steps:
        places[step.name] = len(nodes)
        nodes.append(Node(NodeKind.STEP, step.name, tuple(_step_notes(step))))
        edges += [Edge(places[name], places[step.name]) for name in step.reads]
    for sink in pipeline.sinks:
        edges.append(Edge(places[sink.from_view], len(nodes)))
        nodes.append(Node(NodeKind.SINK, _target(pipeline, sink), tuple(_sink_notes(sink))))
    refusing = [source.name for source in pipeline.sources if source.on_error is OnError.TOPIC]
    if refusing:
        edges += [Edge(places[name], len(nodes), is_dotted=True) for name in refusing]
        nodes.append(Node(NodeKind.LETTERS, f"topic {pipeline.letters_topic}", ("dead letters",)))
    return Graph(pipeline.name, tuple(nodes), tuple(edges))


def text_of(pipeline: Pipeline) -> Iterator[str]:
    """The picture for a terminal: under the sinks of each view that view, and under each view what it reads."""
    seen: set[str] = set()
    for query in pipeline.queries:
        for sink in query.sinks:
            yield " ".join([_target(pipeline, sink), *_bracketed(_sink_notes(sink))])
        yield from _tree(pipeline, query.from_view, "", True, seen)
    needed = {name for query in pipeline.queries for name in views_behind(pipeline, query.from_view)}
    unneeded = [each.name for each in pipeline.sources if each.name not in needed]
    unneeded += [each.name for each in pipeline.steps if each.name not in needed]
    if unneeded:
        yield f"no sink needs {', '.join(unneeded)}"
    refusing = [source.name for source in pipeline.sources if source.on_error is OnError.TOPIC]
    if refusing:
        yield f"topic {pipeline.letters_topic} [dead letters of {', '.join(refusing)}]"


def mermaid_of(graph: Graph) -> str:
    """The picture as Mermaid's flowchart, which GitHub and GitLab show in Markdown."""
    shapes = {NodeKind.STEP: ('["', '"]')}
    lines = ["flowchart LR"]
    for number, node in enumerate(graph.nodes):
        before, behind = shapes.get(node.kind, ('[("', '")]'))
        label = "<br/>".join(_in_mermaid(line) for line in (node.title, *node.notes))
        lines.append(f"    n{number}{before}{label}{behind}")
    lines += [f"    n{edge.start} {'-.->' if edge.is_dotted else '-->'} n{edge.end}" for edge in graph.edges]
    for kind in NodeKind:
        members = [f"n{number}" for number, node in enumerate(graph.nodes) if node.kind is kind]
        if members:
            lines.append(f"    classDef {kind.name.lower()} fill:{kind.value},stroke:#777,color:#222")
            lines.append(f"    class {','.join(members)} {kind.name.lower()}")
    return "\n".join(lines) + "\n"


def dot_of(graph: Graph) -> str:
    """The picture for Graphviz."""
    lines = [
        f"digraph {_in_dot(graph.name)} {{",
        "    rankdir=LR;",
        '    node [style=filled, fontname="Helvetica", color="#777777"];',
    ]
    for number, node in enumerate(graph.nodes):
        shape = "box" if node.kind is NodeKind.STEP else "cylinder"
        label = _in_dot("\n".join((node.title, *node.notes)))
        lines.append(f'    n{number} [shape={shape}, fillcolor="{node.kind.value}", label={label}];')
    for edge in graph.edges:
        lines.append(f"    n{edge.start} -> n{edge.end}{' [style=dotted]' if edge.is_dotted else ''};")
    return "\n".join([*lines, "}"]) + "\n"


_CHARACTER_WIDTH: Final = 7.2
_LINE_HEIGHT: Final = 16
_PADDING: Final = 10
_GAP_X: Final = 60
_GAP_Y: Final = 18
_CHARACTERS_MAX: Final = 44
_FONT: Final = 'font-family="ui-monospace, Menlo, Consolas, monospace"'
_ARROW: Final = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'


def svg_of(graph: Graph) -> str:
    """The picture as SVG: each node in a column behind all that it reads."""
    ranks = _ranks(graph)
    lines = {number: _cut((node.title, *node.notes)) for number, node in enumerate(graph.nodes)}
    widths = {n: max(map(len, each)) * _CHARACTER_WIDTH + 2 * _PADDING for n, each in lines.items()}
    heights = {n: len(each) * _LINE_HEIGHT + 2 * _PADDING for n, each in lines.items()}
    places: dict[int, tuple[float, float]] = {}
    x, height = float(_PADDING), 0.0
    for rank in range(max(ranks.values(), default=-1) + 1):
        members = [number for number in ranks if ranks[number] == rank]
        y = float(_PADDING)
        for number in members:
            places[number] = (x, y)
            y += heights[number] + _GAP_Y
        height = max(height, y)
        x += max(widths[number] for number in members) + _GAP_X
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x:.0f}" height="{height:.0f}" font-size="12" {_FONT}>',
        f"<title>{escape(_printable(graph.name))}</title>",
        f'<defs><marker id="arrow" {_ARROW}><path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
    ]
    for edge in graph.edges:
        x1, y1 = places[edge.start][0] + widths[edge.start], places[edge.start][1] + heights[edge.start] / 2
        x2, y2 = places[edge.end][0], places[edge.end][1] + heights[edge.end] / 2
        dotted = ' stroke-dasharray="3 3"' if edge.is_dotted else ""
        curve = f"M{x1:.0f} {y1:.0f}C{x1 + _GAP_X / 2:.0f} {y1:.0f} {x2 - _GAP_X / 2:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
        parts.append(f'<path d="{curve}" fill="none" stroke="#777" marker-end="url(#arrow)"{dotted}/>')
    for number, (left, top) in places.items():
        kind = graph.nodes[number].kind
        parts.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{widths[number]:.0f}" height="{heights[number]:.0f}"'
            f' rx="{4 if kind is NodeKind.STEP else 12}" fill="{kind.value}" stroke="#777"/>'
        )
        for line, text in enumerate(lines[number]):
            weight = ' font-weight="bold"' if line == 0 else ' fill="#444"'
            y = top + _PADDING + (line + 0.75) * _LINE_HEIGHT
            parts.append(f'<text x="{left + _PADDING:.0f}" y="{y:.0f}"{weight}>{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _source_node(source: Source) -> Node:
    kind = NodeKind.TABLE if source.read is ReadMode.TABLE else NodeKind.TOPIC
    return Node(kind, source.name, (f"topic {source.topic}", *_source_notes(source)))


def _source_notes(source: Source) -> Iterator[str]:
    yield source.read.value
    if source.on_error is OnError.SKIP:
        yield "records that do not fit are left out"
    if source.allow_data_loss:
        yield "lost records are counted"


def _step_notes(step: Step) -> Iterator[str]:
    if step.python is not None:
        yield f"python: {step.python.path.name}:{step.python.function}"
    elif parse_query(step.sql).aggregates:
        yield "groups"
    if step.watermark is not None:
        yield f"watermark: {step.watermark.column}, {format_duration(step.watermark.delay_ms)}"


def _sink_notes(sink: Sink) -> Iterator[str]:
    if sink.key:
        yield f"key: {', '.join(sink.key)}"


def _target(pipeline: Pipeline, sink: Sink) -> str:
    """What is written, a directory as it stands to the file of the pipeline where it is below that."""
    if not isinstance(sink, TableSink) or sink.directory is None:
        return sink.target
    beside = pipeline.path.resolve().parent
    is_below = sink.directory.is_relative_to(beside)
    kind = sink.target.partition(" ")[0]
    return f"{kind} {sink.directory.relative_to(beside) if is_below else sink.directory}"


def _tree(pipeline: Pipeline, view: str, indent: str, is_last: bool, seen: set[str]) -> Iterator[str]:
    branch, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
    source = pipeline.source(view)
    if source is not None:
        notes = _bracketed(_source_notes(source))
        yield " ".join([f"{indent}{branch}{view} ◂ topic {source.topic}", *notes])
        return
    step = pipeline.step(view)
    if step is None:
        return
    if view in seen and step.reads:
        yield f"{indent}{branch}{view} (above)"
        return
    seen.add(view)
    yield " ".join([f"{indent}{branch}{view}", *_bracketed(_step_notes(step))])
    for number, name in enumerate(step.reads, start=1):
        yield from _tree(pipeline, name, indent + below, number == len(step.reads), seen)


def _bracketed(notes: Iterator[str]) -> list[str]:
    return [f"[{note}]" for note in notes]


def _ranks(graph: Graph) -> Mapping[int, int]:
    """The column of each node; a node is behind all that it reads, since those stand before it in the list."""
    ranks = dict.fromkeys(range(len(graph.nodes)), 0)
    for edge in sorted(graph.edges, key=lambda edge: edge.end):
        ranks[edge.end] = max(ranks[edge.end], ranks[edge.start] + 1)
    return ranks


def _cut(lines: tuple[str, ...]) -> list[str]:
    return [
        text if len(text) <= _CHARACTERS_MAX else text[: _CHARACTERS_MAX - 3] + "..."
        for text in (_printable(line) for line in lines)
    ]


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _in_mermaid(text: str) -> str:
    """Mermaid has entities by number for what it would take for its own."""
    return "".join(each if each.isalnum() or each in " .,:_-/" else f"#{ord(each)};" for each in _printable(text))


def _in_dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "\\n".join(_printable(line) for line in escaped.split("\n")) + '"'
