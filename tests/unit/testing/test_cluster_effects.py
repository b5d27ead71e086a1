"""`barnabas.testing.cluster_effects`: a strike counts when something has come of it."""

from __future__ import annotations

import logging

from barnabas.testing.cluster_effects import Effects, Listener
from barnabas.testing.faults import FaultKind

LAUNCHED = {FaultKind.CRASH: 2, FaultKind.CONFIG_CHANGED: 2, FaultKind.ZNODE_SPOILED: 3}


def counts(effects: Effects) -> list[int]:
    return list(effects.of(LAUNCHED).values())


def test_what_was_only_asked_for_counts_nothing() -> None:
    assert counts(Effects()) == [2, 0, 0]


def test_each_strike_counts_once_when_its_effect_is_seen() -> None:
    effects, seen = Effects(), [False]
    effects.when_seen(FaultKind.CONFIG_CHANGED, lambda: seen[0])
    effects.look()
    assert counts(effects) == [2, 0, 0]
    seen[0] = True
    effects.look()
    effects.look()
    assert counts(effects) == [2, 1, 0]
    effects.happened(FaultKind.CONFIG_CHANGED)
    assert counts(effects) == [2, 2, 0]


def test_what_is_forgotten_counts_no_more() -> None:
    effects = Effects()
    effects.when_seen(FaultKind.CONFIG_CHANGED, lambda: True)()
    forget = effects.when_reported(FaultKind.ZNODE_SPOILED, "/topics/a: ")
    effects.heard("/topics/a: is spoiled")
    forget()
    forget = effects.when_reported(FaultKind.ZNODE_SPOILED, "/topics/b: ")
    forget()
    effects.look()
    effects.heard("/topics/b: is spoiled")
    assert counts(effects) == [2, 0, 1]


def test_a_listener_hears_warnings_and_gives_on_everything() -> None:
    lines: list[str] = []

    class Following(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    effects = Effects()
    for _ in range(2):
        effects.when_reported(FaultKind.ZNODE_SPOILED, "/topics: ")
    for following in (Following(), None):
        listener = Listener(effects, following)
        listener.setFormatter(logging.Formatter("said: %(message)s"))
        for level, path in (
            (logging.INFO, "/topics: "),
            (logging.WARNING, "/topics/a: "),
            (logging.ERROR, "/topics: "),
        ):
            listener.handle(logging.makeLogRecord({"levelno": level, "msg": "%s is spoiled", "args": (path,)}))
        assert len(lines) == 3
    assert lines[0] == "said: /topics:  is spoiled"
    assert counts(effects) == [2, 0, 2]
