"""A pytest plugin by which the tests of a project find a broker that runs already, in place of theirs.

It runs in the project's own environment, where nothing of this repository is but this folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

SERVERS = os.environ["BARNABAS_SUITE_BOOTSTRAP"]


def pytest_configure() -> None:
    """Before the modules of the tests make brokers where they are imported."""
    for client in ("kafka", "confluent"):
        importlib.import_module(f"faststream.{client}.fastapi")
        for name, module in list(sys.modules.items()):
            if name.startswith(f"faststream.{client}."):
                _have_default(module)


def pytest_collection_modifyitems() -> None:
    """When the modules of the tests are there, and no fixture has run."""
    for client in ("kafka", "confluent"):
        settings = getattr(sys.modules.get(f"tests.brokers.{client}.conftest"), "Settings", None)
        if settings is not None:
            settings.url = SERVERS


def _have_default(module: ModuleType) -> None:
    """Its classes take a broker on this machine, port 9092, where they are given none."""
    for found in list(vars(module).values()):
        function = vars(found).get("__init__") if isinstance(found, type) else None
        defaults = getattr(function, "__defaults__", None) or ()
        if function is not None and "localhost" in defaults:
            function.__defaults__ = tuple(SERVERS if each == "localhost" else each for each in defaults)
