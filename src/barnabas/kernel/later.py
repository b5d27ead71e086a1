"""Names that a module has of others, which are loaded when somebody first asks for one of them (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attributes_later(names: Mapping[str, Sequence[str]], module: dict[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of the module whose globals are given: it has `names` of these other modules, by whose names
    they stand here. Where types are checked, the module imports them as any other name.
    """
    places = {name: place for place, of_place in names.items() for name in of_place}

    def find(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        found = module[name] = getattr(importlib.import_module(place), name)
        return found

    return find
