"""`barnabas pipeline` for spark-submit: spark-submit ... "$(barnabas pipeline submit-script)" run FILE --once."""

from __future__ import annotations

import sys

from barnabas.cli.entry import run

if __name__ == "__main__":
    sys.argv[1:1] = ["pipeline"]
    run()
