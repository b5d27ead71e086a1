"""Whether pipelines have a Java, which `barnabas doctor` asks before all else: that takes longer than all the rest.

So it loads nothing that could wait, and no asyncio.
"""

from __future__ import annotations

from importlib.util import find_spec

from barnabas.cli.doctor_findings import Finding, State


def check_java() -> list[Finding]:
    """Whether Spark has a Java, where it is installed: pipelines run on it."""
    if find_spec("pyspark") is None:
        what = "pipelines need Spark, which is not installed"
        return [Finding("java", State.NOTE, what, "pip install 'barnabas[spark]' where you want them")]
    from barnabas.pipelines.java import look_for_program

    found = look_for_program()
    if isinstance(found, str):
        what, _, advice = found.partition(". ")
        return [Finding("java", State.WARNING, what, advice)]
    return [Finding("java", State.OK, f"Java {found[1]} for Spark: {found[0]}")]
