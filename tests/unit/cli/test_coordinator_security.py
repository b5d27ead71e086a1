"""What `barnabas coordinator` takes for TLS and logins, and what it refuses without showing a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.cli.coordinator_security import context_of, passwords_of

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ssl.keystore.locaton=x\nssl.keystore.password=hush\n", "ssl.keystore.locaton would have no effect; the keys"),
        ("keystore.location=x\n", "keystore.location would have no effect"),
        ("ssl.client.auth=want\n", "ssl.client.auth=want: it must be required, requested or none"),
        ("ssl.engine.factory.class=a.B\n", "Java classes cannot be loaded"),
        ("ssl.keystore.password=hush\n", "a listener with TLS needs a key|no ssl.keystore.location"),
        ("ssl.keystore.location=/nowhere\nssl.keystore.password=hush\n", "/nowhere cannot be read|No such file"),
    ],
)
def test_a_file_of_tls_that_would_not_do_what_it_says_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as error:
        context_of(str(path))
    assert str(error.value).startswith(f"--tls-config {path}: ")
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", f'Client {{ {MODULE} required user_a="hush"; }};', "Server { a.B required user_a=hush; };", "Server {"]
)
def test_a_file_of_logins_without_any_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "login.conf"
    path.write_text(text)
    with pytest.raises(ValueError, match="--login-file") as error:
        passwords_of(str(path))
    assert "hush" not in str(error.value)


def test_passwords_are_read_by_user(tmp_path: Path) -> None:
    path = tmp_path / "login.conf"
    path.write_text(f'Server {{ {MODULE} required user_a="x" user_b="y"; }};')
    assert passwords_of(str(path)) == {"a": "x", "b": "y"}
