"""What `barnabas doctor` finds."""

from __future__ import annotations

import enum
from typing import Any

from barnabas.kernel.facts import fact


class State(enum.Enum):
    """How it is; the value is the word in JSON."""

    CRITICAL = "critical"
    """Something does not work."""
    WARNING = "warning"
    """It works, and may not for long, or not for everybody."""
    NOTE = "note"
    """Worth knowing; it is no fault."""
    OK = "ok"


ORDER = tuple(State)
"""The worst first."""


@fact
class Finding:
    """One thing that was looked at: how it is, and what to do."""

    check: str
    """Its name, which does not change."""
    state: State
    what: str
    advice: str = ""

    @property
    def is_problem(self) -> bool:
        return self.state in (State.CRITICAL, State.WARNING)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "check": self.check,
            "state": self.state.value,
            "what": self.what,
            "advice": self.advice or None,
        }
