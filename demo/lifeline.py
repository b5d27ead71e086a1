"""The `barnabas` command, ended at once when the process that started it is gone, however that went.

    python -P demo/lifeline.py pipeline run FILE      (its standard input is a pipe from the parent)

What the pipeline has done is safe at any moment, and Spark's Java process ends with the one that started it.
"""

from __future__ import annotations

import os
import threading

from barnabas.cli.main import main


def _end_with_parent() -> None:
    while os.read(0, 4_096):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    main()
