"""DeleteGroups of very many groups; `test_group_handlers` has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from barnabas.api.delete_groups import DeleteGroupsHandler
from barnabas.kernel.steps import STEP_ELEMENTS
from barnabas.wire.messages import DeleteGroupsRequest


def test_the_names_of_groups_to_delete_are_looked_at_in_steps() -> None:
    """Anybody may name millions."""

    class Names(list[str]):
        looked_at = 0

        def __iter__(self) -> Iterator[str]:
            for name in super().__iter__():
                self.looked_at += 1
                yield name

    names = Names(map(str, range(10 * STEP_ELEMENTS)))
    handler, context = DeleteGroupsHandler(cast("Any", None)), cast("Any", SimpleNamespace(authorizer=None))
    next(handler.handle(context, DeleteGroupsRequest(groups_names=names)))
    assert 0 < names.looked_at <= STEP_ELEMENTS
