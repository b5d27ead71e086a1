"""How brokers of tests write that do not say it themselves (`barnabas.log.dir.writes`): on the loop, or, where the
environment asks for it, by the queue of each directory. What a turn of the loop must have done is tested on the loop.
"""

from __future__ import annotations

import os
from typing import Final

WRITES_VARIABLE: Final = "BARNABAS_WRITES"
WRITES: Final = os.environ.get(WRITES_VARIABLE, "loop")
