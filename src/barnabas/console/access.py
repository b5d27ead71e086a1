"""Which requests are the console's own: without a login whoever reaches it sees the cluster, its records included.

A browser on this machine reaches loopback for any web page. Such a page has a name of its own in `Host`, even where its
name leads to this machine (DNS rebinding), or says in `Sec-Fetch-Site` that it is another site's. A form has to come
from a page of the console itself, and bring back the token that the console put there (`Tokens`).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from barnabas.console.http import Request


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is one of this machine only: `localhost`, `127.0.0.1`, `::1`."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


class Access:
    """What requests have to say to be answered."""

    def __init__(self, host: str, names: Iterable[str] = ()) -> None:
        """`host` is what the console listens on; `names` are further names that it has, of a proxy for instance."""
        self._is_loopback = is_loopback(host)
        self._further = {name.lower() for name in names}
        self._names = {"localhost", host.lower(), *self._further}

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """The status and the reason why a request is not answered; None for one that is."""
        name = _host_name(request.headers.get("host", ""))
        address = _address(name)
        # Nobody can rebind an address; on loopback only its own are right.
        is_right = name in self._names or (
            address is not None and (address.is_loopback if self._is_loopback else not address.is_unspecified)
        )
        if not is_right:
            return 421, (
                f"the console is not known as {name[:100]!r}: ask for it by the address that it printed, or start it "
                "with --allow-name and that name"
            )
        if request.method == "POST":
            return self._refusal_of_form(request)
        is_foreign = request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        if is_foreign and request.headers.get("sec-fetch-mode") != "navigate":
            return 403, "pages of other sites get nothing from the console; links to it work"
        return None

    def _refusal_of_form(self, request: Request) -> tuple[int, str] | None:
        """Browsers say where a form comes from: in `Origin`, newer ones in `Sec-Fetch-Site` too. Other ports of this
        machine are others' too.
        """
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        is_own = site in {None, "same-origin"} and (origin is None or self._is_own(origin, request.headers["host"]))
        if not is_own or (site is None and origin is None):
            return 403, "forms are taken from pages of the console only"
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        scheme, _, address = origin.lower().partition("://")
        if scheme not in {"http", "https"}:
            return False
        # A proxy may have asked by another name than the browser; the one that the browser has is allowed by its owner.
        return address == host.lower() or _host_name(address) in self._further


class Tokens:
    """What forms bring back: nobody knows it who has not read a page of this process, and of this session."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is random, of this process."""
        self._secret = secret

    def of(self, session_id: str) -> str:
        """The token of a session; "" is nobody's."""
        return hmac.new(self._secret, b"form " + session_id.encode(), "sha256").hexdigest()

    def is_right(self, token: str, session_id: str) -> bool:
        """Whether a form has it; takes as long for any wrong one."""
        return hmac.compare_digest(token.encode(), self.of(session_id).encode())


# Inside.


def _host_name(header: str) -> str:
    """The name in a `Host` header, in lower case, without the port and the brackets of IPv6."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
