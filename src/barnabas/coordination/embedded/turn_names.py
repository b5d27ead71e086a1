"""What a turn of the coordinator's loop is named by when it was too long: the request."""

from __future__ import annotations

from barnabas.coordination.embedded.connection import Connection
from barnabas.coordination.protocol import OpCode
from barnabas.kernel.real_turn_watch import Naming


def coordinator_turn_names() -> list[Naming]:
    """For `TurnWatch`."""
    return [Naming(Connection._request, "op_code", _operation)]  # noqa: SLF001


def _operation(op_code: int) -> str:
    try:
        return OpCode(op_code).name
    except ValueError:
        return "unknown request"
