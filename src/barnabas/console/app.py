"""From a request to a page: who may ask, which page it is, and the files beside the pages."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.console.html import href
from barnabas.console.http import PLAIN, READS_ONLY, Request, Response
from barnabas.console.pages.alerts import alerts
from barnabas.console.pages.brokers import brokers
from barnabas.console.pages.change import change, write
from barnabas.console.pages.configs import configs
from barnabas.console.pages.controller import controller
from barnabas.console.pages.groups import groups
from barnabas.console.pages.login import login_page
from barnabas.console.pages.messages import messages
from barnabas.console.pages.overview import overview
from barnabas.console.pages.page import ONLY_LOOKS, Page, Visit, Visitor, framed, missing
from barnabas.console.pages.pipelines import pipelines
from barnabas.console.pages.reassignments import reassignments
from barnabas.console.pages.topics import topics
from barnabas.console.pages.transactions import transactions
from barnabas.security.login_files import Role
from barnabas.security.password_checks import TooManyError

if TYPE_CHECKING:
    from barnabas.console.access import Access, Tokens
    from barnabas.console.changes import Changes
    from barnabas.console.configs import ConfigReader
    from barnabas.console.logins import Logins
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
    "alerts": alerts,
    "pipelines": pipelines,
    "write": write,
}
_FILES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class App:
    """Answers requests."""

    def __init__(
        self,
        poller: Poller,
        reader: RecordReader,
        access: Access,
        tokens: Tokens,
        configs: ConfigReader,
        bootstrap: str,
        *,
        changes: Changes | None = None,
        logins: Logins | None = None,
    ) -> None:
        """Without `changes` it only reads; without `logins` it has no login."""
        self._poller = poller
        self._reader = reader
        self._access = access
        self._tokens = tokens
        self._configs = configs
        self._bootstrap = bootstrap
        self._changes = changes
        self._logins = logins
        folder = importlib.resources.files("barnabas.console") / "static"
        self._files = {name: (folder / name).read_bytes() for name in _FILES}

    async def answer(self, request: Request) -> Response:
        """The answer."""
        refusal = self._access.refusal(request)
        if refusal is not None:
            return _said(*refusal)
        section, rest = (request.segments[0], request.segments[1:]) if request.segments else ("", ())
        if section == "static":
            return self._file(rest)
        session = None if self._logins is None else self._logins.session(request)
        session_id = "" if session is None else session.session_id
        if request.method == "POST" and not self._tokens.is_right(request.form.get("token", ""), session_id):
            if session is None and self._logins is not None and section != "login":
                return _to("/login")
            return _said(403, "this form is of another session, or of a console that has ended: load its page again")
        if self._logins is not None:
            if section == "login" and not rest:
                return await self._log_in(request, self._logins)
            if session is None:
                there = href(*request.segments, query=dict(request.query) or None)
                return _to(href("login", query={"to": there} if there != "/" else None))
            if section == "logout" and request.method == "POST":
                self._logins.log_out(session_id)
                return _to("/login", ("Set-Cookie", self._logins.cookie("", request)))
        self._poller.watch()
        is_viewer = session is not None and session.role is Role.VIEWER
        visitor = Visitor(
            self._tokens.of(session_id),
            "" if session is None else session.user,
            session_id,
            may_change=self._changes is not None and not is_viewer,
            is_viewer=is_viewer,
        )
        now_ms = self._poller.client.host.clock.time_ms()
        visit = Visit(self._poller, self._reader, now_ms, rest, request.query, self._bootstrap, visitor, self._configs)
        if request.method == "POST":
            if section != "change" or self._changes is None:
                return _said(405, READS_ONLY if self._changes is None else "no form of the console leads here")
            if is_viewer:
                return _said(403, ONLY_LOOKS)
            page = await change(visit, self._changes, request.form)
        else:
            page = await self._page(visit, section, request.segments)
        return Response(page.status, framed(page, visit, section))

    # Inside.

    async def _page(self, visit: Visit, section: str, segments: tuple[str, ...]) -> Page:
        if section == "messages" and not visit.segments:
            return await messages(visit)
        if section == "configs":
            return await configs(visit)
        if section in _SECTIONS and (section or not visit.segments):
            return _SECTIONS[section](visit)
        return missing(f"There is no page /{'/'.join(segments)}.")

    async def _log_in(self, request: Request, logins: Logins) -> Response:
        given = request.form if request.method == "POST" else request.query
        to = _own(given.get("to", "/"))
        token = self._tokens.of("")
        if request.method != "POST":
            found = logins.session(request)
            return _to(to) if found is not None else Response(200, login_page(token, to))
        try:
            session_id = await logins.log_in(request.form.get("name", ""), request.form.get("password", ""))
        except TooManyError as error:
            return Response(503, login_page(token, to, f"{error}."))
        if session_id is None:
            return Response(403, login_page(token, to, "Name or password are wrong."))
        return _to(to, ("Set-Cookie", logins.cookie(session_id, request)))

    def _file(self, rest: tuple[str, ...]) -> Response:
        name = rest[0] if len(rest) == 1 else ""
        if name not in self._files:
            return _said(404, "there is no such file")
        return Response(200, self._files[name], _FILES[name])


def _said(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), PLAIN)


def _to(address: str, *headers: tuple[str, str]) -> Response:
    return Response(303, b"", PLAIN, (("Location", address), *headers))


def _own(address: str) -> str:
    """An address of the console itself; that of the overview for any other."""
    is_path = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_path and address.isascii() and address.isprintable() else "/"
