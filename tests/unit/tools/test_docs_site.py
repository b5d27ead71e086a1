"""The docs as a site: links hold there as in the repository, what leads nowhere fails, nothing comes from elsewhere."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import yaml

from tools import diagrams, docs_site

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("README.md", "[a](docs/operating.md#tls)", "[a](operating.md#tls)"),
        ("README.md", "![a](docs/images/delays.png)", "![a](images/delays.png)"),
        ("README.md", "[a](docs/decisions/) [b](CHANGELOG.md)", "[a](decisions/index.md) [b](changelog.md)"),
        ("docs/testing.md", "[a](../README.md#clients)", "[a](index.md#clients)"),
        ("docs/runbooks/open-files.md", "[a](../operating.md)", "[a](../operating.md)"),
        ("docs/runbooks/open-files.md", "[a](../../CONTRIBUTING.md)", "[a](../contributing.md)"),
        ("docs/pipelines.md", "[a](../demo/delays.yaml)", "[a](repository/demo/delays.yaml)"),
        ("docs/pipelines.md", "[a](../contrib/systemd)", "[a](repository/contrib/systemd/index.md)"),
        ("docs/testing.md", "[a](#here) [b](https://example.com/docs/x.md)", "[a](#here) [b](https://example.com/docs/x.md)"),
        ("README.md", "`[a](docs/operating.md)` [b](docs/acls.md)", "`[a](docs/operating.md)` [b](acls.md)"),
        ("README.md", "```\n[a](docs/operating.md)\n```\n", "```\n[a](docs/operating.md)\n```\n"),
        ("README.md", "[a](docs/not-there.md)", "[a](docs/not-there.md)"),
    ],
)  # fmt: skip
def test_a_link_of_the_repository_leads_to_the_same_on_the_site(path: str, link: str, expected: str) -> None:
    assert docs_site.with_links_of_the_site(link, path)[0] == expected


def test_a_file_that_is_no_page_and_is_linked_is_put_on_the_site() -> None:
    _, wanted = docs_site.with_links_of_the_site("[a](../demo/delays.yaml) [b](testing.md)", "docs/pipelines.md")
    assert wanted == {"demo/delays.yaml"}


def test_a_folder_that_is_linked_has_a_page_with_its_files() -> None:
    text = docs_site.contents("contrib/systemd")
    assert "(barnabas-broker.service)" in text
    assert text.startswith("# contrib/systemd/\n")


def test_every_page_is_in_a_menu_once() -> None:
    text = re.sub(r"!!python/name:\S+", "x", (ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"]))
    assert len(listed) == len(set(listed))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    found_by_folder = {page for page in pages if page.partition("/")[0] in docs_site.LISTS}
    assert set(listed) | found_by_folder == pages | set(docs_site.PAGES.values())


def rows(text: str) -> list[list[str]]:
    """The tables of a page: lines that begin with a bar, as they stand together."""
    without_code = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    tables: list[list[str]] = [[]]
    for line in without_code.splitlines():
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    return [table for table in tables if table]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_each_row_of_a_page_is_in_a_table_and_has_its_cells(page: Path) -> None:
    """One behind an empty line would be text with bars in it."""
    for heading, *others in rows(page.read_text("utf-8")):
        assert others, heading
        assert re.fullmatch(r"\|( *:?-+:? *\|)+", others[0]), heading
        for row in (heading, *others):
            assert len(re.findall(r"(?<!\\)\|", row)) == others[0].count("|"), row


def test_anchors_are_those_of_the_repository() -> None:
    assert docs_site.anchor("Where is ...?", "-") == "where-is-"
    assert docs_site.anchor("`topic copy`: what, and how", "-") == "topic-copy-what-and-how"


def test_what_a_page_would_load_from_elsewhere_is_seen() -> None:
    assert docs_site.loaded_from_elsewhere('<a href="https://example.com">x</a><script src="a.js"></script>') == []
    assert docs_site.loaded_from_elsewhere('<script src="https://example.com/a.js"></script>')
    assert docs_site.loaded_from_elsewhere('<link rel="stylesheet" href="//example.com/a.css">')
    assert docs_site.loaded_from_elsewhere('<img alt="" src="https://example.com/a.png">')


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("[a](nothing.md)", "nothing.md"),
        ("[a](two.md#nothing)", "#nothing"),
        ("![a](nothing.png)", "nothing.png"),
        ('<img src="https://example.com/a.png">', "another server"),
        ("```mermaid\ngraph TD\n```", "cannot be drawn"),
    ],
)
def test_a_page_with_what_leads_nowhere_fails_the_build(
    tmp_path: Path, more: str, complaint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the settings of mkdocs.yml, and two pages."""
    pytest.importorskip("mkdocs", reason="`make docs` installs MkDocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "two.md").write_text("# Two\n\n## Part\n")
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    (tmp_path / "mkdocs.yml").write_text(
        text.partition("nav:\n  - Barnabas")[0].replace("hooks: [", f"hooks: [{ROOT}/")
    )
    for page, ok in (("[a](two.md#part)\n", True), (f"[a](two.md#part)\n\n{more}\n", False)):
        (tmp_path / "docs" / "one.md").write_text(f"# One\n\n{page}")
        config = load_config(str(tmp_path / "mkdocs.yml"))
        if ok:
            build(config)
            continue
        with caplog.at_level(logging.WARNING), pytest.raises(Abort):
            build(config)
        assert complaint in caplog.text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_each_diagram_of_the_docs_is_drawn_whole(page: Path) -> None:
    for source in re.findall(r"```mermaid\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        drawn = diagrams.svg(source)
        lines = [line for line in source.splitlines()[1:] if "[*]" not in line and "participant" not in line]
        words = [line.partition(": ")[2].strip() for line in lines]
        assert all(word.replace(">", "&gt;") in drawn for word in words)
        assert drawn.count("<circle") >= source.count("[*]")
        assert diagrams.svg(source) == drawn


@pytest.mark.parametrize(
    "source",
    [
        "graph TD\n A --> B",
        "sequenceDiagram\n participant A as Somebody\n A->>B: hello",
        "sequenceDiagram\n loop forever\n",
        "stateDiagram-v2\n A ==> B",
    ],
)
def test_a_diagram_that_would_not_be_drawn_whole_is_refused(source: str) -> None:
    with pytest.raises(diagrams.DiagramError):
        diagrams.svg(source)


def test_text_of_a_diagram_stays_within_it() -> None:
    drawn = diagrams.svg(f"sequenceDiagram\n participant A as A\n participant B as B\n A->>B: {'wide ' * 40}x\n")
    found = re.search(r'viewBox="0 0 (\d+)', drawn)
    assert found is not None
    assert int(found[1]) > 201 * diagrams.SMALL
    assert "<b>" not in diagrams.svg("sequenceDiagram\n participant A as <b>\n Note over A: <b>x\n")
