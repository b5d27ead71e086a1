"""`barnabas.server.tls`: which key each listener and each connection to others has, and how it is exchanged."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.config.broker_config import BrokerConfig
from barnabas.kernel.host import OffloadFullError, OffloadKind
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricName, MetricsRegistry
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_host import real_host
from barnabas.kernel.real_offload import DEFAULT_LIMITS
from barnabas.server import tls_exchange
from barnabas.server.config import read_server_config
from barnabas.server.errors import BrokerStartError
from barnabas.server.shared_services import SharedServices
from barnabas.server.tls import BrokerTls, read_tls
from barnabas.server.tls_exchange import TlsExchange
from barnabas.tls.contexts import TRUSTED_AT_ONCE
from barnabas.tls.errors import TlsConfigError
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.support.certificates import broker_certificate, other_authority, shared_authority

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LISTENERS = (
    "listeners=PLAINTEXT://:1,SSL://:2,INNER://:3,LOGIN://:4",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,INNER:SSL,LOGIN:SASL_SSL",
    "inter.broker.listener.name=INNER",
    "ssl.keystore.type=PEM",
    "ssl.truststore.type=PEM",
    "ssl.client.auth=required",
)


class NoHandshakes:
    begun = waiting = 0


def config(store: Path | None, *more: str) -> BrokerConfig:
    stores = [f"ssl.truststore.location={shared_authority().certificate}"]
    if store is not None:
        stores.append(f"ssl.keystore.location={store}")
    return read_server_config("\n".join(["zookeeper.connect=z:1", *LISTENERS, *stores, *more]), "test")


def made(config: BrokerConfig, logger: logging.Logger | None = None) -> BrokerTls:
    handshakes: Any = NoHandshakes()
    files, metrics = RealFiles(), MetricsRegistry(lambda: 0.0)
    return BrokerTls(config, read_tls(config, files), files, handshakes, metrics, logger or logging.getLogger("tls"))


async def shared_services(work: Callable[[SharedServices], Coroutine[Any, Any, None]]) -> None:
    async with real_host("test", asyncio.get_running_loop()) as host:
        shared = SharedServices.on(host, Logs("test", host.clock, logging.NullHandler()))
        await work(shared)
        shared.timers.close()


async def checked(configs: BrokerConfigs, texts: Mapping[str, str]) -> None:
    configs.check(texts, of_one_broker=True)
    await configs.check_whole(texts, of_one_broker=True)


def take(tls: BrokerTls, config: BrokerConfig) -> None:
    tls.adopt(tls.prepare(config))


def test_each_listener_has_its_own_and_plain_ones_have_none() -> None:
    tls = made(config(broker_certificate().both, "listener.name.ssl.ssl.client.auth=requested"))
    assert list(tls.listeners) == ["SSL", "INNER", "LOGIN"]
    assert list(tls.to_brokers) == ["INNER"]
    modes = {name: end.context.verify_mode for name, end in tls.listeners.items()}
    # A login is enough, unless that very listener asks for more.
    assert modes == {"SSL": ssl.CERT_OPTIONAL, "INNER": ssl.CERT_REQUIRED, "LOGIN": ssl.CERT_NONE}
    both = made(config(broker_certificate().both, "listener.name.login.ssl.client.auth=required"))
    assert both.listeners["LOGIN"].context.verify_mode is ssl.CERT_REQUIRED
    assert tls.to_brokers["INNER"].context.check_hostname
    assert tls.to_brokers["INNER"].goes_first


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ["listener.name.login.ssl.keystore.location=/nowhere"],
            "Listener LOGIN: ssl.keystore.location=/nowhere cannot",
        ),
        (["listener.name.inner.ssl.truststore.location=/nowhere"], "Listener INNER: ssl.truststore.location=/nowhere"),
        (["ssl.endpoint.identification.algorithm=x"], "Connections to other brokers' listener INNER: ssl.endpoint"),
        (["listener.name.ssl.ssl.principal.mapping.rules=RULE:"], "ssl.principal.mapping.rules"),
    ],
)
def test_what_cannot_be_is_told_at_the_start_with_its_listener(lines: list[str], says: str) -> None:
    with pytest.raises(BrokerStartError) as caught:
        read_tls(config(broker_certificate().both, *lines), RealFiles())
    assert says in str(caught.value)
    with pytest.raises(BrokerStartError, match="Listener SSL: a listener with TLS needs a key"):
        read_tls(config(None), RealFiles())


def test_failed_handshakes_are_counted_for_the_listener_and_its_logins() -> None:
    metrics = MetricsRegistry(lambda: 0.0)
    handshakes: Any = NoHandshakes()
    read, files = config(broker_certificate().both), RealFiles()
    tls = BrokerTls(read, read_tls(read, files), files, handshakes, metrics, logging.getLogger("tls"))

    class Logins:
        failed = 0

    logins: Any = Logins()
    tls.logins = {"LOGIN": logins}
    for name in ("SSL", "LOGIN"):
        failed = tls.listeners[name].when_failed
        assert failed is not None
        failed()
    assert logins.failed == 1
    group = ("kafka.server", "socket-server-metrics")
    shown = metrics.get(MetricName(*group, "failed-authentication-total", (("listener", "SSL"),)))
    assert shown is not None


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copy(broker_certificate().both, tmp_path / "broker.pem"))


def test_a_key_is_exchanged_where_its_file_or_its_place_has_changed(store: Path, tmp_path: Path) -> None:
    first = config(store)
    tls = made(first)
    before = {name: end.context for name, end in tls.listeners.items()}
    take(tls, first)
    assert {name: end.context for name, end in tls.listeners.items()} == before
    shutil.copy(shared_authority().sign().both, store)
    tls.check(first)
    take(tls, first)
    after = {name: end.context for name, end in tls.listeners.items()}
    assert not set(after.values()) & set(before.values())
    elsewhere = shutil.copy(shared_authority().sign().both, tmp_path / "new.pem")
    take(tls, config(store, f"listener.name.ssl.ssl.keystore.location={elsewhere}"))
    assert [name for name, end in tls.listeners.items() if end.context is not after[name]] == ["SSL"]


@pytest.mark.parametrize(
    ("subject", "names", "allows", "says"),
    [
        ("/CN=castle", "DNS:localhost,IP:127.0.0.1", "dn", "is of CN=localhost, and the new one of CN=castle"),
        ("/CN=localhost", "DNS:localhost", "san", "lacks alternative names"),
        ("/CN=localhost", "IP:127.0.0.1,DNS:castle,DNS:localhost", None, None),
        ("/CN=LocalHost", "IP:127.0.0.1,DNS:localhost", None, None),
    ],
)
def test_a_certificate_of_another_takes_nobodys_place_unless_it_may(
    store: Path, subject: str, names: str, allows: str | None, says: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    read = config(store)
    tls = made(read)
    before = tls.listeners["SSL"].context
    shutil.copy(shared_authority().sign(subject, names).both, store)
    if says is not None:
        with pytest.raises(TlsConfigError, match=says):
            tls.check(read)
        take(tls, read)
        assert tls.listeners["SSL"].context is before
        assert says in caplog.text
        read = config(store, f"ssl.allow.{allows}.changes=true")
    tls.check(read)
    take(tls, read)
    assert tls.listeners["SSL"].context is not before


def test_a_file_that_is_replaced_is_taken_though_no_config_changes(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_exchange, "FILES_LOOKED_EVERY_MS", 20)
    whole = store.read_bytes()

    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        before = tls.listeners["SSL"].context
        exchange, looks = TlsExchange(tls, shared), list[None]()
        prepare = tls.prepare

        def noted(config: BrokerConfig) -> Any:
            looks.append(None)
            return prepare(config)

        monkeypatch.setattr(tls, "prepare", noted)
        exchange.follow_files(read)

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(60):
                while not condition():
                    await asyncio.sleep(0.005)

        (half := store.with_name("half")).write_bytes(whole[:300])
        half.replace(store)  # half of it is there, and no look has found less
        await until(lambda: len(looks) > 3)
        assert tls.listeners["SSL"].context is before
        assert caplog.text.count("Listener SSL: ") == 1, "what stays as it is is not said every minute"
        shutil.copy(shared_authority().sign().both, store)
        await until(lambda: tls.listeners["SSL"].context is not before)
        await exchange.taken()

    run(shared_services(work))


def test_a_file_that_is_half_written_changes_nothing(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = config(store)
    tls = made(read)
    before = tls.listeners["SSL"].context
    store.write_bytes(store.read_bytes()[:300])
    take(tls, read)
    assert tls.listeners["SSL"].context is before
    assert "The keys of before are kept" in caplog.text
    assert "PRIVATE KEY-----" not in caplog.text


def test_an_exchange_that_would_part_the_brokers_is_refused(store: Path, tmp_path: Path) -> None:
    """Kafka tries a handshake with the stores of before, and so at the start: brokers have both for a time."""
    ours, theirs = shared_authority().certificate, other_authority().certificate
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ours.read_bytes())
    place = f"ssl.truststore.location={trusted}"
    read = config(store, place)
    tls = made(read)

    def contexts() -> list[ssl.SSLContext]:
        return [end.context for end in (tls.listeners["INNER"], tls.to_brokers["INNER"])]

    def refused(says: str) -> None:
        before = contexts()
        with pytest.raises(TlsConfigError, match=says):
            tls.check(read)
        take(tls, read)
        assert contexts() == before

    shutil.copy(other_authority().sign().both, store)
    refused("Listener INNER: brokers would not let each other in: the client's certificate is not accepted")
    trusted.write_bytes(ours.read_bytes() + theirs.read_bytes())
    refused("brokers would not let each other in: ")  # those that have not changed yet do not know the new one
    shutil.copy(shared_authority().sign().both, store)
    take(tls, read)
    shutil.copy(other_authority().sign().both, store)
    trusted.write_bytes(ours.read_bytes())
    refused("brokers would not let each other in: ")
    trusted.write_bytes(ours.read_bytes() + theirs.read_bytes())
    take(tls, read)  # now the others know both
    trusted.write_bytes(theirs.read_bytes())
    before = contexts()
    tls.check(read)
    take(tls, read)
    assert not set(contexts()) & set(before)
    with pytest.raises(
        BrokerStartError, match=r"Listener INNER: brokers would not let each other in: .* certificate is not"
    ):
        read_tls(config(broker_certificate().both, place), RealFiles())


def test_a_key_that_others_do_not_know_yet_is_refused_though_its_own_trust_store_does(
    store: Path, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(shared_authority().certificate.read_bytes())
    read = config(store, f"ssl.truststore.location={trusted}", "listener.name.inner.ssl.client.auth=none")
    tls = made(read)
    trusted.write_bytes(trusted.read_bytes() + other_authority().certificate.read_bytes())
    shutil.copy(other_authority().sign().both, store)
    with pytest.raises(TlsConfigError, match="the broker's certificate is not accepted"):
        tls.check(read)


def test_brokers_that_show_no_certificate_that_counts_are_told_so_at_the_start(tmp_path: Path) -> None:
    only_server = tmp_path / "server.pem"
    expired = shared_authority().sign(days=0)
    with pytest.raises(BrokerStartError, match="not accepted: certificate has expired"):
        read_tls(config(expired.both), RealFiles())
    only_server.write_bytes(other_authority().certificate.read_bytes())
    with pytest.raises(BrokerStartError, match="the broker's certificate is not accepted: unable to get local issuer"):
        read_tls(
            config(broker_certificate().both, f"listener.name.inner.ssl.truststore.location={only_server}"), RealFiles()
        )
    # Not asked of listeners that are for clients only.
    read_tls(config(broker_certificate().both, f"listener.name.ssl.ssl.truststore.location={only_server}"), RealFiles())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.client.auth", "none"),
        ("ssl.enabled.protocols", "TLSv1.3"),
        ("ssl.protocol", "TLSv1.2"),
        ("ssl.cipher.suites", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
        ("ssl.endpoint.identification.algorithm", ""),
    ],
)
def test_nothing_but_stores_is_exchanged_at_run_time(run: Run, store: Path, name: str, value: str) -> None:
    """As in Kafka: whom a listener asks for a certificate, among others, is settled when it is made."""

    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        configs = BrokerConfigs(read, broker_id=1, logger=logging.getLogger("tls"))
        configs.follow_whole(exchange)
        with pytest.raises(KafkaError, match="cannot be changed at run time for a listener that is there") as refused:
            await checked(configs, {f"listener.name.inner.{name}": value})
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        await checked(configs, {name: value})  # for the next start, and so for new listeners
        before = {listener: end.context for listener, end in tls.listeners.items()}
        configs.set_broker({f"listener.name.inner.{name}": value})  # as somebody wrote it into the znode
        await exchange.taken()
        configs.set_broker({name: value})
        await exchange.taken()
        assert {listener: end.context for listener, end in tls.listeners.items()} == before
        shutil.copy(shared_authority().sign().both, store)
        configs.set_broker({name: value})
        await exchange.taken()
        after = tls.listeners["INNER"].context
        assert after is not before["INNER"]
        for attribute in ("verify_mode", "minimum_version", "maximum_version"):
            assert getattr(after, attribute) == getattr(before["INNER"], attribute)
        assert after.get_ciphers() == before["INNER"].get_ciphers()
        assert tls.to_brokers["INNER"].context.check_hostname

    run(shared_services(work))


def test_dynamic_configs_of_a_listener_reach_its_keys(run: Run, store: Path, tmp_path: Path) -> None:
    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        configs = BrokerConfigs(read, broker_id=1, logger=logging.getLogger("tls"))
        configs.follow_whole(exchange)
        name = "listener.name.ssl.ssl.keystore.location"
        with pytest.raises(KafkaError, match="/nowhere cannot be read") as refused:
            await checked(configs, {name: "/nowhere"})
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        foreign = other_authority().sign("/CN=other").both
        with pytest.raises(KafkaError, match=r"ssl\.allow\.dn\.changes"):
            await checked(configs, {name: str(foreign)})
        new = {name: str(shutil.copy(shared_authority().sign().both, tmp_path / "new.pem"))}
        await checked(configs, new)
        before = tls.listeners["SSL"].context
        configs.set_broker(new)
        await exchange.taken()
        assert tls.listeners["SSL"].context is not before
        # Set to the same again, as Kafka's users do when they have replaced the file.
        before = tls.listeners["SSL"].context
        shutil.copy(shared_authority().sign().both, tmp_path / "new.pem")
        configs.set_broker(new)
        await exchange.taken()
        assert tls.listeners["SSL"].context is not before

    run(shared_services(work))


def test_an_exchange_of_a_large_trust_store_goes_on_beside_the_loop(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL takes a millisecond for an authority, with Python's lock held: a few are read at a time, by a thread."""
    one = shared_authority().certificate.read_text()
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(one)
    place = f"ssl.truststore.location={trusted}"
    read_by: list[tuple[int, int]] = []
    load, may_read = ssl.SSLContext.load_verify_locations, threading.Event()

    def counted(context: ssl.SSLContext, cadata: str) -> None:
        read_by.append((threading.get_ident(), cadata.count("BEGIN")))
        assert may_read.wait(60), "the loop does not go on"
        load(context, cadata=cadata)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)

    async def work(shared: SharedServices) -> None:
        read = config(store, place)
        may_read.set()
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        before = {name: end.context for name, end in tls.listeners.items()}
        trusted.write_text(one * 150)
        read_by.clear()
        may_read.clear()
        exchange.take(read)
        exchange.take(read)
        turns = 0
        waiting = asyncio.ensure_future(exchange.taken())
        while not waiting.done():
            turns += bool(read_by)
            if turns > 5:
                may_read.set()
            await asyncio.sleep(0.001)
        await exchange.check(read)
        assert not {end.context for end in tls.listeners.values()} & set(before.values())
        # Three listeners, and the connections to others.
        assert sum(count for _, count in read_by) == 4 * 150
        assert max(count for _, count in read_by) <= TRUSTED_AT_ONCE
        assert threading.get_ident() not in {thread for thread, _ in read_by}
        assert turns > 5

    run(shared_services(work))


def test_an_exchange_that_fails_unforeseen_is_logged_and_the_next_one_is_done(
    run: Run, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path with a NUL, of a znode that nobody has checked, is a ValueError of Python's; cryptography has others."""

    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        before = tls.listeners["SSL"].context
        prepare, failed = tls.prepare, threading.Event()

        def failing(config: BrokerConfig) -> Any:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("never thought of")
            return prepare(config)

        tls.prepare = failing  # type: ignore[method-assign]
        exchange.take(read)
        await asyncio.sleep(0)  # it is read
        shutil.copy(shared_authority().sign().both, store)
        exchange.take(read)
        await exchange.taken()
        assert tls.listeners["SSL"].context is not before, "what was wanted meanwhile is not forgotten"

    run(shared_services(work))
    assert "never thought of" in caplog.text


@pytest.mark.parametrize("path", [r"/a\u0000b", r"/a\ud800b"])
def test_a_path_that_can_be_none_is_told_as_any_other_that_cannot_be_read(store: Path, path: str) -> None:
    tls = made(config(store))
    read = config(store, f"listener.name.ssl.ssl.keystore.location={path}")
    assert "cannot be read" in str(tls.prepare(read)["SSL"])


def test_a_store_that_is_a_pipe_is_refused_and_not_waited_for(run: Run, store: Path, tmp_path: Path) -> None:
    """Such as /dev/stdin, on which a broker waits for its end: nothing was ever exchanged again."""
    os.mkfifo(tmp_path / "pipe")
    reading, writing = os.pipe()

    async def work(shared: SharedServices) -> None:
        read = config(store)
        exchange = TlsExchange(made(read), shared)
        for place in (str(tmp_path / "pipe"), f"/dev/fd/{reading}"):
            other = config(store, f"listener.name.ssl.ssl.truststore.location={place}")
            async with asyncio.timeout(60):
                with pytest.raises(TlsConfigError, match=r"Listener SSL: ssl\.truststore\.location="):
                    await exchange.check(other)

    try:
        run(shared_services(work))
    finally:
        os.close(writing)
        os.close(reading)


def test_nothing_is_adopted_while_another_configuration_is_looked_at(run: Run, store: Path) -> None:
    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        before, check = tls.listeners["SSL"].context, tls.check
        looked, go_on = threading.Event(), threading.Event()

        def slow(config: BrokerConfig) -> None:
            looked.set()
            go_on.wait(60)
            check(config)

        tls.check = slow  # type: ignore[method-assign]
        checking = asyncio.ensure_future(exchange.check(read))
        await asyncio.to_thread(looked.wait, 60)
        shutil.copy(shared_authority().sign().both, store)
        exchange.take(read)
        await asyncio.wait([asyncio.ensure_future(exchange.taken())], timeout=0.1)
        assert tls.listeners["SSL"].context is before
        go_on.set()
        await checking
        await exchange.taken()
        assert tls.listeners["SSL"].context is not before

    run(shared_services(work))


def test_where_there_is_no_room_for_an_exchange_the_last_configuration_is_taken_later(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_exchange, "_FULL_PAUSE_MS", 50)

    async def work(shared: SharedServices) -> None:
        first, last = config(store), config(store, "log.retention.ms=7")
        tls = made(first)
        exchange = TlsExchange(tls, shared)
        prepare, prepared = tls.prepare, list[BrokerConfig]()

        def full(config: BrokerConfig) -> Any:
            prepared.append(config)
            if len(prepared) == 1:
                shared.host.loop.call_soon_threadsafe(exchange.take, last)
                raise OffloadFullError
            return prepare(config)

        tls.prepare = full  # type: ignore[method-assign]
        exchange.take(first)
        async with asyncio.timeout(60):
            await exchange.taken()
        assert prepared == [first, last]

    run(shared_services(work))


def test_handshakes_and_compression_go_on_beside_a_store_that_takes_long(run: Run, store: Path) -> None:
    """On a machine with one processor there is one thread for these: a file on a mount that hangs stopped them."""

    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        check, looked, go_on = tls.check, threading.Event(), threading.Event()

        def slow(config: BrokerConfig) -> None:
            looked.set()
            go_on.wait(60)
            check(config)

        tls.check = slow  # type: ignore[method-assign]
        checking = asyncio.ensure_future(exchange.check(read))
        await asyncio.to_thread(looked.wait, 60)
        workers = DEFAULT_LIMITS[OffloadKind.CPU].workers
        together = threading.Barrier(workers)
        await asyncio.gather(*(shared.host.offload(OffloadKind.CPU, together.wait, 60) for _ in range(workers)))
        go_on.set()
        await checking

    run(shared_services(work))


def test_a_store_that_is_not_read_in_time_is_refused_and_holds_nothing_up_for_ever(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every alteration of the broker's configs is looked at so, whatever it is about."""

    async def work(shared: SharedServices) -> None:
        read = config(store)
        tls = made(read)
        exchange = TlsExchange(tls, shared)
        check, go_on = tls.check, threading.Event()

        def hanging(config: BrokerConfig) -> None:
            go_on.wait(60)
            check(config)

        tls.check = hanging  # type: ignore[method-assign]
        before = tls.listeners["SSL"].context
        with monkeypatch.context() as patched:
            patched.setattr(tls_exchange, "_CHECK_SECONDS_MAX", 0.05)
            for _ in range(2):
                with pytest.raises(TlsConfigError, match="cannot be read in time"):
                    await exchange.check(read)
        shutil.copy(shared_authority().sign().both, store)
        exchange.take(read)
        await asyncio.wait([asyncio.ensure_future(exchange.taken())], timeout=0.1)
        assert tls.listeners["SSL"].context is before, "nothing is adopted while a thread looks at it"
        go_on.set()
        await exchange.taken()
        assert tls.listeners["SSL"].context is not before
        await exchange.check(read)

    run(shared_services(work))
