"""`docs/api.md` says what the source says."""

from __future__ import annotations

from tools import api_reference


def test_the_page_is_as_generated() -> None:
    assert api_reference.PAGE.read_text("utf-8") == api_reference.page(), "run python -m tools.api_reference"


def test_everything_public_says_what_it_is() -> None:
    for part in api_reference.page().split("\n### ")[1:]:
        said = part.splitlines()[2]
        assert not said.startswith(("#", "|", "- ", " Base")), part.splitlines()[0]
