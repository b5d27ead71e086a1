"""What a guess costs, and how long it keeps others out."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.kernel.real_host import RealHost, run
from barnabas.security import password_checks as checks_module
from barnabas.security.login_files import PasswordHash, User
from barnabas.security.password_checks import PasswordChecks, TooManyError


def cheap(password: str) -> PasswordHash:
    """A hash that costs little."""
    salt = bytes(range(16))
    return PasswordHash(16, 1, 1, salt, hashlib.scrypt(password.encode(), salt=salt, n=16, r=1, p=1, dklen=32))


def with_checks(body: Callable[[PasswordChecks], Awaitable[None]]) -> None:
    async def on_host(host: RealHost) -> None:
        await body(PasswordChecks(host, {"ada": User(cheap("right"))}))

    run(on_host, name="test")


def test_a_right_password_is_of_its_user_at_once() -> None:
    async def body(checks: PasswordChecks) -> None:
        assert await checks.check("ada", "right") == User(cheap("right"))
        assert checks.failed == 0

    with_checks(body)


@pytest.mark.parametrize(("name", "password"), [("ada", "wrong"), ("bob", "right"), ("", ""), ("ada", "x" * 5_000)])
def test_a_wrong_guess_is_answered_late(name: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "FAILURE_SECONDS", 0.2)

    async def body(checks: PasswordChecks) -> None:
        began = time.monotonic()
        assert await checks.check(name, password) is None
        assert time.monotonic() - began > 0.19
        assert checks.failed == 1

    with_checks(body)


def test_who_hangs_up_makes_no_room_for_another_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "FAILURE_SECONDS", 600.0)
    monkeypatch.setattr(checks_module, "FAILURE_SECONDS_MAX", 600.0)
    monkeypatch.setattr(checks_module, "WAIT_SECONDS_MAX", 0.1)

    async def body(checks: PasswordChecks) -> None:
        guesses = [asyncio.ensure_future(checks.check("ada", f"guess {number}")) for number in range(4)]
        for _ in range(10):
            await asyncio.sleep(0)
        for guess in guesses:
            guess.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)
        with pytest.raises(TooManyError):
            await checks.check("ada", "right")

    with_checks(body)


def test_of_many_who_log_in_at_once_those_beyond_the_bound_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "WAIT_SECONDS_MAX", 600.0)

    async def body(checks: PasswordChecks) -> None:
        guesses = [asyncio.ensure_future(checks.check("ada", f"guess {number}")) for number in range(20)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyError):
            await asyncio.wait_for(checks.check("ada", "right"), 60)
        for guess in guesses:
            guess.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)
        assert checks.waiting == 0

    with_checks(body)


def test_failures_are_answered_later_the_more_there_are() -> None:
    async def body(checks: PasswordChecks) -> None:
        # White box: to wait for many of them would take minutes.
        some: Any = checks
        some._failures.extend([asyncio.get_running_loop().time()] * 20)
        assert some._failure_seconds() == 3.0
        some._failures.extend([asyncio.get_running_loop().time()] * 2_000)
        assert len(some._failures) == 1_000
        assert some._failure_seconds() == 8.0

    with_checks(body)
