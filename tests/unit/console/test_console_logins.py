"""The console's own login: sessions, and what is seen without one."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import parse_qs, unquote

import pytest

from barnabas.console import logins as logins_module
from barnabas.console.http import Request
from barnabas.console.logins import Logins
from barnabas.kernel.real_host import RealHost, run
from barnabas.security.login_files import PasswordHash, Role, User
from tests.support.ports import free_port
from tests.support.running_console import Answer, RunningConsole

SALT = bytes(range(16))


def cheap(password: str) -> PasswordHash:
    """A hash that costs little."""
    import hashlib

    return PasswordHash(16, 1, 1, SALT, hashlib.scrypt(password.encode(), salt=SALT, n=16, r=1, p=1, dklen=32))


USERS = {"ada": User(cheap("right")), "vi": User(cheap("right"), Role.VIEWER)}


def with_logins(body: Callable[[Logins], Awaitable[None]]) -> None:
    async def on_host(host: RealHost) -> None:
        await body(Logins(host, {"ada": User(cheap("right"))}))

    run(on_host, name="test")


def of(logins: Logins, session_id: str) -> Request:
    cookie = logins.cookie(session_id, Request("GET", ())).partition(";")[0]
    return Request("GET", (), headers={"cookie": f"other=1; {cookie}"})


def test_a_session_begins_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(logins: Logins) -> None:
        session_id = await logins.log_in("ada", "right")
        assert session_id is not None
        assert logins.session(of(logins, session_id)) == (session_id, "ada", Role.OPERATOR)
        assert logins.session(of(logins, "0" * 64)) is None
        assert logins.session(of(logins, "")) is None
        assert logins.session(Request("GET", (), headers={"cookie": f"barnabas-console={session_id}"})) is None
        logins.log_out(session_id)
        assert logins.session(of(logins, session_id)) is None
        monkeypatch.setattr(logins_module, "SESSION_SECONDS_MAX", -1.0)
        over = await logins.log_in("ada", "right")
        assert over is not None
        assert logins.session(of(logins, over)) is None

    with_logins(body)


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins_module, "SESSIONS_MAX", 3)

    async def body(logins: Logins) -> None:
        ids = [await logins.log_in("ada", "right") or "" for _ in range(5)]
        assert [logins.session(of(logins, each)) is not None for each in ids] == [False, False, True, True, True]

    with_logins(body)


def test_cookies_are_out_of_reach_for_scripts_and_other_sites() -> None:
    async def body(logins: Logins) -> None:
        cookie = logins.cookie("abc", Request("GET", ()))
        assert cookie.endswith("=abc; Path=/; HttpOnly; SameSite=Lax; Max-Age=43200")
        assert logins.cookie("", Request("GET", (), headers={"x-forwarded-proto": "https"})).endswith("=0; Secure")

    with_logins(body)


@pytest.fixture(scope="module")
def console() -> Iterator[RunningConsole]:
    """A console with a login, of no cluster."""
    with RunningConsole(f"127.0.0.1:{free_port()}", users=USERS, may_change=True) as running:
        yield running


def log_in(console: RunningConsole, password: str = "right", to: str = "/", name: str = "ada") -> Answer:
    token = re.search(r'name="token" value="([0-9a-f]+)"', console.get("/login").text)
    assert token is not None
    return console.post("/login", {"token": token[1], "name": name, "password": password, "to": to})


def session_of(answer: Answer) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/messages?topic=a&partition=0", "/write", "/nope", "/topics/%0d%0aSet-Cookie%3a%20a=b"]
)
def test_without_a_session_every_page_leads_to_the_login(console: RunningConsole, path: str) -> None:
    answer = console.get(path)
    assert (answer.status, answer.text) == (303, "")
    where, _, query = answer.headers["location"].partition("?")
    assert where == "/login"
    back = parse_qs(query).get("to", ["/"])[0]
    assert unquote(back.replace("+", " ")) == unquote(path)
    assert back.isprintable()
    assert "set-cookie" not in answer.headers
    assert console.get("/static/console.css").status == 200


def test_a_login_leads_to_the_page_and_a_logout_ends_it(console: RunningConsole) -> None:
    answer = log_in(console, to="/topics?q=a")
    assert (answer.status, answer.headers["location"]) == (303, "/topics?q=a")
    session = session_of(answer)
    page = console.get("/topics", headers=session)
    assert (page.status, "Log out ada" in page.words) == (200, True)
    token = re.search(r'name="token" value="([0-9a-f]+)"', page.text)
    assert token is not None
    assert console.get("/login", headers=session).status == 303
    # The token of nobody, or none, is not that of this session.
    nobody = re.search(r'name="token" value="([0-9a-f]+)"', console.get("/login").text)
    assert nobody is not None
    assert console.post("/logout", {"token": nobody[1]}, headers=session).status == 403
    assert console.post("/change/elect", {"token": token[1]}).headers["location"] == "/login"
    out = console.post("/logout", {"token": token[1]}, headers=session)
    assert (out.status, out.headers["location"]) == (303, "/login")
    assert console.get("/topics", headers=session).status == 303


def test_a_viewer_looks_and_changes_nothing(console: RunningConsole) -> None:
    session = session_of(log_in(console, name="vi"))
    page = console.get("/topics", headers=session)
    assert "Your login only looks" in page.words
    assert "Your login only looks" in console.get("/write", headers=session).words
    token = re.search(r'name="token" value="([0-9a-f]+)"', page.text)
    assert token is not None
    for kind in ("write", "cancel", "elect", "do"):
        assert console.post(f"/change/{kind}", {"token": token[1]}, headers=session).status == 403
    assert console.post("/logout", {"token": token[1]}, headers=session).status == 303
    operator = console.get("/topics", headers=session_of(log_in(console)))
    assert "This console may change the cluster" in operator.words


def test_a_wrong_password_says_no_more_than_that(console: RunningConsole) -> None:
    answer = log_in(console, "wrong")
    assert answer.status == 403
    assert "Name or password are wrong." in answer.words
    assert "set-cookie" not in answer.headers
    assert "wrong<" not in answer.text.replace("are wrong.<", "")


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "/\\evil.example", "https://evil.example", "", "/a\r\nSet-Cookie: a=b", "javascript:alert(1)"],
)
def test_a_login_leads_to_no_other_site(console: RunningConsole, to: str) -> None:
    assert log_in(console, to=to).headers["location"] == "/"


def test_a_login_of_another_site_is_refused(console: RunningConsole) -> None:
    fields = {"token": "", "name": "ada", "password": "right"}
    assert console.post("/login", fields).status == 403
    assert console.post("/login", fields, headers={"Origin": "http://evil.example"}).status == 403
