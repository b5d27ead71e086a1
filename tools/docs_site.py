"""What `make docs` adds to MkDocs: hooks (`hooks` in mkdocs.yml), so that the Markdown stays as it is read in the
repository, and its links hold there and here.

- Pages from outside `docs/`: README is the first page; changelog, contributing, security.
- A page for `decisions/` and one for `runbooks/`, which list what is there, and the menu of both.
- Links to files of the repository that are no pages (a pipeline, a unit of systemd): the file is put beside the pages.
- Diagrams are drawn (`tools/diagrams.py`), and anchors are made as on the sites that host repositories.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# MkDocs loads hooks by their files, and the names of functions in mkdocs.yml as modules.
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

from tools import diagrams  # noqa: E402 - see the line above

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

# Warnings of loggers below `mkdocs` fail a strict build.
LOG: Final = logging.getLogger("mkdocs.docs_site")
PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages that are not in docs/, and what they are called on the site."""
LISTS: Final = {
    "decisions": ("Decision records", "A short record of each choice that may surprise."),
    "runbooks": (
        "Runbooks",
        "One page for each alert of `contrib/prometheus/alerts.yml`: what to look at, and what to do.",
    ),
}
"""Folders whose pages are many and alike."""
_LINK: Final = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
_FENCE: Final = re.compile(r"^ *(`{3,}|~{3,})")
_SPAN: Final = re.compile(r"(`+)(?:(?!\1).)+\1")
_ELSEWHERE: Final = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""What a browser would load from another server."""
_NOT_IN_ANCHORS: Final = re.compile(r"[^\w\- ]")


def anchor(text: str, separator: str) -> str:
    """The anchor of a heading: small letters, spaces to hyphens, no other signs; as in the repository."""
    return _NOT_IN_ANCHORS.sub("", text.strip().lower()).replace(" ", separator)


def diagram(source: str, _language: str, _class: str, _options: dict[str, Any], _md: Any, **_more: Any) -> str:
    """A fenced block of Mermaid as its picture."""
    try:
        return f'<div class="diagram">{diagrams.svg(source)}</div>'
    except diagrams.DiagramError as error:
        # What is raised here, SuperFences would take for a reason to show the block as text.
        LOG.warning("A diagram cannot be drawn: %s", error)
        return ""


def site_path(path: str) -> str:
    """Where a file of the repository is on the site; both from the top."""
    if path in PAGES:
        return PAGES[path]
    if path.rstrip("/") in {f"docs/{folder}" for folder in LISTS}:
        return f"{path.rstrip('/')}/index.md".removeprefix("docs/")
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}/index.md" if (ROOT / path).is_dir() else f"repository/{path}"


def with_links_of_the_site(text: str, path: str, root: Path = ROOT) -> tuple[str, set[str]]:
    """A page of the repository with its links changed to those of the site, and the files beyond docs/ that it has.

    What is in code stays as it is. A link to what is not there stays too, and MkDocs complains of it.
    """
    here = posixpath.dirname(path)
    place = posixpath.dirname(site_path(path))
    wanted: set[str] = set()

    def changed(match: re.Match[str]) -> str:
        target = match[2]
        if not target or ":" in target:
            return match[0]
        found = posixpath.normpath(posixpath.join(here, target))
        if not (root / found).exists():
            return match[0]
        if not found.startswith("docs/") and found not in PAGES:
            wanted.add(found)
        return f"{match[1]}{posixpath.relpath(site_path(found), place or '.')}{match[3]}"

    lines: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened[1]
        elif opened and opened[1].startswith(fence):
            fence = ""
        elif not fence:
            line = _outside_code(line, changed)
        lines.append(line)
    return "".join(lines), wanted


def _outside_code(line: str, changed: Any) -> str:
    """The line with its links changed; a `](` within backticks is none."""
    spans = [match.span() for match in _SPAN.finditer(line)]

    def unless_code(match: re.Match[str]) -> str:
        if any(start < match.start() and match.end() < end for start, end in spans):
            return match[0]
        return str(changed(match))

    return _LINK.sub(unless_code, line)


def title(text: str) -> str:
    """What a page is called: its first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def listed(folder: str, root: Path = ROOT) -> str:
    """The page of a folder: each of its pages with its title."""
    heading, said = LISTS[folder]
    rows = [f"- [{title(path.read_text('utf-8'))}]({path.name})" for path in _pages_in(folder, root)]
    return f"# {heading}\n\n{said}\n\n" + "\n".join(rows) + "\n"


def _pages_in(folder: str, root: Path) -> list[Path]:
    return sorted((root / "docs" / folder).glob("*.md"))


def contents(folder: str, root: Path = ROOT) -> str:
    """The page of a folder of the repository that is linked to: its files."""
    rows = [f"- [{posixpath.basename(path)}]({posixpath.basename(path)})" for path in _files_of(folder, root)]
    return f"# {folder}/\n\n" + "\n".join(rows) + "\n"


def _files_of(path: str, root: Path) -> list[str]:
    """The file itself, or those that are in a folder, but hidden ones."""
    if not (root / path).is_dir():
        return [path]
    return sorted(f"{path}/{each.name}" for each in (root / path).iterdir() if each.is_file() and each.name[0] != ".")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """MkDocs calls it: the folders' pages go into the menu."""
    root = Path(config.config_file_path).parent
    menus = {
        folder: [f"{folder}/index.md", *(f"{folder}/{path.name}" for path in _pages_in(folder, root))]
        for folder in LISTS
    }
    for entry in config.nav or []:
        if "Decisions" in entry:
            entry["Decisions"] = menus["decisions"]
        if "Operations" in entry:
            entry["Operations"] = [*entry["Operations"], {"Runbooks": menus["runbooks"]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls it: pages with their links of the site, and what they link to."""
    from mkdocs.structure.files import File, InclusionLevel

    root = Path(config.config_file_path).parent
    sources = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()}
    sources |= {source: uri for source, uri in PAGES.items() if (root / source).exists()}
    wanted: set[str] = set()
    for source, uri in sources.items():
        text, found = with_links_of_the_site((root / source).read_text("utf-8"), source, root)
        wanted |= found
        _put(files, File.generated(config, uri, content=text))
    for folder in LISTS:
        if _pages_in(folder, root):
            _put(files, File.generated(config, f"{folder}/index.md", content=listed(folder, root)))
    for path in sorted(wanted):
        if (root / path).is_dir():
            page = File.generated(
                config, site_path(path), content=contents(path, root), inclusion=InclusionLevel.NOT_IN_NAV
            )
            _put(files, page)
    for path in sorted({each for found in wanted for each in _files_of(found, root)}):
        _put(files, File.generated(config, f"repository/{path}", abs_src_path=str(root / path)))
    return files


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:  # noqa: ARG001 - MkDocs passes it by name
    """MkDocs calls it, with a page as it will be served: nothing in it comes from elsewhere."""
    for found in loaded_from_elsewhere(output):
        LOG.warning("Page '%s' loads from another server: %s", page.file.src_uri, found)
    return output


def loaded_from_elsewhere(markup: str) -> list[str]:
    """The tags of a page that load something from another server as soon as it is shown; a link does not."""
    return [found for found in _ELSEWHERE.findall(markup) if 'rel="canonical"' not in found]


def _put(files: Files, file: Any) -> None:
    former = files.get_file_from_path(file.src_uri)
    if former is not None:
        files.remove(former)
    files.append(file)
