"""From a request to a page: who may ask, which page it is, and the files beside the pages."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.console.http import Request, Response
from barnabas.console.pages.brokers import brokers
from barnabas.console.pages.controller import controller
from barnabas.console.pages.groups import groups
from barnabas.console.pages.messages import messages
from barnabas.console.pages.overview import overview
from barnabas.console.pages.page import Page, Visit, framed, missing
from barnabas.console.pages.reassignments import reassignments
from barnabas.console.pages.topics import topics
from barnabas.console.pages.transactions import transactions

if TYPE_CHECKING:
    from barnabas.console.access import Access
    from barnabas.console.poller import Poller
    from barnabas.console.records_read import RecordReader

_SECTIONS: Final[dict[str, Callable[[Visit], Page]]] = {
    "": overview,
    "brokers": brokers,
    "topics": topics,
    "controller": controller,
    "groups": groups,
    "reassignments": reassignments,
    "transactions": transactions,
}
_FILES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_PLAIN: Final = "text/plain; charset=utf-8"


class App:
    """Answers requests."""

    def __init__(self, poller: Poller, reader: RecordReader, access: Access, bootstrap: str) -> None:
        self._poller = poller
        self._reader = reader
        self._access = access
        self._bootstrap = bootstrap
        folder = importlib.resources.files("barnabas.console") / "static"
        self._files = {name: (folder / name).read_bytes() for name in _FILES}

    async def answer(self, request: Request) -> Response:
        """The answer."""
        refusal = self._access.refusal(request)
        if refusal is not None:
            return Response(refusal[0], f"{refusal[1]}\n".encode(), _PLAIN)
        section, rest = (request.segments[0], request.segments[1:]) if request.segments else ("", ())
        if section == "static":
            return self._file(rest)
        self._poller.watch()
        now_ms = self._poller.client.host.clock.time_ms()
        visit = Visit(self._poller, self._reader, now_ms, rest, request.query, self._bootstrap)
        if section == "messages" and not rest:
            page = await messages(visit)
        elif section in _SECTIONS and (section or not rest):
            page = _SECTIONS[section](visit)
        else:
            page = missing(f"There is no page /{'/'.join(request.segments)}.")
        return Response(page.status, framed(page, visit, section))

    # Inside.

    def _file(self, rest: tuple[str, ...]) -> Response:
        name = rest[0] if len(rest) == 1 else ""
        if name not in self._files:
            return Response(404, b"there is no such file\n", _PLAIN)
        return Response(200, self._files[name], _FILES[name])
