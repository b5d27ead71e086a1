"""Writes the table of handlers into `docs/protocol-coverage.md`: `python -m tools.protocol_coverage`.

The tables come from the classes in `barnabas.api` and from the headers of their files: the first sentence says what an
API does here, "Left out:" what it does not. Our own APIs are in a table of their own. What Apache Kafka 3.9.1
advertises in ZooKeeper mode, every message of which the codec has, is either handled or in `NOT_ADVERTISED` with the
reason.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import barnabas.api
from barnabas.wire import catalogue
from barnabas.wire.api_keys import OWN_APIS, ApiKey

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "protocol-coverage.md"
BEGIN: Final = "<!-- handlers: written by `python -m tools.protocol_coverage` -->"
END: Final = "<!-- end of handlers -->"

NOT_ADVERTISED: Final[Mapping[ApiKey, str]] = {}
"""What Kafka advertises and this broker does not, each with the reason."""


class HeaderError(ValueError):
    """A handler's file whose header cannot be read."""


@dataclass(frozen=True, slots=True)
class Handled:
    """One API as its handler's file describes it."""

    api_key: ApiKey
    versions: tuple[int, int]
    what: str
    left_out: str


def handled() -> dict[ApiKey, Handled]:
    """The APIs that have a handler, by key in order. Raises `HeaderError`."""
    found: dict[ApiKey, Handled] = {}
    for module_info in pkgutil.iter_modules(barnabas.api.__path__, f"{barnabas.api.__name__}."):
        module = importlib.import_module(module_info.name)
        for _, member in inspect.getmembers(module, inspect.isclass):
            kind: Any = member
            if kind.__module__ == module.__name__ and hasattr(kind, "error_response") and hasattr(kind, "versions"):
                api = _read(kind.api_key, kind.versions, inspect.getdoc(module) or "", module_info.name)
                if api.api_key in found:
                    raise HeaderError(f"{module_info.name}: {api.api_key.api_name} has two handlers")
                found[api.api_key] = api
    return dict(sorted(found.items()))


def _read(api_key: ApiKey, versions: tuple[int, int], header: str, module: str) -> Handled:
    """The header is `Name, lowest to highest: what it does.`; a paragraph may say what is left out."""
    low, high = versions
    shown = str(low) if low == high else f"{low} (?:to|and) {high}"
    name = re.escape(api_key.api_name)
    match = re.match(rf"{name}(?:, {shown}| \(key {int(api_key)}, versions? {shown}\)): ", header)
    if match is None:
        raise HeaderError(f"{module}: the header must begin with `{api_key.api_name}, {low} to {high}: `")
    what, _, rest = header[match.end() :].partition("\n\n")
    left_out = re.search(r"Left out: (.*?)(?:\n\n|\Z)", f"{what}\n\n{rest}", re.DOTALL)
    return Handled(api_key, versions, _line(what.partition("Left out: ")[0]), _line(left_out[1]) if left_out else "")


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".").replace("|", "\\|")


def table() -> str:
    """What stands between the markers."""
    apis = handled()
    lines = [
        *_rows(api for key, api in apis.items() if key not in OWN_APIS),
        "",
        *_not_advertised(),
        "",
        "Our own, which Kafka does not have; it passes over their keys in ApiVersions, as clients do:",
        "",
        *_rows(api for key, api in apis.items() if key in OWN_APIS),
    ]
    return "\n".join(lines)


def _rows(apis: Iterable[Handled]) -> Iterator[str]:
    yield "| key | API | versions | what it does | left out |"
    yield "|---:|---|---|---|---|"
    for api in apis:
        name, versions = api.api_key.api_name, _versions(api.versions)
        yield f"| {int(api.api_key)} | {name} | {versions} | {api.what} | {api.left_out} |"


def _versions(versions: tuple[int, int]) -> str:
    low, high = versions
    return str(low) if low == high else f"{low}-{high}"


def _not_advertised() -> list[str]:
    if not NOT_ADVERTISED:
        return ["Apache Kafka 3.9.1 in ZooKeeper mode advertises no other API."]
    return [
        "What Apache Kafka 3.9.1 in ZooKeeper mode advertises besides, and this broker does not:",
        "",
        "| key | API | versions | why not |",
        "|---:|---|---|---|",
        *(
            f"| {int(key)} | {key.api_name} | {catalogue.request(key).versions} | {why} |"
            for key, why in sorted(NOT_ADVERTISED.items())
        ),
    ]


def page(text: str) -> str:
    """The page with the table as it should be; all else stays. Raises ValueError for a page without the markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} must hold the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table()}\n\n{end}{after}"


def main() -> int:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
