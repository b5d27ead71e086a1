"""Two threads that ask for a message's class first, at the same time, get the same one."""

from __future__ import annotations

import pytest

from barnabas.wire import classes


def test_who_comes_second_gets_the_class_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "_MADE", {})
    make, first = classes._made, []

    def made_while_another_thread_asks(name: str) -> type[classes.Message]:
        monkeypatch.setattr(classes, "_made", make)
        first.append(classes.message_class(name))
        return make(name)

    monkeypatch.setattr(classes, "_made", made_while_another_thread_asks)
    assert [classes.message_class("FetchRequest")] == first
    assert [classes.message_class("FetchRequest")] == first
