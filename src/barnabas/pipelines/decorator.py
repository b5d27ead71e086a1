"""`@pipeline`, which makes a pipeline of a function over DataFrames. Importing it costs nothing, and needs no Spark.

What the decorator is given is read from the file's text (`python_files`): what a pipeline is must be known without
running anything. The function stays what it was, so that it can be called with DataFrames of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

ARGUMENTS_ATTRIBUTE: Final = "__barnabas_pipeline__"
"""Where a decorated function has the arguments of its decorator, by their names."""

Function = TypeVar("Function", bound=Callable[..., Any])
Block = Mapping[str, Any]


def pipeline(
    *,
    sources: Mapping[str, Block],
    sinks: Sequence[Block],
    name: str | None = None,
    steps: Sequence[Block] | None = None,
    trigger: str | None = None,
    state: str | None = None,
    spark: Block | None = None,
    jars: str | Sequence[str] | None = None,
    cluster: Block | None = None,
    registry: Block | None = None,
    revision: str | None = None,
) -> Callable[[Function], Function]:
    """Makes a pipeline of the function below: `barnabas pipeline run FILE.py`.

    The keys are those of a pipeline in YAML (docs/pipelines.md), written out as literals, or as names of literals at
    the top of the file. The parameters of the function are names of `sources`, and of `steps` in SQL, each of which it
    gets as a DataFrame. It returns a DataFrame, which the sinks write; or a dict of several, one of which each sink
    names in `from`. `name` is the function's, unless it is given. As long as `revision` is the same the state goes on
    although the function is another one.
    """
    given = locals()

    def decorated(function: Function) -> Function:
        setattr(function, ARGUMENTS_ATTRIBUTE, {key: value for key, value in given.items() if value is not None})
        return function

    return decorated
