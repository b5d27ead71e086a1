"""How many examples Hypothesis tries: few each time, many every night (`BARNABAS_EXAMPLES` times as many)."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "BARNABAS_EXAMPLES"
_FACTOR: Final = int(os.environ.get(VARIABLE) or 1)


def examples(usual: int) -> int:
    """`usual` of them in `make test`."""
    return usual * _FACTOR
