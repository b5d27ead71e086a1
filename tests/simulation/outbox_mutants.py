"""Faults put into the outbox of a pipeline and its sender, one at a time: the plan `outbox` has to find each."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from barnabas.client.errors import TransactionInDoubtError
from barnabas.pipelines import outbox_offsets
from barnabas.pipelines.outbox_sender import QuerySender
from barnabas.pipelines.side_by_side import FirstSender, SideSender
from barnabas.testing.user_plans import OUTBOX
from tests.simulation.mutants import Mutant


def send_again_without_asking(patch: pytest.MonkeyPatch) -> None:
    """After a failure the batch is sent again, whatever the offset says."""
    attempted = QuerySender._attempt

    async def attempt(self: QuerySender, batch: Any, sent: Any) -> None:
        opened = self._open

        async def open_and_ask_nobody() -> None:
            await opened()

        vars(self)["_open"] = open_and_ask_nobody
        try:
            await attempted(self, batch, sent)
        finally:
            del vars(self)["_open"]

    patch.setattr(QuerySender, "_attempt", attempt)


def take_doubt_for_success(patch: pytest.MonkeyPatch) -> None:
    """A commit that nobody has answered is one that was done."""
    transact = QuerySender._transact

    async def transacted(self: QuerySender, producer: Any, batch: Any, sent: Any) -> None:
        with contextlib.suppress(TransactionInDoubtError):
            await transact(self, producer, batch, sent)

    patch.setattr(QuerySender, "_transact", transacted)


def believe_every_copy(patch: pytest.MonkeyPatch) -> None:
    """A batch of the number that comes next is the own one, whoever has sent it."""
    patch.setattr(outbox_offsets, "_is_of_another_copy", lambda *_: False)


def fence_nobody(patch: pytest.MonkeyPatch) -> None:
    """Each sender has a transactional id of its own."""
    made, numbers = QuerySender.__init__, itertools.count()

    def make(self: QuerySender, senders: Any, transactional_id: str, sinks: Any, number: int = 1) -> None:
        made(self, senders, f"{transactional_id}-{next(numbers)}", sinks, number)

    patch.setattr(QuerySender, "__init__", make)


def commit_the_offset_first(patch: pytest.MonkeyPatch) -> None:
    """The offset has a transaction of its own, before that of the records."""
    transact = QuerySender._transact

    async def apart(self: QuerySender, producer: Any, batch: Any, sent: Any) -> None:
        await transact(self, producer, None, sent)
        await transact(self, producer, batch, sent)

    patch.setattr(QuerySender, "_transact", apart)


def send_shares_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A share is sent whatever its sender's offset says."""
    prepare = SideSender.has_to_send

    async def prepared(self: SideSender, *arguments: Any) -> bool:
        await prepare(self, *arguments)
        return True

    patch.setattr(SideSender, "has_to_send", prepared)


def commit_the_first_share_first(patch: pytest.MonkeyPatch) -> None:
    """The first sender does not wait for the others."""
    transact = FirstSender._transact

    async def apart(self: FirstSender, producer: Any, batch: Any, sent: Any) -> None:
        shares = self._shares
        if not shares:
            await transact(self, producer, batch, sent)
            return
        self._shares = {}
        await transact(self, producer, batch, sent)
        self._shares = shares
        for number, share in shares.items():
            await self.sides[number].send_share(share, sent)
            await self.sides[number].commit_share(sent)

    patch.setattr(FirstSender, "_transact", apart)


OUTBOX_MUTANTS = (
    Mutant("sends again without asking", OUTBOX, send_again_without_asking),
    Mutant("takes doubt for success", OUTBOX, take_doubt_for_success),
    Mutant("believes every copy", OUTBOX, believe_every_copy),
    Mutant("fences nobody", OUTBOX, fence_nobody),
    Mutant("commits the offset first", OUTBOX, commit_the_offset_first),
    Mutant("sends shares without asking", OUTBOX, send_shares_without_asking),
    Mutant("commits the first share first", OUTBOX, commit_the_first_share_first),
)
