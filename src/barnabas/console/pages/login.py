"""`/login`: name and password."""

from __future__ import annotations

from barnabas.console.html import Html, tag
from barnabas.console.pages.page import THEME_BUTTON, document, hidden


def login_page(token: str, to: str, complaint: str = "") -> bytes:
    """The document; `to` is the address to go on with."""

    def field(label: str, **attributes: str | int | bool) -> Html:
        return tag("label", label, " ", tag("input", required=True, **attributes))

    main = tag(
        "main",
        tag("h1", "Log in"),
        tag("p", complaint, class_="note bad", role="alert") if complaint else None,
        tag(
            "form",
            hidden(token=token, to=to),
            field("Name", name="name", autocomplete="username", maxlength=64, autofocus=True),
            field("Password", name="password", type="password", autocomplete="current-password"),
            tag("button", "Log in", type="submit"),
            method="post",
            action="/login",
            class_="login",
        ),
        id="main",
        tabindex=-1,
    )
    brand = tag("a", "Barnabas", href="/", class_="brand")
    header = tag("header", brand, tag("span", "console", class_="cluster"), THEME_BUTTON)
    return document("Log in", tag("body", header, tag("p", id="lost", role="status", hidden=True), main))
