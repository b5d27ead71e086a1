"""What Spark's exceptions have to say, for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_DETAIL_CHARACTERS_MAX: Final = 400


def spark_message(error: PySparkException) -> str:
    """What Spark has to say, in one sentence: without its plan, its place in the SQL, and SQLSTATE."""
    text = str(error.getMessage() or error)
    text = re.split(r"\n\s*(?:==|'?[A-Z]\w+ |\+-|JVM stacktrace)|;\s*line \d+,? pos", text, maxsplit=1)[0]
    text = re.sub(r"\s*SQLSTATE: \w{5}\.?", "", text)
    text = re.sub(r"\s*\(line \d+, pos \d+\)", "", text)
    text = " ".join(text.split()).rstrip(";. ")
    return text if len(text) <= _DETAIL_CHARACTERS_MAX else text[:_DETAIL_CHARACTERS_MAX] + " ..."
