"""How times and numbers of a record may be written. What Spark makes of whole records is tested with Spark."""

from __future__ import annotations

import re

import pytest

from barnabas.pipelines.record_decoding import (
    DATE_FORM,
    DECIMAL_FORM,
    INEXACT_NUMBER,
    LOCAL_TIME_FORM,
    SECONDS_MAX,
    SECONDS_MIN,
    ZONED_TIME_FORM,
)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            DATE_FORM,
            ["2013-01-01"],
            ["2013", "2013-1-1", "2013-01-01 ", "2013-01-01T05", "+12013-01-01", "2013-01-01\nx"],
        ),
        (
            LOCAL_TIME_FORM,
            ["2013-01-01", "2013-01-01T05:00"],
            ["2013-01-01T05:00Z", "2013-01-01T05", "05:00", "2013-01-01Z"],
        ),
        (
            ZONED_TIME_FORM,
            [
                "2013-01-01",
                "2013-01-01 05:00",
                "2013-01-01T05:00:00.1Z",
                "2013-01-01T05:00+0100",
                "2013-01-01T05:00-05",
            ],
            ["2013-01-01T05:00 UTC", "2013-01-01Z", "2013-01-01T05:00:00.", "2013-01-01T05:00:00.0123456789", "12:30"],
        ),
        (DECIMAL_FORM, ["0", "-1", "1.50", "1e2", "0E-8"], ["1.", ".5", "+1", "1e", "NaN", "1,000", " 1", "true"]),
    ],
)
def test_forms(form: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not re.search(form, text)] == []
    assert [text for text in bad if re.search(form, text)] == []


def test_numbers_that_a_double_may_not_hold() -> None:
    inexact = ["1.000000000000001e0", "-1234567890123456E2", "1e-100", "1E+0100", "0." + "1" * 38]
    exact = ["1e2", "1e-99", "123456789012345e5", "1e007", "12345678901234567890123456789012345678"]
    assert [text for text in inexact if not re.search(INEXACT_NUMBER, f'{{"a":{text}}}')] == []
    assert [text for text in exact if re.search(INEXACT_NUMBER, f'{{"a":{text}}}')] == []
    # Digits of a text are no number.
    assert not re.search(INEXACT_NUMBER, '{"a":"1234567890123456e7"}')


def test_seconds_are_those_of_years_that_people_write() -> None:
    assert (SECONDS_MIN, SECONDS_MAX) == (-719_162 * 86_400, 2_932_897 * 86_400 - 1)
