"""Where the tokens of our own logins come from: made, read, or fetched; kept, and fetched again in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.real_host import real_host
from barnabas.kernel.timers import Timers
from barnabas.link.errors import AuthenticationFailedError, ConnectionLostError
from barnabas.link.login import LinkLogin
from barnabas.link.token_source import TokenSource
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.jaas import LoginModule
from barnabas.sasl.mechanisms import login_of_client
from barnabas.sasl.oauthbearer_login import LOGIN_HANDLERS, OAuthBearerLogin
from barnabas.sasl.oauthbearer_messages import CONFIRMATION, ClientFirst
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.certificates import (
    Certified,
    broker_certificate,
    client_certificate,
    other_authority,
    shared_authority,
)
from tests.support.identity_provider import (
    CLIENT_SECRET,
    MODULE,
    claims,
    client_properties,
    identity_provider,
    signed,
)

QUICK = {"sasl.login.retry.backoff.ms": "1", "sasl.login.retry.backoff.max.ms": "100"}


def login(properties: dict[str, str]) -> OAuthBearerLogin:
    found = login_of_client(properties["sasl.mechanism"], properties["sasl.jaas.config"], properties.get)
    assert isinstance(found, OAuthBearerLogin)
    return found


def with_source(properties: dict[str, str], test: Callable[[TokenSource, Host], Awaitable[None]]) -> None:
    async def main() -> None:
        async with real_host("client", asyncio.get_running_loop()) as host:
            timers = Timers(host.loop)
            await test(TokenSource(login(properties), host, timers), host)
            timers.close()

    asyncio.run(main())


def test_a_token_is_fetched_once_for_all_who_want_it_and_kept() -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        tokens = await asyncio.gather(*(source.token() for _ in range(20)))
        assert {*tokens, await source.token()} == {tokens[0]}

    with identity_provider() as provider:
        with_source(client_properties(provider), test)
        assert provider.asked == ["/token"]


@pytest.mark.parametrize(("factor", "least"), [("0.8", 0.8), ("0.5", 0.5), ("1.0", 1.0)])
def test_a_token_is_used_for_the_share_of_its_life_that_is_configured(factor: str, least: float) -> None:
    async def test(source: TokenSource, host: Host) -> None:
        await source.token()
        share = (source._refresh_at_ms - host.clock.time_ms()) / (provider.lifetime_seconds * 1000)
        assert least - 0.1 < share <= min(least + 0.25, 1.0)

    window = {"sasl.login.refresh.window.factor": factor, "sasl.login.refresh.window.jitter": "0.25"}
    with identity_provider() as provider:
        with_source(client_properties(provider) | window, test)


def test_a_token_is_fetched_again_when_most_of_its_life_is_over_and_kept_while_none_is_to_be_had() -> None:
    async def test(source: TokenSource, host: Host) -> None:
        first = await source.token()
        assert await source.token() == first
        provider.status = 500
        source._refresh_at_ms = host.clock.time_ms()
        assert await source.token() == first
        source._expiry_ms = host.clock.time_ms()
        with pytest.raises(ConnectionLostError, match="it answers 500, invalid_client, no"):
            await source.token()
        provider.status = 200
        provider.lifetime_seconds += 1
        assert await source.token() != first

    with identity_provider() as provider:
        with_source(client_properties(provider) | QUICK, test)
        assert provider.asked.count("/token") > 4  # what may pass is tried again


def test_a_share_of_its_life_is_used() -> None:
    async def test(source: TokenSource, host: Host) -> None:
        await source.token()
        left = source._refresh_at_ms - host.clock.time_ms()
        assert 0.78 * 600_000 < left < 0.86 * 600_000

    with identity_provider() as provider:
        with_source(client_properties(provider), test)


def test_wrong_credentials_are_not_tried_again_and_not_shown() -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        with pytest.raises(AuthenticationFailedError, match="it answers 401, invalid_client, no") as error:
            await source.token()
        assert "wrong" not in str(error.value)

    with identity_provider() as provider:
        with_source(client_properties(provider, clientSecret="wrong"), test)
        assert provider.asked == ["/token"]


@pytest.mark.parametrize("status", [401, 503])
def test_a_password_in_the_address_is_not_shown(status: int) -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        with pytest.raises((AuthenticationFailedError, ConnectionLostError), match=r"no token from http://") as error:
            await source.token()
        assert "hush" not in str(error.value)
        assert "/token" in str(error.value)

    with identity_provider() as provider:
        provider.status = status
        properties = client_properties(provider)
        key = "sasl.oauthbearer.token.endpoint.url"
        properties[key] = properties[key].replace("://", "://user:hush@") + "?key=hush"
        properties["sasl.login.retry.backoff.max.ms"] = "1"
        assert "hush" not in repr(login(properties))
        with_source(properties, test)


def test_an_endpoint_that_hangs_is_given_up() -> None:
    async def test(source: TokenSource, host: Host) -> None:
        began = host.loop.time()
        with pytest.raises(ConnectionLostError, match=r"no answer from 127\.0\.0\.1"):
            await source.token()
        assert host.loop.time() - began < 9, "with the read time-out that is usual it would take 10 s"

    with identity_provider() as provider:
        provider.hangs.set()
        with_source(client_properties(provider) | QUICK | {"sasl.login.read.timeout.ms": "100"}, test)


TRUSTED = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(shared_authority().certificate)}


def test_a_token_comes_by_https_whose_authority_the_options_name() -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        assert await source.token()

    with identity_provider(broker_certificate()) as provider:
        assert provider.token_address.startswith("https://")
        with_source(client_properties(provider, **TRUSTED) | QUICK, test)
        assert provider.asked == ["/token"]


def test_an_endpoint_may_want_a_certificate() -> None:
    shown = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(client_certificate().both)}

    async def admitted(source: TokenSource, _host: Host) -> None:
        assert await source.token()

    async def refused(source: TokenSource, _host: Host) -> None:
        with pytest.raises(ConnectionLostError):
            await source.token()

    with identity_provider(broker_certificate(), authority=shared_authority().certificate) as provider:
        with_source(client_properties(provider, **TRUSTED, **shown) | QUICK, admitted)
        with_source(client_properties(provider, **TRUSTED) | QUICK, refused)
        assert provider.asked == ["/token"]


@pytest.mark.parametrize(
    ("certified", "options", "reason"),
    [
        (broker_certificate, {}, "certificate verify failed"),
        (broker_certificate, {"ssl.protocol": "TLSv1.3"}, "certificate verify failed"),
        (lambda: other_authority().sign(), TRUSTED, "certificate verify failed"),
        (lambda: shared_authority().sign(names="DNS:elsewhere"), TRUSTED, "certificate verify failed"),
        (broker_certificate, {**TRUSTED, "ssl.truststore.location": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
def test_an_endpoint_that_is_not_trusted_is_shown_no_secret(
    certified: Callable[[], Certified], options: dict[str, str], reason: str
) -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        with pytest.raises(ConnectionLostError) as caught:
            await source.token()
        assert reason in str(caught.value).lower()
        assert CLIENT_SECRET not in str(caught.value)

    with identity_provider(certified()) as provider:
        with_source(client_properties(provider, **options) | QUICK, test)
        assert provider.asked == []


def test_what_is_trusted_beside_other_names_where_no_name_is_asked_for() -> None:
    """`ssl.endpoint.identification.algorithm`, empty, as in Kafka."""

    async def test(source: TokenSource, _host: Host) -> None:
        assert await source.token()

    with identity_provider(shared_authority().sign(names="DNS:elsewhere")) as provider:
        unnamed = {**TRUSTED, "ssl.endpoint.identification.algorithm": ""}
        with_source(client_properties(provider, **unnamed) | QUICK, test)


def test_nobody_waits_long_for_another_token_while_one_holds() -> None:
    async def test(source: TokenSource, host: Host) -> None:
        first = await source.token()
        provider.lifetime_seconds += 1
        provider.hangs.set()
        source._refresh_at_ms = host.clock.time_ms()
        began = host.loop.time()
        assert list(await asyncio.gather(source.token(), source.token())) == [first, first]
        patient_until = source._patient_until
        assert patient_until - began > 0.9
        assert host.loop.time() - began > 0.9
        assert await source.token() == first
        assert source._patient_until == patient_until, "who comes later does not wait for another second"
        fetching = source._fetching
        assert fetching is not None
        assert not fetching.done()
        provider.hangs.clear()
        assert await fetching == await source.token() != first

    with identity_provider() as provider:
        with_source(client_properties(provider), test)


class Refuses:
    """A broker that knows no key of the token: by its answer, or by a challenge first, as Kafka's."""

    peer = "broker:9093"
    api_versions: Mapping[int, tuple[int, int]] = {}

    def __init__(self, challenge: bytes) -> None:
        self.tokens: list[str] = []
        self._challenge = challenge

    async def request(self, message: Any, _version: int, _timeout_ms: float) -> Any:
        if isinstance(message, SaslHandshakeRequest):
            return SaslHandshakeResponse()
        assert isinstance(message, SaslAuthenticateRequest)
        if message.auth_bytes != CONFIRMATION:
            self.tokens.append(ClientFirst.decode(bytes(message.auth_bytes)).token)
            if self._challenge:
                return SaslAuthenticateResponse(auth_bytes=self._challenge)
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="invalid_token")


@pytest.mark.parametrize("challenge", [b"", b'{"status":"invalid_token"}'])
def test_a_token_that_a_broker_refuses_is_followed_by_another_one_but_not_again_and_again(challenge: bytes) -> None:
    """The key that signed it may have been withdrawn: it would be kept for most of its life."""

    async def main() -> None:
        async with real_host("client", asyncio.get_running_loop()) as host:
            timers = Timers(host.loop)
            link_login = LinkLogin.of(login(client_properties(provider)), host, timers)
            broker: Any = Refuses(challenge)
            for _ in range(4):
                provider.lifetime_seconds += 1  # so that each token is another
                with pytest.raises(AuthenticationFailedError, match="invalid_token"):
                    await link_login.log_in(broker, 1_000)
            first, *others = broker.tokens
            assert first not in others
            assert len(set(others)) == 1
            assert provider.asked == ["/token"] * 2
            source = link_login.tokens
            assert source is not None
            source._refused_at -= 10.0
            provider.status = 500  # while none is to be had, it is tried with the one that there is
            for _ in range(2):
                with pytest.raises(AuthenticationFailedError, match="invalid_token"):
                    await link_login.log_in(broker, 1_000)
            assert set(broker.tokens[-2:]) == set(others)
            timers.close()

    with identity_provider() as provider:
        asyncio.run(main())


def test_who_gives_up_waiting_takes_no_token_from_others() -> None:
    async def test(source: TokenSource, host: Host) -> None:
        provider.hangs.set()
        impatient, patient = (host.loop.create_task(source.token()) for _ in range(2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(impatient, 0.05)
        provider.hangs.clear()
        assert await patient

    with identity_provider() as provider:
        with_source(client_properties(provider), test)


def test_a_file_is_read_anew_for_each_token(tmp_path: Path) -> None:
    path = tmp_path / "a token"

    async def test(source: TokenSource, host: Host) -> None:
        for subject in ("alice", "bob"):
            token = signed(claims(subject))
            path.write_text(f"{token}\n")
            source._refresh_at_ms = host.clock.time_ms()
            assert await source.token() == token

    properties = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        "sasl.jaas.config": f"{MODULE} required;",
    }
    with_source(properties, test)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, ConnectionLostError),
        ("", AuthenticationFailedError),
        ("a.b.c", AuthenticationFailedError),
        (signed(claims(exp=None)), AuthenticationFailedError),
        ("ä" * 10, AuthenticationFailedError),
        ("x" * 300_000, ConnectionLostError),
    ],
)
def test_a_file_without_a_token_is_said(tmp_path: Path, text: str | None, error: type[Exception]) -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        with pytest.raises(error, match="no token from file:"):
            await source.token()

    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    properties = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        "sasl.jaas.config": f"{MODULE} required;",
    }
    with_source(properties, test)


def test_an_unsecured_token_is_made() -> None:
    async def test(source: TokenSource, _host: Host) -> None:
        token = await source.token()
        assert token.endswith(".")
        assert await source.token() == token

    options = 'unsecuredLoginStringClaim_sub="alice" unsecuredLoginExtension_a="1"'
    properties = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{MODULE} required {options};"}
    assert login(properties).extensions == {"a": "1"}
    with_source(properties, test)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://x/y"}, "must be an address of http, https, or of a file"),
        ({"sasl.oauthbearer.token.endpoint.url": "file://relative"}, "must be an address"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://[::1"}, "must be an address"),
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.login.callback.handler.class": "a.B"}, "other Java classes cannot be loaded"),
        ({"sasl.login.read.timeout.ms": "soon"}, "no number"),
        ({"sasl.login.retry.backoff.ms": "-1"}, "out of range"),
        ({"sasl.jaas.config": f'{MODULE} required clientId="x";'}, "clientId and clientSecret"),
        ({"sasl.jaas.config": f'{MODULE}x required clientId="x";'}, "the login module of OAUTHBEARER is"),
        ({"sasl.jaas.config": f'{MODULE} required clientId="x" clientSecret="y" extension_a1="z";'}, "extension"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, str], reason: str) -> None:
    with identity_provider() as provider, pytest.raises(LoginConfigError, match=reason):
        login(client_properties(provider) | changes)


def test_options_are_not_shown() -> None:
    found: Any = OAuthBearerLogin.of(
        LoginModule(MODULE, {"clientId": "a", "clientSecret": "hush", "extension_x": "hush"}),
        {
            "sasl.oauthbearer.token.endpoint.url": "http://x/",
            "sasl.login.callback.handler.class": LOGIN_HANDLERS[1],
        }.get,
    )
    assert "hush" not in repr(found)
    assert found.extensions == {"x": "hush"}
