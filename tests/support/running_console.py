"""The console in a thread of this process, for tests that ask it for pages."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode, urlsplit

from barnabas.console.pipelines import ReadFiles
from barnabas.console.serve import serve
from barnabas.kernel.real_host import RealHost, run
from barnabas.sasl.mechanisms import Login
from barnabas.security.login_files import User
from tests.support.waiting import wait_until

START_SECONDS = 60.0
PACE = 10.0
"""How much more often than usual brokers are asked, so that tests need not wait."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def words(self) -> str:
        """The text without tags, with single spaces."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.text).split())


class Complaints(logging.Handler):
    """Keeps what was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class RunningConsole:
    """`barnabas console` of a cluster, on a free port of loopback."""

    def __init__(
        self,
        bootstrap: str,
        login: Login | None = None,
        *,
        users: Mapping[str, User] | None = None,
        may_change: bool = False,
        read_files: ReadFiles | None = None,
        pace: float = PACE,
    ) -> None:
        self.url = ""
        self.complaints = Complaints()
        self._bootstrap = bootstrap
        self._login = login
        self._users = users
        self._may_change = may_change
        self._read_files = read_files
        self._pace = pace
        self.changes: list[str] = []
        """What it said of changes that it made."""
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the console does not start"
        return self

    def __exit__(self, *_error: object) -> None:
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the console does not end"
        assert self.complaints.lines == []

    def post(self, path: str, fields: Mapping[str, str], *, headers: dict[str, str] | None = None) -> Answer:
        """A form, as a browser sends it from a page of the console; `headers` replace its own."""
        own = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url.rstrip("/")}
        return self.get(path, method="POST", headers={**own, **(headers or {})}, body=urlencode(fields))

    def get(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None
    ) -> Answer:
        """One request."""
        where = urlsplit(self.url)
        assert where.hostname is not None
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response.read().decode(), found)
        finally:
            connection.close()

    def wait_for(self, path: str, *words: str, without: str | None = None, seconds: float = 90.0) -> Answer:
        """The page, once it has all of these words, and not those of `without`."""
        last: list[Answer] = []

        def has_come() -> bool:
            last[:] = [self.get(path)]
            said = last[0].words
            return all(each in said for each in words) and (without is None or without not in said)

        try:
            wait_until(has_come, f"{path} says {words}", seconds)
        except TimeoutError as error:
            raise AssertionError(f"{path} does not say {words}, but: {last[0].words}") from error
        return last[0]

    # Inside.

    def _run(self) -> None:
        logger = logging.getLogger(f"tests.console.{id(self)}")
        logger.propagate = False
        logger.addHandler(self.complaints)

        async def on_host(host: RealHost) -> None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            await serve(
                host,
                self._bootstrap.split(","),
                "127.0.0.1",
                0,
                logger,
                login=self._login,
                users=self._users,
                may_change=self._may_change,
                read_files=self._read_files,
                on_change=self.changes.append,
                pace=self._pace,
                on_ready=self._listens,
            )

        with contextlib.suppress(asyncio.CancelledError):
            run(on_host, name="console")

    def _listens(self, url: str) -> None:
        self.url = url
        self._ready.set()
