"""What a Spark Connect server runs of a pipeline: it tells the run of each batch, and waits until the run has done it.

It goes there by value (pickled), into a Python that has pyspark and nothing of ours. INVARIANT: it imports Python's own
library alone, and that within the function.

Both sides speak by settings of the session, which client and server have in common: there is no address more to be
reached, and no file that a mount may show late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SETTINGS = "spark.barnabas."
"""Begins the names of all of them."""
ALIVE = SETTINGS + "alive"
"""Changes as long as the run is there."""
OVER = SETTINGS + "over"
"""Is set when nobody is to wait for the run any more."""
DONE = "done"


def waiting_for_run(asked: str, answered: str, silence_seconds_max: float) -> Callable[[Any, int], None]:
    """A function for `foreachBatch`: it sets `asked` to `BATCH FRAME`, the frame by the id that it has in the session,
    and returns when `answered` is that and DONE. Any other answer is what it raises.
    """
    alive, over, done = ALIVE, OVER, DONE

    def wait(frame: Any, batch_id: int) -> None:
        import time

        settings = frame.sparkSession.conf
        ask = f"{batch_id} {frame._plan._relation_id} "  # noqa: SLF001  # what the client is to make a frame of
        settings.set(asked, ask)
        sign, seen_at, look_at, pause = "", time.monotonic(), 0.0, 0.01
        while True:
            answer = settings.get(answered, "")
            if answer.startswith(ask):
                said = answer[len(ask) :]
                if said == done:
                    return
                raise RuntimeError(said)
            now = time.monotonic()
            if now >= look_at:
                look_at, new_sign = now + 1, settings.get(alive, "")
                if settings.get(over, ""):
                    raise RuntimeError("the run of this batch is over")
                if new_sign != sign:
                    sign, seen_at = new_sign, now
                elif now - seen_at > silence_seconds_max:
                    raise RuntimeError(f"the run of this batch has not been heard of for {silence_seconds_max:.0f} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)

    return wait
