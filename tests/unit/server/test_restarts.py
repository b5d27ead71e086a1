from __future__ import annotations

from barnabas.server.restarts import STABLE_SECONDS, RestartPauses


def test_pauses_double_up_to_a_minute_until_a_life_was_long() -> None:
    pauses = RestartPauses()
    assert [pauses.after_life_of(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pauses.after_life_of(STABLE_SECONDS - 1) == 60
    assert [pauses.after_life_of(STABLE_SECONDS), pauses.after_life_of(5.0)] == [1, 2]
