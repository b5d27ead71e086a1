"""Who may ask the console."""

from __future__ import annotations

import pytest

from barnabas.console.access import Access, Tokens, is_loopback
from barnabas.console.http import Request


def _refusal(access: Access, **headers: str) -> int | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    found = access.refusal(Request("GET", (), headers=named))
    return None if found is None else found[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost", "LOCALHOST:1", "[::1]:8090", "127.0.0.2"])
def test_loopback_is_known_by_its_own_names(host: str) -> None:
    assert _refusal(Access("127.0.0.1"), host=host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8090", "localhost.evil.example", "10.0.0.1:8090", "", "127.0.0.1.nip.example", "0.0.0.0", "[::]"],
)
def test_a_name_that_was_rebound_to_this_machine_gets_nothing(host: str) -> None:
    assert _refusal(Access("127.0.0.1"), host=host) == 421


def test_a_request_without_host_gets_nothing() -> None:
    assert _refusal(Access("127.0.0.1")) == 421


def test_further_names_are_allowed_by_name() -> None:
    access = Access("127.0.0.1", ["Console.Example"])
    assert _refusal(access, host="console.example:443") is None
    assert _refusal(access, host="other.example") == 421


def test_on_all_addresses_any_address_is_right_and_no_other_name() -> None:
    access = Access("0.0.0.0")
    assert _refusal(access, host="10.0.0.1:8090") is None
    assert _refusal(access, host="evil.example:8090") == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_and_not_read(site: str) -> None:
    access = Access("127.0.0.1")
    assert _refusal(access, host="localhost", sec_fetch_site=site, sec_fetch_mode="no-cors") == 403
    assert _refusal(access, host="localhost", sec_fetch_site=site, sec_fetch_mode="navigate") is None
    assert _refusal(access, host="localhost", sec_fetch_site="same-origin", sec_fetch_mode="cors") is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://localhost:8090"}, None),
        ({"origin": "http://localhost:8090", "sec-fetch-site": "same-origin"}, None),
        ({"sec-fetch-site": "same-origin"}, None),
        ({"origin": "https://console.example:8443"}, None),
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:8090.evil.example"}, 403),
        ({"origin": "file://localhost:8090"}, 403),
        ({"origin": "http://localhost:8090", "sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://localhost:8090", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ({"origin": "http://localhost:8090", "sec-fetch-site": "none"}, 403),
        ({"origin": "http://evil.example", "host": "evil.example"}, 421),
    ],
)
def test_forms_come_from_pages_of_the_console_itself(headers: dict[str, str], status: int | None) -> None:
    access = Access("127.0.0.1", ["console.example"])
    found = access.refusal(Request("POST", (), headers={"host": "localhost:8090", **headers}))
    assert (None if found is None else found[0]) == status


def test_tokens_are_of_a_process_and_of_a_session() -> None:
    tokens = Tokens(b"one process")
    assert tokens.is_right(tokens.of("session"), "session")
    assert not tokens.is_right(tokens.of(""), "session")
    assert not tokens.is_right(Tokens(b"another").of("session"), "session")
    assert not tokens.is_right("", "")
    assert not tokens.is_right("é", "")


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.com", ""]))
