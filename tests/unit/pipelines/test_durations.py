"""Durations as people write them."""

from __future__ import annotations

import pytest

from barnabas.pipelines.durations import format_duration, parse_duration_ms

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250 milliseconds", 250),
        ("1 second", 1_000),
        ("5 Seconds", 5_000),
        ("5s", 5_000),
        (" 2  minutes ", 120_000),
        ("90 m", 5_400_000),
        ("1h", 3_600_000),
        ("250ms", 250),
        ("14 days", 14 * DAY_MS),
        ("0 seconds", 0),
    ],
)
def test_reads_a_number_and_a_unit(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text, 0, 30 * DAY_MS) == duration_ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", '"soon" is not a duration: write a whole number and a unit, such as 5 seconds'),
        ("1.5 hours", '"1.5 hours" is not a duration: write a whole number and a unit, such as 5 seconds'),
        ("-1 hour", '"-1 hour" is not a duration: write a whole number and a unit, such as 5 seconds'),
        ("٣ hours", '"٣ hours" is not a duration: write a whole number and a unit, such as 5 seconds'),
        ("1" * 16 + " s", f'"{"1" * 16} s" is not a duration: write a whole number and a unit, such as 5 seconds'),
        ("5", '"5" has no unit: write 5 seconds, minutes, hours or days'),
        ("5 secnds", '"secnds" is not a unit of time; did you mean "seconds"?'),
        ("1 year", '"year" is not a unit of time; use milliseconds, seconds, minutes, hours or days'),
        ("99 milliseconds", '"99 milliseconds" must be between 100 milliseconds and 1 day'),
        ("25 hours", '"25 hours" must be between 100 milliseconds and 1 day'),
    ],
)
def test_says_what_to_write_instead(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration_ms(text, 100, DAY_MS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0 milliseconds"), (1, "1 millisecond"), (1_500, "1500 milliseconds"), (90_000, "90 seconds"),
     (3_600_000, "1 hour"), (14 * DAY_MS, "14 days")],
)  # fmt: skip
def test_writes_a_duration_in_the_largest_unit_that_it_is_whole_in(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text
    assert parse_duration_ms(text, 0, 30 * DAY_MS) == duration_ms
