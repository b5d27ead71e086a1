"""Which calls of a query put rows together. sqlglot knows most of Spark's functions over groups, and takes some for
functions of a row: those are named here (all of Spark are looked through by tests/spark/test_pipeline_sql.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqlglot import exp

_NAMES: Final = frozenset(
    "count_min_sketch every histogram_numeric hll_sketch_agg hll_union_agg mean schema_of_variant_agg some std try_avg "
    "try_sum".split()
)


def aggregate_calls(tree: exp.Expr) -> Iterator[Any]:
    """The calls of functions over groups, in the order of the text, each with what belongs to it: FILTER, WITHIN GROUP,
    IGNORE NULLS. Those over windows (OVER) leave rows as they are, and are none.
    """
    from sqlglot import exp

    for call in tree.find_all(exp.AggFunc, exp.Anonymous, exp.Any, bfs=False):
        if not _puts_together(call):
            continue
        whole: Any = call
        while isinstance(whole.parent, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            whole = whole.parent
        if not isinstance(whole.parent, exp.Window):
            yield whole


def _puts_together(call: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(call, exp.Any):
        return call.find(exp.Select) is None  # else it is `= ANY (SELECT ...)`
    return isinstance(call, exp.AggFunc) or call.name.lower() in _NAMES
