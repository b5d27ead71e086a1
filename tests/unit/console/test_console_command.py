"""`barnabas console`: where it listens, and where it refuses to."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from barnabas.security.login_files import Role, read_users
from tests.support.certificates import broker_certificate, shared_authority
from tests.support.command_runs import run_barnabas
from tests.support.ports import free_port

SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.1.2.3"])
def test_it_refuses_addresses_that_others_reach(address: str) -> None:
    done = run_barnabas("console", "--host", address, "--port", "0")
    assert done.status == 2
    assert done.errors == (
        f"barnabas console: others reach {address}: give --login-file, or use 127.0.0.1 and a tunnel, or a proxy with "
        "a login; or say --no-login, and whoever comes sees the cluster and its records\n"
    )


def test_without_a_login_others_never_change_the_cluster() -> None:
    done = run_barnabas("console", "--host", "0.0.0.0", "--port", "0", "--no-login", "--allow-changes")
    assert done.status == 2
    assert done.errors == (
        "barnabas console: others reach 0.0.0.0, and without a login they would change the cluster: give --login-file, "
        "or leave --allow-changes away\n"
    )


def test_a_line_for_the_file_of_logins_is_one_that_it_takes(tmp_path: Path) -> None:
    done = run_barnabas("console", "--new-login", "ada@example", stdin="correct horse\n")
    assert (done.status, done.errors) == (0, "")
    user = read_users(done.output)["ada@example"]
    assert (user.password.is_of("correct horse"), user.role) == (True, Role.OPERATOR)
    looks = run_barnabas("console", "--new-login", "vi", "--role", "viewer", stdin="correct horse\n")
    assert read_users(looks.output)["vi"].role is Role.VIEWER
    assert "horse" not in done.output
    assert run_barnabas("console", "--new-login", "a:b", stdin="x\n").status == 2
    assert run_barnabas("console", "--new-login", "ada", stdin="\n").status == 2


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("ada:scrypt$1$8$1$AAAA$AAAA\n", 0o600, "line 1: the hash of ada cannot be used"),
        ("# nobody\n", 0o600, "it has 0 users"),
        ("ada\n", 0o600, "line 1: it must be NAME:ROLE:HASH"),
        ("# nobody\n", 0o604, "others of this machine may read or write"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_file_of_logins_that_cannot_be_used(tmp_path: Path, text: str | None, mode: int, said: str) -> None:
    path = tmp_path / "logins"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    done = run_barnabas("console", "--port", "0", "--login-file", str(path))
    assert done.status == 1
    assert said in done.errors


def logged_in(url: str, page: str, context: ssl.SSLContext) -> str:
    """The cookie that a login brings, by which the overview is shown."""
    parts = urlsplit(url)
    place = parts.hostname or "", parts.port

    def connection() -> http.client.HTTPConnection:
        if parts.scheme == "https":
            return http.client.HTTPSConnection(*place, context=context, timeout=30)
        return http.client.HTTPConnection(*place, timeout=30)

    (token,) = re.findall(r'name="token"[^>]*value="([^"]+)"', page)
    form = urlencode({"name": "ada", "password": "correct horse", "token": token})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": url.rstrip("/")}
    asking = connection()
    asking.request("POST", "/login", form, headers)
    answer = asking.getresponse()
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = str(answer.headers["Set-Cookie"])
    asking = connection()
    asking.request("GET", "/", headers={"Cookie": cookie.partition(";")[0]})
    assert asking.getresponse().status == 200
    return cookie


@pytest.mark.parametrize(("address", "is_plain", "warns"), [("0.0.0.0", True, True), ("0.0.0.0", False, False)])
def test_pages_come_by_tls_and_passwords_without_it_are_warned_of(
    tmp_path: Path, address: str, is_plain: bool, warns: bool
) -> None:
    logins = tmp_path / "logins"
    logins.touch(mode=0o600)
    logins.write_text(run_barnabas("console", "--new-login", "ada", stdin="correct horse\n").output)
    certified = broker_certificate()
    tls = () if is_plain else ("--tls-certificate", certified.certificate, "--tls-key", certified.key)
    options = ("--host", address, "--port", "0", "--login-file", logins, "-b", f"127.0.0.1:{free_port()}", "--json")
    command = [sys.executable, "-m", "barnabas.cli", "console", *map(str, (*options, *tls))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        url = json.loads(running.stdout.readline())["url"]
        try:
            context = ssl.create_default_context(cafile=str(shared_authority().certificate))
            with urllib.request.urlopen(url.replace(address, "127.0.0.1"), timeout=60, context=context) as page:
                assert page.status == 200
                shown = page.read().decode()
                assert "Password" in shown
            assert logged_in(url.replace(address, "127.0.0.1"), shown, context).endswith(
                "HttpOnly; SameSite=Lax; Max-Age=43200" + ("" if is_plain else "; Secure")
            )
        finally:
            running.terminate()
            _, errors = running.communicate(timeout=60)
    assert url.startswith("http://" if is_plain else "https://")
    assert ("passwords go there as they are typed" in errors) == warns


def test_a_key_without_a_certificate_is_refused() -> None:
    done = run_barnabas("console", "--port", "0", "--tls-key", "key.pem")
    assert done.status == 2
    assert "--tls-key goes with --tls-certificate" in done.errors


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_barnabas("console", "--port", str(port), "-b", f"127.0.0.1:{free_port()}")
    assert done.status == 1
    assert f"it cannot listen at 127.0.0.1:{port}" in done.errors
    assert "--port" in done.errors


def test_bootstrap_servers_that_are_none() -> None:
    done = run_barnabas("console", "--port", "0", "-b", "localhost:x")
    assert done.status == 2
    assert "--bootstrap-server" in done.errors


def test_it_starts_without_a_broker_and_ends_by_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli", "console", "--port", "0", "-b", f"127.0.0.1:{free_port()}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Console of 127.0.0.1:")
        with urllib.request.urlopen(line.split()[-1], timeout=60) as page:
            assert b"The console only reads" in page.read()
        process.send_signal(2)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()
