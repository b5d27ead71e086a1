"""The page of the protocol's coverage shows the handlers that there are, and accounts for every API of Kafka's."""

from __future__ import annotations

import pytest

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from tools import protocol_coverage


def test_the_page_is_up_to_date() -> None:
    text = protocol_coverage.PAGE.read_text(encoding="utf-8")
    assert text == protocol_coverage.page(text), (
        "run `python -m tools.protocol_coverage` and commit docs/protocol-coverage.md"
    )


def test_every_api_is_handled_or_has_a_reason_and_none_has_both() -> None:
    handled = set(protocol_coverage.handled())
    reasons = set(protocol_coverage.NOT_ADVERTISED)
    assert handled | reasons == set(ApiKey)
    assert not handled & reasons


def test_every_version_that_kafka_answers_is_answered() -> None:
    for key, api in protocol_coverage.handled().items():
        known = catalogue.request(key).versions
        assert api.versions == (known.low, known.high), key


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="must hold the lines"):
        protocol_coverage.page("# Protocol coverage\n")
