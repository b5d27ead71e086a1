"""Headless Chromium, told what to do through a pipe (Chrome DevTools Protocol): no driver, no port."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Self

from tests.support.waiting import wait_until

_NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS_MAX = 30.0
# Chromium reads commands from descriptor 3 and writes answers to 4.
_LAUNCHER = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def browser_path() -> str | None:
    """Where Chromium is; None where it is not (Debian's package is `chromium`)."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class BrowserError(Exception):
    """The browser did not do what it was told."""


class Browser:
    """One browser with one page. `complaints` are what it printed on its console and what it could not load;
    `asked_for` are the addresses that it asked for.
    """

    def __init__(self) -> None:
        path = browser_path()
        if path is None:
            raise BrowserError("there is no Chromium: install it (Debian: apt-get install chromium)")
        self.complaints: list[str] = []
        self.asked_for: list[str] = []
        self._numbers = itertools.count(1)
        self._received = b""
        self._loaded = 0
        self._ends = contextlib.ExitStack()
        directory = self._ends.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        commands_read, self._commands = os.pipe()
        self._answers, answers_write = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCHER,
                str(commands_read),
                str(answers_write),
                path,
                "--headless",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                f"--user-data-dir={directory}",
                "about:blank",
            ],
            pass_fds=(commands_read, answers_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_read)
        os.close(answers_write)
        self._session: str | None = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser."""
        self._process.kill()
        self._process.wait(10)
        os.close(self._commands)
        os.close(self._answers)
        self._ends.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """What the browser answers to a command. Raises BrowserError."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        ends_at = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            answer = self._next(ends_at)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]

    def dress(self, width: int, height: int, theme: str) -> None:
        """The size of the window in pixels, and `light` or `dark`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def go(self, url: str) -> float:
        """Opens a page, and returns how many seconds that took until everything of it was there."""
        began, loaded = time.monotonic(), self._loaded
        found = self.call("Page.navigate", url=url)
        if found.get("errorText"):
            raise BrowserError(f"{url}: {found['errorText']}")
        ends_at = began + ANSWER_SECONDS_MAX
        while self._loaded == loaded:
            self._next(ends_at)
        return time.monotonic() - began

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; what it promises is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> None:
        """Returns when an expression is true, be it on another page. Raises TimeoutError."""

        def is_so() -> bool:
            try:
                return bool(self.ask(expression))
            except BrowserError:
                return False  # the page was left meanwhile

        wait_until(is_so, expression, seconds, evidence=self.text)

    def text(self) -> str:
        """What the page says."""
        return str(self.ask("document.body.innerText"))

    def press(self, key: str) -> None:
        """One key, as from a keyboard."""
        text = key if len(key) == 1 else None
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text is not None and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **extra)

    def picture(self, *, whole: bool = False) -> bytes:
        """The page as PNG: what the window shows, or all of it."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    # Inside.

    def _next(self, ends_at: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = ends_at - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise BrowserError(f"no answer within {ANSWER_SECONDS_MAX:g} s")
            received = os.read(self._answers, 1 << 20)
            if not received:
                raise BrowserError("the browser has ended")
            self._received += received
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked_for.append(parameters["request"]["url"])
