"""Asks several brokers what any of them can answer: one that is stopped takes requests and says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from barnabas.client.retrying import is_retriable
from barnabas.wire.errors import KafkaError

SILENCE_MS: Final = 1_000.0
"""How long to wait for one broker before the next is asked beside it."""
LAST_SILENCE_MS: Final = 5_000.0
"""How long to wait for those that are left, when others have failed and might be back by now."""
SILENT_SECONDS: Final = 30.0
"""How long a broker that was silent is asked last for what any broker can answer."""

Result = TypeVar("Result")


async def first_answer(
    asks: Sequence[Callable[[], Coroutine[Any, Any, Result]]],
    on_silence: Callable[[int], object] = lambda _place: None,
) -> Result:
    """Returns what the first of `asks` to answer returns, and cancels the others. Begins each when the one before it
    has failed, or has been silent for SILENCE_MS, which `on_silence(place)` hears. Use it for requests that do no harm
    when several brokers get them.

    An error that a broker answers is an answer: raises KafkaError, and whatever would come of any broker, at once.
    Raises the first ConnectionError or the like when all have failed, or when those that have not are silent for
    LAST_SILENCE_MS: then it is time to begin anew. Where all are silent, it waits for them.
    """
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Task[Result]] = []
    errors: list[BaseException] = []
    try:
        for place, ask in enumerate(asks):
            begun.append(loop.create_task(ask(), name="asking any broker"))
            is_last = place + 1 == len(asks)
            while begun:
                limit_ms = SILENCE_MS if not is_last else LAST_SILENCE_MS if errors else None
                limit = None if limit_ms is None else limit_ms / 1_000
                finished, _ = await asyncio.wait(begun, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                done = [task for task in begun if task in finished]
                if not done:
                    on_silence(place)
                    break
                for task in done:
                    begun.remove(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if isinstance(error, KafkaError) or not is_retriable(error):
                        raise error
                    errors.append(error)
                if not is_last:
                    break
    finally:
        for task in begun:
            task.cancel()
            task.add_done_callback(_hear)
    raise errors[0] if errors else ConnectionError("there is no broker to ask")


def _hear(task: asyncio.Task[Any]) -> None:
    """What failed when it was wanted no more."""
    if not task.cancelled():
        task.exception()
