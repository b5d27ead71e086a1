"""What `barnabas coordinator` takes for TLS and logins, and what it refuses without showing a secret."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import coordinator_security
from barnabas.cli.coordinator_security import SecuredBy, follow_files, passwords_of, secured_by
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.kernel.real_host import real_host
from tests.support.certificates import broker_certificate, shared_authority

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
        secured_by(str(path))
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


def replace_at_once(path: Path, content: bytes) -> None:
    """Of a file that is being written a look may find less, of which another fault is told."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


def test_a_certificate_is_exchanged_while_the_coordinator_runs(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(coordinator_security, "LOOKED_EVERY_SECONDS", 0.01)
    store, path = tmp_path / "key.pem", tmp_path / "tls.properties"
    store.write_bytes(broker_certificate().both.read_bytes())
    path.write_text(f"ssl.keystore.type=PEM\nssl.keystore.location={store}\nssl.client.auth=none\n")
    client = ssl.create_default_context(cafile=str(shared_authority().certificate))
    client.check_hostname = False
    later = shared_authority().sign("/CN=later")

    async def shown(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async def work() -> None:
        secured = secured_by(str(path))
        async with real_host("test", asyncio.get_running_loop()) as host:
            coordinator = EmbeddedCoordinator(
                host, CoordinatorConfig(str(tmp_path / "data"), port=0, tls=secured.context)
            )
            await coordinator.start()
            logger = logging.getLogger("coordinator")
            following = asyncio.create_task(follow_files(host, str(path), secured, coordinator.exchange_tls, logger))
            try:
                before = await shown(coordinator.port)
                replace_at_once(store, later.both.read_bytes()[:200])
                async with asyncio.timeout(60):
                    while "The keys of before are kept" not in caplog.text:
                        await asyncio.sleep(0.01)
                    assert await shown(coordinator.port) == before
                    replace_at_once(store, later.both.read_bytes())
                    while await shown(coordinator.port) != ssl.PEM_cert_to_DER_cert(later.certificate.read_text()):
                        pass
                assert caplog.text.count("The keys of before are kept") == 1
            finally:
                following.cancel()
                await coordinator.stop()

    run(work())


def test_files_that_are_as_they_were_are_made_into_no_other_context(tmp_path: Path) -> None:
    store, path = tmp_path / "key.pem", tmp_path / "tls.properties"
    store.write_bytes(broker_certificate().both.read_bytes())
    path.write_text(f"ssl.keystore.type=PEM\nssl.keystore.location={store}\nssl.client.auth=none\n")
    before = secured_by(str(path))
    assert secured_by(str(path), before) is before
    store.write_bytes(shared_authority().sign("/CN=later").both.read_bytes())
    assert secured_by(str(path), before).context is not before.context


def test_whatever_goes_wrong_with_files_those_that_come_later_are_taken(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(coordinator_security, "LOOKED_EVERY_SECONDS", 0.001)
    before = SecuredBy("before", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    later = SecuredBy("later", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    looks = iter((RuntimeError("nobody thought of that"), before, RuntimeError("nobody thought of that"), later))

    def looked(_path: str, former: SecuredBy) -> SecuredBy:
        found = next(looks, former)
        if isinstance(found, RuntimeError):
            raise found
        return found

    monkeypatch.setattr(coordinator_security, "secured_by", looked)
    taken: asyncio.Queue[ssl.SSLContext] = asyncio.Queue()

    async def work() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            logger = logging.getLogger("coordinator")
            following = asyncio.create_task(follow_files(host, str(tmp_path), before, taken.put_nowait, logger))
            async with asyncio.timeout(60):
                assert await taken.get() is later.context
            await asyncio.sleep(0.01)
            assert not following.done()
            following.cancel()

    run(work())
    assert taken.empty()
    assert caplog.text.count("The keys of before are kept: nobody thought of that") == 2
